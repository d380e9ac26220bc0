"""The contract of ownership: a writer that was replaced can write nothing more and end nothing."""

import asyncio

import pytest

from helix_agents.domain.errors import StoreError, SupersededError
from helix_agents.domain.streams import StreamError
from helix_agents.ports.streams import FlushPolicy, StreamManager, StreamWriter
from helix_agents.testing.contracts.stream_handles import StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import HoldingSeam
from helix_agents.testing.stream_scenes import RUN, STREAM, delta, fill, numbers, open_writer, texts, write

STATEMENTS_OF_ONE_FLUSH = 8
BROKEN = StreamError(code="boom", message="it broke")


class OwnershipContract(StreamsContract):
    """Runs, attempts and writers that take a stream over from one another."""

    @proves("ownership.newer-writer-wins")
    async def test_a_newer_writer_of_the_same_attempt_shuts_out_the_earlier(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        old = await fill(one, "a")
        new = await open_writer(two)
        assert new.writer > old.writer
        await _is_refused(old)
        assert await write(new, delta("b")) == 2
        assert texts(await one.get_all_chunks(STREAM)) == ["a", "b"]

    @proves("ownership.handles-join")
    async def test_handles_of_one_writer_write_side_by_side_until_a_newer_writer_comes(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        first = await fill(one, "a")
        second = await open_writer(two, join=True)
        assert second.writer == first.writer
        assert second.sequence == 1
        assert await write(second, delta("b")) == 2
        assert await write(first, delta("c")) == 3
        assert await write(second, delta("d")) == 4
        assert texts(await one.get_all_chunks(STREAM)) == ["a", "b", "c", "d"]
        newer = await open_writer(one)
        await _is_refused(first)
        await _is_refused(second)
        assert await write(newer, delta("e")) == 5

    @proves("ownership.handles-join", "ownership.rest-is-final", "ownership.later-attempt-wins")
    async def test_who_finds_no_writer_to_join_becomes_one_or_is_refused(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        first = await open_writer(one, join=True)
        assert await write(first, delta("a")) == 1
        second = await open_writer(two, attempt=2, join=True)
        assert second.writer > first.writer
        await _is_refused(first)
        with pytest.raises(SupersededError):
            await open_writer(one, join=True)
        await two.end_stream(STREAM, RUN, status="completed", attempt=2)
        with pytest.raises(SupersededError):
            await open_writer(two, attempt=2, join=True)

    @proves("ownership.later-turn-wins")
    async def test_a_run_of_an_earlier_turn_can_do_nothing_more(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        old = await fill(one, "a")
        new = await open_writer(two, "r-2", 2)
        await _is_refused(old)
        await _cannot_touch_the_stream(one, RUN, turn=1, attempt=1)
        assert await write(new, delta("b", run_id="r-2")) == 2
        info = await one.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.run_id) == ("active", "r-2")

    @proves("ownership.later-attempt-wins")
    async def test_an_earlier_attempt_can_do_nothing_more(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        old = await fill(one, "a")
        new = await open_writer(two, attempt=2)
        await _is_refused(old)
        await _cannot_touch_the_stream(one, RUN, turn=1, attempt=1)
        assert await write(new, delta("b")) == 2
        info = await one.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.attempt) == ("active", 2)

    @proves("ownership.later-attempt-wins", "ownership.later-turn-wins")
    async def test_reactivating_takes_a_stream_over_without_writing(self, streams: StreamManager):
        old = await fill(streams, "a")
        await streams.reactivate_stream(STREAM, RUN, turn=1, attempt=2)
        await _is_refused(old)
        await _cannot_touch_the_stream(streams, RUN, turn=1, attempt=1)
        await streams.reactivate_stream(STREAM, "r-2", turn=2)
        await _cannot_touch_the_stream(streams, RUN, turn=1, attempt=2)

    @proves("ownership.refusal-surfaces")
    async def test_a_refusal_met_in_the_background_is_raised_by_the_next_call(self, handles: StreamHandles):
        streams = await handles.open(flush=FlushPolicy(interval_ms=1))
        for call in ("write", "flush", "close"):
            old = await open_writer(streams, turn=1)
            await open_writer(await handles.open(), turn=1)
            await old.write(delta("too late"))
            async with asyncio.timeout(10):
                while True:
                    # The refusal comes by itself; until then writing is fine.
                    try:
                        await old.write(delta("too late"))
                    except SupersededError:
                        break
                    await asyncio.sleep(0.001)
            with pytest.raises(SupersededError):
                await (old.write(delta("x")) if call == "write" else getattr(old, call)())
        assert await streams.get_all_chunks(STREAM) == ()

    @proves("ownership.rest-is-final")
    @pytest.mark.parametrize("rest", ["ended", "failed", "paused"])
    async def test_the_attempt_that_brought_its_stream_to_rest_cannot_write_to_it(
        self, streams: StreamManager, rest: str
    ):
        writer = await fill(streams, "a")
        await _bring_to_rest(streams, rest)
        await _is_refused(writer)
        with pytest.raises(SupersededError):
            await open_writer(streams)
        info = await streams.get_stream_info(STREAM)
        assert info is not None
        assert info.status == rest
        assert await write(await open_writer(streams, attempt=2), delta("b")) == 2

    @proves("ownership.held-writer-loses", "numbers.from-one-without-gaps")
    @pytest.mark.parametrize("statement", range(1, STATEMENTS_OF_ONE_FLUSH))
    async def test_a_writer_held_in_its_flush_leaves_nothing_among_the_chunks_of_its_successor(
        self, handles: StreamHandles, statement: int
    ):
        seam = HoldingSeam()
        streams, other = await handles.open(seam=seam), await handles.open()
        old = await fill(streams, "a")
        for text in ("b1", "b2", "b3"):
            await old.write(delta(text))
        seam.arm(after=statement)
        late = asyncio.create_task(old.flush())
        taking_over = asyncio.create_task(_take_over(other))
        try:
            await asyncio.wait({late, asyncio.create_task(seam.wait_until_held())}, return_when="FIRST_COMPLETED")
        finally:
            # A database that locks for writing makes the successor wait for the held one.
            await asyncio.wait({taking_over}, timeout=0.05)
            seam.release()
        await taking_over
        outcome = (await asyncio.gather(late, return_exceptions=True))[0]
        chunks = await other.get_all_chunks(STREAM)
        assert numbers(chunks) == list(range(1, len(chunks) + 1))
        whole = ["a", "b1", "b2", "b3", "c1", "c2"]
        if isinstance(outcome, SupersededError):
            assert texts(chunks) == ["a", "c1", "c2"]
        else:
            assert not isinstance(outcome, StoreError), outcome
            assert texts(chunks) == whole
        await _is_refused(old)


async def _take_over(streams: StreamManager) -> None:
    writer = await open_writer(streams, attempt=2)
    await write(writer, delta("c1"))
    await write(writer, delta("c2"))


async def _is_refused(writer: StreamWriter) -> None:
    with pytest.raises(SupersededError):
        await write(writer, delta("not mine any more"))
    with pytest.raises(SupersededError):
        await writer.close()


async def _cannot_touch_the_stream(streams: StreamManager, run_id: str, *, turn: int, attempt: int) -> None:
    before = await streams.snapshot(STREAM)
    for touch in (
        lambda: open_writer(streams, run_id, turn, attempt=attempt),
        lambda: streams.end_stream(STREAM, run_id, status="completed", attempt=attempt),
        lambda: streams.fail_stream(STREAM, run_id, BROKEN, attempt=attempt),
        lambda: streams.pause_stream(STREAM, run_id, attempt=attempt),
        lambda: streams.reactivate_stream(STREAM, run_id, turn=turn, attempt=attempt),
    ):
        with pytest.raises(SupersededError):
            await touch()
    assert await streams.snapshot(STREAM) == before


async def _bring_to_rest(streams: StreamManager, rest: str) -> None:
    match rest:
        case "ended":
            await streams.end_stream(STREAM, RUN, status="interrupted")
        case "failed":
            await streams.fail_stream(STREAM, RUN, BROKEN)
        case _:
            await streams.pause_stream(STREAM, RUN)
