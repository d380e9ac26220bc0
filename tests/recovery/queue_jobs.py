"""What processes do with messages that wait: one leaves some and dies, others begin what it left."""

import asyncio
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.messages import UserMessage
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, die

MODULE = __name__

SESSION = "queue"
MESSAGES = ("One", "Two", "Three", "Four")


@tool
async def look_up(ctx: ToolContext[Any, Any]) -> str:
    """Look something up; whoever has reason to wait does not come back from it."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return "found"


def _answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    return call("look_up") if isinstance(last, UserMessage) and last.content == MESSAGES[0] else "Yes."


CLERK = Agent(name="clerk", model=ScriptedModel(_answer), tools=[look_up])


async def leave(job: Job, url: str) -> None:
    """Begin a turn, have others wait behind it, and die in the middle of it."""
    async with Executor.open(url, agents=[CLERK], janitor_seconds=None) as helix:
        await helix.execute(CLERK, MESSAGES[0], SESSION)
        for text in MESSAGES[1:]:
            await helix.execute(CLERK, text, SESSION, idempotency_key=text, if_running="enqueue")
        die()


async def take_up(job: Job, url: str) -> list[str]:
    """Go on with whatever others left, until nothing waits; answers the runs that ended here."""
    async with await open_backend(url, clock=LaterClock(1)) as parts:
        helix = Executor(
            state=parts.state, streams=parts.streams, usage=parts.usage, agents=[CLERK], janitor_seconds=None
        )
        async with helix, asyncio.timeout(30):
            while True:
                await helix.sweep()
                runs = (await helix.sessions.runs(SESSION)).items
                if len(runs) == len(MESSAGES) and all(run.status == "completed" for run in runs):
                    return [run.run_id for run in runs]
                await asyncio.sleep(0.01)
