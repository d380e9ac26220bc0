"""How long a child may take is counted from its beginning, whoever drives it."""

import asyncio

from helix_agents import Agent, Executor, sub_agent_tool
from helix_agents.domain.messages import ToolMessage
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import StopAt
from tests.recovery.deaths import die_at, settings_on

SESSION = "s-1"


async def _never(_: ModelEvent) -> None:
    await asyncio.Event().wait()


async def test_a_child_that_another_process_takes_over_has_the_time_that_is_left():
    slow = Agent(name="slow", description="Thinks.", model=ScriptedModel(["Never."], pace=_never))
    asks = call("subagent__slow", {"message": "Think."}, id="c")
    agent = Agent(name="boss", model=ScriptedModel([asks, "Fine."]), tools=[sub_agent_tool(slow, timeout=60)])
    clock = ManualClock()
    async with asyncio.timeout(20), await open_backend("memory://child-timeouts", clock=clock) as parts:
        await die_at(StopAt(kind="open", effect=2, side="after"), parts, agent, SESSION)
        clock.advance(60_000)
        async with Executor(**settings_on(parts, agent)) as second:
            await second.recover()
            again = await second.get_handle(agent, SESSION)
            assert again is not None
            assert await again.output() == "Fine."
            found = [each.message for each in (await second.sessions.messages(SESSION)).items]
    (told,) = [each for each in found if isinstance(each, ToolMessage)]
    assert told.code == "sub_agent_timeout"
