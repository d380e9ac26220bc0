"""How chunks become the messages a reader sees."""

from typing import Any

from msgspec.structs import replace

from helix_agents.domain import chunks as kinds
from helix_agents.domain.messages import AssistantMessage, Thinking, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.rendering import render
from helix_agents.testing.stream_scenes import committed, delta, header

QUESTION = UserMessage(content="What is tide?")


def numbered(*chunks: kinds.StreamChunk) -> list[kinds.StreamChunk]:
    return [replace(chunk, sequence=n) for n, chunk in enumerate(chunks, 1)]


def started(call: str, step: int = 1, arguments: Any = None, **fields: Any) -> kinds.ToolStart:
    return kinds.ToolStart(tool_call_id=call, tool_name="search", arguments=arguments, **header(step, **fields))


def ended(call: str, result: Any = "found", step: int = 1, run_id: str = "r-1") -> kinds.ToolEnd:
    return kinds.ToolEnd(tool_call_id=call, tool_name="search", result=result, **header(step, run_id))


def result(call: str, content: Any = "found", **fields: Any) -> ToolMessage:
    return ToolMessage(tool_call_id=call, tool_name="search", content=content, **fields)


def asked(*calls: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(id=call, name="search") for call in calls))


def test_a_transcript_without_chunks_is_itself():
    transcript = (QUESTION, asked("a"), result("a"), AssistantMessage(text="done", model="m", stop_reason="end"))
    assert render(transcript, []) == transcript


def test_deltas_of_a_step_make_one_reply_and_each_step_its_own():
    chunks = numbered(delta("Ti"), delta("de"), committed(1), delta("More", 2), delta("!", 2))
    assert render([QUESTION], chunks) == (QUESTION, AssistantMessage(text="Tide"), AssistantMessage(text="More!"))


def test_thoughts_are_blocks_of_their_own():
    thought = [
        kinds.ThinkingChunk(content="hm", **header()),
        kinds.ThinkingChunk(content=" ok", is_complete=True, signature="sig", **header()),
        kinds.ThinkingChunk(content="and", **header()),
    ]
    (reply,) = render([], numbered(*thought, delta("yes")))
    assert reply == AssistantMessage(
        text="yes", thinking=(Thinking(text="hm ok", signature="sig"), Thinking(text="and"))
    )


def test_arguments_appear_as_they_come_and_are_parsed_when_complete():
    start = kinds.ToolArgStreamStart(tool_call_id="a", tool_name="search", **header())
    pieces = [kinds.ToolArgStreamDelta(tool_call_id="a", delta=text, **header()) for text in ('{"q": "ti', 'de"}')]
    end = kinds.ToolArgStreamEnd(tool_call_id="a", **header())
    assert _arguments(start) == {}
    assert _arguments(start, pieces[0]) == '{"q": "ti'
    assert _arguments(start, *pieces) == '{"q": "tide"}'
    assert _arguments(start, *pieces, end) == {"q": "tide"}
    assert _arguments(start, pieces[0], end) == '{"q": "ti'
    assert _arguments(start, *pieces, end, started("a", arguments={"q": "low tide"})) == {"q": "low tide"}
    assert _arguments(start, started("a", arguments=[1])) == "[1]"


def _arguments(*chunks: kinds.StreamChunk) -> Any:
    (reply,) = render([], numbered(*chunks))
    assert isinstance(reply, AssistantMessage)
    return reply.tool_calls[0].arguments


def test_results_follow_in_the_order_of_the_calls():
    failed = kinds.ToolError(tool_call_id="b", tool_name="search", error="denied", code="no", **header())
    chunks = numbered(delta("Let me see"), started("a"), started("b"), failed, ended("a"))
    assert render([], chunks) == (
        AssistantMessage(text="Let me see", tool_calls=asked("a", "b").tool_calls),
        result("a"),
        result("b", "denied", error=True, code="no"),
    )


def test_an_approval_shows_the_call_that_waits():
    approval = kinds.ToolApprovalRequest(
        tool_call_id="a", tool_name="pay", approval_id="ap", input={"eur": 3}, **header()
    )
    (reply,) = render([], numbered(approval))
    assert reply == AssistantMessage(tool_calls=(ToolCall(id="a", name="pay", arguments={"eur": 3}),))


def test_results_of_calls_the_transcript_left_open_follow_it_in_call_order():
    transcript = [QUESTION, asked("a", "b", "c")]
    held = [result("b", "held")]
    chunks = numbered(ended("c", run_id="r-2"), ended("a", run_id="r-2"), started("a", run_id="r-2"))
    assert render(transcript, chunks, held=held) == (*transcript, result("a"), result("b", "held"), result("c"))


def test_what_the_transcript_says_of_a_call_stands():
    transcript = (QUESTION, asked("a"), result("a", "not executed"), UserMessage(content="next"))
    assert render(transcript, numbered(ended("a", "late"))) == transcript


def test_a_discarded_range_vanishes_although_it_was_seen():
    discarded = kinds.StepDiscarded(from_sequence=2, to_sequence=3, **header())
    chunks = numbered(delta("kept "), delta("wrong"), started("a"), discarded, delta("right"))
    assert render([], chunks) == (AssistantMessage(text="kept right"),)


def test_what_came_before_a_resync_vanishes():
    resync = kinds.StreamResync(reason="rewound", **header())
    assert render([QUESTION], numbered(delta("old"), resync, delta("new", 2))) == (
        QUESTION,
        AssistantMessage(text="new"),
    )


def test_what_children_say_is_not_part_of_the_conversation():
    child = delta("psst", 4, "r-child", parent_tool_call_id="a")
    chunks = numbered(started("a"), child, committed(4, "r-child"), ended("a", "the child's answer"))
    assert render([], chunks) == (asked("a"), result("a", "the child's answer"))


def test_a_result_whose_call_was_never_seen_is_shown_alone():
    assert render([QUESTION], numbered(ended("a"))) == (QUESTION, result("a"))
