"""Scenarios of runs that are stopped: interrupted, aborted or paused, from whichever process."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AgentSuspendedEvent, HookEvent, MessageEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import RunInterrupted, RunResumed, TextDelta
from helix_agents.domain.errors import (
    ModelUnavailableError,
    NothingToResumeError,
    NothingToRetryError,
    SessionNotFoundError,
)
from helix_agents.domain.pending import AnswerAlreadyCompleted, ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import InterruptSet, NothingRunning, StatusChanged
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelEvent
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    interrupted,
    result_at,
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
)

CUT_SHORT = "This call was cut short: it may or may not have taken effect."
SHORT_GRACE = EngineOptions(cancel_grace_seconds=0.05)


class Work(BaseModel):
    """What was done."""

    done: list[str] = []


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
async def note(ctx: ToolContext[Work], text: str) -> str:
    """Write something down."""
    ctx.state.done.append(text)
    return f"noted {text}"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="worker", tools=[locate, note], state=Work)


class StoppingContract(ScenarioContract):
    """A stop reaches the run wherever it runs; what readers saw is kept, and only an abort is final."""

    async def test_an_interrupt_from_another_process_cuts_the_model_and_keeps_what_was_said(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = PieceGate(3)
        held = ScriptedModel(["One two three four five six."], pace=gate)
        handle = await helix.execute(_agent(model=held), "Count", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            stopped = await other.interrupt(SESSION, "enough")
            assert stopped == InterruptSet(run_id=handle.run_id)
            result = await interrupted(handle)
            assert result.reason == "enough"
            chunks = await chunks_of(handle)
            seen = "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta))
            assert seen
            assert any(isinstance(chunk, RunInterrupted) for chunk in chunks)
            assert await spoken(other) == ["user: Count", f"assistant: {seen} (interrupt)"]
            session = await other.sessions.get(SESSION)
            assert (session.status, session.interrupt_flag) == ("interrupted", None)
            context = session.interrupt_context
            assert context is not None
            assert (context.reason, context.run_id, context.step_count) == ("enough", handle.run_id, 1)
            resumed = await other.resume(_agent("Never.", "And the rest."), SESSION)
            assert await completed(resumed) == "And the rest."
            assert isinstance((await chunks_of(resumed))[0], RunResumed)
            assert await spoken(other) == [
                "user: Count",
                f"assistant: {seen} (interrupt)",
                "hidden: continue",
                "assistant: And the rest.",
            ]
            runs = await runs_of(other)
            assert [run.status for run in runs] == ["interrupted", "completed"]
            assert runs[1].previous_run_id == handle.run_id

    async def test_an_interrupt_reaches_a_run_that_waits_to_ask_the_model_again(
        self, open_executor: OpenExecutor
    ) -> None:
        down = asyncio.Event()

        async def broken(_: ModelEvent) -> None:
            down.set()
            raise ModelUnavailableError("scripted", "down")

        async with open_executor(options=EngineOptions(first_retry_seconds=3_600)) as helix:
            handle = await helix.execute(_agent(model=ScriptedModel(["Never."], pace=broken)), "Go", SESSION)
            await down.wait()
            await handle.interrupt()
            await interrupted(handle)
            assert await spoken(helix) == ["user: Go"]
            assert await completed(await helix.resume(_agent("Back."), SESSION)) == "Back."

    async def test_an_interrupt_before_a_model_that_answers_at_once_is_not_missed(self, helix: Executor) -> None:
        begun = asyncio.Event()

        async def instruct(ctx: RunContext[Any]) -> str:
            begun.set()
            while not ctx.cancelled:  # noqa: ASYNC110  # there is nothing else to wait for
                await asyncio.sleep(0.01)
            return "Work."

        agent = _agent(call("note", {"text": "a"}), "Done.", instructions=instruct)
        handle = await helix.execute(agent, "Go", SESSION)
        await begun.wait()
        await helix.interrupt(SESSION, "enough")
        assert (await interrupted(handle)).reason == "enough"
        assert (await spoken(helix))[0] == "user: Go"
        resumed = await helix.resume(_agent(call("note", {"text": "a"}), "Done."), SESSION)
        assert await completed(resumed) == "Done."

    async def test_a_hook_that_fails_a_run_whose_model_was_cut_leaves_no_call_without_a_result(
        self, helix: Executor
    ) -> None:
        async def refuse(ctx: RunContext[Any, Any], event: MessageEvent) -> None:
            raise FailRun("no such words")

        gate = PieceGate(8)
        calls = [call("note", {"text": "a"}), call("note", {"text": "bb"})]
        held = ScriptedModel([reply("Hm", calls=calls)], pace=gate)
        handle = await helix.execute(_agent(model=held, hooks=Hooks(on_message=refuse)), "Go", SESSION)
        await gate.until_reached()
        await helix.interrupt(SESSION)
        assert (await failed(handle)).error == "no such words"
        assert (await spoken(helix))[2:] == ["error note#call_1_1: run_stopped"]

    async def test_calls_the_model_had_written_when_it_was_cut_count_as_not_executed(self, helix: Executor) -> None:
        # The first call is complete, the second one is being written.
        gate = PieceGate(8)
        calls = [call("note", {"text": "a"}), call("note", {"text": "bb"})]
        held = ScriptedModel([reply("Hm", calls=calls)], pace=gate)
        handle = await helix.execute(_agent(model=held), "Go", SESSION)
        await gate.until_reached()
        await helix.interrupt(SESSION)
        await interrupted(handle)
        assert await spoken(helix) == [
            "user: Go",
            "assistant: Hm[note#call_1_1] (interrupt)",
            "error note#call_1_1: run_stopped",
        ]
        assert (await helix.sessions.get(SESSION)).custom_state["done"] == []

    async def test_a_tool_sees_the_stop_and_may_end_in_time_with_its_result_kept(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        begun = asyncio.Event()

        @tool
        async def work(ctx: ToolContext[Work]) -> str:
            """Work until told to stop."""
            begun.set()
            while not ctx.cancelled:  # noqa: ASYNC110  # a tool that listens looks now and then
                await asyncio.sleep(0.01)
            ctx.state.done.append("half")
            return "stopped in time"

        handle = await helix.execute(_agent(call("work"), "Never.", tools=[work]), "Go", SESSION)
        await begun.wait()
        async with open_executor() as other:
            await other.interrupt(SESSION)
        await interrupted(handle)
        assert (await spoken(helix))[2] == "result work#call_1_1: stopped in time"
        assert (await helix.sessions.get(SESSION)).custom_state["done"] == ["half"]
        resumed = await helix.resume(_agent(call("work"), "Rest.", tools=[work]), SESSION)
        assert await completed(resumed) == "Rest."

    async def test_a_tool_that_does_not_listen_is_cancelled_after_the_grace_and_its_writes_are_dropped(
        self, open_executor: OpenExecutor
    ) -> None:
        begun, quick, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def work(ctx: ToolContext[Work]) -> str:
            """Work for ever."""
            ctx.state.done.append("lost")
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()
            return "never"

        @tool
        async def fast(ctx: ToolContext[Work]) -> str:
            """Be quick."""
            ctx.state.done.append("kept")
            quick.set()
            return "quick"

        async with open_executor(options=SHORT_GRACE) as helix, open_executor() as other:
            agent = _agent(reply(calls=[call("work"), call("fast")]), "Never.", tools=[work, fast])
            handle = await helix.execute(agent, "Go", SESSION)
            await begun.wait()
            await quick.wait()
            await other.interrupt(SESSION)
            await interrupted(handle)
            assert cleaned.is_set()
            assert (await spoken(other))[2:] == ["error work#call_1_1: run_stopped", "result fast#call_1_2: quick"]
            # It was started: it must not be reported as not executed.
            assert result_at(await transcript(other), 2).content == CUT_SHORT
            assert (await other.sessions.get(SESSION)).custom_state["done"] == ["kept"]

    async def test_an_interrupt_with_nothing_running_says_so(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent("Done."), "Go", SESSION))
        assert await helix.interrupt(SESSION) == NothingRunning()
        assert await helix.abort(SESSION) == NothingRunning()
        assert (await helix.sessions.get(SESSION)).status == "completed"
        with pytest.raises(SessionNotFoundError):
            await helix.interrupt("nobody")

    async def test_a_stop_aims_at_the_run_that_was_going_and_at_no_later_one(self, helix: Executor) -> None:
        gate = PieceGate(1)
        handle = await helix.execute(_agent(model=ScriptedModel(["One."], pace=gate)), "1", SESSION)
        await gate.until_reached()
        await handle.interrupt()
        await interrupted(handle)
        assert await completed(await helix.execute(_agent("One.", "Two."), "2", SESSION)) == "One."

    @pytest.mark.parametrize("asked", ["the executor", "the handle"])
    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_stopping_a_session_that_waits_settles_it_and_clears_what_waits(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend, kind: str, asked: str
    ) -> None:
        agent = _agent(reply(calls=[call("note", {"text": "a"}), call("locate", {"city": "Rome"})]), "On.")
        handle = await helix.execute(agent, "Go", SESSION)
        await suspended(handle)
        async with open_executor() as other:
            if asked == "the executor":
                stopping = other.interrupt if kind == "interrupt" else other.abort
                told = await stopping(SESSION, "not needed")
            else:
                told = await (handle.interrupt if kind == "interrupt" else handle.abort)("not needed")
            assert told == InterruptSet(run_id=handle.run_id)
            assert (await other.list_pending()).items == ()
            late = await other.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="x"))
            assert isinstance(late, AnswerAlreadyCompleted)
            assert (await spoken(other))[2:] == [
                "result note#call_1_1: noted a",
                "error locate#call_1_2: run_stopped",
            ]
            stream = await parts.streams.get_stream_info(SESSION)
            assert stream is not None
            (run,) = await runs_of(other)
            session = await other.sessions.get(SESSION)
            if kind == "interrupt":
                assert (await interrupted(handle)).reason == "not needed"
                assert (run.completion_reason, stream.status) == ("interrupted", "ended")
                assert (session.error, session.failure_reason) == (None, None)
                assert await completed(await other.resume(agent, SESSION)) == "On."
            else:
                assert (await failed(handle)).code == "framework_cancelled"
                assert (run.completion_reason, stream.status) == ("framework_cancelled", "failed")
                assert (session.error, session.failure_reason) == ("not needed", "framework_cancelled")
                assert await completed(await other.execute(agent, "Anew", SESSION)) == "On."

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_what_a_client_has_answered_is_not_said_to_be_undone_when_the_session_is_stopped(
        self, helix: Executor, kind: str
    ) -> None:
        where = [call("locate", {"city": city}) for city in ("Rome", "Oslo", "Bonn")]
        await suspended(await helix.execute(_agent(reply(calls=where), "On."), "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="here"))
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(error="no idea"))
        await (helix.interrupt if kind == "interrupt" else helix.abort)(SESSION)
        assert (await spoken(helix))[2:] == [
            "result locate#call_1_1: here",
            "error locate#call_1_2: client_tool_error",
            "error locate#call_1_3: run_stopped",
        ]

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_stop_that_comes_while_the_run_is_suspending_is_not_lost(
        self, helix: Executor, open_executor: OpenExecutor, kind: str
    ) -> None:
        async with open_executor() as other:

            async def stop(ctx: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
                stopping = other.interrupt if kind == "interrupt" else other.abort
                assert await stopping(SESSION, "now") == InterruptSet(run_id=event.run_id)

            agent = _agent(call("locate", {"city": "Rome"}), "On.", hooks=Hooks(on_agent_suspended=stop))
            handle = await helix.execute(agent, "Go", SESSION)
            await (interrupted(handle) if kind == "interrupt" else failed(handle))
            assert (await other.list_pending()).items == ()
            assert (await spoken(other))[2] == "error locate#call_1_1: run_stopped"

    async def test_an_answer_to_a_call_that_a_stop_left_undone_keeps_nobody_going(
        self, open_executor: OpenExecutor
    ) -> None:
        begun = asyncio.Event()

        @tool(require_approval=True)
        async def pay(amount: int) -> str:
            """Pay, and take long."""
            begun.set()
            await asyncio.Event().wait()
            return "never"

        both = reply(calls=[call("pay", {"amount": 1}), call("pay", {"amount": 2})])
        agent = _agent(both, call("locate", {"city": "Rome"}), "There.", tools=[pay, locate])
        async with open_executor(max_parallel_tools=1, options=SHORT_GRACE) as helix:
            result = await suspended(await helix.execute(agent, "Go", SESSION))
            for each in result.pending:
                await helix.submit_tool_result(SESSION, each.tool_call_id, ApprovalAnswer(approved=True))
            resumed = await helix.resume(agent, SESSION)
            await begun.wait()
            await helix.interrupt(SESSION)
            await interrupted(resumed)
            assert (await helix.sessions.get(SESSION)).pending_client_tool_calls == {}
            # A call that no one waits for, but looks answered, would keep this run from coming to rest.
            (waiting,) = (await suspended(await helix.resume(agent, SESSION))).pending
            await helix.submit_tool_result(SESSION, waiting.tool_call_id, ToolAnswer(result="here"))
            assert await completed(await helix.resume(agent, SESSION)) == "There."

    async def test_an_answer_that_comes_as_its_run_fails_keeps_nobody_going(self, helix: Executor) -> None:
        @tool(require_approval=True)
        async def pay() -> str:
            """Find that nothing can be paid, after somebody has answered the other question."""
            await helix.submit_tool_result(SESSION, "where", ToolAnswer(result="here"))
            raise FailRun("bankrupt")

        asks = call("locate", {"city": "Rome"}, id="where")
        script = (reply(calls=[call("pay", id="pay"), asks]), call("locate", {"city": "Oslo"}), "There.")
        agent = _agent(*script, tools=[pay, locate])
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
        await failed(await helix.resume(agent, SESSION))
        assert (await helix.sessions.get(SESSION)).pending_client_tool_calls == {}
        assert len((await suspended(await helix.retry(agent, SESSION))).pending) == 1

    async def test_a_tool_that_must_not_run_twice_and_is_cut_has_an_unknown_outcome(
        self, open_executor: OpenExecutor
    ) -> None:
        begun = asyncio.Event()

        @tool(effect="once")
        async def send() -> str:
            """Send."""
            begun.set()
            await asyncio.Event().wait()
            return "never"

        async with open_executor(options=SHORT_GRACE) as helix:
            handle = await helix.execute(_agent(call("send"), "Never.", tools=[send]), "Go", SESSION)
            await begun.wait()
            await handle.interrupt()
            await interrupted(handle)
            assert (await spoken(helix))[2] == "error send#call_1_1: outcome_unknown"

    async def test_hooks_are_not_told_of_a_result_that_a_cut_call_does_not_have(
        self, open_executor: OpenExecutor
    ) -> None:
        begun, told = asyncio.Event(), list[str]()

        async def note(ctx: RunContext[Any, Any], event: HookEvent) -> None:
            told.append(event.hook)

        @tool
        async def dig() -> str:
            """Dig."""
            begun.set()
            await asyncio.Event().wait()
            return "never"

        agent = _agent(call("dig"), "Never.", tools=[dig], hooks=Hooks(before_tool=note, after_tool=note))
        async with open_executor(options=SHORT_GRACE) as helix:
            handle = await helix.execute(agent, "Go", SESSION)
            await begun.wait()
            await handle.interrupt()
            await interrupted(handle)
            assert result_at(await transcript(helix), 2).content == CUT_SHORT
        assert told == ["before_tool"]

    @pytest.mark.parametrize("ends", ["interrupt", "failure"])
    async def test_a_message_that_came_with_an_answer_is_kept_though_the_step_is_given_up(
        self, open_executor: OpenExecutor, ends: str
    ) -> None:
        gate = Gate()

        @tool(require_approval=True)
        async def pay() -> str:
            """Pay."""
            await gate.wait()
            raise FailRun("no money")

        async with open_executor(options=SHORT_GRACE) as helix:
            agent = _agent(reply(calls=[call("pay", id="pay"), call("locate", {"city": "Rome"})]), tools=[pay, locate])
            await suspended(await helix.execute(agent, "Go", SESSION))
            await helix.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
            handle = await helix.resume(agent, SESSION, mode="with_message", message="And quickly.")
            await gate.until_reached()
            if ends == "interrupt":
                await handle.interrupt()
                await interrupted(handle)
            else:
                gate.opened.set()
                await failed(handle)
            assert (await spoken(helix))[-1] == "user: And quickly."

    async def test_an_abort_fails_the_run_for_good_and_keeps_what_was_said(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = PieceGate(3)
        held = ScriptedModel(["One two three four five six."], pace=gate)
        handle = await helix.execute(_agent(model=held), "Count", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            await other.abort(SESSION, "wrong question")
            result = await failed(handle)
            assert (result.code, result.error) == ("framework_cancelled", "wrong question")
            assert not result.retryable
            assert (await spoken(other))[1].endswith("(abort)")
            with pytest.raises(NothingToResumeError):
                await other.resume(_agent("x"), SESSION)
            with pytest.raises(NothingToRetryError):
                await other.retry(_agent("x"), SESSION)
            assert await completed(await other.execute(_agent("x", "Better."), "Again", SESSION)) == "Better."

    async def test_an_abort_that_follows_an_interrupt_is_for_good(self, helix: Executor) -> None:
        """The tool listens for the stop and takes a moment; meanwhile the caller loses patience."""
        begun, gate = asyncio.Event(), Gate()

        @tool
        async def dig(ctx: ToolContext[Work]) -> str:
            """Dig until somebody says stop."""
            begun.set()
            while not ctx.cancelled:  # noqa: ASYNC110  # that is how a tool is told
                await asyncio.sleep(0.01)
            await gate.wait()
            return "a hole"

        agent = _agent(call("dig"), "Never.", tools=[dig])
        handle = await helix.execute(agent, "Dig", SESSION)
        await begun.wait()
        assert await helix.interrupt(SESSION, "enough") == InterruptSet(run_id=handle.run_id)
        await gate.until_reached()
        assert await helix.abort(SESSION, "now") == InterruptSet(run_id=handle.run_id)
        gate.opened.set()
        result = await failed(handle)
        assert (result.code, result.error) == ("framework_cancelled", "now")
        with pytest.raises(NothingToResumeError):
            await helix.resume(agent, SESSION)

    async def test_a_reader_of_a_run_that_was_stopped_comes_to_its_end(self, helix: Executor) -> None:
        gate = PieceGate(2)
        held = ScriptedModel(["One two three four."], pace=gate)
        handle = await helix.execute(_agent(model=held), "Count", SESSION)
        await gate.until_reached()
        reading = asyncio.create_task(chunks_of(handle))
        await handle.abort()
        assert (await failed(handle)).error == "The run was aborted."
        assert len(await reading) > 0

    async def test_an_operators_pause_stops_the_run_at_its_next_step(
        self, helix: Executor, parts: Backend, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Work]) -> str:
            """Work."""
            await gate.wait()
            ctx.state.done.append("work")
            return "worked"

        script = [call("work"), "Rest."]
        handle = await helix.execute(_agent(*script, tools=[work]), "Go", SESSION)
        await gate.until_reached()
        paused = await parts.state.compare_and_set_status(SESSION, ["active"], "paused")
        assert isinstance(paused, StatusChanged)
        gate.opened.set()
        await interrupted(handle)
        assert (await helix.sessions.get(SESSION)).status == "paused"
        assert (await spoken(helix))[2:] == ["result work#call_1_1: worked"]
        async with open_executor(agents=[_agent(*script, tools=[work])]) as other:
            # Only resume or execute leaves this state.
            assert (await other.recover()).run_ids == ()
            assert (await other.sweep()).resumed == 0
            assert (await other.sessions.get(SESSION)).status == "paused"
            assert await completed(await other.resume(_agent(*script, tools=[work]), SESSION)) == "Rest."
            assert (await other.sessions.get(SESSION)).status == "completed"

    async def test_a_suspended_session_that_was_paused_waits_for_resume_or_execute(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = _agent(call("locate", {"city": "Rome"}), "There.")
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await parts.state.compare_and_set_status(SESSION, ["active"], "paused")
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
        assert await completed(await helix.resume(agent, SESSION)) == "There."

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_suspended_session_that_was_paused_can_be_stopped(
        self, helix: Executor, parts: Backend, kind: str
    ) -> None:
        agent = _agent(call("locate", {"city": "Rome"}), "Never.")
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await parts.state.compare_and_set_status(SESSION, ["active"], "paused")
        await (helix.interrupt if kind == "interrupt" else helix.abort)(SESSION)
        assert (await helix.sessions.get(SESSION)).status == ("interrupted" if kind == "interrupt" else "failed")
        assert (await helix.list_pending()).items == ()
        assert (await spoken(helix))[-1] == "error locate#call_1_1: run_stopped"

    async def test_leaving_in_a_tool_that_must_not_run_twice_keeps_nobody_waiting(
        self, open_executor: OpenExecutor
    ) -> None:
        begun = asyncio.Event()

        @tool(effect="once")
        async def send() -> str:
            """Send."""
            begun.set()
            await asyncio.Event().wait()
            return "never"

        agent = _agent(call("send", id="send"), "Never.", tools=[send])
        async with open_executor(grace=0.01) as helix:
            await helix.execute(agent, "Go", SESSION)
            await begun.wait()
        # The clock stands still, so no lease expires.
        async with open_executor(agents=[agent]) as other:
            await other.recover()
            handle = await other.get_handle(agent, SESSION)
            assert handle is not None
            (asked,) = (await suspended(handle)).pending
            assert (asked.tool_call_id, asked.reason) == ("send", "unknown_outcome")

    async def test_leaving_lets_the_step_in_hand_commit_and_another_process_goes_on(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Work]) -> str:
            """Work."""
            await gate.wait()
            ctx.state.done.append("work")
            return "worked"

        slow = PieceGate(1)

        async def second_reply(event: Any) -> None:
            if gate.opened.is_set():
                await slow(event)

        model = ScriptedModel([call("work"), "Rest."], pace=second_reply)
        async with open_executor(grace=0.3) as first:
            await first.execute(_agent(model=model, tools=[work]), "Go", SESSION)
            await gate.until_reached()
            gate.opened.set()
        async with open_executor(agents=[_agent(call("work"), "Rest.", tools=[work])]) as second:
            assert len((await second.recover()).run_ids) == 1
            handle = await second.get_handle(_agent(call("work"), "Rest.", tools=[work]), SESSION)
            assert handle is not None
            assert await completed(handle) == "Rest."
            assert (await second.sessions.get(SESSION)).custom_state["done"] == ["work"]
            runs = await runs_of(second)
            assert [(run.attempt, run.status) for run in runs] == [(2, "completed")]

    async def test_cancelling_the_caller_does_not_stop_its_run(self, helix: Executor) -> None:
        gate = PieceGate(1)
        handle = await helix.execute(_agent(model=ScriptedModel(["Done."], pace=gate)), "Go", SESSION)
        waiting = asyncio.create_task(handle.result())
        await gate.until_reached()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        assert await completed(handle) == "Done."
