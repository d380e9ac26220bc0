"""`helix doctor`: says whether this machine and its store are fit to run agents, and what to do if they are not."""

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
    "webhooks": "httpx2",
    "vault": "tink",
    "mcp": "mcp",
    "tracing": "opentelemetry",
    "vectors": "sqlite_vec",
    "cron": "cronsim",
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google.genai",
    "bedrock": "boto3",
    "groq": "groq",
    "mistral": "mistralai",
    "testing": "hypothesis",
}

OUR_BACKENDS = "helix_agents.backends."
VAULT_VARIABLES = ("HELIX_VAULT", "HELIX_VAULT_PASSPHRASE")

# Leases and deadlines are measured on the store's clock; a machine this far off reads its own logs wrongly.
MOST_SKEW_MS = 5_000

# The log beside a SQLite file takes up to 16 MB before it is folded into the file, which may need as much again.
LEAST_FREE_MB = 32

# A worker takes a run from its queue at once; a run without a step for so long may be in a queue that none serves.
LONGEST_WAIT_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str
    detail: str
    exit_code: ExitCode = ExitCode.OK
    is_absent: bool = False

    def __str__(self) -> str:
        fine = "--  " if self.is_absent else "ok  "
        return f"{fine if self.exit_code is ExitCode.OK else 'FAIL'}  {self.subject}: {self.detail}"


@click.command()
@store_option
@json_option
@click.pass_obj
def command(output: Output, store_url: str) -> ExitCode:
    """Check the installation and the store; leaves nothing changed.

    Looks at versions, extras, the store's schema, clock and limits, at anything stuck in it, and at whether it has room
    and accepts a write. An extra that is not installed is a fault only if the store or the environment needs it. The
    exit code is that of the worst finding.
    """
    findings: list[Finding] = []
    for finding in (*look_at_installation(store_url), *asyncio.run(look_at_store(store_url))):
        findings.append(finding)
        output.say(str(finding))
    output.answer({"findings": [asdict(finding) for finding in findings]})
    return max(finding.exit_code for finding in findings)


def look_at_installation(store_url: str) -> Iterator[Finding]:
    """What is installed here, and how to install what is not; parts that the configuration needs must be installed."""
    yield Finding(subject="python", detail=f"{platform.python_version()} on {platform.system()}")
    for distribution in ("helix-agents", "apsw", "msgspec", "pydantic"):
        yield Finding(subject=distribution, detail=version(distribution))
    schemes = sorted(entry_points(group="helix_agents.backends").names)
    yield Finding(subject="stores", detail=", ".join(f"{scheme}://" for scheme in schemes))
    models = sorted(entry_points(group="helix_agents.models").names)
    yield Finding(subject="models", detail=", ".join(f"{prefix}:" for prefix in models))
    needed = _needed_extras(store_url)
    for extra, module in EXTRAS.items():
        if _is_installed(module):
            yield Finding(subject=f"extra {extra}", detail="installed")
        elif extra in needed:
            detail = f"not installed, but {needed[extra]} needs it: pip install 'helix-agents[{extra}]'"
            yield Finding(subject=f"extra {extra}", detail=detail, exit_code=ExitCode.SETUP, is_absent=True)
        else:
            detail = f"not installed (pip install 'helix-agents[{extra}]')"
            yield Finding(subject=f"extra {extra}", detail=detail, is_absent=True)


def _needed_extras(store_url: str) -> dict[str, str]:
    """Extras that the current configuration cannot do without, and what needs each of them."""
    scheme = store_url.partition("://")[0]
    # Each of our backends is one folder and, if it needs a driver, one extra of the same name.
    modules = (each.module for each in entry_points(group="helix_agents.backends", name=scheme))
    ours = (module.removeprefix(OUR_BACKENDS) for module in modules if module.startswith(OUR_BACKENDS))
    needed = dict.fromkeys(ours, f"a store at {scheme}://")
    if variable := next((name for name in VAULT_VARIABLES if os.environ.get(name)), None):
        needed["vault"] = f"the vault that {variable} is set for"
    return needed


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

    # The check must not create anything; the default store is created by its first use.
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
                f"{url} does not exist yet, and this process may not create it in this folder. Name a store with "
                "--store URL or HELIX_STORE, or work in a folder that you may write to."
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
        detail=f"{detail}, which needs {LEAST_FREE_MB} MB to work: free some space" if is_full else detail,
        exit_code=ExitCode.SERVICE if is_full else ExitCode.OK,
    )


async def look_for_leftovers(backend: "Backend") -> list[Finding]:
    """Files beside the store that were left by processes which died during a backup; they only take up room."""
    from helix_agents.capabilities.leftovers import find_leftovers
    from helix_agents.capabilities.settings import StateSettings
    from helix_agents.cli.plain import shown_count

    if backend.entries is None or backend.entries.home is None:
        return []
    found = await find_leftovers(backend.entries, StateSettings())
    if not found:
        return []
    size = sum(each.size_bytes for each in found) / 1_000_000
    detail = f"{shown_count(len(found), 'file')} ({size:,.1f} MB) left over: `helix backup leftovers` lists them"
    return [Finding(subject="backups and snapshots", detail=detail)]


def look_for_room(backend: "Backend") -> Iterator[Finding]:
    """The free room on a disk of this machine; the disk of a database server is not visible from here."""
    from helix_agents.backends.sqlite import SQLiteStateStore

    if isinstance(backend.state, SQLiteStateStore):
        yield look_at_disk(backend.state.database.path.parent)


async def try_to_write(backend: "Backend") -> Finding:
    """Whether the store accepts a write: a store that is full or read-only can still be read.

    Raises:
        StoreError: it does not, for the reason given.
    """
    from helix_agents.system import RandomIds

    # The lease of a process that drives nothing: written like any other, and removed without a trace.
    nobody = RandomIds().new("doctor")
    await backend.state.renew_lease(nobody, 1_000)
    await backend.state.release_lease(nobody)
    return Finding(subject="store writes", detail="accepted")


def look_at_settings(backend: "Backend") -> Iterator[Finding]:
    """The store's clock compared with this machine's, and the largest values that the store accepts."""
    ahead = backend.state.now_ms() - time.time_ns() // 1_000_000
    skewed = abs(ahead) > MOST_SKEW_MS
    side = "ahead of" if ahead > 0 else "behind"
    detail = f"{abs(ahead)} ms {side} this machine" if ahead else "the same as this machine's"
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
    """Sessions that wait for a person, and runs that no process drives; neither is a fault."""
    from helix_agents.cli.plain import shown_count
    from helix_agents.domain.pending import PendingFilter

    sessions = await backend.state.list_sessions(limit=1)
    waiting = await backend.state.list_pending(PendingFilter(), limit=1)
    overdue = await backend.state.find_expired_pending(limit=200)
    unowned = await backend.state.list_orphans(limit=200)
    # DBOS and Temporal look after runs that have no lease.
    engines = [run for run in unowned if run.owner is None and run.workflow_id is not None]
    orphans = len(unowned) - len(engines)
    detail = f"{shown_count(sessions.total, 'session')}, {shown_count(waiting.total, 'call')} waiting for an answer"
    if overdue or orphans:
        detail += (
            f"; {shown_count(len(overdue), 'call')} past the deadline, {shown_count(orphans, 'run')} without a "
            "process: helix janitor MODULE:AGENTS takes care of both"
        )
    if engines:
        detail += f"; {shown_count(len(engines), 'run')} with a durable engine"
        latest = backend.state.now_ms() - LONGEST_WAIT_MS
        if late := [run for run in engines if run.step_count == 0 and run.started_at < latest]:
            name = late[0].workflow_id
            detail += (
                f", {len(late)} of them still at the first step, such as {name}: is there a helix worker with this "
                "store that serves their queue?"
            )
    return Finding(subject="store contents", detail=detail)
