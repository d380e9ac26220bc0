"""`helix doctor`: says whether this machine and its store are fit to run agents, and what to do where not."""

import asyncio
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from helix_agents.cli.exit_codes import ExitCode, exit_code_for
from helix_agents.cli.here import is_folder_gone
from helix_agents.cli.options import json_option, store_option
from helix_agents.cli.output import Output
from helix_agents.domain.urls import shown_url

if TYPE_CHECKING:
    from helix_agents.ports.backend import Backend

EXTRAS = {
    "postgres": "asyncpg",
    "redis": "redis",
    "dbos": "dbos",
    "temporal": "temporalio",
    "server": "starlette",
    "remote": "httpx2",
    "vault": "tink",
    "mcp": "mcp",
    "tracing": "opentelemetry",
    "vectors": "sqlite_vec",
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google.genai",
    "testing": "hypothesis",
}

# Leases and deadlines are measured on the store's clock; a machine this far off reads its own logs wrongly.
MOST_SKEW_MS = 5_000

# The log beside a SQLite file takes up to 16 MB before it is folded into the file, which may need as much again.
LEAST_FREE_MB = 32

# A worker takes a run from its queue at once; one that has done no step for so long may be in a queue nobody knows.
LONGEST_WAIT_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    detail: str
    exit_code: ExitCode = ExitCode.OK

    def __str__(self) -> str:
        return f"{'ok  ' if self.exit_code is ExitCode.OK else 'FAIL'}  {self.subject}: {self.detail}"


@click.command()
@store_option
@json_option
@click.pass_obj
def command(output: Output, store_url: str) -> ExitCode:
    """Check the installation and the store; leaves nothing changed.

    Looks at versions, extras, the store's schema, clock and limits, at what is stuck there, and at whether it has room
    and takes a write. The exit code is that of the worst finding.
    """
    findings: list[Finding] = []
    for finding in (*look_at_installation(), *asyncio.run(look_at_store(store_url))):
        findings.append(finding)
        output.say(str(finding))
    output.answer({"findings": [asdict(finding) for finding in findings]})
    return max(finding.exit_code for finding in findings)


def look_at_installation() -> Iterator[Finding]:
    """What is installed here, and what each part that is not would need."""
    yield Finding(subject="python", detail=f"{platform.python_version()} on {platform.system()}")
    for distribution in ("helix-agents", "apsw", "msgspec", "pydantic"):
        yield Finding(subject=distribution, detail=version(distribution))
    schemes = sorted(entry_points(group="helix_agents.backends").names)
    yield Finding(subject="stores", detail=", ".join(f"{scheme}://" for scheme in schemes))
    models = sorted(entry_points(group="helix_agents.models").names)
    yield Finding(subject="models", detail=", ".join(f"{prefix}:" for prefix in models))
    for extra, module in EXTRAS.items():
        cure = f"not installed (pip install 'helix-agents[{extra}]')"
        yield Finding(subject=f"extra {extra}", detail="installed" if _is_installed(module) else cure)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around a nested module is missing too.
        return False


async def look_at_store(url: str) -> list[Finding]:
    """Whether the store opens, how it is set up, and what is stuck there."""
    from helix_agents.cli.stored import is_missing_default
    from helix_agents.domain.errors import HelixError
    from helix_agents.ports.backend import open_backend

    # Looking must not create anything, and the default store is created by whoever uses it first.
    if await is_missing_default(url):
        return [await asyncio.to_thread(look_at_folder, url)]
    findings: list[Finding] = []
    try:
        async with await open_backend(url, migrate="check") as backend:
            schema = await backend.state.migration_version()
            findings.append(Finding(subject="store", detail=f"{shown_url(url)} opens, schema version {schema}"))
            findings.extend(look_at_settings(backend))
            findings.append(await look_for_stuck(backend))
            findings.extend(await look_for_leftovers(backend))
            findings.extend(await asyncio.to_thread(list, look_for_room(backend)))
            findings.append(await try_to_write(backend))
    except HelixError as error:
        findings.append(Finding(subject="store", detail=str(error), exit_code=exit_code_for(error)))
    return findings


def look_at_folder(url: str) -> Finding:
    """Whether the first use can create the default store in this folder."""
    if not os.access(".", os.W_OK | os.X_OK) or is_folder_gone():
        return Finding(
            subject="store",
            detail=(
                f"{url} does not exist yet, and this process may not make it in this folder. Name a store with "
                "--store URL or HELIX_STORE, or work in a folder you may write to."
            ),
            exit_code=ExitCode.SERVICE,
        )
    disk = look_at_disk(Path())
    if disk.exit_code is not ExitCode.OK:
        return disk
    return Finding(subject="store", detail=f"{url} does not exist yet; it is created on first use")


def look_at_disk(folder: Path) -> Finding:
    """Whether a SQLite file in this folder has room to grow."""
    free = shutil.disk_usage(folder).free / 1_000_000
    is_full = free < LEAST_FREE_MB
    detail = f"{free:,.0f} MB free beside the store"
    return Finding(
        subject="disk",
        detail=f"{detail}, which needs {LEAST_FREE_MB} MB to work in: free some space" if is_full else detail,
        exit_code=ExitCode.SERVICE if is_full else ExitCode.OK,
    )


async def look_for_leftovers(backend: "Backend") -> list[Finding]:
    """Files beside the store that processes left which died while they made a backup; they only take room."""
    from helix_agents.capabilities.leftovers import find_leftovers
    from helix_agents.capabilities.settings import StateSettings
    from helix_agents.cli.plain import shown_count

    if backend.entries is None or backend.entries.home is None:
        return []
    found = await find_leftovers(backend.entries, StateSettings())
    if not found:
        return []
    size = sum(each.size_bytes for each in found) / 1_000_000
    detail = (
        f"{shown_count(len(found), 'file')} ({size:,.1f} MB) that nobody knows: `helix backup leftovers` lists them"
    )
    return [Finding(subject="backups and snapshots", detail=detail)]


def look_for_room(backend: "Backend") -> Iterator[Finding]:
    """The room there is on a disk of this machine; a server's own is not seen from here."""
    from helix_agents.backends.sqlite import SQLiteStateStore

    if isinstance(backend.state, SQLiteStateStore):
        yield look_at_disk(backend.state.database.path.parent)


async def try_to_write(backend: "Backend") -> Finding:
    """Whether the store takes a write: one that is full, or read-only, can be read all the same.

    Raises:
        StoreError: it does not; says why.
    """
    from helix_agents.system import RandomIds

    # The lease of a process that drives nothing: kept like any other, and nothing is left of it.
    nobody = RandomIds().new("doctor")
    await backend.state.renew_lease(nobody, 1_000)
    await backend.state.release_lease(nobody)
    return Finding(subject="store writes", detail="taken")


def look_at_settings(backend: "Backend") -> Iterator[Finding]:
    """The store's clock against this machine's, and the largest things it takes."""
    ahead = backend.state.now_ms() - time.time_ns() // 1_000_000
    skewed = abs(ahead) > MOST_SKEW_MS
    side = "ahead of" if ahead > 0 else "behind"
    detail = f"{abs(ahead)} ms {side} this machine" if ahead else "that of this machine"
    yield Finding(
        subject="store clock",
        detail=f"{detail}; set this machine's clock" if skewed else detail,
        exit_code=ExitCode.SERVICE if skewed else ExitCode.OK,
    )
    for part, limits in (("store limits", backend.state.limits), ("stream limits", backend.streams.limits)):
        bounds = {name: getattr(limits, name) for name in limits.__struct_fields__}
        detail = ", ".join(f"{name} {value:,}" for name, value in bounds.items() if value is not None)
        yield Finding(subject=part, detail=detail or "none")


async def look_for_stuck(backend: "Backend") -> Finding:
    """Sessions that need somebody, and runs that no process drives; none of it is wrong."""
    from helix_agents.cli.plain import shown_count
    from helix_agents.domain.pending import PendingFilter

    sessions = await backend.state.list_sessions(limit=1)
    waiting = await backend.state.list_pending(PendingFilter(), limit=1)
    overdue = await backend.state.find_expired_pending(limit=200)
    unowned = await backend.state.list_orphans(limit=200)
    # DBOS and Temporal look after runs that carry nobody's lease.
    engines = [run for run in unowned if run.owner is None and run.workflow_id is not None]
    orphans = len(unowned) - len(engines)
    detail = f"{shown_count(sessions.total, 'session')}, {shown_count(waiting.total, 'call')} waiting for somebody"
    if overdue or orphans:
        detail += (
            f"; {shown_count(len(overdue), 'call')} past the deadline, {shown_count(orphans, 'run')} without a "
            "process: helix janitor MODULE:AGENTS sees to both"
        )
    if engines:
        detail += f"; {shown_count(len(engines), 'run')} with a durable engine"
        latest = backend.state.now_ms() - LONGEST_WAIT_MS
        if late := [run for run in engines if run.step_count == 0 and run.started_at < latest]:
            name = late[0].workflow_id
            detail += (
                f", {len(late)} of them still at the first step, as {name}: does a helix worker with this store have "
                "their queue?"
            )
    return Finding(subject="store contents", detail=detail)
