"""The contract of writing: numbers, order, few flushes, and nothing that a lost reply could double."""

import asyncio
import contextlib
import time
from typing import Any

import msgspec
import pytest

from helix_agents.domain import chunks as kinds
from helix_agents.domain.errors import ChunkTooLargeError, StoreError
from helix_agents.domain.records import encode
from helix_agents.domain.writes import MergeWarning
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamManager
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.stream_handles import StreamHandles, StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import CountingSeam, DyingSeam, HoldingSeam
from helix_agents.testing.stream_scenes import (
    AGENT,
    PATIENCE,
    RUN,
    STREAM,
    delta,
    fill,
    header,
    numbers,
    open_writer,
    read_to,
    reading,
    texts,
    write,
)

NEVER = FlushPolicy(interval_ms=3_600_000, chunks=1_000_000, bytes=1_000_000_000)
STATEMENTS_OF_ONE_FLUSH = 20
AWKWARD: dict[str, Any] = {"none": None, "deep": [{"ä": ["\x00\u2028", -(2**53)]}], "": 1.5, "empty": {}}


class WritingContract(StreamsContract):
    """What happens to a chunk on its way into the stream."""

    @proves("writing.first-writer-creates", "numbers.from-one-without-gaps", "writing.in-order")
    async def test_the_first_writer_creates_the_stream_and_numbers_start_at_one(self, streams: StreamManager):
        assert await streams.get_stream_info(STREAM) is None
        writer = await streams.create_writer(STREAM, RUN, AGENT)
        info = await streams.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.total_chunks, info.first_sequence, info.latest_sequence) == ("active", 0, 1, 0)
        assert await write(writer, *(delta(str(n)) for n in range(200))) == 200
        chunks = await streams.get_all_chunks(STREAM)
        assert texts(chunks) == [str(n) for n in range(200)]
        assert numbers(chunks) == list(range(1, 201))

    @proves("numbers.from-one-without-gaps", "numbers.never-reused")
    async def test_numbers_go_on_over_writers_runs_and_ends(self, handles: StreamHandles):
        one, two = await handles.open(), await handles.open()
        await (await fill(one, "a", "b")).close()
        await one.end_stream(STREAM, RUN, status="completed")
        assert await write(await open_writer(two, "r-2", 2), delta("c", run_id="r-2")) == 3
        assert await write(await open_writer(one, "r-2", 2), delta("d", run_id="r-2")) == 4
        assert numbers(await two.get_all_chunks(STREAM)) == [1, 2, 3, 4]

    @proves("writing.chunks-round-trip")
    async def test_every_type_of_chunk_comes_back_as_it_was_written(self, handles: StreamHandles):
        written = _one_of_each()
        await write(await open_writer(await handles.open()), *written)
        read = await (await handles.open()).get_all_chunks(STREAM)
        assert list(read) == [msgspec.structs.replace(chunk, sequence=n) for n, chunk in enumerate(written, 1)]

    @proves("writing.chunks-are-copies")
    async def test_what_a_caller_does_to_its_data_later_changes_nothing(self, streams: StreamManager):
        data = {"list": [1]}
        writer = await open_writer(streams)
        await write(writer, kinds.Custom(name="mine", data=data, **header()))
        data["list"].append(2)
        for _ in range(2):
            (chunk,) = await streams.get_all_chunks(STREAM)
            assert isinstance(chunk, kinds.Custom)
            assert chunk.data == {"list": [1]}
            chunk.data["list"].append(3)

    @proves("writing.time-is-stamped")
    async def test_a_chunk_without_a_time_gets_the_time_it_was_taken(self, streams: StreamManager, clock: ManualClock):
        writer = await open_writer(streams)
        taken = clock.now_ms()
        await writer.write(delta("now"))
        await writer.write(delta("then", timestamp=7))
        clock.advance(1_000)
        await writer.flush()
        assert [chunk.timestamp for chunk in await streams.get_all_chunks(STREAM)] == [taken, 7]

    @proves("writing.close-keeps-the-stream")
    async def test_closing_a_writer_stores_what_it_took_and_leaves_the_stream_active(self, streams: StreamManager):
        writer = await open_writer(streams)
        await writer.write(delta("a"))
        await writer.close()
        await writer.close()
        info = await streams.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.latest_sequence) == ("active", 1)
        with pytest.raises(StoreError):
            await writer.write(delta("late"))
        assert await write(await open_writer(streams), delta("b")) == 2
        assert texts(await streams.get_all_chunks(STREAM)) == ["a", "b"]

    @proves("writing.never-waits")
    async def test_a_write_returns_while_the_store_is_held(self, handles: StreamHandles):
        seam = HoldingSeam()
        streams = await handles.open(seam=seam, flush=FlushPolicy(chunks=1))
        writer = await open_writer(streams)
        seam.arm(after=1)
        try:
            async with asyncio.timeout(PATIENCE):
                await writer.write(delta("first"))
                await seam.wait_until_held()
                for n in range(500):
                    await writer.write(delta(str(n)))
        finally:
            seam.release()
        assert await writer.flush() == 501

    @proves("writing.pieces-join")
    async def test_pieces_of_a_text_that_wait_together_are_one_chunk(self, handles: StreamHandles):
        streams = await handles.open(flush=NEVER, limits=StreamLimits(chunk_bytes=2_000))
        writer = await open_writer(streams)
        first, second = delta("a"), delta("c")
        await writer.write(first)
        assert writer.extend(first, "é")
        assert writer.extend(first, '"b')
        assert not writer.extend(delta("a"), "not the chunk that was written")
        await writer.write(second)
        assert not writer.extend(first, "something came in between")
        assert not writer.extend(second, "x" * 2_000)
        assert await writer.flush() == 2
        assert not writer.extend(second, "it is stored")
        assert texts(await streams.get_all_chunks(STREAM)) == ['aé"b', "c"]

    @proves("writing.pieces-join", "writing.flush-is-repeatable")
    async def test_what_was_added_to_a_piece_is_stored_with_it_once(self, handles: StreamHandles):
        seam = DyingSeam()
        streams = await handles.open(seam=seam, flush=NEVER)
        writer = await open_writer(streams)
        first = delta("a")
        await writer.write(first)
        assert writer.extend(first, "b")
        seam.arm(after=1)
        with contextlib.suppress(StoreError):
            await writer.flush()
        seam.disarm()
        assert not writer.extend(first, "it may be stored")
        await writer.write(delta("c"))
        assert await writer.flush() == 2
        assert texts(await streams.get_all_chunks(STREAM)) == ["ab", "c"]

    @proves("writing.flushes-by-time")
    async def test_a_chunk_is_stored_soon_by_itself(self, streams: StreamManager):
        writer = await open_writer(streams)
        await writer.write(delta("a"))
        assert texts(await read_to(await reading(streams), 1)) == ["a"]

    @pytest.mark.parametrize(
        "policy",
        [
            pytest.param(FlushPolicy(interval_ms=3_600_000, chunks=5, bytes=10**9), id="by count"),
            pytest.param(FlushPolicy(interval_ms=3_600_000, chunks=10**9, bytes=5_000), id="by size"),
        ],
    )
    @proves("writing.flushes-by-count", "writing.flushes-by-size")
    async def test_much_is_stored_at_once(self, handles: StreamHandles, policy: FlushPolicy):
        streams = await handles.open(flush=policy)
        writer = await open_writer(streams)
        for n in range(4):
            await writer.write(delta(str(n) * 1_000))
        assert await streams.get_all_chunks(STREAM) == ()
        await writer.write(delta("4" * 1_000))
        assert len(await read_to(await reading(streams), 5)) == 5

    @proves("writing.few-flushes")
    async def test_a_thousand_deltas_over_a_second_cost_few_flushes(self, handles: StreamHandles):
        seam = CountingSeam()
        writer = await open_writer(await handles.open(seam=seam))
        seam.reset()
        await write(writer, delta("to measure what one flush costs"))
        cost = seam.count
        seam.reset()
        started = time.monotonic()
        for n in range(1_000):
            await writer.write(delta("token"))
            await asyncio.sleep(max(0.0, started + (n + 1) / 1_000 - time.monotonic()))
        await writer.close()
        # If the machine takes longer for them, there are as many in each second.
        assert seam.count <= 45 * cost * (time.monotonic() - started)

    @proves("writing.oversized-refused", "numbers.from-one-without-gaps")
    async def test_an_oversized_chunk_is_refused_before_it_takes_a_number(self, handles: StreamHandles):
        fits = delta("é" * 500, timestamp=1)
        limit = len(encode(fits))
        streams = await handles.open(limits=StreamLimits(chunk_bytes=limit))
        assert streams.limits.chunk_bytes == limit
        writer = await open_writer(streams)
        await writer.write(fits)
        with pytest.raises(ChunkTooLargeError) as refusal:
            await writer.write(delta("é" * 501, timestamp=1))
        assert (refusal.value.stream_id, refusal.value.limit_bytes) == (STREAM, limit)
        assert refusal.value.size_bytes == limit + 2
        assert await write(writer, delta("small")) == 2
        pieces = kinds.split_delta(delta("é" * 2_000), limit)
        assert "".join(piece.delta for piece in pieces) == "é" * 2_000
        assert await write(writer, *pieces) == 2 + len(pieces)

    @proves("writing.flush-is-atomic", "writing.flush-is-repeatable", "numbers.from-one-without-gaps")
    @pytest.mark.parametrize("joins", [False, True], ids=["alone", "beside another handle"])
    async def test_a_flush_that_loses_its_connection_is_stored_once(self, handles: StreamHandles, joins: bool):
        seam = DyingSeam()
        streams = await handles.open(seam=seam, flush=NEVER)
        other = await handles.open()
        beside = await open_writer(other)
        writer = await open_writer(streams, join=joins)
        expected: list[str] = []
        for statement in range(1, STATEMENTS_OF_ONE_FLUSH):
            if joins:
                await write(beside, delta(f"beside {statement}"))
                expected.append(f"beside {statement}")
            batch = [f"{statement}.{n}" for n in range(3)]
            for text in batch:
                await writer.write(delta(text))
            seam.arm(after=statement)
            try:
                await writer.flush()
            except StoreError:
                assert texts(await other.get_all_chunks(STREAM)) in (expected, expected + batch)
            finally:
                seam.disarm()
            expected += batch
            assert await writer.flush() == len(expected)
            assert texts(await other.get_all_chunks(STREAM)) == expected


def _one_of_each() -> list[kinds.StreamChunk]:
    """Every type of chunk, with every field set."""
    call: dict[str, Any] = {"tool_call_id": "call-1", **header(timestamp=7, parent_tool_call_id="parent-call")}
    plain: dict[str, Any] = header(step=3, timestamp=8)
    child: dict[str, Any] = {"child_session_id": "child", "child_agent_type": "helper"}
    return [
        kinds.TextDelta(delta="ä\u2028\x01 🎈", **plain),
        kinds.ThinkingChunk(content="hm", is_complete=True, signature="sig", **plain),
        kinds.ToolArgStreamStart(tool_name="search", **call),
        kinds.ToolArgStreamDelta(delta='{"q":', **call),
        kinds.ToolArgStreamEnd(**call),
        kinds.ToolStart(tool_name="search", arguments=AWKWARD, **call),
        kinds.ToolEnd(tool_name="search", result=[AWKWARD], **call),
        kinds.ToolError(tool_name="search", error="no", code="denied", **call),
        kinds.ToolApprovalRequest(tool_name="pay", approval_id="a-1", input=AWKWARD, reason="why", **call),
        kinds.SubagentStart(**child, **call),
        kinds.SubagentEnd(status="completed", result=AWKWARD, **child, **call),
        kinds.StatePatch(patch=[{"op": "add", "path": "/a", "value": AWKWARD}], **plain),
        kinds.Custom(name="mine", data=AWKWARD, **plain),
        kinds.Output(output=AWKWARD, **plain),
        kinds.ErrorChunk(error="broken", code="boom", retryable=True, **plain),
        kinds.RunStarted(turn=1, attempt=2, **plain),
        kinds.RunResumed(turn=2, previous_run_id="r-0", checkpoint_id="ckpt", **plain),
        kinds.RunPaused(reason="client_tool", tool_call_ids=("call-1", "call-2"), **plain),
        kinds.RunInterrupted(reason="enough", **plain),
        kinds.RunSuperseded(by_run_id="r-2", **plain),
        kinds.CheckpointCreated(checkpoint_id="ckpt", **plain),
        kinds.StepCommitted(
            step_id="step",
            checkpoint_id="ckpt",
            message_count=3,
            warnings=(MergeWarning(key="k", tool_call_ids=("c-1", "c-2")),),
            **plain,
        ),
        kinds.StepDiscarded(from_sequence=1, to_sequence=2, **plain),
        kinds.StreamResync(reason="rewound", **plain),
    ]
