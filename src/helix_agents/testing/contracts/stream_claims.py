"""The contract of a run's start: if stream and state share a backend, it makes the run its stream's writer."""

import pytest

from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.errors import ConflictError, SupersededError
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.streams import StreamInfo
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.streams import StreamLimits, StreamWriter
from helix_agents.testing.contracts.stream_handles import (
    LOST,
    NEVER,
    STATEMENTS_OF_ONE_COMMIT,
    SharedTransactionsContract,
)
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import DyingSeam
from helix_agents.testing.stream_scenes import (
    AGENT,
    RESTS,
    STREAM,
    come_to_rest,
    delta,
    next_of,
    numbers,
    reading,
    rest_of,
    texts,
    write,
)


class ClaimsContract(SharedTransactionsContract):
    """The start of a run and its stream."""

    @proves("writing.begins-with-the-start")
    async def test_a_run_is_the_writer_of_its_stream_with_its_start(self, whole: Backend):
        started = await _start(whole, "r-1")
        info = await _info(whole)
        assert (info.status, info.run_id, info.attempt, info.latest_sequence) == ("active", "r-1", 1, 0)
        writer = _writer(whole, started)
        assert (writer.writer, writer.sequence) == (1, 0)
        assert await write(writer, delta("a"), delta("b")) == 2
        assert texts(await whole.streams.get_all_chunks(STREAM)) == ["a", "b"]

    @proves("writing.begins-with-the-start")
    @pytest.mark.parametrize("how", RESTS)
    async def test_a_later_turn_wakes_the_stream_and_goes_on_where_it_was(self, whole: Backend, how: str):
        first = _writer(whole, await _start(whole, "r-1"))
        await write(first, delta("a"))
        await come_to_rest(whole.streams, how)
        second = await _start(whole, "r-2")
        reader = await reading(whole.streams, after=1)
        info = await _info(whole)
        assert (info.status, info.run_id, info.latest_sequence) == ("active", "r-2", 1)
        assert (info.end_status, info.output, info.error) == (None, None, None)
        writer = _writer(whole, second)
        assert (writer.writer, writer.sequence) == (2, 1)
        assert await write(writer, delta("b", run_id="r-2")) == 2
        assert texts([await next_of(reader)]) == ["b"]
        with pytest.raises(SupersededError):
            await write(first, delta("too late"))
        await whole.streams.end_stream(STREAM, "r-2", status="completed")
        assert await rest_of(reader) == []

    @proves("writing.begins-with-the-start")
    async def test_a_start_that_is_refused_leaves_the_stream_to_whom_it_belongs(self, whole: Backend):
        writer = _writer(whole, await _start(whole, "r-1"))
        with pytest.raises(ConflictError):
            await _start(whole, "r-2", expected_version=17, expected_run=Fence(run_id="r-0"))
        assert await write(writer, delta("still here")) == 1
        assert (await _info(whole)).run_id == "r-1"

    @proves("writing.begins-with-the-start")
    async def test_a_start_sent_again_claims_nothing(self, whole: Backend):
        first = await _start(whole, "r-1", create=CreateSession(agent_type=AGENT))
        again = await _start(whole, "r-1", create=CreateSession(agent_type=AGENT))
        assert (again.run, again.stream) == (first.run, None)
        assert await write(_writer(whole, first), delta("a")) == 1

    @proves("writing.begins-with-the-start")
    async def test_whoever_drives_the_run_elsewhere_takes_its_stream_over(self, whole: Backend):
        left = _writer(whole, await _start(whole, "r-1"))
        taken = await whole.streams.create_writer(STREAM, "r-1", AGENT, turn=1)
        assert await write(taken, delta("a")) == 1
        with pytest.raises(SupersededError):
            await write(left, delta("too late"))

    @proves("writing.begins-with-the-start")
    async def test_a_stream_of_a_later_turn_is_left_alone(self, whole: Backend):
        await whole.streams.create_writer(STREAM, "r-9", AGENT, turn=9)
        assert (await _start(whole, "r-1")).stream is None
        assert (await _info(whole)).run_id == "r-9"

    @proves("writing.begins-with-the-start")
    async def test_a_start_that_lost_its_connection_claims_the_stream_or_nothing_happened(
        self, whole: Backend, seam: DyingSeam
    ):
        for n in range(1, STATEMENTS_OF_ONE_COMMIT):
            run_id, before = f"r-{n}", f"r-{n - 1}"
            try:
                seam.arm(after=n)
                await _start(whole, run_id)
            except LOST:
                seam.disarm()
                current = (
                    await whole.state.get_current_run(STREAM) if await whole.state.session_exists(STREAM) else None
                )
                info = await whole.streams.get_stream_info(STREAM)
                assert (None if info is None else info.run_id) == (None if current is None else current.run_id)
                if current is None or current.run_id != run_id:
                    assert current is None or current.run_id == before
                    await _start(whole, run_id)
            finally:
                seam.disarm()
            assert (await _info(whole)).run_id == run_id

    @proves("writing.begins-with-the-start")
    async def test_a_stream_keeps_the_bound_it_was_claimed_with(self, store_url: str):
        async with await open_backend(store_url, flush=NEVER, stream_limits=StreamLimits(max_chunks=2)) as whole:
            writer = _writer(whole, await _start(whole, "r-1"))
            await write(writer, delta("a"), delta("b"), delta("c"))
            assert numbers(await whole.streams.get_all_chunks(STREAM)) == [2, 3]


async def _start(whole: Backend, run_id: str, **fields: object) -> RunStartCommitted:
    if "create" not in fields and not await whole.state.session_exists(STREAM):
        fields["create"] = CreateSession(agent_type=AGENT)
    claim = whole.streams.claim(STREAM, AGENT)
    return await whole.state.start_run(StartRun(session_id=STREAM, run_id=run_id, stream=claim, **fields))  # type: ignore[arg-type]


def _writer(whole: Backend, started: RunStartCommitted) -> StreamWriter:
    assert started.stream is not None
    return whole.streams.writer_at(STREAM, started.run.run_id, started.stream)


async def _info(whole: Backend) -> StreamInfo:
    info = await whole.streams.get_stream_info(STREAM)
    assert info is not None
    return info
