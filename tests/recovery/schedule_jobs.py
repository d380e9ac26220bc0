"""What processes do with schedules: some die right after a turn was started, others go on."""

import asyncio
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.domain.schedules import Schedule
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import die

MODULE = __name__

TIMES = 3
CLERK = Agent(name="clerk", model=ScriptedModel(lambda _: "Yes."))


async def start_and_die(job: Job, url: str) -> None:
    """Start what is due, and die before the schedule is moved on to its next time."""
    async with await open_backend(url) as parts, _executor(parts) as helix:

        async def instead(schedule: Schedule, *, replaces: str | None = None) -> Schedule:
            die()
            return schedule

        parts.state.save_schedule = instead  # pyright: ignore[reportAttributeAccessIssue]
        await helix.sweep()


async def keep_time(job: Job, url: str) -> None:
    """Start what is due, with others, until the schedule has had all its times."""
    async with await open_backend(url) as parts, _executor(parts, janitor_seconds=0.5) as helix, asyncio.timeout(60):
        while (schedule := await helix.schedules.find("beat")) is None or schedule.times < TIMES:  # noqa: ASYNC110  # what another process does sets no event here
            await asyncio.sleep(0.05)
        await helix.schedules.pause("beat")
        await helix.idle()


def _executor(parts: Any, janitor_seconds: float | None = None) -> Executor:
    return Executor(
        state=parts.state, streams=parts.streams, usage=parts.usage, agents=[CLERK], janitor_seconds=janitor_seconds
    )
