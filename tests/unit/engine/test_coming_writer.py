"""A writer that a run uses before the stream has given it one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from helix_agents.backends.in_memory import InMemoryStreamManager
from helix_agents.domain.errors import SupersededError
from helix_agents.engine.coming_writer import ComingWriter
from helix_agents.ports.streams import StreamManager, StreamWriter
from helix_agents.testing.stream_scenes import STREAM, delta, open_writer, texts


class Coming:
    """A writer that comes when it is told to."""

    def __init__(self, streams: StreamManager) -> None:
        self.may_come = asyncio.Event()
        self._streams = streams
        self.writer = ComingWriter(self._come())

    async def _come(self) -> StreamWriter:
        await self.may_come.wait()
        return await open_writer(self._streams)


async def test_what_is_written_early_is_stored_in_order_with_what_follows():
    streams = InMemoryStreamManager()
    coming = Coming(streams)
    await coming.writer.write(delta("a"))
    await coming.writer.write(delta("b"))
    assert (coming.writer.writer, coming.writer.sequence) == (0, 0)
    flushing = asyncio.create_task(coming.writer.flush())
    coming.may_come.set()
    assert await flushing == 2
    await coming.writer.write(delta("c"))
    assert await coming.writer.flush() == 3
    assert texts(await streams.get_all_chunks(STREAM)) == ["a", "b", "c"]
    assert (coming.writer.writer, coming.writer.sequence) == (1, 3)


async def test_early_chunks_ride_in_the_first_commit():
    streams = InMemoryStreamManager()
    coming = Coming(streams)
    await coming.writer.write(delta("a"))
    asyncio.get_running_loop().call_soon(coming.may_come.set)
    async with coming.writer.take() as last:
        assert last is not None
        assert texts(last.chunks) == ["a"]
        await streams.end_stream(STREAM, "r-1", status="completed", last=last)
    async with coming.writer.take() as nothing:
        assert nothing is None
    await coming.writer.close()
    assert texts(await streams.get_all_chunks(STREAM)) == ["a"]


@pytest.mark.parametrize(
    "use", [lambda writer: writer.flush(), lambda writer: writer.close(), lambda writer: writer.write(delta("b"))]
)
async def test_a_stream_that_another_run_owns_refuses_whoever_uses_the_writer(
    use: Callable[[ComingWriter], Awaitable[object]],
):
    streams = InMemoryStreamManager()
    await open_writer(streams, "r-2", 2)
    coming = Coming(streams)
    await coming.writer.write(delta("a"))
    coming.may_come.set()
    with pytest.raises(SupersededError):
        await coming.writer.arrived()
    with pytest.raises(SupersededError):
        await use(coming.writer)
    assert await streams.get_all_chunks(STREAM) == ()


async def test_who_stops_waiting_does_not_keep_the_writer_from_others():
    streams = InMemoryStreamManager()
    coming = Coming(streams)
    await coming.writer.write(delta("a"))
    impatient = asyncio.create_task(coming.writer.flush())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait((impatient,))
    coming.may_come.set()
    assert await coming.writer.flush() == 1
