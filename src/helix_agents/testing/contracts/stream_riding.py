"""The contract of commits with chunks: if stream and state share a backend, a step's chunks are part of its commit."""

import asyncio
from typing import Any

import pytest

from helix_agents.domain.commits import StepCommit
from helix_agents.domain.errors import SupersededError
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.streams import StreamAppend
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.contracts.stream_handles import (
    LOST,
    NEVER,
    STATEMENTS_OF_ONE_COMMIT,
    SharedTransactionsContract,
)
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import said, start, step_meta
from helix_agents.testing.seams import DyingSeam
from helix_agents.testing.stream_scenes import STREAM, delta, numbers, open_writer, texts, write


class RidingContract(SharedTransactionsContract):
    """The step's transaction and the stream."""

    @proves("writing.rides-in-the-commit", "writing.hand-over-in-order")
    async def test_chunks_ride_in_the_commit_in_order(self, whole: Backend):
        assert whole.streams.shares_transactions_with(whole.state)
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await writer.write(delta("stored before"))
        await writer.flush()
        await writer.write(delta("rides"))
        async with writer.take() as stream:
            await writer.write(delta("written meanwhile"))
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(0.05)
            assert texts(await whole.streams.get_all_chunks(STREAM)) == ["stored before"]
            committed = await _commit(whole, 1, stream)
        assert committed.stream_sequence == 2
        checkpoint = await whole.state.get_latest_checkpoint(STREAM)
        assert checkpoint is not None
        assert checkpoint.stream_sequence == 2
        assert await flushing == 3
        assert texts(await whole.streams.get_all_chunks(STREAM)) == ["stored before", "rides", "written meanwhile"]
        async with writer.take() as nothing:
            assert nothing is None

    @proves("writing.rides-in-the-commit")
    async def test_a_refused_commit_stores_no_chunk_and_a_refused_chunk_no_commit(self, whole: Backend):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await writer.write(delta("too late"))
        await start(whole.state, STREAM, "r-2")
        with pytest.raises(SupersededError):
            async with writer.take() as stream:
                await _commit(whole, 1, stream)
        newer = await open_writer(whole.streams, "r-2", 2)
        await open_writer(whole.streams, "r-2", 2, attempt=2)
        await newer.write(delta("also too late", run_id="r-2"))
        with pytest.raises(SupersededError):
            async with newer.take() as stream:
                await _commit(whole, 1, stream, run_id="r-2")
        assert await whole.streams.get_all_chunks(STREAM) == ()
        assert (await whole.state.load_state(STREAM)).message_count == 0

    @proves("writing.rides-in-the-commit", "writing.flush-is-repeatable")
    @pytest.mark.parametrize("joins", [False, True], ids=["alone", "beside another handle"])
    async def test_a_commit_that_lost_its_connection_stores_its_chunks_once(
        self, whole: Backend, seam: DyingSeam, joins: bool
    ):
        await start(whole.state, STREAM)
        await open_writer(whole.streams)
        writer = await whole.streams.create_writer(STREAM, "r-1", "writer", turn=1, join=joins)
        for step in range(1, STATEMENTS_OF_ONE_COMMIT):
            await writer.write(delta(f"{step}a", step))
            await writer.write(delta(f"{step}b", step))
            try:
                async with writer.take() as stream:
                    seam.arm(after=step)
                    await _commit(whole, step, stream)
            except LOST:
                seam.disarm()
                stored = texts(await whole.streams.get_all_chunks(STREAM))
                messages = (await whole.state.load_state(STREAM)).message_count
                assert (len(stored), messages) in ((2 * step - 2, step - 1), (2 * step, step))
                async with writer.take() as stream:
                    await _commit(whole, step, stream)
            finally:
                seam.disarm()
            chunks = await whole.streams.get_all_chunks(STREAM)
            assert texts(chunks) == [f"{n}{part}" for n in range(1, step + 1) for part in "ab"]
            assert numbers(chunks) == list(range(1, 2 * step + 1))
            assert (await whole.state.load_state(STREAM)).message_count == step
        assert await write(writer, delta("end")) == 2 * STATEMENTS_OF_ONE_COMMIT - 1

    @proves("writing.rides-in-the-commit")
    async def test_a_stream_under_another_name_gets_the_chunks_of_a_commit_and_goes_with_its_session(
        self, whole: Backend
    ):
        await whole.state.create_session(STREAM, CreateSession(agent_type="writer", stream_id="aside"))
        await start(whole.state, STREAM)
        assert await whole.streams.get_stream_info("aside") is None
        writer = await whole.streams.create_writer("aside", "r-1", "writer", turn=1)
        for step in (1, 2):
            await writer.write(delta(f"rides {step}", step))
            async with writer.take() as stream:
                committed = await _commit(whole, step, stream)
            assert committed.stream_sequence == step
            checkpoint = await whole.state.get_latest_checkpoint(STREAM)
            assert checkpoint is not None
            assert checkpoint.stream_sequence == step
        assert texts(await whole.streams.get_all_chunks("aside")) == ["rides 1", "rides 2"]
        await whole.state.delete_session(STREAM)
        assert await whole.streams.get_stream_info("aside") is None

    @proves("writing.hand-over-in-order", "writing.flush-is-repeatable")
    async def test_what_a_failed_block_took_is_stored_by_the_next_flush(self, store_url: str):
        async with await open_backend(store_url, flush=NEVER) as whole:
            writer = await open_writer(whole.streams)
            await writer.write(delta("a"))
            with pytest.raises(ZeroDivisionError):
                async with writer.take() as stream:
                    assert stream is not None
                    await writer.write(delta("b"))
                    raise ZeroDivisionError
            assert await writer.flush() == 2
            assert texts(await whole.streams.get_all_chunks(STREAM)) == ["a", "b"]


async def _commit(whole: Backend, step: int, stream: StreamAppend | None, run_id: str = "r-1") -> Any:
    return await whole.state.save_state_and_promote_staging(
        STREAM,
        await whole.state.load_state(STREAM),
        [said(str(step))],
        step_meta(step, run_id),
        commit=StepCommit(fence=Fence(run_id=run_id), step=step, stream=stream),
    )
