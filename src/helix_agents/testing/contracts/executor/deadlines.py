"""Scenarios of answers that come late or never."""

from typing import Any, Literal

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import DefaultAnswer, client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import RunContext
from helix_agents.agent.hook_events import AfterToolEvent, MessageEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.chunks import ToolError
from helix_agents.domain.errors import StillWaitingError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import AnswerAccepted, AnswerLate, ApprovalAnswer, ToolAnswer
from helix_agents.llm.scripted import call, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import send, spawn
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    scripted,
    spoken,
    suspended,
    transcript,
)

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


@client_tool(deadline=3600)
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="clerk", tools=[locate])


LOCATING = (call("locate", {"city": "Rome"}), "Without, then.", "Thanks anyway.", "Again.")


class _Told(Hooks[Any, Any]):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_message(self, ctx: RunContext[Any, Any], event: MessageEvent) -> None:
        if isinstance(event.message, ToolMessage):
            self.heard.append(f"on_message {event.message.code}")

    def after_tool(self, ctx: RunContext[Any, Any], event: AfterToolEvent) -> None:
        self.heard.append(f"after_tool {event.code}")


class DeadlinesContract(ScenarioContract):
    """Nothing waits forever unless it was told to, and a late answer is never lost silently."""

    async def test_a_call_nobody_answers_times_out_on_the_clock_of_the_store(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        clock.advance(HOUR_MS - 1)
        with pytest.raises(StillWaitingError):
            await helix.resume(_agent(*LOCATING), SESSION)
        clock.advance(1)
        told = _Told()
        async with open_executor() as other:
            handle = await other.resume(_agent(*LOCATING, hooks=told), SESSION)
            errors = [chunk for chunk in await chunks_of(handle) if isinstance(chunk, ToolError)]
            assert await completed(handle) == "Without, then."
            assert [error.code for error in errors] == ["client_tool_timeout"]
            assert (await spoken(other))[2] == "error locate#call_1_1: client_tool_timeout"
            sources = (await handle.usage()).sources
            assert [each.failures for each in sources if each.source_name == "locate"] == [1]
        assert told.heard == ["on_message client_tool_timeout", "after_tool client_tool_timeout"]

    @pytest.mark.parametrize("level", ["tool", "agent", "executor"])
    async def test_the_deadline_comes_from_the_nearest_level_that_says_one(
        self, open_executor: OpenExecutor, level: Literal["tool", "agent", "executor"], clock: ManualClock
    ) -> None:
        @client_tool(deadline=3600 if level == "tool" else "inherit")
        def fetch() -> str:
            """Fetch."""
            raise NotImplementedError

        deadline = 7200 if level in ("tool", "agent") else "inherit"
        agent = _agent(call("fetch"), "Done.", tools=[fetch], pending_deadline=deadline)
        async with open_executor() as helix:
            result = await suspended(await helix.execute(agent, "Go", SESSION))
        after = {"tool": HOUR_MS, "agent": 2 * HOUR_MS, "executor": 7 * DAY_MS}[level]
        assert result.pending[0].deadline == clock.now_ms() + after

    async def test_a_call_without_a_deadline_waits_for_ever(self, helix: Executor, clock: ManualClock) -> None:
        @client_tool(deadline=None)
        def fetch() -> str:
            """Fetch."""
            raise NotImplementedError

        agent = _agent(call("fetch"), "Done.", tools=[fetch])
        await suspended(await helix.execute(agent, "Go", SESSION))
        clock.advance(1_000 * DAY_MS)
        with pytest.raises(StillWaitingError):
            await helix.resume(agent, SESSION)

    async def test_an_approval_may_count_as_denied_after_its_deadline(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        @tool(require_approval=True, deadline=60, on_deadline="deny")
        async def pay() -> str:
            """Pay."""
            raise AssertionError("nobody approved")

        agent = _agent(call("pay"), "Not paid.", tools=[pay])
        await suspended(await helix.execute(agent, "Go", SESSION))
        clock.advance(60_000)
        assert await completed(await helix.resume(agent, SESSION)) == "Not paid."
        assert (await spoken(helix))[2] == "error pay#call_1_1: not_approved"

    async def test_a_client_tool_may_take_a_default_after_its_deadline(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        @client_tool(deadline=60, on_deadline=DefaultAnswer("somewhere"))
        def find() -> str:
            """Find."""
            raise NotImplementedError

        agent = _agent(call("find"), "Fine.", tools=[find])
        await suspended(await helix.execute(agent, "Go", SESSION))
        clock.advance(60_000)
        assert await completed(await helix.resume(agent, SESSION)) == "Fine."
        assert (await spoken(helix))[2] == "result find#call_1_1: somewhere"

    async def test_a_late_answer_replaces_a_timeout_that_no_run_has_consumed(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        clock.advance(2 * HOUR_MS)
        assert (await helix.sweep()).expired_calls == 1
        late = await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="Rome"))
        assert isinstance(late, AnswerAccepted)
        await completed(await helix.resume(_agent(*LOCATING), SESSION))
        assert (await spoken(helix))[2] == "result locate#call_1_1: Rome"

    async def test_an_answer_after_the_timeout_was_consumed_is_recorded_once_and_told_once(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        clock.advance(2 * HOUR_MS)
        await completed(await helix.resume(_agent(*LOCATING), SESSION))
        first = await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="Rome, sorry"))
        assert isinstance(first, AnswerLate)
        assert first.recorded
        second = await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="or Pisa"))
        assert isinstance(second, AnswerLate)
        assert not second.recorded
        async with open_executor() as other:
            await completed(await other.execute(_agent(*LOCATING), "And now?", SESSION))
            await completed(await other.execute(_agent(*LOCATING), "Still?", SESSION))
            said = await spoken(other)
            assert said.count("hidden: late_answer") == 1
            assert said.index("hidden: late_answer") < said.index("assistant: Thanks anyway.")
            notice = next(each for each in await transcript(other) if getattr(each, "hidden", False))
            assert getattr(notice, "content", "").endswith("call_1_1 of locate has come: Rome, sorry")

    async def test_a_late_answer_is_told_again_to_who_goes_back_to_before_it_was_told(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent = _agent(*LOCATING)
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(2 * HOUR_MS)
        await completed(await helix.resume(agent, SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="Rome, sorry"))
        await completed(await helix.execute(agent, "And now?", SESSION))
        points = [each.checkpoint_id for each in (await helix.sessions.checkpoints(SESSION)).items][::-1]
        asked, timed_out, without, told = points
        for point, notices in ((timed_out, 1), (without, 1), (told, 1), (asked, 0), (without, 1), (BEGINNING, 0)):
            await helix.rewind(SESSION, point)
            await completed(await helix.execute(_agent(*["Well."] * 6), "Go on", SESSION))
            assert (await spoken(helix)).count("hidden: late_answer") == notices

    async def test_a_late_answer_is_not_told_of_a_call_that_is_called_the_same_after_a_rewind(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        @tool
        async def look() -> str:
            """Look."""
            return "Rome"

        agent = _agent(*LOCATING)
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(2 * HOUR_MS)
        await completed(await helix.resume(agent, SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="Rome, sorry"))
        await helix.rewind(SESSION, BEGINNING)
        again = _agent(call("look"), "There.", "Well.", tools=[look])
        for text in ("Where?", "And now?"):
            await completed(await helix.execute(again, text, SESSION))
        assert (await spoken(helix))[2] == "result look#call_1_1: Rome"
        assert "hidden: late_answer" not in await spoken(helix)

    async def test_a_companion_is_told_of_an_answer_that_came_too_late_when_it_is_spoken_to(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        helper = _agent(*LOCATING, name="helper")
        script = [spawn("helper", name="eve"), "Without her, then.", send("eve", "And now?"), "Told."]
        agent = _agent(*script, persistent_agents=[PersistentAgent(helper)])
        await suspended(await helix.execute(agent, "Where?", SESSION))
        (asked,) = (await helix.list_pending()).items
        clock.advance(2 * HOUR_MS)
        await completed(await helix.resume(agent, SESSION))
        late = await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Rome, sorry"))
        assert isinstance(late, AnswerLate)
        assert await completed(await helix.execute(agent, "Ask her again", SESSION)) == "Told."
        assert (await spoken(helix, asked.session_id))[-3:] == [
            "user: And now?",
            "hidden: late_answer",
            "assistant: Thanks anyway.",
        ]

    async def test_all_calls_of_a_session_expire_at_once_however_many_they_are(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        many = [call("locate", {"city": "Rome"}) for _ in range(70)]
        agent = _agent(reply(calls=many), "Without, then.")
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(2 * HOUR_MS)
        assert await completed(await helix.resume(agent, SESSION)) == "Without, then."

    async def test_a_late_answer_is_told_however_many_calls_came_after_it(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        many = [call("locate", {"city": "Rome"}, id=f"call_{number}") for number in range(70)]
        agent = _agent(*[reply(calls=many), "Without, then."] * 3, "Thanks.")
        for _ in range(3):
            await suspended(await helix.execute(agent, "Where?", SESSION))
            clock.advance(2 * HOUR_MS)
            await completed(await helix.resume(agent, SESSION))
        late = await helix.submit_tool_result(SESSION, "call_0", ToolAnswer(error="no idea"))
        assert isinstance(late, AnswerLate)
        assert await completed(await helix.execute(agent, "Well?", SESSION)) == "Thanks."
        notices = [each for each in await transcript(helix) if getattr(each, "hidden", False)]
        assert [str(getattr(each, "content", "")).split(": ", 1)[1] for each in notices] == ["it failed: no idea"]

    async def test_an_answer_to_an_approval_after_its_deadline_was_consumed_runs_nothing(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        paid: list[str] = []

        @tool(require_approval=True, deadline=60)
        async def pay() -> str:
            """Pay."""
            paid.append("once")
            return "paid"

        agent = _agent(call("pay"), "Not paid.", "Noted.", tools=[pay])
        await suspended(await helix.execute(agent, "Go", SESSION))
        clock.advance(60_000)
        await completed(await helix.resume(agent, SESSION))
        late = await helix.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=True))
        assert isinstance(late, AnswerLate)
        await completed(await helix.execute(agent, "And?", SESSION))
        assert paid == []

    async def test_the_janitor_resumes_what_was_answered_and_forgotten_once(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="Rome"))
        async with open_executor(agents=[_agent(*LOCATING)]) as janitor:
            assert (await janitor.sweep()).resumed == 0
            clock.advance(30_001)
            assert (await janitor.sweep()).resumed == 1
            handle = await janitor.get_handle(_agent(*LOCATING), SESSION)
            assert handle is not None
            assert await completed(handle) == "Without, then."
            assert (await janitor.sweep()).resumed == 0
