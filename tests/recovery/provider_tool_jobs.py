"""What processes do with a reply in which the provider has searched: one dies with it, another goes on with it."""

import asyncio
from typing import Any

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.ports.backend import open_backend
from helix_agents.ports.models import open_model
from helix_agents.ports.provider_tools import WebSearch
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, die

MODULE = __name__

SESSION = "tides"


@tool(effect="once", unknown_outcome="retry")
async def publish(ctx: ToolContext[Any, Any]) -> str:
    """Publish; the process that does so first dies of it."""
    if ctx.attempt == 1:
        die()
    return "published"


def searcher(provider: str) -> AnyAgent:
    model = open_model("anthropic:claude-sonnet-4-6", base_url=provider, api_key="a-key")
    return Agent(name="searcher", model=model, tools=[publish], provider_tools=[WebSearch()])


async def begin(job: Job, url: str, provider: str) -> None:
    """Search, and die before the step is committed."""
    agent = searcher(provider)
    async with Executor.open(url, agents=[agent], janitor_seconds=None) as helix, asyncio.timeout(30):
        await (await helix.execute(agent, "When is high tide?", SESSION)).result()


async def take_up(job: Job, url: str, provider: str) -> Any:
    """Go on with what the other left, and ask once more."""
    agent = searcher(provider)
    async with await open_backend(url, clock=LaterClock(1)) as parts:
        helix = Executor(
            state=parts.state, streams=parts.streams, usage=parts.usage, agents=[agent], janitor_seconds=None
        )
        async with helix, asyncio.timeout(30):
            await helix.sweep()
            handle = await helix.get_handle(agent, SESSION)
            assert handle is not None
            await handle.result()
            return await (await helix.execute(agent, "And low tide?", SESSION)).output()
