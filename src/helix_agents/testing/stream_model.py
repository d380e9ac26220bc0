"""A state machine that plays random histories against streams and the reference, and compares everything visible."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helix_agents.backends.in_memory import InMemoryStreamManager
from helix_agents.domain.chunks import StepDiscarded, StreamChunk, Truncated
from helix_agents.domain.errors import HelixError
from helix_agents.domain.streams import EndStatus, StreamError
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamManager, StreamReader, StreamWriter
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.handles import opened
from helix_agents.testing.stream_scenes import (
    AGENT,
    RESTS,
    STREAM,
    come_to_rest,
    committed,
    delta,
    interrupted,
    read_to,
)

Act: TypeAlias = Callable[[StreamManager], Awaitable[Any]]

TURNS = {"r-1": 1, "r-2": 2, "r-3": 3, "free-1": 0, "free-2": 0}
"""The only runs, so that histories interact; the last two do not know their turn."""

RUNS = st.sampled_from(list(TURNS))
ATTEMPTS = st.sampled_from([1, 1, 1, 2])
STEPS = st.integers(0, 3)
AFTER = st.sampled_from([0, 0, 0, 1, 2, 5])
CHUNKS = st.lists(
    st.one_of(
        st.builds(delta, st.sampled_from(["a", "ä", ""]), STEPS, RUNS),
        st.builds(committed, STEPS, RUNS),
        st.builds(interrupted, STEPS, RUNS),
    ),
    max_size=4,
)
ONLY_WHEN_ASKED = FlushPolicy(interval_ms=3_600_000, chunks=1_000_000, bytes=1_000_000_000)


class StreamMachine(RuleBasedStateMachine):
    """Plays one history on the streams under test and on the reference."""

    max_chunks: ClassVar[int | None] = None

    def open_tested(self, **options: Any) -> StreamManager | Awaitable[StreamManager]:
        """For you to implement: unused streams."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._clock = ManualClock()
        options: dict[str, Any] = {
            "clock": self._clock,
            "limits": StreamLimits(max_chunks=self.max_chunks),
            "flush": ONLY_WHEN_ASKED,
        }
        self._reference = InMemoryStreamManager(**options)
        self._tested: StreamManager = self._runner.run(opened(self.open_tested(**options)))
        self._writers: list[dict[StreamManager, StreamWriter]] = []
        self._readers: list[dict[StreamManager, StreamReader]] = []
        self._starts: list[int] = []
        self._seen: list[list[StreamChunk]] = []

    def teardown(self) -> None:
        self._runner.run(self._tested.close())
        self._runner.close()

    def both(self, act: Act) -> Any:
        """Do it on both; the results, or the refusals, are the same."""
        expected, found = self._each(act)
        assert found == expected
        return found

    def _each(self, act: Act) -> tuple[Any, Any]:
        """The results of the reference and of the tested streams."""
        return self._runner.run(_outcome(act, self._reference)), self._runner.run(_outcome(act, self._tested))

    @rule(run=RUNS, attempt=ATTEMPTS, step=st.none() | STEPS, after=AFTER)
    def become_the_writer(self, run: str, attempt: int, step: int | None, after: int) -> None:
        about: dict[str, Any] = {"turn": TURNS[run], "attempt": attempt, "step": step, "after": after}
        expected, found = self._each(lambda streams: streams.create_writer(STREAM, run, AGENT, **about))
        if isinstance(expected, tuple):
            assert found == expected
        else:
            assert found.writer == expected.writer
            self._writers.append({self._reference: expected, self._tested: found})

    @precondition(lambda self: self._writers)
    @rule(which=st.integers(0, 100), chunks=CHUNKS)
    def write(self, which: int, chunks: list[StreamChunk]) -> None:
        pair = self._writers[-1 - which % min(2, len(self._writers))]

        async def act(streams: StreamManager) -> int:
            for chunk in chunks:
                await pair[streams].write(chunk)
            return await pair[streams].flush()

        self.both(act)

    @rule(run=RUNS, attempt=ATTEMPTS, status=st.sampled_from(["completed", "interrupted"]))
    def end(self, run: str, attempt: int, status: EndStatus) -> None:
        self.both(lambda streams: streams.end_stream(STREAM, run, status=status, output={"n": 1}, attempt=attempt))

    @rule(run=RUNS, attempt=ATTEMPTS)
    def fail(self, run: str, attempt: int) -> None:
        error = StreamError(code="boom", message="it broke")
        self.both(lambda streams: streams.fail_stream(STREAM, run, error, attempt=attempt))

    @rule(run=RUNS, attempt=ATTEMPTS)
    def pause(self, run: str, attempt: int) -> None:
        self.both(lambda streams: streams.pause_stream(STREAM, run, attempt=attempt))

    @precondition(lambda self: self._writers)
    @rule(which=st.integers(0, 100), chunks=CHUNKS, how=st.sampled_from(RESTS), times=st.integers(1, 2))
    def rest_with_the_last_chunks(self, which: int, chunks: list[StreamChunk], how: str, times: int) -> None:
        pair = self._writers[-1 - which % min(2, len(self._writers))]

        async def act(streams: StreamManager) -> None:
            for chunk in chunks:
                await pair[streams].write(chunk)
            async with pair[streams].take() as last:
                for _ in range(times if last is not None else 0):
                    await come_to_rest(streams, how, last=last)

        self.both(act)

    @rule()
    def resume(self) -> None:
        self.both(lambda streams: streams.resume_stream(STREAM))

    @rule(run=RUNS, attempt=ATTEMPTS)
    def reactivate(self, run: str, attempt: int) -> None:
        self.both(lambda streams: streams.reactivate_stream(STREAM, run, turn=TURNS[run], attempt=attempt))

    @rule(run=RUNS, step=STEPS, after=AFTER)
    def clean_up(self, run: str, step: int, after: int) -> None:
        self.both(lambda streams: streams.cleanup_to_step(STREAM, run, step, after=after))

    @rule(age=st.integers(0, 2))
    def prune(self, age: int) -> None:
        self.both(lambda streams: streams.prune(age))
        self._clock.advance(1)

    @rule(after=st.integers(0, 5))
    def start_reading(self, after: int) -> None:
        info = self._runner.run(_awaited(self._reference.get_stream_info(STREAM)))
        cursor = min(after, info.latest_sequence if info is not None else 0)
        expected, found = self._each(lambda streams: streams.create_resumable_reader(STREAM, from_sequence=cursor))
        assert (found is None) == (expected is None)
        if expected is not None:
            self._readers.append({self._reference: expected, self._tested: found})
            self._starts.append(cursor)
            self._seen.append([])

    @precondition(lambda self: self._readers)
    @rule(which=st.integers(0, 100))
    def read_on(self, which: int) -> None:
        index = which % len(self._readers)

        async def act(streams: StreamManager) -> list[StreamChunk]:
            info = await streams.get_stream_info(STREAM)
            assert info is not None
            return await read_to(self._readers[index][streams], info.latest_sequence)

        chunks = self.both(act)
        self._seen[index] += chunks
        _is_exact(self._starts[index], self._seen[index])

    @invariant()
    def both_show_the_same(self) -> None:
        async def everything(streams: StreamManager) -> Any:
            by_step = [await streams.get_chunks_from_step(STREAM, step, run) for run in TURNS for step in (0, 2)]
            return (
                await streams.snapshot(STREAM),
                await streams.snapshot(STREAM, after=3),
                await streams.get_all_chunks(STREAM),
                by_step,
            )

        snapshot, _, chunks, _ = self.both(everything)
        if snapshot is not None:
            assert snapshot.info.total_chunks == len(chunks)
            assert snapshot.info.first_sequence == (chunks[0].sequence if chunks else snapshot.info.latest_sequence + 1)


def _is_exact(start: int, seen: list[StreamChunk]) -> None:
    """Every number after the cursor came once, or a chunk named it as gone."""
    numbers = [chunk.sequence for chunk in seen if not isinstance(chunk, Truncated)]
    assert numbers == sorted(set(numbers))
    named: set[int] = set()
    for chunk in seen:
        if isinstance(chunk, StepDiscarded):
            named.update(range(chunk.from_sequence, chunk.to_sequence + 1))
        elif isinstance(chunk, Truncated):
            named.update(range(1, chunk.first_sequence))
    latest = max((chunk.sequence for chunk in seen), default=start)
    assert set(range(start + 1, latest + 1)) <= named | set(numbers)


async def _outcome(act: Act, streams: StreamManager) -> Any:
    try:
        return await act(streams)
    except HelixError as refusal:
        return type(refusal), refusal.args


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
