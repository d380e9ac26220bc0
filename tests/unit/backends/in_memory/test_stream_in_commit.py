"""Chunks ride in the step's transaction, and a stream goes with its session."""

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, Memory
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import SupersededError
from helix_agents.domain.streams import StreamAppend
from helix_agents.testing.scenes import FENCE, RUN, SESSION, commit, start
from helix_agents.testing.seams import DyingSeam
from helix_agents.testing.stream_scenes import delta, open_writer

pytestmark = pytest.mark.anyio


async def chunks_of(streams: InMemoryStreamManager, *texts: str) -> StreamAppend:
    """What a new writer of the stream would let ride in a commit."""
    writer = await open_writer(streams)
    return StreamAppend(
        stream_id=SESSION,
        run_id=RUN,
        attempt=1,
        writer=writer.writer,
        batch=1,
        chunks=tuple(delta(text) for text in texts),
    )


async def test_a_commit_stores_its_chunks_and_says_where_the_stream_stands():
    memory = Memory()
    store, streams = InMemoryStateStore(memory), InMemoryStreamManager(memory)
    await start(store)
    append = await chunks_of(streams, "a", "b")
    committed = await commit(store, 1, stream=append)
    chunks = await streams.get_all_chunks(SESSION)
    assert [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)] == ["a", "b"]
    assert committed.stream_sequence == chunks[-1].sequence
    checkpoint = await store.get_latest_checkpoint(SESSION)
    assert checkpoint is not None
    assert checkpoint.stream_sequence == committed.stream_sequence
    assert await commit(store, 1, stream=append) == committed
    assert await streams.get_all_chunks(SESSION) == chunks


async def test_a_commit_that_fails_stores_no_chunk():
    memory, seam = Memory(), DyingSeam()
    store, streams = InMemoryStateStore(memory, seam=seam), InMemoryStreamManager(memory)
    await start(store)
    append = await chunks_of(streams, "a")
    before = await streams.get_all_chunks(SESSION)
    seam.arm(after=1)
    with pytest.raises(Exception, match="the connection was lost"):
        await commit(store, 1, stream=append)
    assert await streams.get_all_chunks(SESSION) == before
    seam.disarm()
    assert (await commit(store, 1, stream=append)).stream_sequence == len(before) + 1


async def test_a_commit_with_chunks_of_a_newer_writers_stream_stores_nothing():
    memory = Memory()
    store, streams = InMemoryStateStore(memory), InMemoryStreamManager(memory)
    await start(store)
    append = await chunks_of(streams, "a")
    await open_writer(streams)
    with pytest.raises(SupersededError):
        await commit(store, 1, stream=append)
    assert (await store.list_checkpoints(SESSION)).total == 0


async def test_a_stream_goes_with_its_session():
    memory = Memory()
    store, streams = InMemoryStateStore(memory), InMemoryStreamManager(memory)
    await start(store)
    append = await chunks_of(streams, "a")
    reader = await streams.create_reader(SESSION)
    assert reader is not None
    await store.delete_session(SESSION)
    assert [chunk async for chunk in reader] == []
    assert await streams.get_stream_info(SESSION) is None
    await start(store)
    with pytest.raises(SupersededError):
        await commit(store, 1, fence=FENCE, stream=append)
