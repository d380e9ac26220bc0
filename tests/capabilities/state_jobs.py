"""What the processes do that the tests of capabilities start and kill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helix_agents import Agent, AnyAgent, Executor, ScriptedModel
from helix_agents.capabilities.client import StateClient, open_state
from helix_agents.capabilities.settings import Limits, StateSettings
from helix_agents.capabilities.toolset import state_capabilities
from helix_agents.capabilities.vault import Vault
from helix_agents.capabilities.watching import ResyncRequired, SharedChange
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON
from helix_agents.llm.scripted import Step, call
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.testing.seams import KillingSeam
from helix_agents.testing.workers import Job
from tests.capabilities.worlds import CHEAP, PASSPHRASE

MODULE = __name__


async def count_up(job: Job, url: str, times: int, die_after: int = 0) -> None:
    """Add to one shared counter through the capabilities, reporting every answer."""
    seam = KillingSeam()
    async with open_state(url, agent="counter", seam=seam) as state:
        job.wait_for_the_others()
        if die_after:
            seam.arm(after=die_after)
        for number in range(times):
            await state.shared.apply("counter", lambda value: (value or 0) + 1)
            job.report(number + 1)


async def write_changes(job: Job, url: str, who: str, times: int, die_after: int = 0) -> None:
    """Write shared keys, each once."""
    seam = KillingSeam()
    async with open_state(url, agent=who, seam=seam) as state:
        job.wait_for_the_others()
        if die_after:
            seam.arm(after=die_after)
        for number in range(times):
            found = await state.shared.get(f"{who}.{number % 50}")
            await state.shared.set(f"{who}.{number % 50}", number, expected_version=found.version)


async def follow(job: Job, url: str, subscription: str, until: int, die_after: int = 0) -> JSON:
    """Read a cursor, reporting every revision that was read, up to the one that says that this is all."""
    seam = KillingSeam()
    async with open_state(url, agent="reader", seam=seam) as state:
        job.wait_for_the_others()
        if die_after:
            seam.arm(after=die_after)
        async with asyncio.timeout(60):
            async for event in state.shared.resume_watch(subscription):
                if isinstance(event, SharedChange):
                    job.report([event.revision, event.key])
                    if event.key == "end":
                        return "end"
                elif isinstance(event, ResyncRequired):
                    return "resync"
    return until


def watcher() -> AnyAgent:
    """An agent that watches everything, and has nothing to say about it."""

    def answer(request: ModelRequest) -> Step:
        if isinstance(request.messages[-1], UserMessage) and not request.messages[-1].hidden:
            return call("state__shared__watch", {})
        return "heard"

    limits = Limits(wakes_per_hour=10_000)
    return Agent(name="ann", model=ScriptedModel(answer), capabilities=[state_capabilities(limits=limits)])


async def wake(job: Job, url: str, die_after: int) -> JSON:
    """Wake whoever has news and drive what it begins, dying at a statement."""
    seam = KillingSeam()
    async with await open_backend(url, seam=seam) as parts:
        given: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        options: dict[str, Any] = {"janitor_seconds": None, "lease_ms": 300, "entries": parts.entries}
        async with Executor(**given, agents=[watcher()], **options) as helix:
            job.wait_for_the_others()
            if die_after:
                seam.arm(after=die_after)
            await helix.sweep()
            await helix.idle()
            if not die_after:
                # What the dead left is theirs until their lease is over.
                while [run for run in (await parts.state.list_runs("s-1")).items if run.status == "running"]:
                    await helix.sweep()
                    await helix.idle()
                    await asyncio.sleep(0.05)
                await helix.sweep()
                await helix.idle()
    return "done"


async def restore(job: Job, folder: str, backup_id: str, die_after: int) -> JSON:
    """Restore a backup, dying at a statement; answers whether it came to an end."""
    seam = KillingSeam()
    async with _operator(folder, seam) as state:
        seam.arm(after=die_after)
        await state.call("state.backup.restore", backup_id=backup_id)
        return "restored"


async def approve(job: Job, folder: str, approval_id: str, die_after: int) -> JSON:
    """Approve a request and run it, dying at a statement."""
    from helix_agents.capabilities.approvals import decide_approval

    seam = KillingSeam()
    async with _operator(folder, seam) as state:
        seam.arm(after=die_after)
        row = await decide_approval(state.gateway, approval_id, approved=True, by="ada")
        return row.status


@asynccontextmanager
async def _operator(folder: str, seam: KillingSeam) -> AsyncIterator[StateClient]:
    home = Path(folder)
    vault = Vault(home / "vault.json", cost=CHEAP)
    await vault.unlock(PASSPHRASE)
    settings = StateSettings(directory=home / "files", vault=vault, export_roots=(home / "out",))
    url = f"sqlite:///{home}/helix.db"
    async with open_state(url, agent="ann", face="operator", settings=settings, seam=seam) as state:
        yield state
