"""An output that is still being written, from the chunks of its run."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel, Field

from helix_agents.agent.growing_output import growing_output
from helix_agents.agent.output import OutputType
from helix_agents.domain.chunks import (
    Output,
    StepDiscarded,
    StreamChunk,
    StreamResync,
    TextDelta,
    ToolArgStreamDelta,
    ToolArgStreamStart,
    Truncated,
)


class Report(BaseModel):
    title: str = Field(alias="headline")
    pages: int = 1
    by: dict[str, str] | None = None


REPORT = OutputType[Report](Report, "Agent 'writer'")
NUMBERS = OutputType[list[int]](list[int], "Agent 'counter'")


def chunk(kind: Any, step: int = 1, session_id: str = "s", agent_type: str = "desk", **fields: Any) -> StreamChunk:
    about = {"run_id": "r", "agent_type": agent_type, "timestamp": 0}
    return kind(session_id=session_id, step=step, **about, **fields)


def begin(call: str = "c", name: str = "__finish__", **place: Any) -> StreamChunk:
    return chunk(ToolArgStreamStart, tool_call_id=call, tool_name=name, **place)


def more(delta: str, call: str = "c", **place: Any) -> StreamChunk:
    return chunk(ToolArgStreamDelta, tool_call_id=call, delta=delta, **place)


def say(delta: str, step: int = 1, **place: Any) -> StreamChunk:
    return chunk(TextDelta, step, delta=delta, **place)


def without(first: int, last: int, session_id: str = "s") -> StreamChunk:
    return chunk(StepDiscarded, session_id=session_id, from_sequence=first, to_sequence=last)


async def drafts(
    output_type: OutputType[Any] | None, *chunks: StreamChunk, **others: OutputType[Any] | None
) -> list[Any]:
    async def told() -> AsyncGenerator[StreamChunk, None]:
        for number, each in enumerate(chunks, start=1):
            yield replace(each, sequence=number)

    growing = growing_output(told(), "s", lambda name: others.get(name, output_type))
    return [draft async for draft in growing]


async def test_an_object_grows_and_the_last_one_is_complete_under_the_same_names():
    end = chunk(Output, output={"title": "Tides", "pages": 12, "by": None})
    told = [begin(), more('{"head'), more('line": "Ti'), more('des", "pages": 1'), more("2}"), end]
    assert await drafts(REPORT, *told) == [
        {},
        {"headline": "Ti"},
        {"headline": "Tides"},
        {"headline": "Tides", "pages": 12},
        {"headline": "Tides", "pages": 12, "by": None},
    ]


async def test_an_output_that_the_type_no_longer_accepts_is_given_as_it_is_stored():
    assert await drafts(REPORT, chunk(Output, output={"name": "Tides"})) == [{"name": "Tides"}]


async def test_an_output_that_is_nothing_takes_the_place_of_what_was_written():
    told = [begin(), more('{"result": [1, 2'), chunk(Output, output=None)]
    assert await drafts(OutputType[list[int] | None](list[int] | None, "Agent 'counter'"), *told) == [[1], None]


async def test_what_is_no_object_grows_without_what_it_is_wrapped_in():
    told = [begin(), more('{"re'), more('sult": [1'), more(", 2"), more("]}"), chunk(Output, output=[1, 2])]
    assert await drafts(NUMBERS, *told) == [[], [1], [1, 2]]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"headline": "a \\ud83d\\ude', {"headline": "a "}),
        ('{"headline": "a \\ud83d\\ude00', {"headline": "a \U0001f600"}),
        ('{"headline": "a\\', {"headline": "a"}),
        ('{"headline": "room 1', {"headline": "room 1"}),
        ('{"headline": "1', {"headline": "1"}),
        ('{"headline": "a", "by": {"name": "A', {"headline": "a", "by": {"name": "A"}}),
        ('{"headline": "a", "by": nul', {"headline": "a"}),
    ],
)
async def test_what_a_piece_cuts_in_half_is_read_as_far_as_it_is_certain(written: str, read: Any):
    assert await drafts(REPORT, begin(), more(written)) == [read]


@pytest.mark.parametrize("cut", ["1", "12", "-1", "1.", "1.5", "1e", "1E+", "1e5"])
async def test_half_a_number_is_another_number_and_is_left_out(cut: str):
    assert await drafts(REPORT, begin(), more(f'{{"headline": "a", "pages": {cut}')) == [{"headline": "a"}]


async def test_arguments_that_are_no_json_are_passed_over():
    assert await drafts(REPORT, begin(), more("no"), more(" json")) == []
    assert await drafts(REPORT, begin(), more('{"pages": NaN'), more("}")) == []
    assert await drafts(NUMBERS, begin(), more("[3]")) == []


async def test_it_starts_again_when_the_model_does():
    told = [begin(), more('{"pages": 1}'), begin("d"), more('{"pages": 2}', "d"), more("}", "c")]
    assert await drafts(REPORT, *told) == [{"pages": 1}, {"pages": 2}]
    assert await drafts(REPORT, begin(), more('{"pages"'), without(1, 2), more(": 3}")) == [{}]
    resync = chunk(StreamResync, reason="pruned")
    assert await drafts(None, say("One"), without(1, 1), say("T"), resync, say("wo")) == ["One", "T", "wo"]
    assert await drafts(None, say("Let me see."), say("Don", 2), say("e.", 2)) == ["Let me see.", "Don", "Done."]


async def test_what_is_taken_back_of_others_leaves_it_alone():
    others = say("aloud", session_id="child")
    assert await drafts(None, say("On"), others, without(2, 2), say("e")) == ["On", "One"]
    told = [begin(), others, more('{"pages":'), without(2, 2), more(" 1}")]
    assert await drafts(REPORT, *told) == [{}, {"pages": 1}]


async def test_the_stream_of_a_root_says_what_is_taken_back_below_it():
    assert await drafts(None, say("One"), without(1, 1, session_id="root"), say("Two")) == ["One", "Two"]


async def test_a_text_whose_beginning_is_no_longer_there_is_not_told_as_if_it_were_whole():
    gap = chunk(Truncated, first_sequence=9)
    end = chunk(Output, output="All of it.")
    assert await drafts(None, gap, say("f it.", 4), end) == ["All of it."]
    assert await drafts(None, say("All"), gap, say("f it."), say("Next", 2)) == ["All", "Next"]
    assert await drafts(REPORT, begin(), more('{"pag'), gap, more("1}")) == [{}]


async def test_every_agent_of_a_conversation_hands_in_what_is_its_own():
    union = OutputType[Any](Report | str, "Agent 'desk'")
    told = [say("Let me see."), begin(agent_type="writer"), more('{"headline": "Ti', agent_type="writer")]
    assert await drafts(union, *told, writer=REPORT) == [{"headline": "Ti"}]
    assert await drafts(union, say("aloud"), say("Done.", 2, agent_type="talker"), talker=None) == ["Done."]


async def test_a_reader_that_leaves_early_lets_go_of_the_stream():
    left: list[bool] = []

    async def told() -> AsyncGenerator[StreamChunk, None]:
        try:
            yield say("One")
            yield say("Two")
        finally:
            left.append(True)

    growing = growing_output(told(), "s", lambda _: None)
    assert await anext(growing) == "One"
    await growing.aclose()
    assert left


async def test_only_the_output_of_this_run_is_read():
    other = [begin("x", "search"), more('{"q": 1}', "x"), say("aloud"), begin("y", session_id="child")]
    assert await drafts(REPORT, *other, more('{"pages": 9}', "y", session_id="child")) == []
    told = [begin(), more('{"pages": 9}'), say("A", session_id="child"), say("B")]
    assert await drafts(None, *told) == ["B"]
