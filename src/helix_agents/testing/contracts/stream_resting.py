"""The contract of leaving: what a writer holds is stored with the end of its stream, or neither happens."""

import asyncio
from contextlib import suppress

import pytest

from helix_agents.domain.errors import StoreError, StreamFailedError, SupersededError
from helix_agents.ports.streams import FlushPolicy, StreamManager, StreamReader
from helix_agents.testing.contracts.stream_handles import StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import DyingSeam
from helix_agents.testing.stream_scenes import (
    PATIENCE,
    RESTS,
    STREAM,
    come_to_rest,
    delta,
    fill,
    numbers,
    open_writer,
    reading,
    texts,
)

NEVER = FlushPolicy(interval_ms=3_600_000, chunks=10**9, bytes=10**9)
STATEMENTS_OF_ONE_END = 12


class RestingContract(StreamsContract):
    """The last chunks of a run."""

    @proves("writing.last-with-the-end")
    @pytest.mark.parametrize("rest", RESTS)
    async def test_last_chunks_come_before_the_end(self, handles: StreamHandles, rest: str):
        one, two = await handles.open(flush=NEVER), await handles.open()
        writer = await fill(one, "a")
        following = asyncio.create_task(_read_to_rest(await reading(two)))
        await writer.write(delta("b"))
        await writer.write(delta("c"))
        async with writer.take() as last:
            assert last is not None
            await come_to_rest(one, rest, last=last)
            await come_to_rest(two, rest, last=last)
        assert await following == ["a", "b", "c"]
        snapshot = await two.snapshot(STREAM)
        assert snapshot is not None
        assert (snapshot.info.status, snapshot.info.latest_sequence) == (rest, 3)
        assert numbers(snapshot.chunks) == [1, 2, 3]
        await writer.close()

    @proves("writing.last-is-checked")
    @pytest.mark.parametrize("rest", RESTS)
    async def test_refused_last_chunks_change_nothing(self, streams: StreamManager, rest: str):
        older = await fill(streams, "a")
        await older.write(delta("too late"))
        await open_writer(streams)
        before = await streams.snapshot(STREAM)
        with pytest.raises(SupersededError):
            async with older.take() as last:
                assert last is not None
                await come_to_rest(streams, rest, last=last)
        assert await streams.snapshot(STREAM) == before

    @proves("writing.last-is-checked")
    @pytest.mark.parametrize("rest", RESTS)
    async def test_a_stream_at_rest_takes_no_more_last_chunks(self, streams: StreamManager, rest: str):
        writer = await fill(streams, "a")
        await come_to_rest(streams, "ended")
        before = await streams.snapshot(STREAM)
        await writer.write(delta("after the end"))
        async with writer.take() as last:
            assert last is not None
            with pytest.raises(SupersededError):
                await come_to_rest(streams, rest, last=last)
            assert await streams.snapshot(STREAM) == before
            await streams.delete_stream(STREAM)
            with pytest.raises(SupersededError):
                await come_to_rest(streams, rest, last=last)
            assert await streams.snapshot(STREAM) is None
        with suppress(SupersededError):
            await writer.close()

    @proves("writing.last-with-the-end")
    @pytest.mark.parametrize("rest", RESTS)
    async def test_an_end_that_lost_its_connection_keeps_chunks_and_status_together(
        self, handles: StreamHandles, rest: str
    ):
        seam = DyingSeam()
        streams, other = await handles.open(seam=seam, flush=NEVER), await handles.open()
        for statement in range(1, STATEMENTS_OF_ONE_END):
            run_id = f"r-{statement}"
            writer = await open_writer(streams, run_id, statement)
            await writer.write(delta(f"{statement}a", run_id=run_id))
            await writer.write(delta(f"{statement}b", run_id=run_id))
            async with writer.take() as last:
                assert last is not None
                seam.arm(after=statement)
                try:
                    await come_to_rest(streams, rest, last=last)
                except StoreError:
                    pass
                finally:
                    seam.disarm()
                info = await other.get_stream_info(STREAM)
                assert info is not None
                found = (info.status, info.latest_sequence)
                assert found in (("active", 2 * statement - 2), (rest, 2 * statement))
                await come_to_rest(streams, rest, last=last)
        chunks = await other.get_all_chunks(STREAM)
        assert texts(chunks) == [f"{n}{part}" for n in range(1, STATEMENTS_OF_ONE_END) for part in "ab"]


async def _read_to_rest(reader: StreamReader) -> list[str]:
    """What the deltas say, until the stream comes to rest in whichever way."""
    said: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in reader:
                said += texts([chunk])
    except StreamFailedError:
        pass
    return said
