"""The contract of removal: discarded steps, full streams, old streams."""

import pytest
from msgspec.structs import replace

from helix_agents.domain.chunks import RunInterrupted, StepDiscarded, StreamChunk
from helix_agents.domain.streams import StreamError, StreamInfo
from helix_agents.ports.streams import StreamLimits, StreamManager
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.stream_handles import StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.stream_scenes import (
    RUN,
    STREAM,
    committed,
    delta,
    fill,
    interrupted,
    numbers,
    open_writer,
    texts,
    write,
)


class ShrinkingContract(StreamsContract):
    """Rows are removed, numbers never are, and what is gone is named."""

    @proves("shrinking.cleanup-drops-later-steps", "numbers.what-is-gone-is-named", "numbers.never-reused")
    async def test_cleanup_drops_later_steps_of_one_run_and_names_each_range(self, streams: StreamManager):
        writer = await open_writer(streams)
        await write(
            writer, delta("1", 1), delta("2", 2), delta("3", 3), delta("child", 9, "r-child"), delta("3 more", 3)
        )
        assert await streams.cleanup_to_step(STREAM, RUN, 1) == 3
        chunks = await streams.get_all_chunks(STREAM)
        assert texts(chunks) == ["1", "child"]
        assert numbers(chunks) == [1, 4, 6, 7]
        assert _discarded(chunks) == [(2, 3), (5, 5)]
        assert [(chunk.run_id, chunk.session_id) for chunk in chunks[2:]] == [(RUN, STREAM)] * 2
        assert await streams.cleanup_to_step(STREAM, RUN, 1) == 0
        assert await write(writer, delta("2 again", 2)) == 8
        info = await _info(streams)
        assert (info.total_chunks, info.first_sequence, info.latest_sequence) == (5, 1, 8)
        assert await streams.cleanup_to_step(STREAM, "r-child", 0) == 1
        assert await streams.cleanup_to_step(STREAM, RUN, 0) == 2
        assert texts(await streams.get_all_chunks(STREAM)) == []

    @proves("shrinking.keeps-what-a-commit-answers-for")
    async def test_what_stands_at_or_below_a_number_stays_whatever_its_step(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        await write(await open_writer(one), delta("1", 1), delta("2", 2), delta("2 in a later round", 2))
        second = await open_writer(two, attempt=2, step=2, after=2)
        await write(second, delta("2 again", 2))
        assert texts(await one.get_all_chunks(STREAM)) == ["1", "2", "2 again"]
        assert await two.cleanup_to_step(STREAM, RUN, 0, after=4) == 1
        chunks = await one.get_all_chunks(STREAM)
        assert texts(chunks) == ["1", "2"]
        assert _discarded(chunks) == [(3, 3), (5, 5)]
        assert await one.cleanup_to_step(STREAM, RUN, 1) == 1
        assert texts(await one.get_all_chunks(STREAM)) == ["1"]

    @proves("shrinking.markers-stay")
    async def test_markers_stay_when_their_step_goes(self, streams: StreamManager):
        writer = await open_writer(streams)
        await write(writer, delta("1", 1), interrupted(1), delta("more", 1))
        assert await streams.cleanup_to_step(STREAM, RUN, 0) == 2
        await write(writer, delta("again", 1))
        assert await streams.cleanup_to_step(STREAM, RUN, 0) == 1
        chunks = await streams.get_all_chunks(STREAM)
        assert isinstance(chunks[0], RunInterrupted)
        assert _discarded(chunks) == [(1, 1), (3, 3), (6, 6)]

    @proves("shrinking.repeat-discards", "numbers.what-is-gone-is-named")
    async def test_a_new_writer_of_a_step_discards_what_an_earlier_one_left_of_it(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        first = await open_writer(one, step=1)
        await write(first, delta("1", 1), committed(1))
        second = await open_writer(one, step=2)
        await write(second, delta("2", 2), delta("2 more", 2))
        third = await open_writer(two, attempt=2, step=2)
        assert await write(third, delta("2 again", 2)) == 6
        chunks = await one.get_all_chunks(STREAM)
        assert texts(chunks) == ["1", "2 again"]
        assert _discarded(chunks) == [(3, 4)]
        fourth = await open_writer(one, attempt=3, step=3)
        assert await write(fourth, delta("3", 3)) == 7
        assert texts(await one.get_all_chunks(STREAM)) == ["1", "2 again", "3"]

    @proves("shrinking.repeat-discards")
    async def test_a_new_writer_leaves_other_runs_and_earlier_steps_alone(self, streams: StreamManager):
        await fill(streams, "old run", step=7)
        writer = await open_writer(streams, "r-2", 2, step=1)
        await write(writer, delta("1", 1, "r-2"), delta("2", 2, "r-2"))
        await open_writer(streams, "r-2", 2)
        assert texts(await streams.get_all_chunks(STREAM)) == ["old run", "1", "2"]
        await open_writer(streams, "r-2", 2, step=2)
        assert texts(await streams.get_all_chunks(STREAM)) == ["old run", "1"]
        await open_writer(streams, "r-2", 2, step=1)
        assert texts(await streams.get_all_chunks(STREAM)) == ["old run"]

    @proves("shrinking.repeat-discards")
    async def test_runs_that_do_not_know_their_turn_find_what_they_left(self, streams: StreamManager):
        await fill(streams, "one", run_id="one", turn=0)
        await fill(streams, "two", run_id="two", turn=0)
        await open_writer(streams, "one", 0, step=1)
        assert texts(await streams.get_all_chunks(STREAM)) == ["two"]

    @proves("shrinking.max-chunks", "numbers.never-reused")
    async def test_a_full_stream_lets_its_oldest_chunks_go(self, handles: StreamHandles):
        streams = await handles.open(limits=StreamLimits(max_chunks=5))
        assert streams.limits.max_chunks == 5
        writer = await open_writer(streams)
        for n in range(1, 13):
            assert await write(writer, delta(str(n))) == n
            info = await _info(streams)
            assert (info.total_chunks, info.first_sequence) == (min(n, 5), max(1, n - 4))
        await write(writer, *(delta(str(n)) for n in range(13, 33)))
        assert numbers(await streams.get_all_chunks(STREAM)) == [28, 29, 30, 31, 32]

    @proves("shrinking.prune-by-age", "numbers.never-reused")
    @pytest.mark.parametrize("rest", ["ended", "failed"])
    async def test_old_streams_lose_their_chunks_and_keep_their_numbers(
        self, streams: StreamManager, clock: ManualClock, rest: str
    ):
        await fill(streams, "a", "b")
        assert await streams.prune(0) == 0
        if rest == "ended":
            await streams.end_stream(STREAM, RUN, status="completed")
        else:
            await streams.fail_stream(STREAM, RUN, StreamError(code="c", message="m"))
        clock.advance(999)
        assert await streams.prune(1_000) == 0
        clock.advance(1)
        assert await streams.prune(1_000) == 2
        assert await streams.prune(0) == 0
        info = await _info(streams)
        assert (info.status, info.total_chunks, info.first_sequence, info.latest_sequence) == (rest, 0, 3, 2)
        assert await write(await open_writer(streams, "r-2", 2), delta("c", run_id="r-2")) == 3
        clock.advance(10_000)
        assert await streams.prune(0) == 0
        assert texts(await streams.get_all_chunks(STREAM)) == ["c"]

    @proves("shrinking.paused-keeps-the-uncommitted")
    async def test_a_paused_stream_keeps_what_no_commit_replaced(self, streams: StreamManager, clock: ManualClock):
        writer = await open_writer(streams)
        child = replace(committed(9, "r-child"), parent_tool_call_id="call-1")
        await write(writer, delta("1", 1), committed(1), delta("2", 2), child, delta("2 more", 2))
        await streams.pause_stream(STREAM, RUN)
        clock.advance(5_000)
        assert await streams.prune(1_000) == 2
        assert texts(await streams.get_all_chunks(STREAM)) == ["2", "2 more"]
        assert await streams.prune(0) == 0
        await streams.end_stream(STREAM, RUN, status="interrupted")
        assert await streams.prune(1) == 0
        clock.advance(1)
        assert await streams.prune(1) == 3

    @proves("shrinking.prune-by-age")
    async def test_pruning_takes_what_is_due_and_nothing_else(self, streams: StreamManager, clock: ManualClock):
        for stream_id, age in (("old", 3_000), ("young", 1_000), ("active", None)):
            writer = await streams.create_writer(stream_id, RUN, "writer")
            await write(writer, delta(stream_id))
            if age is not None:
                await streams.end_stream(stream_id, RUN, status="completed")
                clock.advance(2_000)
        assert await streams.prune(3_000) == 1
        assert await streams.get_all_chunks("old") == ()
        assert texts(await streams.get_all_chunks("young")) == ["young"]
        assert texts(await streams.get_all_chunks("active")) == ["active"]


async def _info(streams: StreamManager) -> StreamInfo:
    info = await streams.get_stream_info(STREAM)
    assert info is not None
    return info


def _discarded(chunks: tuple[StreamChunk, ...]) -> list[tuple[int, int]]:
    return [(chunk.from_sequence, chunk.to_sequence) for chunk in chunks if isinstance(chunk, StepDiscarded)]
