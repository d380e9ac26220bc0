"""Scenarios of sessions that get a turn because a capability has news for them."""

from collections.abc import Sequence
from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import RunContext
from helix_agents.agent.tools import Tool, Wakeup
from helix_agents.domain.entries import Put
from helix_agents.domain.messages import UserMessage
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    completed,
    runs_of,
    scripted,
    transcript,
)

NEWS = "The wind has turned."


class Herald:
    """A capability that tells one session something, once."""

    tools: tuple[Tool[..., Any], ...] = ()

    async def news(self, context: RunContext[Any, Any]) -> Sequence[str]:
        return ()

    async def rest(self, context: RunContext[Any, Any]) -> None:
        """Keeps nothing of a run."""

    async def wakeups(self, store: EntryStore, agent: str) -> Sequence[Wakeup]:
        if await store.find("sys.herald", "told") is not None:
            return ()
        told = Put(scope="sys.herald", key="told", value="1", expected_version=0)
        return (Wakeup(session_id=SESSION, texts=(NEWS,), changes=(told,)),)

    async def sweep(self, store: EntryStore, is_over: object) -> None:
        """Keeps nothing that grows old."""


def _agent(herald: Herald) -> AnyAgent:
    return scripted(["Hello.", "I trim the sails."], {}, name="sailor", capabilities=[herald])


class WakingContract(ScenarioContract):
    """News starts a turn, exactly once, whichever process notices first; a store without entries has none to tell."""

    async def test_news_begin_a_turn_of_a_session_that_is_idle(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        sailor = _agent(Herald())
        async with open_executor(agents=[sailor], entries=parts.entries) as helix:
            assert await completed(await helix.execute(sailor, "Ahoy", SESSION)) == "Hello."
            rounds = [await helix.sweep(), await helix.sweep()]
            if parts.entries is None:
                assert [each.woken for each in rounds] == [0, 0]
                return
            assert [each.woken for each in rounds] == [1, 0]
            woken = await helix.get_handle(sailor, SESSION)
            assert woken is not None
            assert await completed(woken) == "I trim the sails."
            told = [each for each in await transcript(helix) if isinstance(each, UserMessage) and each.hidden]
            assert [each.content for each in told] == [NEWS]
            assert [(run.turn, run.status) for run in await runs_of(helix)] == [(1, "completed"), (2, "completed")]
