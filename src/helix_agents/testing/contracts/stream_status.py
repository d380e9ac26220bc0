"""The contract of a stream's life: active, paused, ended, failed, active again, deleted."""

import asyncio

import pytest

from helix_agents.domain.errors import StoreClosedError, StreamFailedError, SupersededError
from helix_agents.domain.streams import StreamError, StreamInfo
from helix_agents.ports.streams import StreamManager
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.stream_handles import StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.stream_scenes import (
    AGENT,
    PATIENCE,
    RESTS,
    RUN,
    STREAM,
    come_to_rest,
    delta,
    fill,
    next_of,
    open_writer,
    reading,
    rest_of,
    texts,
    write,
)


class StatusContract(StreamsContract):
    """What a stream says about itself and what its readers get."""

    @proves("status.no-stream-no-reader")
    async def test_a_stream_that_is_not_there_gives_nothing(self, streams: StreamManager):
        assert await streams.create_reader(STREAM) is None
        assert await streams.create_resumable_reader(STREAM, from_sequence=3) is None
        assert await streams.get_stream_info(STREAM) is None
        assert await streams.snapshot(STREAM) is None
        assert await streams.get_all_chunks(STREAM) == ()
        assert await streams.get_chunks_from_step(STREAM, 0) == ()
        assert await streams.cleanup_to_step(STREAM, RUN, 0) == 0
        await streams.end_stream(STREAM, RUN, status="completed")
        await streams.fail_stream(STREAM, RUN, StreamError(code="c", message="m"))
        await streams.pause_stream(STREAM, RUN)
        await streams.resume_stream(STREAM)
        await streams.reactivate_stream(STREAM, RUN)
        await streams.delete_stream(STREAM)
        assert await streams.get_stream_info(STREAM) is None

    @proves("status.history-then-live", "status.ended")
    async def test_a_reader_gets_what_is_there_then_what_comes_then_the_end(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a", "b")
        reader = await two.create_reader(STREAM)
        assert reader is not None
        assert [await next_of(reader), await next_of(reader)] == list(await one.get_all_chunks(STREAM))
        following = asyncio.create_task(rest_of(reader))
        await write(writer, delta("c"))
        await write(writer, delta("d"))
        await one.end_stream(STREAM, RUN, status="completed", output={"title": "Tides"})
        assert texts(await following) == ["c", "d"]
        late = await two.create_reader(STREAM)
        assert late is not None
        assert texts(await rest_of(late)) == ["a", "b", "c", "d"]

    @proves("status.ended", "status.first-end-stands")
    async def test_an_end_says_how_and_the_first_one_stands(self, streams: StreamManager):
        await fill(streams, "a")
        await streams.end_stream(STREAM, RUN, status="interrupted", output=[1])
        ended = await streams.snapshot(STREAM)
        assert ended is not None
        assert (ended.info.status, ended.info.end_status, ended.info.output) == ("ended", "interrupted", [1])
        await streams.end_stream(STREAM, RUN, status="completed", output=[2])
        await streams.fail_stream(STREAM, RUN, StreamError(code="c", message="m"))
        await streams.pause_stream(STREAM, RUN)
        await streams.resume_stream(STREAM)
        assert await streams.snapshot(STREAM) == ended

    @proves("status.failed", "status.first-end-stands")
    async def test_a_failed_stream_gives_its_history_and_then_its_error(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a")
        live = await reading(two)
        await next_of(live)
        following = asyncio.create_task(rest_of(live))
        error = StreamError(code="model_overloaded", message="try later", retryable=True)
        await write(writer, delta("b"))
        await one.fail_stream(STREAM, RUN, error)
        await one.fail_stream(STREAM, RUN, StreamError(code="other", message="second"))
        await one.end_stream(STREAM, RUN, status="completed")
        with pytest.raises(StreamFailedError) as failure:
            await following
        assert (failure.value.stream_id, failure.value.error_code) == (STREAM, "model_overloaded")
        assert failure.value.message == "try later"
        late = await reading(two)
        assert texts([await next_of(late), await next_of(late)]) == ["a", "b"]
        with pytest.raises(StreamFailedError):
            await next_of(late)
        info = await two.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.error) == ("failed", error)

    @proves("status.paused", "status.resumed")
    async def test_a_paused_stream_closes_cleanly_and_goes_on_when_resumed(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a")
        reader = await reading(two)
        following = asyncio.create_task(rest_of(reader))
        await write(writer, delta("b"))
        await one.pause_stream(STREAM, RUN)
        await one.pause_stream(STREAM, RUN)
        assert texts(await following) == ["a", "b"]
        assert (await _info(two)).status == "paused"
        await one.resume_stream(STREAM)
        assert (await _info(two)).status == "active"
        following = asyncio.create_task(rest_of(reader))
        await write(writer, delta("c"))
        await one.end_stream(STREAM, RUN, status="completed")
        assert texts(await following) == ["c"]

    @proves("status.new-run-reactivates", "numbers.cursor-is-exact")
    @pytest.mark.parametrize("rest", RESTS)
    async def test_a_new_run_goes_on_where_the_stream_came_to_rest(self, handles: StreamHandles, rest: str):
        one, two = await handles.open(), await handles.open()
        await fill(one, "a")
        await come_to_rest(one, rest)
        writer = await open_writer(two, "r-2", 2)
        info = await _info(one)
        assert (info.status, info.run_id, info.end_status, info.output, info.error) == (
            "active",
            "r-2",
            None,
            None,
            None,
        )
        reader = await reading(one, after=1)
        assert await write(writer, delta("b", run_id="r-2")) == 2
        await two.end_stream(STREAM, "r-2", status="completed")
        assert texts(await rest_of(reader)) == ["b"]

    @proves("status.new-run-reactivates")
    async def test_a_stream_can_be_reactivated_for_a_run_before_it_writes(self, streams: StreamManager):
        writer = await fill(streams, "a")
        await streams.end_stream(STREAM, RUN, status="completed")
        await streams.reactivate_stream(STREAM, RUN, turn=1)
        assert (await _info(streams)).status == "active"
        assert await write(writer, delta("b")) == 2
        await streams.reactivate_stream(STREAM, "r-2", turn=2)
        info = await _info(streams)
        assert (info.status, info.run_id) == ("active", "r-2")

    @proves("status.info")
    async def test_the_info_tells_how_the_stream_stands(self, streams: StreamManager, clock: ManualClock):
        created_at = clock.now_ms()
        writer = await streams.create_writer(STREAM, RUN, AGENT, turn=4, attempt=3)
        clock.advance(50)
        await write(writer, delta("a"), delta("b"))
        assert await _info(streams) == StreamInfo(
            stream_id=STREAM,
            status="active",
            run_id=RUN,
            attempt=3,
            total_chunks=2,
            first_sequence=1,
            latest_sequence=2,
            created_at=created_at,
            updated_at=created_at + 50,
        )

    @proves("status.deleted")
    async def test_a_deleted_stream_is_gone_for_everybody(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        writer = await fill(one, "a", "b")
        reader = await reading(two)
        following = asyncio.create_task(rest_of(reader))
        await asyncio.sleep(0)
        await two.delete_stream(STREAM)
        await two.delete_stream(STREAM)
        async with asyncio.timeout(PATIENCE):
            await following
        assert await one.get_stream_info(STREAM) is None
        assert await one.get_all_chunks(STREAM) == ()
        with pytest.raises(SupersededError):
            await write(writer, delta("c"))
        await fill(two, "new")
        assert texts(await one.get_all_chunks(STREAM)) == ["new"]
        assert await rest_of(reader) == []

    @proves("status.closed")
    async def test_a_closed_manager_refuses_work_by_name(self, handles: StreamHandles):
        streams = await handles.open()
        await fill(streams, "a")
        waiting = asyncio.create_task(next_of(await reading(streams, after=1)))
        await asyncio.sleep(0.05)
        await streams.close()
        await streams.close()
        with pytest.raises(StoreClosedError):
            await waiting
        for work in (
            lambda: streams.get_stream_info(STREAM),
            lambda: open_writer(streams),
            lambda: streams.get_all_chunks(STREAM),
        ):
            with pytest.raises(StoreClosedError):
                await work()
        assert texts(await (await handles.open()).get_all_chunks(STREAM)) == ["a"]


async def _info(streams: StreamManager) -> StreamInfo:
    info = await streams.get_stream_info(STREAM)
    assert info is not None
    return info
