"""The contract of a run's last commit: if stream and state share a backend, the stream comes to rest with it."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.chunks import CheckpointCreated, StepCommitted, StreamChunk
from helix_agents.domain.commits import Committed, StepCommit
from helix_agents.domain.errors import StreamFailedError, SupersededError
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.streams import StreamAppend, StreamEnd, StreamError, StreamRest
from helix_agents.domain.writes import StepWrites
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.streams import StreamLimits
from helix_agents.testing.contracts.stream_handles import (
    LOST,
    NEVER,
    STATEMENTS_OF_ONE_COMMIT,
    SharedTransactionsContract,
)
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import RUN, answer, said, set_key, start, step_meta, waiting
from helix_agents.testing.seams import DyingSeam
from helix_agents.testing.stream_scenes import (
    AGENT,
    STREAM,
    delta,
    header,
    next_of,
    numbers,
    open_writer,
    reading,
    rest_of,
    write,
)

ENDS = {
    "ended": StreamRest(status="ended", end_status="completed", output={"title": 'Tides "and" \x00 moons'}),
    "failed": StreamRest(status="failed", error=StreamError(code="boom", message="it broke")),
    "paused": StreamRest(status="paused"),
}
RUNS = {"ended": "completed", "failed": "failed", "paused": "suspended_client_tool"}


class CommitEndsContract(SharedTransactionsContract):
    """The last commit of a run and its stream."""

    @proves("writing.ends-with-the-commit")
    @pytest.mark.parametrize("how", list(ENDS))
    @pytest.mark.parametrize("looks_at_calls", [False, True], ids=["plain", "looks at calls"])
    async def test_a_stream_comes_to_rest_with_the_last_commit_of_its_run(
        self, whole: Backend, how: str, looks_at_calls: bool
    ):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await writer.write(delta("the last words"))
        reader = await reading(whole.streams)
        async with writer.take() as stream:
            committed = await _commit(whole, stream, how, drop_pending=looks_at_calls)
        assert committed.stream_ended
        await writer.close()
        # The checkpoint accounts for what the step said, not for what is said about the commit.
        checkpoint = await whole.state.get_latest_checkpoint(STREAM)
        assert checkpoint is not None
        assert committed.stream_sequence == checkpoint.stream_sequence == 1
        seen = [await next_of(reader) for _ in range(3)]
        assert seen == list(await whole.streams.get_all_chunks(STREAM))
        _check_told(seen, committed)
        info = await whole.streams.get_stream_info(STREAM)
        assert info is not None
        rest = ENDS[how]
        assert (info.status, info.end_status, info.output) == (rest.status, rest.end_status, rest.output)
        assert (info.error, info.latest_sequence) == (rest.error, 3)
        if how == "failed":
            with pytest.raises(StreamFailedError, match="it broke"):
                await rest_of(reader)
        else:
            assert await rest_of(reader) == []

    @proves("writing.ends-with-the-commit")
    async def test_a_stream_that_has_all_of_it_comes_to_rest_with_the_commit_too(self, whole: Backend):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await write(writer, delta("the last words"))
        nothing = StreamAppend(stream_id=STREAM, run_id=RUN, attempt=1, writer=writer.writer, chunks=())
        committed = await _commit(whole, nothing, "ended")
        assert (committed.stream_ended, committed.stream_sequence) == (True, 1)
        chunks = await whole.streams.get_all_chunks(STREAM)
        assert numbers(chunks) == [1, 2, 3]
        _check_told(chunks, committed)
        info = await whole.streams.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.output) == ("ended", ENDS["ended"].output)

    @proves("writing.ends-with-the-commit")
    async def test_a_run_that_goes_on_after_all_goes_on_in_its_stream(self, whole: Backend):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        call = waiting(whole.state, "c-1", STREAM)
        await writer.write(delta("asks"))
        async with writer.take() as stream:
            announced = await _commit(whole, stream, None, pending=(call,))
        await whole.state.submit_answer(answer("c-1", STREAM))
        await writer.write(delta("waits", 2))
        async with writer.take() as stream:
            committed = await _commit(whole, stream, "paused", step=2, suspend=True)
        assert (committed.again, announced.stream_ended, committed.stream_ended) == (True, False, False)
        await writer.write(delta("goes on", 2))
        assert await writer.flush() == 3
        info = await whole.streams.get_stream_info(STREAM)
        assert info is not None
        assert (info.status, info.latest_sequence) == ("active", 3)

    @proves("writing.ends-with-the-commit")
    @pytest.mark.parametrize("looks_at_calls", [False, True], ids=["plain", "looks at calls"])
    async def test_a_last_commit_that_lost_its_connection_ends_the_stream_once(
        self, whole: Backend, seam: DyingSeam, looks_at_calls: bool
    ):
        for n in range(1, STATEMENTS_OF_ONE_COMMIT):
            run_id = f"r-{n}"
            await start(whole.state, STREAM, run_id)
            writer = await open_writer(whole.streams, run_id, n)
            await writer.write(delta("the last words", run_id=run_id))
            before = await _latest(whole)
            try:
                async with writer.take() as stream:
                    seam.arm(after=n)
                    await _commit(whole, stream, "ended", run_id=run_id, drop_pending=looks_at_calls)
            except LOST:
                pass
            finally:
                seam.disarm()
            run, info = await whole.state.get_run(run_id), await whole.streams.get_stream_info(STREAM)
            assert run is not None
            assert info is not None
            found = (run.status, info.status, info.latest_sequence - before)
            assert found in (("running", "active", 0), ("completed", "ended", 3))
            if run.status == "running":
                # What the commit did not accept is stored before the next one, which then ends no stream.
                async with writer.take() as stream:
                    committed = await _commit(whole, stream, "ended", run_id=run_id)
                assert (stream, committed.stream_ended) == (None, False)
                await whole.streams.end_stream(STREAM, run_id, status="completed")

    @proves("writing.ends-with-the-commit")
    async def test_a_last_commit_sent_again_gets_an_answer_and_whoever_ends_the_stream_again_changes_nothing(
        self, whole: Backend
    ):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await writer.write(delta("the last words"))
        async with writer.take() as stream:
            first = await _commit(whole, stream, "ended")
            again = await _commit(whole, stream, "ended")
        assert again == replace(first, stream_ended=False)
        there = await whole.streams.get_all_chunks(STREAM)
        await writer.write(StepCommitted(step_id="r-1-step-1", checkpoint_id="x", message_count=1, **header()))
        with pytest.raises(SupersededError):
            await writer.flush()
        await whole.streams.end_stream(STREAM, RUN, status="completed", output=2)
        info = await whole.streams.get_stream_info(STREAM)
        assert info is not None
        assert (info.output, await whole.streams.get_all_chunks(STREAM)) == (ENDS["ended"].output, there)

    @proves("writing.ends-with-the-commit")
    async def test_what_a_commit_says_of_its_state_is_told(self, whole: Backend):
        await start(whole.state, STREAM)
        writer = await open_writer(whole.streams)
        await writer.write(delta("the last words"))
        ops = tuple(op for call in ("a", "b") for op in set_key("title", call, call=call).ops)
        async with writer.take() as stream:
            committed = await _commit(whole, stream, "ended", writes=StepWrites(ops=ops))
        assert committed.warnings
        _check_told(await whole.streams.get_all_chunks(STREAM), committed)

    @proves("writing.ends-with-the-commit")
    async def test_a_stream_with_a_bound_keeps_it(self, store_url: str):
        async with await open_backend(store_url, flush=NEVER, stream_limits=StreamLimits(max_chunks=2)) as whole:
            await start(whole.state, STREAM)
            writer = await open_writer(whole.streams)
            await writer.write(delta("the last words"))
            async with writer.take() as stream:
                committed = await _commit(whole, stream, "ended")
            assert committed.stream_ended
            assert numbers(await whole.streams.get_all_chunks(STREAM)) == [2, 3]

    @proves("writing.ends-with-the-commit")
    async def test_a_stream_with_a_bound_keeps_it_where_something_was_taken_back(self, store_url: str):
        async with await open_backend(store_url, flush=NEVER, stream_limits=StreamLimits(max_chunks=6)) as whole:
            await start(whole.state, STREAM)
            first = await open_writer(whole.streams)
            await write(first, delta("a", 0), delta("b"), delta("c"))
            # The second and third number are gone, and a note about that is the fourth.
            writer = await whole.streams.create_writer(STREAM, RUN, AGENT, turn=1, step=1)
            for text in "defg":
                await writer.write(delta(text))
            async with writer.take() as stream:
                committed = await _commit(whole, stream, "ended")
            assert committed.stream_ended
            assert numbers(await whole.streams.get_all_chunks(STREAM)) == [5, 6, 7, 8, 9, 10]
            info = await whole.streams.get_stream_info(STREAM)
            assert info is not None
            assert (info.total_chunks, info.first_sequence, info.latest_sequence) == (6, 5, 10)


async def _latest(whole: Backend) -> int:
    info = await whole.streams.get_stream_info(STREAM)
    return 0 if info is None else info.latest_sequence


def _check_told(chunks: Any, committed: Committed) -> None:
    told: list[StreamChunk] = list(chunks[-2:])
    assert isinstance(told[0], StepCommitted)
    assert isinstance(told[1], CheckpointCreated)
    assert told[0].checkpoint_id == told[1].checkpoint_id == committed.checkpoint_id
    assert (told[0].message_count, told[0].warnings) == (committed.message_count, committed.warnings)
    assert all(chunk.timestamp > 0 for chunk in told)


async def _commit(
    whole: Backend, stream: StreamAppend | None, how: str | None, *, step: int = 1, run_id: str = RUN, **fields: Any
) -> Committed:
    meta, about = step_meta(step, run_id), header(step, run_id)
    blank = (
        StepCommitted(step_id=meta.step_id, checkpoint_id="", message_count=0, **about),
        CheckpointCreated(checkpoint_id="", **about),
    )
    if how is not None:
        fields |= {"run": RunUpdate(status=RUNS[how]), "stream_end": StreamEnd(rest=ENDS[how], markers=blank)}  # type: ignore[arg-type]
    return await whole.state.save_state_and_promote_staging(
        STREAM,
        await whole.state.load_state(STREAM),
        [said("Hello")],
        meta,
        commit=StepCommit(fence=Fence(run_id=run_id), step=step, stream=stream, **fields),
    )
