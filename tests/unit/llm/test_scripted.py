"""A scripted model says what its script says, at the right place, in whichever process it is asked."""

import asyncio
import pickle
from contextlib import aclosing
from typing import Any

import pytest

from helix_agents.domain.errors import ModelOverloadedError, ModelRefusedError
from helix_agents.domain.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.scripted import (
    REQUESTS_KEPT,
    RoutingScriptedModel,
    ScriptedModel,
    ScriptExhaustedError,
    call,
    finish,
    reply,
)
from helix_agents.ports.llm import (
    ModelEvent,
    ModelRequest,
    TextPiece,
    ThinkingPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)
from tests.support.asking import answer_of, events_of, question

BUSY = ModelOverloadedError("scripted", "busy", 1.5)


async def text_of(model: Any, *messages: Message, **fields: Any) -> str:
    return (await answer_of(model, question(*messages, **fields))).reply.text


def after(replies: int) -> list[Message]:
    """A transcript with this many replies."""
    said: list[Message] = [UserMessage(content="hello")]
    for number in range(replies):
        said += [AssistantMessage(text=f"reply {number}"), UserMessage(content="go on")]
    return said


async def test_text_arrives_in_several_pieces() -> None:
    events = await events_of(ScriptedModel(["The tide is rising."], chunk=5), question())
    assert [event.delta for event in events[:-1]] == ["The t", "ide i", "s ris", "ing."]
    assert events[-1].reply == AssistantMessage(text="The tide is rising.", stop_reason="stop", model="scripted")


async def test_a_reply_is_thinking_then_text_then_calls() -> None:
    said = reply(
        "Let me look.",
        thinking=Thinking(text="Moon?", signature="sig"),
        calls=[call("search", {"query": "tides"}), call("today", id="mine")],
    )
    events = await events_of(ScriptedModel([said], chunk=100), question())
    assert events[:-1] == [
        ThinkingPiece(delta="Moon?"),
        ThinkingPiece(done=True, signature="sig"),
        TextPiece(delta="Let me look."),
        ToolCallStarted(id="call_1_1", name="search"),
        ToolArgumentsPiece(id="call_1_1", delta='{"query":"tides"}'),
        ToolCallEnded(id="call_1_1"),
        ToolCallStarted(id="mine", name="today"),
        ToolArgumentsPiece(id="mine", delta="{}"),
        ToolCallEnded(id="mine"),
    ]
    assert events[-1].reply == AssistantMessage(
        text="Let me look.",
        thinking=(Thinking(text="Moon?", signature="sig"),),
        tool_calls=(
            ToolCall(id="call_1_1", name="search", arguments={"query": "tides"}),
            ToolCall(id="mine", name="today"),
        ),
        stop_reason="tool_calls",
        model="scripted",
    )


async def test_finishing_is_a_call_of_the_finishing_tool() -> None:
    done = await answer_of(ScriptedModel([finish({"title": "Tides"})]), question())
    assert done.reply.tool_calls == (ToolCall(id="call_1_1", name="__finish__", arguments={"title": "Tides"}),)


async def test_malformed_arguments_are_sent_as_they_are() -> None:
    *pieces, done = await events_of(ScriptedModel([call("search", "{not json")], chunk=4), question())
    assert "".join(piece.delta for piece in pieces if isinstance(piece, ToolArgumentsPiece)) == "{not json"
    assert done.reply.tool_calls[0].arguments == "{not json"


async def test_usage_is_the_same_every_time_unless_the_script_gives_it() -> None:
    model = ScriptedModel(["12345678", reply("x", usage=TokenCount(prompt=1, completion=2, total=3))])
    assert (await answer_of(model, question())).usage == TokenCount(prompt=10, completion=2, total=12)
    assert (await answer_of(model, question(*after(1)))).usage == TokenCount(prompt=1, completion=2, total=3)


async def test_the_place_in_the_script_is_read_from_the_transcript() -> None:
    script = ["one", "two", "three"]
    assert [await text_of(ScriptedModel(script), *after(replies)) for replies in (2, 0, 1)] == ["three", "one", "two"]


async def test_asking_again_gives_the_same_step_again() -> None:
    model = ScriptedModel(["one", "two"])
    assert [await text_of(model, *after(1)) for _ in range(3)] == ["two"] * 3


async def test_ids_of_calls_do_not_repeat_along_a_session() -> None:
    model = ScriptedModel([call("search"), call("search")])
    ids = [(await answer_of(model, question(*after(n)))).reply.tool_calls[0].id for n in (0, 1)]
    assert ids == ["call_1_1", "call_2_1"]


async def test_a_session_that_was_rewound_goes_back_in_the_script() -> None:
    model = ScriptedModel(["one", "two", "three"])
    assert await text_of(model, *after(2)) == "three"
    assert await text_of(model, *after(1), run_id="r-2") == "two"
    assert await text_of(model, *after(0), run_id="r-2") == "one"


async def test_sessions_have_each_their_own_place() -> None:
    model = ScriptedModel(["one", "two"])
    assert await text_of(model, *after(1), session_id="s-1") == "two"
    assert await text_of(model, *after(0), session_id="s-2") == "one"


class Watched(list[Message]):
    """A transcript that counts how often a message is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        seen = super().__getitem__(at)
        self.looks += len(seen) if isinstance(at, slice) else 1
        return seen


async def test_a_step_looks_at_what_is_new_however_long_the_session_is() -> None:
    model = ScriptedModel([f"reply {number}" for number in range(1_000)])
    transcript = Watched([UserMessage(content="hello")])
    looks = []
    for _ in range(1_000):
        request = ModelRequest(agent_type="a", session_id="s", run_id="r", step=1, instructions="", messages=transcript)
        before = transcript.looks
        done = await answer_of(model, request)
        looks.append(transcript.looks - before)
        transcript += [done.reply, UserMessage(content="go on")]
    assert max(looks) == 3


async def test_errors_come_before_the_reply_they_delay_and_once_each() -> None:
    model = ScriptedModel(["one", BUSY, BUSY, "two"])
    assert await text_of(model) == "one"
    for _ in range(2):
        with pytest.raises(ModelOverloadedError) as caught:
            await text_of(model, *after(1))
        assert caught.value.retry_after == 1.5
        assert caught.value is not BUSY
    assert await text_of(model, *after(1)) == "two"


async def test_every_session_meets_the_errors() -> None:
    model = ScriptedModel([BUSY, "one"])
    for session in ("s-1", "s-2"):
        with pytest.raises(ModelOverloadedError):
            await text_of(model, session_id=session)
        assert await text_of(model, session_id=session) == "one"


async def test_an_error_may_be_the_end() -> None:
    model = ScriptedModel(["one", ModelRefusedError("scripted", "no more")])
    with pytest.raises(ModelRefusedError, match="no more"):
        await text_of(model, *after(1))
    with pytest.raises(ScriptExhaustedError):
        await text_of(model, *after(1))


async def test_by_calls_every_call_is_one_step_further() -> None:
    model = ScriptedModel(["one", BUSY, "two"], by="calls")
    assert await text_of(model) == "one"
    with pytest.raises(ModelOverloadedError):
        await text_of(model)
    assert await text_of(model, session_id="another") == "two"
    with pytest.raises(ScriptExhaustedError, match="no step 4, only 3"):
        await text_of(model)


async def test_a_function_decides_when_its_turn_comes() -> None:
    def decide(request: ModelRequest) -> str:
        last = request.messages[-1]
        return f"you said {last.content}" if isinstance(last, UserMessage) else "?"

    assert await text_of(ScriptedModel([decide])) == "you said hello"
    assert await text_of(ScriptedModel([lambda _: decide])) == "you said hello"
    with pytest.raises(ModelOverloadedError):
        await text_of(ScriptedModel([lambda _: BUSY]))


async def test_a_function_in_place_of_a_script_answers_everything() -> None:
    model = ScriptedModel(lambda request: f"{len(request.messages)} messages")
    assert [await text_of(model, *after(n)) for n in (0, 50)] == ["1 messages", "101 messages"]


async def test_a_script_that_has_run_out_says_who_asked_for_what() -> None:
    model = ScriptedModel(["one"], name="scripted:test")
    assert await text_of(model) == "one"
    asked = [*after(0), AssistantMessage(text="one"), ToolMessage(tool_call_id="c", tool_name="search", content=[1])]
    with pytest.raises(ScriptExhaustedError) as caught:
        await events_of(model, question(*asked, step=2))
    assert str(caught.value) == (
        "Model 'scripted:test' gave no answer: its script has no step 2, only 1. Session 's-1' asked for it "
        "(agent 'writer', step 2); the last message was: tool search answered [1]"
    )
    assert not caught.value.retryable
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_script_that_was_written_for_a_later_turn_alone_is_told_how_scripts_count() -> None:
    told = r'only 1 .*the whole conversation; with by="calls", the calls of this object'
    with pytest.raises(ScriptExhaustedError, match=told):
        await text_of(ScriptedModel(["two"]), *after(1))
    assert await text_of(ScriptedModel(["two"], by="calls"), *after(1)) == "two"


async def test_requests_are_kept_as_they_were_without_copying_the_history() -> None:
    model = ScriptedModel(["one", "two"])
    transcript = after(0)
    request = question(messages=transcript)
    done = await answer_of(model, request)
    transcript += [done.reply, UserMessage(content="go on")]
    await answer_of(model, question(messages=transcript))
    first, second = model.requests
    assert first.request is request
    assert list(first.messages) == transcript[:1]
    assert list(second.messages) == transcript
    assert model.asked == 2


async def test_only_the_latest_requests_are_kept() -> None:
    model = ScriptedModel(lambda _: "yes")
    for number in range(REQUESTS_KEPT + 5):
        await answer_of(model, question(step=number))
    assert model.asked == REQUESTS_KEPT + 5
    assert [model.requests[0].request.step, len(model.requests)] == [5, REQUESTS_KEPT]


async def test_a_test_can_hold_the_stream_before_any_piece() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def pace(event: ModelEvent) -> None:
        if event == TextPiece(delta="two "):
            reached.set()
            await go_on.wait()

    model = ScriptedModel(["one two three"], chunk=4, pace=pace)
    seen: list[ModelEvent] = []

    async def read() -> None:
        nonlocal seen
        async for event in model.ask(question()):
            seen += (event,)

    reader = asyncio.create_task(read())
    async with asyncio.timeout(10):
        await reached.wait()
        assert seen == [TextPiece(delta="one ")]
        go_on.set()
        await reader
    assert len(seen) == 5


async def test_a_stream_may_be_closed_early() -> None:
    model = RoutingScriptedModel({"writer": ["one two three"]}, chunk=4)
    async with aclosing(model.ask(question())) as events:
        assert await anext(events) == TextPiece(delta="one ")
    assert await text_of(model) == "one two three"


async def test_parent_and_child_never_take_each_others_steps() -> None:
    model = RoutingScriptedModel({"parent": ["p1", "p2"], "child": ["c1", "c2"]})
    asked = [
        text_of(model, *after(replies), agent_type=agent, session_id=f"{agent}-{session}")
        for agent in ("parent", "child")
        for session in (1, 2)
        for replies in (0, 1)
    ]
    assert await asyncio.gather(*asked) == ["p1", "p2", "p1", "p2", "c1", "c2", "c1", "c2"]
    assert model.models["child"].asked == 4


async def test_an_agent_without_a_script_is_told_which_there_are() -> None:
    model = RoutingScriptedModel({"parent": [], "child": []})
    with pytest.raises(ScriptExhaustedError, match="no script for agent 'writer'; there are: child, parent"):
        await text_of(model)


def test_a_piece_without_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        ScriptedModel([], chunk=0)
