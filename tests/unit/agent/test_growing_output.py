"""An output that is still being written, from the chunks of its run."""

from collections.abc import AsyncIterator
from typing import Any

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
)


class Report(BaseModel):
    title: str = Field(alias="headline")
    pages: int = 1


REPORT = OutputType[Report](Report, "Agent 'writer'")
NUMBERS = OutputType[list[int]](list[int], "Agent 'counter'")


def chunk(kind: Any, step: int = 1, session_id: str = "s", **fields: Any) -> StreamChunk:
    about = {"run_id": "r", "agent_type": "writer", "timestamp": 0}
    return kind(session_id=session_id, step=step, **about, **fields)


def begin(call: str = "c", name: str = "__finish__", **place: Any) -> StreamChunk:
    return chunk(ToolArgStreamStart, tool_call_id=call, tool_name=name, **place)


def more(delta: str, call: str = "c", **place: Any) -> StreamChunk:
    return chunk(ToolArgStreamDelta, tool_call_id=call, delta=delta, **place)


def say(delta: str, step: int = 1, **place: Any) -> StreamChunk:
    return chunk(TextDelta, step, delta=delta, **place)


async def drafts(output_type: OutputType[Any] | None, *chunks: StreamChunk) -> list[Any]:
    async def told() -> AsyncIterator[StreamChunk]:
        for each in chunks:
            yield each

    return [draft async for draft in growing_output(told(), "s", output_type)]


async def test_an_object_grows_and_the_last_one_is_as_it_was_validated():
    end = chunk(Output, output={"title": "Tides", "pages": 12})
    told = [begin(), more('{"head'), more('line": "Ti'), more('des", "pages": 1'), more("2}"), end]
    assert await drafts(REPORT, *told) == [
        {},
        {"headline": "Ti"},
        {"headline": "Tides", "pages": 1},
        {"headline": "Tides", "pages": 12},
        {"title": "Tides", "pages": 12},
    ]


async def test_what_is_no_object_grows_without_what_it_is_wrapped_in():
    told = [begin(), more('{"re'), more('sult": [1'), more(", 2"), more("]}"), chunk(Output, output=[1, 2])]
    assert await drafts(NUMBERS, *told) == [[1], [1, 2]]


async def test_arguments_that_are_no_json_are_passed_over():
    assert await drafts(REPORT, begin(), more("no"), more(" json")) == []
    assert await drafts(NUMBERS, begin(), more("[3]")) == []


async def test_it_starts_again_when_the_model_does():
    gone = chunk(StepDiscarded, from_sequence=1, to_sequence=2)
    told = [begin(), more('{"pages": 1}'), begin("d"), more('{"pages": 2', "d"), more("}", "c")]
    assert await drafts(REPORT, *told) == [{"pages": 1}, {"pages": 2}]
    assert await drafts(REPORT, begin(), more('{"pages"'), gone, more(": 3}")) == [{}]
    resync = chunk(StreamResync, reason="pruned")
    assert await drafts(None, say("One"), gone, say("T"), resync, say("wo")) == ["One", "T", "wo"]
    assert await drafts(None, say("Let me see."), say("Don", 2), say("e.", 2)) == ["Let me see.", "Don", "Done."]


async def test_only_the_output_of_this_run_is_read():
    other = [begin("x", "search"), more('{"q": 1}', "x"), say("aloud"), begin("y", session_id="child")]
    assert await drafts(REPORT, *other, more('{"pages": 9}', "y", session_id="child")) == []
    told = [begin(), more('{"pages": 9}'), say("A", session_id="child"), say("B")]
    assert await drafts(None, *told) == ["B"]
