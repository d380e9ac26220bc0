"""The contract of reading: live, exact, cheap while nothing happens, and harmless to the writer."""

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from helix_agents.domain.chunks import StepDiscarded, StreamResync, Truncated
from helix_agents.domain.errors import InvalidIdError, SupersededError
from helix_agents.ports.streams import StreamLimits, StreamManager
from helix_agents.testing.contracts.handles import opened
from helix_agents.testing.contracts.stream_handles import OpenStreams, StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import IMPOSSIBLE_IDS
from helix_agents.testing.seams import CountingSeam
from helix_agents.testing.stream_scenes import (
    AGENT,
    PATIENCE,
    RUN,
    STREAM,
    delta,
    fill,
    interrupted,
    next_of,
    numbers,
    open_writer,
    read_to,
    reading,
    rest_of,
    texts,
    write,
)

WATCHED_SECONDS = 2.5


class ReadingContract(StreamsContract):
    """Readers and their cursors."""

    @proves("numbers.cursor-is-exact", "reading.many-chunks")
    async def test_reading_after_any_number_gives_exactly_the_rest(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        await fill(one, *(str(n) for n in range(1, 1_001)))
        await one.end_stream(STREAM, RUN, status="completed")
        for cursor in (0, 1, 255, 256, 257, 999, 1_000):
            reader = await reading(two, after=cursor)
            assert reader.sequence == cursor
            chunks = await rest_of(reader)
            assert numbers(chunks) == list(range(cursor + 1, 1_001))
            assert reader.sequence == 1_000

    @proves("numbers.cursor-is-exact")
    async def test_a_reader_that_comes_back_with_its_cursor_misses_and_repeats_nothing(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await open_writer(one)
        got: list[int] = []
        cursor = latest = 0
        for round_ in range(10):
            for n in range(round_):
                await writer.write(delta(str(n)))
            latest = await writer.flush()
            reader = await reading(two, after=cursor)
            while reader.sequence < latest:
                got.append((await next_of(reader)).sequence)
                if len(got) % 4 == 0:
                    break
            cursor = reader.sequence
            await reader.close()
        got += numbers(await read_to(await reading(one, after=cursor), latest))
        assert got == list(range(1, latest + 1))

    @proves("numbers.foreign-cursor-is-named")
    async def test_a_cursor_this_stream_never_reached_starts_over_and_says_so(self, streams: StreamManager):
        await fill(streams, "a", "b")
        await streams.end_stream(STREAM, RUN, status="completed")
        resync, *chunks = await rest_of(await reading(streams, after=500))
        assert isinstance(resync, StreamResync)
        assert resync.sequence == 0
        assert texts(chunks) == ["a", "b"]
        assert numbers(await rest_of(await reading(streams, after=-5))) == [1, 2]

    @proves("numbers.foreign-cursor-is-named")
    @pytest.mark.parametrize("cursor", [2**31, 10**17, 2**63 - 1, 2**63, 10**30])
    async def test_a_cursor_that_no_stream_ever_reaches_starts_over_too(self, streams: StreamManager, cursor: int):
        """Elsewhere numbers may be times, or anything else that a page comes back with."""
        await fill(streams, "a")
        await streams.end_stream(STREAM, RUN, status="completed")
        resync, *chunks = await rest_of(await reading(streams, after=cursor))
        assert isinstance(resync, StreamResync)
        assert texts(chunks) == ["a"]

    @proves("reading.live")
    async def test_a_reader_on_another_handle_is_woken_by_the_write(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "first")
        reader = await reading(two, after=1)
        delays: list[float] = []
        for n in range(15):
            waiting = asyncio.create_task(next_of(reader))
            await asyncio.sleep(0.01)
            written_at = time.monotonic()
            await write(writer, delta(str(n)))
            assert texts([await waiting]) == [str(n)]
            delays.append(time.monotonic() - written_at)
        # A reader that polls would be late each time; a busy machine is late some of the time.
        assert statistics.quantiles(delays)[0] < 0.1

    @proves("reading.from-other-loops")
    async def test_readers_in_other_threads_are_woken(self, handles: StreamHandles, open_streams: OpenStreams):
        streams = await handles.open()
        writer = await fill(streams, "a")
        ready: SimpleQueue[int] = SimpleQueue()

        async def follow() -> list[str]:
            mine = await opened(open_streams())
            reader = await reading(mine)
            ready.put((await next_of(reader)).sequence)
            following = texts(await rest_of(reader))
            await mine.close()
            return following

        threads = ThreadPoolExecutor(3)
        try:
            followers = [asyncio.wrap_future(threads.submit(asyncio.run, follow())) for _ in range(3)]
            for _ in followers:
                assert await asyncio.to_thread(ready.get, timeout=PATIENCE) == 1
            await write(writer, delta("b"))
            await write(writer, delta("c"))
            await streams.end_stream(STREAM, RUN, status="completed")
            assert await asyncio.gather(*followers) == [["b", "c"]] * 3
        finally:
            threads.shutdown(wait=False)

    @proves("reading.waits-cheaply")
    async def test_a_waiting_reader_sends_at_most_two_statements_a_second(self, handles: StreamHandles):
        seam = CountingSeam()
        one, two = await handles.open(), await handles.open(seam=seam)
        writer = await fill(one, "a")
        reader = await reading(two)
        await next_of(reader)
        waiting = asyncio.create_task(next_of(reader))
        assert await seam.rate_over(WATCHED_SECONDS) <= 2
        await write(writer, delta("b"))
        assert texts([await waiting]) == ["b"]

    @proves("reading.harms-nobody")
    async def test_readers_that_do_not_read_do_not_slow_the_writer(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a")
        readers = [await reading(two) for _ in range(20)]
        for reader in readers:
            await next_of(reader)
        idle = [await reading(two, after=1) for _ in range(20)]
        waiting = [asyncio.create_task(next_of(reader)) for reader in idle]
        async with asyncio.timeout(PATIENCE):
            for _ in range(50):
                await write(writer, *(delta("x" * 100) for _ in range(64)))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (await next_of(readers[0])).sequence == 2

    @proves("reading.closes")
    async def test_closing_a_reader_ends_it_also_while_it_waits(self, streams: StreamManager):
        await fill(streams, "a", "b")
        reader = await reading(streams)
        await next_of(reader)
        await reader.close()
        await reader.close()
        assert await rest_of(reader) == []
        waiting = await reading(streams, after=2)
        task = asyncio.create_task(rest_of(waiting))
        await asyncio.sleep(0.05)
        await waiting.close()
        assert await task == []

    @proves("reading.by-step")
    async def test_chunks_are_found_by_run_and_step(self, streams: StreamManager):
        writer = await open_writer(streams)
        await write(writer, delta("1", 1), delta("2", 2), interrupted(2), delta("3", 3), delta("child", 5, "r-child"))
        writer = await open_writer(streams, "r-2", 2)
        await write(writer, delta("new 1", 1, "r-2"), delta("new 2", 2, "r-2"))
        assert numbers(await streams.get_chunks_from_step(STREAM, 2, RUN)) == [2, 3, 4]
        assert texts(await streams.get_chunks_from_step(STREAM, 2)) == ["new 2"]
        assert texts(await streams.get_chunks_from_step(STREAM, 0, "r-child")) == ["child"]
        assert await streams.get_chunks_from_step(STREAM, 4, RUN) == ()

    @proves("reading.snapshot")
    async def test_a_snapshot_is_one_consistent_read(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a", "b")

        async def keep_writing() -> None:
            for n in range(100):
                await write(writer, delta(str(n)))

        writing = asyncio.create_task(keep_writing())
        while not writing.done():
            snapshot = await two.snapshot(STREAM, after=1)
            assert snapshot is not None
            assert numbers(snapshot.chunks) == list(range(2, snapshot.info.latest_sequence + 1))
            assert snapshot.info.total_chunks == snapshot.info.latest_sequence
            await asyncio.sleep(0)
        await writing
        for after in (102, 2**70):
            empty = await two.snapshot(STREAM, after=after)
            assert empty is not None
            assert (empty.chunks, empty.info.latest_sequence) == ((), 102)

    @proves("numbers.what-is-gone-is-named", "shrinking.readers-keep-their-place")
    async def test_a_reader_behind_the_oldest_chunk_is_told_so(self, handles: StreamHandles):
        streams = await handles.open(limits=StreamLimits(max_chunks=10))
        writer = await fill(streams, *(str(n) for n in range(1, 6)))
        slow = await reading(streams)
        assert (await next_of(slow)).sequence == 1
        await write(writer, *(delta(str(n)) for n in range(6, 701)))
        await streams.end_stream(STREAM, RUN, status="completed")
        new = await rest_of(await reading(streams))
        assert isinstance(new[0], Truncated)
        assert (new[0].first_sequence, new[0].sequence) == (691, 690)
        assert numbers(new[1:]) == list(range(691, 701))
        seen = await rest_of(slow)
        gap = next(n for n, chunk in enumerate(seen) if isinstance(chunk, Truncated))
        assert numbers(seen[:gap]) == list(range(2, gap + 2))
        assert numbers(seen[gap + 1 :]) == list(range(691, 701))

    @proves("tenants.apart")
    async def test_a_namespace_sees_nothing_of_another(self, handles: StreamHandles):
        north, south = await handles.open(namespace="north"), await handles.open(namespace="south")
        await fill(north, "a")
        await north.end_stream(STREAM, RUN, status="completed")
        assert await south.get_stream_info(STREAM) is None
        assert await south.prune(0) == 0
        await south.delete_stream(STREAM)
        assert await south.cleanup_to_step(STREAM, RUN, 0) == 0
        await fill(south, "b")
        assert texts(await north.get_all_chunks(STREAM)) == ["a"]
        assert texts(await south.get_all_chunks(STREAM)) == ["b"]

    @proves("tenants.ids-are-data")
    async def test_no_stream_id_reaches_another_stream(self, streams: StreamManager):
        awkward = ["a", "a%", "a_", "a*", "a/b", "a:b", "'; DROP TABLE x; --", "ä", "{a}", "A", "a" * 256]
        for stream_id in awkward:
            writer = await streams.create_writer(stream_id, RUN, AGENT)
            await write(writer, delta(stream_id))
        for stream_id in awkward:
            assert texts(await streams.get_all_chunks(stream_id)) == [stream_id]
        for impossible in IMPOSSIBLE_IDS:
            with pytest.raises(InvalidIdError):
                await streams.create_writer(impossible, RUN, AGENT)
            with pytest.raises(InvalidIdError):
                await streams.create_writer(STREAM, impossible, AGENT)

    @proves("tenants.impossible-is-absent")
    @pytest.mark.parametrize("impossible", IMPOSSIBLE_IDS, ids=repr)
    async def test_an_impossible_id_is_as_absent_as_any(self, streams: StreamManager, impossible: str):
        await fill(streams, "a")
        assert await streams.get_stream_info(impossible) is None
        assert await streams.create_reader(impossible) is None
        assert await streams.snapshot(impossible) is None
        assert await streams.get_all_chunks(impossible) == ()
        assert await streams.get_chunks_from_step(STREAM, 0, impossible or "r-2") == ()
        for stream_id, run_id in ((impossible, RUN), (STREAM, impossible)):
            assert await streams.cleanup_to_step(stream_id, run_id, 0) == 0
        await streams.end_stream(impossible, RUN, status="completed")
        await streams.pause_stream(impossible, RUN)
        await streams.resume_stream(impossible)
        await streams.delete_stream(impossible)
        with pytest.raises(SupersededError):
            await streams.end_stream(STREAM, impossible, status="completed")
        assert texts(await streams.get_all_chunks(STREAM)) == ["a"]

    @proves("shrinking.readers-keep-their-place", "numbers.what-is-gone-is-named")
    async def test_a_live_reader_keeps_its_place_when_chunks_go(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await open_writer(one)
        await write(writer, delta("1a", 1), delta("2a", 2), delta("2b", 2), interrupted(2))
        reader = await reading(two)
        assert texts([await next_of(reader), await next_of(reader)]) == ["1a", "2a"]
        ahead = await reading(two, after=4)
        assert await two.cleanup_to_step(STREAM, RUN, 1) == 2
        await write(writer, delta("2 again", 2))
        await one.end_stream(STREAM, RUN, status="completed")
        survived = await rest_of(reader)
        assert numbers(survived)[-3:] == [4, 5, 6]
        discarded = survived[-2]
        assert isinstance(discarded, StepDiscarded)
        assert (discarded.from_sequence, discarded.to_sequence) == (2, 3)
        assert numbers(await rest_of(ahead)) == [5, 6]
