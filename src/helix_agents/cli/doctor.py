"""`helix doctor`: says whether this machine and its store are fit to run agents, and what to do where not."""

import asyncio
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

import click

from helix_agents.cli.exit_codes import ExitCode, exit_code_for
from helix_agents.cli.options import DEFAULT_STORE, DEFAULT_STORE_FILE, json_option, store_option
from helix_agents.cli.output import Output

EXTRAS = {
    "postgres": "asyncpg",
    "redis": "redis",
    "dbos": "dbos",
    "temporal": "temporalio",
    "server": "starlette",
    "vault": "tink",
    "mcp": "mcp",
}


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
    """Check the installation and the store."""
    findings: list[Finding] = []
    for finding in (*look_at_installation(), asyncio.run(look_at_store(store_url))):
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
    for extra, module in EXTRAS.items():
        cure = f"not installed (pip install 'helix-agents[{extra}]')"
        yield Finding(subject=f"extra {extra}", detail="installed" if find_spec(module) else cure)


async def look_at_store(url: str) -> Finding:
    """Whether the store opens, and the schema it has."""
    from helix_agents.domain.errors import HelixError
    from helix_agents.ports.backend import open_backend

    # Looking must not create anything, and the default store is created by whoever uses it first.
    if url == DEFAULT_STORE and not await asyncio.to_thread(Path(DEFAULT_STORE_FILE).exists):
        return Finding(subject="store", detail=f"{url} does not exist yet; it is created on first use")
    try:
        async with await open_backend(url, migrate="check") as backend:
            schema = await backend.state.migration_version()
    except HelixError as error:
        return Finding(subject="store", detail=str(error), exit_code=exit_code_for(error))
    return Finding(subject="store", detail=f"{url} opens, schema version {schema}")
