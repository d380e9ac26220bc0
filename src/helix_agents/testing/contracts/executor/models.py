"""Scenarios of models that fail: asked again in time, given up in the end, and nothing of a failed reply is kept."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.fallback_model import FallbackModel
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import (
    ErrorChunk,
    StepDiscarded,
    StreamChunk,
    TextDelta,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
)
from helix_agents.domain.errors import (
    ContextTooLongError,
    ModelOverloadedError,
    ModelRefusedError,
    ModelUnavailableError,
    SessionNotFoundError,
    UnknownModelError,
)
from helix_agents.domain.messages import AssistantMessage, ToolCall
from helix_agents.domain.rendering import surviving
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel
from helix_agents.ports.llm import (
    ModelEvent,
    ModelRequest,
    ReplyDone,
    TextPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    runs_of,
    scripted,
    spoken,
    transcript,
)

QUICK = EngineOptions(first_retry_seconds=0.001)


class _Breaks:
    """Breaks the connection after some pieces of a reply, a number of times."""

    def __init__(self, *, times: int, after: int) -> None:
        self._times = times
        self._after = after
        self._pieces = 0

    async def __call__(self, event: ModelEvent) -> None:
        if isinstance(event, TextPiece) and self._times:
            self._pieces += 1
            if self._pieces > self._after:
                self._pieces = 0
                self._times -= 1
                raise ModelUnavailableError("scripted", "the connection broke")


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="asker")


class _SaysNone:
    """Passes on what a provider's own client says about a reply without text, as a simple adapter would."""

    name = "careless"

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ReplyDone(reply=AssistantMessage(text=cast("str", None)))


class _Streams:
    """Says these events, and then that it is done."""

    name = "streaming"

    def __init__(self, *events: ModelEvent) -> None:
        self._events = events

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self._events if request.step == 1 else (_done("Done."),):
            yield event


def _done(text: str = "", **noted: str) -> ReplyDone:
    """A reply with calls of `note`, by the ids that their provider gave them."""
    calls = tuple(ToolCall(id=call_id, name="note", arguments={"text": said}) for call_id, said in noted.items())
    return ReplyDone(reply=AssistantMessage(text=text, tool_calls=calls))


def _begun(call_id: str) -> ToolCallStarted:
    return ToolCallStarted(id=call_id, name="note")


def _written(call_id: str, text: str) -> ToolArgumentsPiece:
    return ToolArgumentsPiece(id=call_id, delta=text)


@tool
async def note(text: str = "") -> str:
    """Take a note."""
    return f"noted {text}"


def _arguments_in(chunks: Sequence[StreamChunk]) -> dict[str, str]:
    """What readers saw of the arguments of each call that ended."""
    ended = [chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolArgStreamEnd)]
    said = [chunk for chunk in chunks if isinstance(chunk, ToolArgStreamDelta)]
    assert len(ended) == len(set(ended))
    return {each: "".join(chunk.delta for chunk in said if chunk.tool_call_id == each) for each in ended}


class ModelsContract(ScenarioContract):
    """A reply counts when it is complete; until then the model is asked again, or the run fails with a reason."""

    async def test_a_model_that_gives_no_answer_is_stood_in_for_and_usage_names_who_answered(
        self, helix: Executor
    ) -> None:
        away = ScriptedModel(lambda _: ModelUnavailableError("main", "no route"), name="main")
        model = FallbackModel(away, ScriptedModel(["I am here."], name="spare"))
        handle = await helix.execute(_agent(model=model), "Ask", SESSION)
        assert await completed(handle) == "I am here."
        assert away.asked == 1
        assert [(each.source_name, each.calls) for each in (await handle.usage()).sources] == [("spare", 1)]
        [_, said] = await transcript(helix)
        assert isinstance(said, AssistantMessage)
        assert said.model == "spare"

    async def test_models_that_all_give_no_answer_are_asked_again_while_one_of_them_may(
        self, open_executor: OpenExecutor
    ) -> None:
        busy = ScriptedModel([ModelOverloadedError("main", "busy"), "At last."], name="main")
        refuses = ScriptedModel(lambda _: ModelRefusedError("spare", "no key"), name="spare")
        async with open_executor(options=QUICK) as helix:
            handle = await helix.execute(_agent(model=FallbackModel(busy, refuses)), "Ask", SESSION)
            assert await completed(handle) == "At last."
        assert (busy.asked, refuses.asked) == (2, 1)

    async def test_a_reply_that_breaks_off_is_asked_for_again_and_its_pieces_are_discarded(
        self, open_executor: OpenExecutor
    ) -> None:
        model = ScriptedModel(["The whole answer, at last."], pace=_Breaks(times=2, after=2))
        async with open_executor(options=QUICK) as helix:
            handle = await helix.execute(_agent(model=model), "Ask", SESSION)
            chunks = await chunks_of(handle)
            assert await completed(handle) == "The whole answer, at last."
            assert await spoken(helix) == ["user: Ask", "assistant: The whole answer, at last."]
        assert len([chunk for chunk in chunks if isinstance(chunk, StepDiscarded)]) == 2
        left = [chunk.delta for chunk in surviving(chunks) if isinstance(chunk, TextDelta)]
        assert "".join(left) == "The whole answer, at last."
        assert model.asked == 3

    @pytest.mark.parametrize(
        ("events", "seen"),
        [
            (
                [
                    *(_begun("a"), _begun("b"), _written("a", '{"te'), _written("b", '{"text":'), _written("a", "")),
                    *(_written("a", 'xt":"A"}'), _written("b", '"B"}'), ToolCallEnded(id="b"), ToolCallEnded(id="a")),
                    _done(a="A", b="B"),
                ],
                {"a": "A", "b": "B"},
            ),
            (
                [
                    *(_begun("b"), _written("b", '{"text":"B"}'), ToolCallEnded(id="b")),
                    *(_begun("a"), _written("a", '{"text":"A"}'), ToolCallEnded(id="a")),
                    _done(a="A", b="B"),
                ],
                {"a": "A", "b": "B"},
            ),
            (
                [_begun("x"), _begun("y"), _written("y", '{"text":"Y"}'), ToolCallEnded(id="y"), _done(y="Y")],
                {"y": "Y"},
            ),
            (
                [_begun("none-yet"), _written("none-yet", '{"text":"A"}'), ToolCallEnded(id="none-yet"), _done(a="A")],
                {"none-yet": "A"},
            ),
            ([_done(a="A", b="B")], {"a": "A", "b": "B"}),
        ],
        ids=["in turns", "in another order", "one given up", "named later", "not at all"],
    )
    async def test_a_call_has_the_id_under_which_readers_saw_it_however_it_was_streamed(
        self, helix: Executor, events: list[ModelEvent], seen: dict[str, str]
    ) -> None:
        handle = await helix.execute(_agent(model=_Streams(*events), tools=[note]), "Ask", SESSION)
        told = _arguments_in(await chunks_of(handle))
        assert await completed(handle) == "Done."
        reply = (await transcript(helix))[1]
        assert isinstance(reply, AssistantMessage)
        assert {each.id: each.arguments for each in reply.tool_calls} == {each: {"text": seen[each]} for each in seen}
        assert not told or {each: json.loads(text)["text"] for each, text in told.items()} == seen

    async def test_a_model_that_does_not_stream_is_heard_in_one_piece(self, helix: Executor) -> None:
        handle = await helix.execute(_agent(model=_Streams(_done("All at once."))), "Ask", SESSION)
        assert [piece async for piece in handle.text()] == ["All at once."]
        assert await completed(handle) == "All at once."

    async def test_two_calls_under_one_id_each_end_once(self, helix: Executor) -> None:
        twice = [ToolCall(id="c", name="note"), ToolCall(id="c", name="note", arguments={"text": "B"})]
        events = [_begun("c"), _begun("c"), _written("c", '{"text":"B"}'), ToolCallEnded(id="c"), ToolCallEnded(id="c")]
        done = ReplyDone(reply=AssistantMessage(tool_calls=tuple(twice)))
        handle = await helix.execute(_agent(model=_Streams(*events, done), tools=[note]), "Ask", SESSION)
        assert _arguments_in(await chunks_of(handle)) == {"c_1": '{"text":"B"}', "c": ""}
        assert (await spoken(helix))[2:4] == ["result note#c: noted ", "result note#c_1: noted B"]

    async def test_an_adapter_that_goes_on_with_a_call_it_never_began_is_told_so(self, helix: Executor) -> None:
        agent = _agent(model=_Streams(_written("a", "{}"), _done(a="A")), tools=[note])
        result = await failed(await helix.execute(agent, "Ask", SESSION))
        assert result.code == "provider_error"
        assert "its adapter went on with call 'a', which it had not begun" in result.error

    async def test_a_model_that_cannot_be_opened_is_refused_before_anything_is_written(
        self, open_executor: OpenExecutor
    ) -> None:
        wrong = Agent(name="asker", model="antropic:claude")
        above = _agent("Fine.", tools=[Agent(name="below", description="Helps.", model="antropic:claude").as_tool()])
        async with open_executor() as helix:
            for agent in (wrong, above):
                with pytest.raises(UnknownModelError, match="No provider is installed for 'antropic' models"):
                    await helix.execute(agent, "Ask", SESSION)
            with pytest.raises(SessionNotFoundError):
                await helix.sessions.get(SESSION)
            # A model given for this one call replaces the agent's own, which is then not asked.
            assert (
                await completed(await helix.execute(wrong, "Ask", SESSION, model=ScriptedModel(["Here."]))) == "Here."
            )

    async def test_an_overloaded_model_is_asked_again_and_the_step_counts_once(
        self, open_executor: OpenExecutor
    ) -> None:
        script = [ModelOverloadedError("scripted", "busy"), ModelOverloadedError("scripted", "busy"), "Here."]
        async with open_executor(options=QUICK) as helix:
            assert await completed(await helix.execute(_agent(*script), "Ask", SESSION)) == "Here."
            assert [run.step_count for run in await runs_of(helix)] == [1]

    async def test_a_model_that_stays_down_fails_the_run_and_retry_goes_on_from_there(
        self, open_executor: OpenExecutor
    ) -> None:
        down = [ModelUnavailableError("scripted", "down")] * 4
        async with open_executor(options=QUICK) as helix:
            handle = await helix.execute(_agent(*down, "Back."), "Ask", SESSION)
            chunks = await chunks_of(handle)
            result = await failed(handle)
            assert result.retryable
            assert result.code == ModelUnavailableError.code
            assert [(chunk.code, chunk.retryable) for chunk in chunks if isinstance(chunk, ErrorChunk)] == [
                (ModelUnavailableError.code, True)
            ]
        async with open_executor(options=QUICK) as other:
            assert await completed(await other.retry(_agent("Back."), SESSION)) == "Back."
            assert await spoken(other) == ["user: Ask", "assistant: Back."]

    async def test_a_provider_that_wants_to_be_left_alone_for_hours_is_not_waited_for(
        self, open_executor: OpenExecutor
    ) -> None:
        model = ScriptedModel([ModelOverloadedError("scripted", "no more today", 86_400.0), "Never."])
        async with open_executor(options=QUICK) as helix:
            result = await failed(await helix.execute(_agent(model=model), "Ask", SESSION))
            assert (result.code, result.retryable) == (ModelOverloadedError.code, True)
            assert model.asked == 1

    async def test_a_context_that_is_too_long_is_an_error_of_its_own_and_not_retried(
        self, open_executor: OpenExecutor
    ) -> None:
        model = ScriptedModel([ContextTooLongError("scripted", "200001 tokens"), "Never."])
        async with open_executor(options=QUICK) as helix:
            result = await failed(await helix.execute(_agent(model=model), "Ask", SESSION))
            assert (result.code, result.retryable) == (ContextTooLongError.code, False)
            assert model.asked == 1

    async def test_an_instruction_function_that_raises_fails_the_run_with_a_reason(
        self, open_executor: OpenExecutor
    ) -> None:
        def instructions(_: Any) -> str:
            raise ValueError("no template")

        async with open_executor(options=QUICK) as helix:
            result = await failed(await helix.execute(_agent("Never.", instructions=instructions), "Ask", SESSION))
            assert result.error == "RuntimeError: The instructions of 'asker' raised ValueError: no template"

    @pytest.mark.parametrize(
        ("problem", "text"),
        [(ZeroDivisionError("what"), "ZeroDivisionError"), (asyncio.CancelledError(), "cancelled itself")],
        ids=["an exception", "a cancellation"],
    )
    async def test_an_adapter_that_raises_something_unforeseen_fails_the_run_with_a_reason(
        self, open_executor: OpenExecutor, problem: BaseException, text: str
    ) -> None:
        async def surprise(_: ModelEvent) -> None:
            raise problem

        async with open_executor(options=QUICK) as helix:
            model = ScriptedModel(["Never."], pace=surprise)
            result = await failed(await helix.execute(_agent(model=model), "Ask", SESSION))
            assert text in result.error

    async def test_a_reply_that_could_not_be_read_again_fails_the_run_and_is_not_stored(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(options=QUICK) as helix:
            result = await failed(await helix.execute(_agent(model=_SaysNone()), "Ask", SESSION))
            assert "cannot be stored" in result.error
            assert "$.reply.text" in result.error
            assert await completed(await helix.retry(_agent("Fine."), SESSION)) == "Fine."
            assert await spoken(helix) == ["user: Ask", "assistant: Fine."]
