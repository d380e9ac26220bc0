"""Scenarios of hooks: when each one fires, what it receives, and what it may change."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import RunContext, RunInfo, ToolContext
from helix_agents.agent.failures import FailRun, ToolFailed
from helix_agents.agent.hook_events import (
    AfterLLMCallEvent,
    AfterToolEvent,
    AgentCompleteEvent,
    AgentFailEvent,
    AgentInterruptedEvent,
    AgentResumedEvent,
    AgentStartEvent,
    AgentSuspendedEvent,
    AroundLLMCallEvent,
    AroundToolEvent,
    BeforeLLMCallEvent,
    BeforeToolEvent,
    HookEvent,
    LLMRetryEvent,
    MessageEvent,
    StateChangeEvent,
    TextDeltaEvent,
    ThinkingEvent,
    ToolRefusedEvent,
    ToolUnsettledEvent,
)
from helix_agents.agent.hooks import HOOK_NAMES, Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import RunStarted
from helix_agents.domain.errors import ModelOverloadedError, ModelRefusedError
from helix_agents.domain.messages import AssistantMessage, ToolMessage, UserMessage
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.domain.writes import Append, Replace, StepWrites
from helix_agents.llm.scripted import call, finish, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    NO_GRACE,
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    runs_of,
    scripted,
    spoken,
    suspended,
    until,
    within,
)


class Answer(BaseModel):
    """What an agent hands in."""

    answer: int


class Pad(BaseModel):
    """State that tools and hooks share."""

    notes: list[str] = []
    seen: int = 0


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
async def note(ctx: ToolContext[Pad], text: str) -> str:
    """Write something down."""
    ctx.state.notes.append(text)
    return f"noted {text}"


@tool(require_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="hooked", tools=[note, locate, pay], state=Pad)


WITHOUT_STATE = {"on_text_delta", "on_thinking", "on_llm_retry", "around_llm_call", "around_tool"}


class Recorder(Hooks[Any, Any]):
    """Records every hook that fires, with its event, in a list that several recorders may share."""

    def __init__(self, name: str = "", heard: list[tuple[str, HookEvent]] | None = None) -> None:
        self._name = name
        self.heard: list[tuple[str, HookEvent]] = [] if heard is None else heard
        self.where: list[RunInfo] = []

    @property
    def names(self) -> list[str]:
        """What fired, in order; pieces of text are left out."""
        return [name + event.hook for name, event in self.heard if not isinstance(event, TextDeltaEvent)]

    def of(self, kind: type[HookEvent]) -> list[Any]:
        """All events of one kind."""
        return [event for _, event in self.heard if isinstance(event, kind)]

    def _hear(self, ctx: RunInfo, event: HookEvent) -> None:
        self.heard.append((self._name, event))
        self.where.append(ctx)


for _hook in HOOK_NAMES:
    setattr(Recorder, _hook, Recorder._hear)  # pyright: ignore[reportPrivateUsage]


async def until_told(recorder: Recorder) -> None:
    """A run that failed outside of its steps is reported after it has failed."""

    async def is_told() -> bool:
        return bool(recorder.of(AgentFailEvent))

    await until(is_told)


class HooksContract(ScenarioContract):
    """Hooks fire at the same points, in the same order and with the same payloads on every runtime."""

    async def test_the_hooks_of_a_turn_fire_in_order(self, helix: Executor) -> None:
        told = Recorder()
        agent = _agent(reply("Noting.", calls=[call("note", {"text": "a"})], thinking="Hm."), "Done.", hooks=told)
        await completed(await helix.execute(agent, "Go", SESSION))
        assert told.names == [
            "on_agent_start",
            "before_llm_call",
            "around_llm_call",
            "on_thinking",
            "on_thinking",
            "after_llm_call",
            "before_tool",
            "around_tool",
            "on_state_change",
            "on_message",
            "on_message",
            "after_tool",
            "before_llm_call",
            "around_llm_call",
            "after_llm_call",
            "on_message",
            "on_agent_complete",
        ]

    async def test_every_payload_says_what_happened(self, helix: Executor) -> None:
        told = Recorder()
        agent = _agent(reply("Noting.", calls=[call("note", {"text": "a"})], thinking="Hm."), "Done.", hooks=told)
        handle = await helix.execute(agent, "Go", SESSION, user_id="ann", tags=["t"], metadata={"k": "v"})
        await completed(handle)
        assert told.of(AgentStartEvent) == [AgentStartEvent(turn=1, input=(UserMessage(content="Go"),))]
        assert told.of(ThinkingEvent) == [ThinkingEvent(delta="Hm."), ThinkingEvent(delta="", done=True)]
        assert "".join(event.delta for event in told.of(TextDeltaEvent)) == "Noting.Done."
        before: list[BeforeLLMCallEvent] = told.of(BeforeLLMCallEvent)
        assert [(event.model, event.request.step) for event in before] == [("scripted", 1), ("scripted", 2)]
        after: list[AfterLLMCallEvent] = told.of(AfterLLMCallEvent)
        assert [event.reply.text for event in after] == ["Noting.", "Done."]
        assert all(event.usage.total > 0 for event in after)
        assert told.of(BeforeToolEvent) == [
            BeforeToolEvent(tool_name="note", tool_call_id="call_1_1", input={"text": "a"})
        ]
        writes = StepWrites(ops=(Append(key="notes", items=["a"], tool_call_id="call_1_1"),))
        assert told.of(StateChangeEvent) == [StateChangeEvent(tool_call_id="call_1_1", writes=writes)]
        joined: list[MessageEvent] = told.of(MessageEvent)
        assert [type(event.message) for event in joined] == [AssistantMessage, ToolMessage, AssistantMessage]
        finished: list[AfterToolEvent] = told.of(AfterToolEvent)
        assert [(each.tool_call_id, each.result, each.error, each.input) for each in finished] == [
            ("call_1_1", "noted a", False, {"text": "a"})
        ]
        ended: list[AgentCompleteEvent] = told.of(AgentCompleteEvent)
        assert [(event.output, event.step_count) for event in ended] == [("Done.", 2)]
        for where in told.where:
            assert (where.session_id, where.run_id, where.attempt) == (SESSION, handle.run_id, 1)
            assert (where.agent, where.user_id, where.tags, dict(where.metadata)) == (
                "hooked",
                "ann",
                ("t",),
                {"k": "v"},
            )

    async def test_levels_fire_in_order_executor_agent_call(self, open_executor: OpenExecutor) -> None:
        told = Recorder("executor ")
        agent = _agent("Done.", hooks=Recorder("agent ", told.heard))
        async with open_executor(hooks=told) as helix:
            await completed(await helix.execute(agent, "Go", SESSION, hooks=Recorder("call ", told.heard)))
        assert told.names[:3] == ["executor on_agent_start", "agent on_agent_start", "call on_agent_start"]
        assert told.names[-3:] == ["executor on_agent_complete", "agent on_agent_complete", "call on_agent_complete"]

    async def test_after_a_parallel_batch_messages_and_results_are_told_in_call_order(self, helix: Executor) -> None:
        told, slow = Recorder(), Gate()

        @tool
        async def work(name: str) -> str:
            """Work."""
            if name == "a":
                await within(slow.opened.wait())
            slow.opened.set()
            return name

        calls = [call("work", {"name": "a"}), call("work", {"name": "b"})]
        agent = _agent(reply(calls=calls), "Done.", tools=[work], hooks=told)
        await completed(await helix.execute(agent, "Go", SESSION))
        names = [name for name in told.names if not name.startswith("around")]
        batch = names[names.index("after_llm_call") + 1 : names.index("before_llm_call", 2)]
        assert batch == [
            "before_tool",
            "before_tool",
            "on_message",
            "on_message",
            "after_tool",
            "on_message",
            "after_tool",
        ]
        assert [event.tool_call_id for event in told.of(AfterToolEvent)] == ["call_1_1", "call_1_2"]

    async def test_suspending_and_resuming_are_told_with_the_runs_they_are_about(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        first, second = Recorder(), Recorder()
        script = [reply(calls=[call("note", {"text": "a"}), call("locate", {"city": "Rome"})]), "There."]
        handle = await helix.execute(_agent(*script, hooks=first), "Where?", SESSION)
        await suspended(handle)
        (told,) = first.of(AgentSuspendedEvent)
        assert (told.run_id, told.reason, told.tool_call_ids) == (handle.run_id, "client_tool", ("call_1_2",))
        assert told.step_count == 1
        assert told.duration_ms >= 0
        (waits,) = first.of(ToolUnsettledEvent)
        assert (waits.tool_name, waits.tool_call_id, waits.waits, waits.ran_by) == (
            "locate",
            "call_1_2",
            True,
            "client",
        )
        # What is part of the commit is reported with it: the call that ran, and not the one that waits.
        assert [event.tool_call_id for event in first.of(AfterToolEvent)] == ["call_1_1"]
        checkpoint = (await helix.sessions.get(SESSION)).checkpoint_id
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))
        async with open_executor() as other:
            resumed = await other.resume(_agent(*script, hooks=second), SESSION)
            await completed(resumed)
        assert second.of(AgentStartEvent) == []
        assert second.of(AgentResumedEvent) == [
            AgentResumedEvent(
                run_id=resumed.run_id,
                previous_run_id=handle.run_id,
                session_id=SESSION,
                resumed_from_checkpoint_id=checkpoint,
            )
        ]
        assert [event.tool_call_id for event in second.of(AfterToolEvent)] == ["call_1_2"]
        assert second.names == [
            "on_agent_resumed",
            "on_message",
            "after_tool",
            "before_llm_call",
            "around_llm_call",
            "after_llm_call",
            "on_message",
            "on_agent_complete",
        ]
        assert [event.ran_by for event in second.of(AfterToolEvent)] == ["client"]

    async def test_a_turn_after_one_that_was_resumed_starts_like_any_other(self, helix: Executor) -> None:
        told = Recorder()
        agent = _agent(call("locate", {"city": "Rome"}), "There.", "Again.", hooks=told)
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
        await completed(await helix.resume(agent, SESSION))
        handle = await helix.execute(agent, "And now?", SESSION)
        assert isinstance((await chunks_of(handle))[0], RunStarted)
        assert [event.turn for event in told.of(AgentStartEvent)] == [1, 3]
        assert len(told.of(AgentResumedEvent)) == 1

    async def test_an_approved_call_has_the_full_order_and_a_denied_one_no_after_tool(self, helix: Executor) -> None:
        told = Recorder()
        calls = [call("pay", {"amount": 1}), call("pay", {"amount": 2})]
        agent = _agent(reply(calls=calls), "Done.")
        await suspended(await helix.execute(agent, "Pay", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=True))
        await helix.submit_tool_result(SESSION, "call_1_2", ApprovalAnswer(approved=False))
        await completed(await helix.resume(agent, SESSION, hooks=told))
        assert told.names[:4] == ["on_agent_resumed", "before_tool", "around_tool", "on_message"]
        assert told.names[4:7] == ["after_tool", "on_message", "on_tool_refused"]
        assert [(event.tool_call_id, event.ran_by) for event in told.of(AfterToolEvent)] == [("call_1_1", "function")]
        assert [(event.tool_call_id, event.code) for event in told.of(ToolRefusedEvent)] == [
            ("call_1_2", "not_approved")
        ]
        assert [event.tool_call_id for event in told.of(BeforeToolEvent)] == ["call_1_1"]

    async def test_calls_that_no_tool_runs_for_are_messages_and_refused(self, helix: Executor) -> None:
        told = Recorder()
        agent = _agent(reply(calls=[call("fly"), call("note", {})]), finish({"answer": 1}), output=Answer, hooks=told)
        await completed(await helix.execute(agent, "Go", SESSION))
        assert told.of(BeforeToolEvent) == told.of(AfterToolEvent) == []
        results = [event.message.code for event in told.of(MessageEvent) if isinstance(event.message, ToolMessage)]
        assert results == ["unknown_tool", "invalid_arguments", None]
        assert [event.code for event in told.of(ToolRefusedEvent)] == ["unknown_tool", "invalid_arguments"]

    async def test_a_failure_is_told_with_its_code(self, helix: Executor) -> None:
        told = Recorder()
        agent = _agent(ModelRefusedError("scripted", "no credit"), hooks=told)
        await failed(await helix.execute(agent, "Go", SESSION))
        assert [(event.code, event.retryable) for event in told.of(AgentFailEvent)] == [("provider_refused", False)]
        assert told.names[-1] == "on_agent_fail"

    async def test_a_run_that_nobody_could_drive_is_told_as_failed(self, open_executor: OpenExecutor) -> None:
        everywhere, own = Recorder(), Recorder()

        @asynccontextmanager
        async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[None]:
            raise LookupError("no such pool")
            yield

        agent = _agent("Never.", hooks=own)
        async with open_executor(deps=broken, hooks=everywhere) as helix:
            result = await failed(await helix.execute(agent, "Go", SESSION))
            for told in (everywhere, own):
                await until_told(told)
                (event,) = told.of(AgentFailEvent)
                assert (event.code, "no such pool" in event.error) == (result.code, True)
                assert told.where[-1].run_id == result.run_id

    async def test_a_model_that_is_asked_again_is_told_each_time(self, helix: Executor) -> None:
        told = Recorder()
        overloaded = ModelOverloadedError("scripted", "slow down")
        agent = _agent(overloaded, "Done.", hooks=told)
        await completed(await helix.execute(agent, "Go", SESSION))
        (again,) = told.of(LLMRetryEvent)
        assert (again.model, again.code, again.failures) == ("scripted", "provider_rate_limited", 1)
        assert again.wait_seconds >= 0.01
        assert told.names.count("around_llm_call") == told.names.count("after_llm_call") == 1

    async def test_an_interrupt_is_told_with_its_reason_and_what_it_leaves(self, open_executor: OpenExecutor) -> None:
        told, gate = Recorder(), Gate()

        @tool
        async def wait() -> str:
            """Wait."""
            await gate.wait()
            return "waited"

        agent = _agent(reply(calls=[call("wait"), call("locate", {"city": "Rome"})]), tools=[wait, locate], hooks=told)
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(agent, "Go", SESSION)
            await gate.until_reached()
            await handle.interrupt("enough")
            await within(handle.result())
        (ended,) = told.of(AgentInterruptedEvent)
        assert (ended.reason, ended.step_count) == ("enough", 1)
        assert told.names[-1] == "on_agent_interrupted"
        assert [(event.tool_name, event.waits) for event in told.of(ToolUnsettledEvent)] == [("locate", False)]

    async def test_what_a_hook_sets_up_around_the_work_is_in_force_there_and_only_there(self, helix: Executor) -> None:
        inside: ContextVar[str] = ContextVar("inside", default="nowhere")
        heard: list[tuple[str, str, object]] = []

        @tool
        async def look() -> str:
            """Look around."""
            return inside.get()

        @tool
        def peek() -> str:
            """Look around, on a thread."""
            return inside.get()

        class Around(Hooks[Any, Any]):
            def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
                before = inside.set(event.tool_name)
                outcome = yield
                inside.reset(before)
                heard.append((event.tool_name, outcome.result, outcome.ran_by))

            def around_llm_call(
                self, ctx: RunInfo, event: AroundLLMCallEvent
            ) -> Generator[None, AfterLLMCallEvent, None]:
                outcome = yield
                heard.append((event.model, outcome.reply.text, ctx.step))

            def after_tool(self, ctx: RunContext[Any, Any], event: AfterToolEvent) -> None:
                heard.append(("after", event.tool_name, inside.get()))

        agent = _agent(call("look"), call("peek"), "Done.", tools=[look, peek], hooks=Around())
        await completed(await helix.execute(agent, "Go", SESSION))
        assert heard == [
            ("scripted", "", 1),
            ("look", "look", "function"),
            ("after", "look", "nowhere"),
            ("scripted", "", 2),
            ("peek", "peek", "function"),
            ("after", "peek", "nowhere"),
            ("scripted", "Done.", 3),
        ]

    async def test_hooks_around_hear_what_ended_the_work_where_there_is_no_outcome(self, helix: Executor) -> None:
        heard: list[str] = []

        class Around(Hooks[Any, Any]):
            def around_llm_call(
                self, ctx: RunInfo, event: AroundLLMCallEvent
            ) -> Generator[None, AfterLLMCallEvent, None]:
                try:
                    yield
                except BaseException as problem:
                    heard.append(type(problem).__name__)

            def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
                outcome = yield
                heard.append(f"{outcome.error} {outcome.code}")

        @tool
        async def break_down() -> str:
            """Fail."""
            raise ToolFailed("broken")

        agent = _agent(call("break_down"), ModelRefusedError("scripted", "no"), tools=[break_down], hooks=Around())
        await failed(await helix.execute(agent, "Go", SESSION))
        assert heard == ["True tool_failed", "ModelRefusedError"]

    async def test_a_cut_tool_is_told_so_to_whoever_stands_around_it(self, open_executor: OpenExecutor) -> None:
        gate = Gate()
        heard: list[str] = []

        class Around(Hooks[Any, Any]):
            def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
                try:
                    yield
                except asyncio.CancelledError:
                    heard.append("cut")
                    raise

        @tool
        async def wait() -> str:
            """Wait."""
            await gate.wait()
            return "waited"

        agent = _agent(call("wait"), tools=[wait], hooks=Around())
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(agent, "Go", SESSION)
            await gate.until_reached()
            await handle.interrupt("enough")
            await within(handle.result())
        assert heard == ["cut"]

    async def test_a_hook_around_something_that_breaks_hurts_nobody(
        self, helix: Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Breaking(Hooks[Any, Any]):
            def around_llm_call(self, ctx: RunInfo, event: AroundLLMCallEvent) -> Generator[None, Any, None]:
                raise FailRun("before")
                yield

            def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, Any, None]:
                yield
                yield

        class BreaksAfter(Hooks[Any, Any]):
            def around_tool(self, ctx: RunInfo, event: AroundToolEvent) -> Generator[None, Any, None]:
                yield
                raise SystemExit(3)

        hooks = [Breaking(), BreaksAfter()]
        agent = _agent(call("note", {"text": "a"}), "Done.", hooks=hooks)
        with caplog.at_level(logging.ERROR, "helix_agents"):
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        broken = [record for record in caplog.records if getattr(record, "event", "") == "hook.failed"]
        assert len(broken) == 4

    async def test_changes_of_hooks_to_the_state_are_part_of_the_same_commit(self, helix: Executor) -> None:
        class Counting(Hooks[Pad, Any]):
            def on_agent_start(self, ctx: RunContext[Pad, Any], event: AgentStartEvent) -> None:
                ctx.state.notes.append("start")

            def before_llm_call(self, ctx: RunContext[Pad, Any], event: BeforeLLMCallEvent) -> None:
                ctx.state.seen += 1

            async def before_tool(self, ctx: RunContext[Pad, Any], event: BeforeToolEvent) -> None:
                ctx.state.notes.append("before")

            def after_tool(self, ctx: RunContext[Pad, Any], event: AfterToolEvent) -> None:
                ctx.state.notes.append(f"after {ctx.state.seen}")

            def on_agent_complete(self, ctx: RunContext[Pad, Any], event: AgentCompleteEvent) -> None:
                ctx.state.notes.append("complete")

        agent = _agent(call("note", {"text": "a"}), "Done.", hooks=Counting())
        await completed(await helix.execute(agent, "Go", SESSION))
        state = (await helix.sessions.get(SESSION)).custom_state
        assert state == {"notes": ["start", "before", "a", "after 1", "complete"], "seen": 2}
        assert [run.step_count for run in await runs_of(helix)] == [2]
        checkpoints = (await helix.sessions.checkpoints(SESSION)).items
        assert len(checkpoints) == 2
        assert Replace(key="seen", value=1) in checkpoints[1].writes.ops

    async def test_a_hook_that_raises_is_logged_its_changes_are_dropped_and_the_run_goes_on(
        self, helix: Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Hooks[Pad, Any]):
            def after_tool(self, ctx: RunContext[Pad, Any], event: AfterToolEvent) -> None:
                ctx.state.notes.append("half")
                raise ZeroDivisionError("oops")

        agent = _agent(call("note", {"text": "a"}), "Done.", hooks=Broken())
        with caplog.at_level(logging.INFO, "helix_agents"):
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert "hook.failed" in [getattr(record, "event", "") for record in caplog.records]
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["a"]

    @pytest.mark.parametrize(
        "hook",
        [
            "on_agent_start",
            "before_llm_call",
            "after_llm_call",
            "on_text_delta",
            "before_tool",
            "on_message",
            "after_tool",
        ],
    )
    async def test_a_hook_may_fail_the_run(self, helix: Executor, hook: str) -> None:
        def fail(ctx: Any, event: HookEvent) -> None:
            raise FailRun("over budget")

        hooks: Hooks[Any, Any] = Hooks(**{hook: fail})
        agent = _agent(reply("Noting.", calls=[call("note", {"text": "a"})]), "Never.", hooks=hooks)
        result = await failed(await helix.execute(agent, "Go", SESSION))
        assert "over budget" in result.error
        session = await helix.sessions.get(SESSION)
        assert session.status == "failed"
        # A tool that ran has its result in the transcript, and retry continues from there.
        said = await spoken(helix)
        if hook == "after_tool":
            assert said[2] == "result note#call_1_1: noted a"
        again = await helix.retry(_agent(*["Noted."] * 2), SESSION)
        assert await completed(again) == "Noted."

    @pytest.mark.parametrize("finishes", [False, True], ids=["and goes on", "and would finish"])
    async def test_a_hook_that_fails_a_run_as_it_is_resumed_comes_before_its_open_calls(
        self, helix: Executor, finishes: bool
    ) -> None:
        paid: list[int] = []

        @tool(require_approval=True)
        async def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            return "paid"

        def refuse(ctx: Any, event: AgentResumedEvent) -> None:
            raise FailRun("not any more")

        calls = [call("pay", {"amount": 5}, id="pay"), call("locate", {"city": "Rome"}, id="open")]
        handed_in = [call("__finish__", {"answer": 5})] if finishes else []
        fields: dict[str, Any] = {"output": Answer} if finishes else {}
        script = (reply(calls=[*calls, *handed_in]), "Never.")
        agent = _agent(*script, tools=[pay, locate], hooks=Hooks(on_agent_resumed=refuse), **fields)
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
        result = await failed(await helix.resume(agent, SESSION))
        assert (result.code, result.error, paid) == ("hook_failed_run", "not any more", [])
        assert (await spoken(helix))[2:4] == ["error pay#pay: run_stopped", "error locate#open: run_stopped"]
        assert (await helix.list_pending()).items == ()

    @pytest.mark.parametrize(
        ("raised", "code", "text"),
        [
            (FailRun("enough \ud800"), "hook_failed_run", "enough \\ud800"),
            (ToolFailed("not here"), "stop_when_failed", "stop_when raised ToolFailed: not here"),
            (ValueError("odd \ud800"), "stop_when_failed", "stop_when raised ValueError: odd \\ud800"),
        ],
        ids=["fails the run", "not for a tool", "undecodable"],
    )
    async def test_whatever_stop_when_raises_fails_the_run_with_every_result_in_place(
        self, helix: Executor, raised: BaseException, code: str, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not every reporter of tests can carry such a text.
        caplog.set_level(logging.CRITICAL, logger="helix_agents")

        def stop_when(_: Any) -> bool:
            raise raised

        agent = _agent(call("note", {"text": "a"}), "Never.", stop_when=stop_when)
        result = await failed(await helix.execute(agent, "Go", SESSION))
        assert (result.code, result.error) == (code, text)
        assert [line.split(":")[0] for line in await spoken(helix)] == ["user", "assistant", "result note#call_1_1"]

    async def test_a_hook_of_the_end_changes_nothing_about_how_the_run_ends(
        self, helix: Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(ctx: RunContext[Any, Any], event: AgentCompleteEvent) -> None:
            raise FailRun("too late")

        with caplog.at_level(logging.INFO, "helix_agents"):
            agent = _agent("Done.", hooks=Hooks(on_agent_complete=refuse))
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert "hook.too_late" in [getattr(record, "event", "") for record in caplog.records]

    async def test_a_run_fails_for_its_reason_whatever_that_says(self, helix: Executor) -> None:
        async def refuse(ctx: RunContext[Any, Any], event: BeforeLLMCallEvent) -> None:
            raise FailRun("caf\udce9 " * 10_000)

        result = await failed(await helix.execute(_agent("Never.", hooks=Hooks(before_llm_call=refuse)), "Go", SESSION))
        assert result.code == "hook_failed_run"
        assert result.error.startswith("caf\\udce9 caf")
        refused = ModelRefusedError("scripted", "not caf\udce9")
        result = await failed(await helix.execute(_agent(refused), "Go", "other"))
        assert result.code == "provider_refused"
        assert result.error.endswith("not caf\\udce9")

    async def test_hooks_of_one_call_that_moved_to_another_process_are_reported_lost(
        self, open_executor: OpenExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        told, gate = Recorder(), Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        def agent() -> AnyAgent:
            return _agent(call("work"), "Done.", tools=[work])

        async with open_executor(grace=0) as dying:
            await dying.execute(agent(), "Go", SESSION, hooks=told)
            await gate.until_reached()
        gate.opened.set()
        fired = len(told.heard)
        async with open_executor(agents=[agent()]) as other:
            with caplog.at_level(logging.INFO, "helix_agents"):
                await other.recover()
                handle = await other.get_handle(agent(), SESSION)
                assert handle is not None
                assert await completed(handle) == "Done."
        assert len(told.heard) == fired
        assert "hooks.call_hooks_lost" in [getattr(record, "event", "") for record in caplog.records]

    async def test_what_a_hook_or_a_predicate_counts_is_stored_wherever_it_counts(self, helix: Executor) -> None:
        counted: list[str] = []

        def count(ctx: RunContext[Any, Any], event: HookEvent) -> None:
            counted.append(event.hook)
            ctx.record_usage(event.hook)

        def predicate(given: Any, ctx: RunContext[Any, Any]) -> bool:
            counted.append("predicate")
            ctx.record_usage("predicate")
            return False

        @tool(require_approval=predicate)
        async def save(ctx: ToolContext[Pad]) -> str:
            """Save."""
            ctx.state.seen += 1
            return "saved"

        class Counting(Hooks[Any, Any]):
            pass

        for name in HOOK_NAMES:
            if name not in WITHOUT_STATE:
                setattr(Counting, name, staticmethod(count))
        child = scripted(["Done."], {}, name="child", description="A child.")
        batch = reply(
            calls=[
                call("save"),
                call("locate", {"city": "Oslo"}, id="where"),
                call("subagent__child", {"message": "Do it"}),
                call("fly"),
            ]
        )
        heir = scripted(["", "", "Done."], {}, name="heir", description="An heir.", state=Pad, hooks=Counting())
        tools = [save, locate, child.as_tool()]
        agent = _agent(batch, call("handoff__heir"), tools=tools, hooks=Counting(), handoffs=[heir])
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "where", ToolAnswer(result="here"))
        handle = await helix.resume(agent, SESSION)
        await completed(handle)
        stored = {
            each.source_name: each.calls for each in (await handle.usage()).sources if each.source_type == "custom"
        }
        assert stored == {name: counted.count(name) for name in counted}
        assert {*stored, "on_agent_fail", "on_agent_interrupted"} == {*HOOK_NAMES, "predicate"} - WITHOUT_STATE
