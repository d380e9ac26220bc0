"""Short ways to fill a stream and to look at it, so that a test shows only what it is about."""

import asyncio
from collections.abc import Iterable
from typing import Any

from helix_agents.domain.chunks import RunInterrupted, StepCommitted, StreamChunk, TextDelta
from helix_agents.domain.streams import StreamAppend, StreamError
from helix_agents.ports.streams import StreamManager, StreamReader, StreamWriter

STREAM = "s-1"
RUN = "r-1"
AGENT = "writer"
PATIENCE = 30.0
"""No wait in a test is longer than this many seconds."""

RESTS = ("ended", "failed", "paused")
"""How a stream comes to rest."""


def header(step: int = 1, run_id: str = RUN, **fields: Any) -> dict[str, Any]:
    """The header fields of every chunk of the usual session."""
    return {"session_id": STREAM, "run_id": run_id, "agent_type": AGENT, "step": step, **fields}


def delta(text: str, step: int = 1, run_id: str = RUN, **fields: Any) -> TextDelta:
    """A piece of an answer."""
    return TextDelta(delta=text, **header(step, run_id, **fields))


def committed(step: int = 1, run_id: str = RUN) -> StepCommitted:
    """The mark that a step's messages are in the store."""
    return StepCommitted(step_id=f"{run_id}-step-{step}", checkpoint_id="ckpt", message_count=1, **header(step, run_id))


def interrupted(step: int = 1, run_id: str = RUN) -> RunInterrupted:
    """The mark that a run was stopped."""
    return RunInterrupted(**header(step, run_id))


async def open_writer(streams: StreamManager, run_id: str = RUN, turn: int = 1, **fields: Any) -> StreamWriter:
    """A writer of the usual stream."""
    return await streams.create_writer(STREAM, run_id, AGENT, turn=turn, **fields)


async def write(writer: StreamWriter, *chunks: StreamChunk) -> int:
    """Write the chunks and store them; returns the latest sequence."""
    for chunk in chunks:
        await writer.write(chunk)
    return await writer.flush()


async def fill(streams: StreamManager, *texts: str, step: int = 1, run_id: str = RUN, turn: int = 1) -> StreamWriter:
    """A stream with one delta per text; returns its writer."""
    writer = await open_writer(streams, run_id, turn)
    await write(writer, *(delta(text, step, run_id) for text in texts))
    return writer


async def come_to_rest(
    streams: StreamManager, how: str, *, last: StreamAppend | None = None, run_id: str = RUN, attempt: int = 1
) -> None:
    """End, fail or pause the usual stream for a run, which is the run of the last chunks if there are any."""
    if last is not None:
        run_id, attempt = last.run_id, last.attempt
    match how:
        case "paused":
            await streams.pause_stream(STREAM, run_id, attempt=attempt, last=last)
        case "failed":
            error = StreamError(code="boom", message="it broke")
            await streams.fail_stream(STREAM, run_id, error, attempt=attempt, last=last)
        case _:
            await streams.end_stream(STREAM, run_id, status="completed", output=1, attempt=attempt, last=last)


async def reading(streams: StreamManager, after: int = 0) -> StreamReader:
    """A reader of the usual stream, which exists."""
    reader = await streams.create_resumable_reader(STREAM, from_sequence=after)
    assert reader is not None
    return reader


async def next_of(reader: StreamReader) -> StreamChunk:
    """The next chunk, which comes soon."""
    async with asyncio.timeout(PATIENCE):
        return await anext(reader)


async def rest_of(reader: StreamReader) -> list[StreamChunk]:
    """Everything until the stream comes to rest, which it does soon."""
    async with asyncio.timeout(PATIENCE):
        return [chunk async for chunk in reader]


async def read_to(reader: StreamReader, sequence: int) -> list[StreamChunk]:
    """Everything up to a number that the stream has reached."""
    chunks: list[StreamChunk] = []
    while reader.sequence < sequence:
        chunks.append(await next_of(reader))
    return chunks


def texts(chunks: Iterable[StreamChunk]) -> list[str]:
    """The texts of the deltas among the chunks."""
    return [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)]


def numbers(chunks: Iterable[StreamChunk]) -> list[int]:
    """The chunks' numbers."""
    return [chunk.sequence for chunk in chunks]
