"""What the janitors in a proof work on, and the janitor process that is killed in the middle of its round."""

import asyncio
from typing import Any

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON
from helix_agents.llm.scripted import ScriptedModel, Step, call, reply
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent, ModelRequest
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.seams import KillingSeam
from helix_agents.testing.workers import Job

MODULE = __name__

CALLS_AT_ONCE = 100
DEADLINE_SECONDS = 60
LEASE_MS = 60_000


@client_tool(deadline=DEADLINE_SECONDS)
def locate(number: int) -> str:
    """Where the client is."""
    raise NotImplementedError


def guest(pace: Any = None) -> AnyAgent:
    """An agent that asks its client many things at once, or works on something, as its user says."""

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    def answer(request: ModelRequest) -> Step:
        last = request.messages[-1]
        match last.content if isinstance(last, UserMessage) else None:
            case "Ask":
                return reply(calls=[call("locate", {"number": number}) for number in range(CALLS_AT_ONCE)])
            case "Work":
                return call("work")
            case _:
                return "Done."

    return Agent(name="guest", model=ScriptedModel(answer, pace=pace), tools=[locate, work])


async def sweep_until_killed(job: Job, url: str, now_ms: int, after: int) -> JSON:
    """Be a janitor, and die at the n-th statement of the round."""
    seam = KillingSeam()
    async with await open_backend(url, clock=ManualClock(now_ms), seam=seam) as backend:
        parts: dict[str, Any] = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        async with Executor(**parts, agents=[guest()], janitor_seconds=None, lease_ms=LEASE_MS) as janitor:
            job.report("begun")
            seam.arm(after=after)
            while True:
                await janitor.sweep()


class Holding:
    """Holds every reply from the start, so that a process can die with many running runs."""

    async def __call__(self, _: ModelEvent) -> None:
        await asyncio.Event().wait()
