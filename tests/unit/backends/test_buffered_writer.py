"""The writer that every stream manager hands out, against a store that a test can hold or break."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.stream_rules import StreamHead
from helix_agents.domain.errors import (
    DefinitionError,
    StoreClosedError,
    StoreUnavailableError,
    SupersededError,
    UnstorableValueError,
)
from helix_agents.domain.streams import StreamAppend
from helix_agents.ports.streams import FlushPolicy, StreamLimits
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.stream_scenes import PATIENCE, delta, texts, write

SOON = FlushPolicy(interval_ms=1)
NEVER = FlushPolicy(interval_ms=3_600_000, chunks=10**9, bytes=10**9)
GONE = StoreUnavailableError("store", "unplugged")


class Store:
    """Keeps batches; it can be held, broken, or lose its answers."""

    def __init__(self) -> None:
        self.stored: list[StreamAppend] = []
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.problem: Exception | None = None
        self.loses_answers = False
        self.open = asyncio.Event()
        self.open.set()

    async def append(self, append: StreamAppend) -> int:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.open.wait()
            if self.problem is not None and not self.loses_answers:
                raise self.problem
            if append.batch not in [known.batch for known in self.stored]:
                self.stored.append(append)
            if self.problem is not None:
                raise self.problem
        finally:
            self.at_once -= 1
        return sum(len(append.chunks) for append in self.stored)

    @property
    def texts(self) -> list[str]:
        return [text for append in self.stored for text in texts(append.chunks)]


@pytest.fixture
def store() -> Store:
    return Store()


def writer_on(store: Store, flush: FlushPolicy = NEVER, waiting_bytes: int = 10**6) -> BufferedWriter:
    head = StreamHead(
        stream_id="s-1", agent_type="writer", run_id="r-1", attempt=3, writer=7, created_at=0, updated_at=0
    )
    settings = WriterSettings(clock=ManualClock(), limits=StreamLimits(), flush=flush, waiting_bytes=waiting_bytes)
    return BufferedWriter(head, store.append, settings)


@pytest.fixture
async def writer(store: Store) -> AsyncIterator[BufferedWriter]:
    writer = writer_on(store)
    yield writer
    store.problem = None
    store.open.set()
    await writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_batch_says_who_wrote_it(store: Store, writer: BufferedWriter):
    await write(writer, delta("a"))
    await write(writer, delta("b"))
    assert [(b.stream_id, b.run_id, b.attempt, b.writer, b.batch) for b in store.stored] == [
        ("s-1", "r-1", 3, 7, 1),
        ("s-1", "r-1", 3, 7, 2),
    ]
    assert writer.writer == 7


async def test_one_flush_at_a_time_keeps_the_order(store: Store):
    writer = writer_on(store, FlushPolicy(interval_ms=1, chunks=2))
    store.open.clear()
    flushes = []
    for n in range(40):
        await writer.write(delta(str(n)))
        if n % 7 == 0:
            flushes.append(asyncio.create_task(writer.flush()))
            await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(*flushes)
    await writer.close()
    assert store.texts == [str(n) for n in range(40)]
    assert store.most_at_once == 1


async def test_a_chunk_does_not_wait_longer_because_a_flush_was_under_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    interval = 3_600
    writer = writer_on(store, FlushPolicy(interval_ms=interval * 1_000))
    store.open.clear()
    flushing = asyncio.create_task(write(writer, delta("a")))
    await until(lambda: store.calls == 1)
    await writer.write(delta("b"))
    loop = asyncio.get_running_loop()
    so_far = loop.time
    # The interval is over while the store is held; after that, it would be long until the next one is.
    monkeypatch.setattr(loop, "time", lambda: so_far() + interval)
    await asyncio.sleep(0)
    store.open.set()
    await flushing
    await until(lambda: store.texts == ["a", "b"])
    await writer.close()


async def test_a_store_that_does_not_answer_is_tried_again_in_the_background(store: Store):
    writer = writer_on(store, SOON)
    store.problem = GONE
    await writer.write(delta("a"))
    await until(lambda: store.calls >= 1)
    for n in range(200):
        await writer.write(delta(str(n)))
    await asyncio.sleep(0)
    assert store.calls < 5
    store.problem = None
    await until(lambda: store.texts == ["a", *(str(n) for n in range(200))])
    await writer.close()


async def test_an_explicit_flush_says_that_the_store_does_not_answer_and_can_be_repeated(
    store: Store, writer: BufferedWriter
):
    store.problem = GONE
    await writer.write(delta("a"))
    with pytest.raises(StoreUnavailableError):
        await writer.flush()
    await writer.write(delta("b"))
    store.problem = None
    assert await writer.flush() == 2
    assert [len(append.chunks) for append in store.stored] == [1, 1]


async def test_a_batch_whose_answer_was_lost_is_sent_again_as_it_was(store: Store, writer: BufferedWriter):
    store.problem, store.loses_answers = GONE, True
    await writer.write(delta("a"))
    with pytest.raises(StoreUnavailableError):
        await writer.flush()
    await writer.write(delta("b"))
    store.problem = None
    assert await writer.flush() == 2
    assert store.texts == ["a", "b"]


async def test_a_cancelled_flush_loses_and_doubles_nothing(store: Store, writer: BufferedWriter):
    store.open.clear()
    await writer.write(delta("a"))
    flushing = asyncio.create_task(writer.flush())
    await until(lambda: store.calls == 1)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    store.open.set()
    assert await write(writer, delta("b")) == 2
    assert store.texts == ["a", "b"]


async def test_a_refusal_is_kept_for_every_later_call(store: Store):
    writer = writer_on(store, SOON)
    store.problem = SupersededError("s-1", "r-1", 3, "a newer one took over")
    await writer.write(delta("a"))
    await until(lambda: store.calls == 1)
    await asyncio.sleep(0)
    store.problem = None
    for call in (lambda: writer.write(delta("b")), writer.flush, writer.close):
        with pytest.raises(SupersededError):
            await call()
    with pytest.raises(SupersededError):
        async with writer.take():
            pass
    await writer.close()
    assert store.texts == []


async def test_a_write_waits_only_when_too_much_is_waiting_for_the_store(store: Store):
    writer = writer_on(store, FlushPolicy(chunks=1), waiting_bytes=10_000)
    store.open.clear()
    taken = 0

    async def produce() -> None:
        nonlocal taken
        for n in range(200):
            await writer.write(delta(str(n).zfill(1_000)))
            taken += 1

    producing = asyncio.create_task(produce())
    await until(lambda: store.calls == 1)
    await asyncio.sleep(0.02)
    assert 9 <= taken < 15
    store.open.set()
    async with asyncio.timeout(PATIENCE):
        await producing
        await writer.close()
    assert [int(text) for text in store.texts] == list(range(200))


async def test_a_writer_that_waits_for_room_learns_that_it_was_replaced(store: Store):
    writer = writer_on(store, FlushPolicy(chunks=1), waiting_bytes=1_000)
    store.open.clear()
    store.problem = SupersededError("s-1", "r-1", 3, "a newer one took over")

    async def produce() -> None:
        for _ in range(10):
            await writer.write(delta("x" * 1_000))

    producing = asyncio.create_task(produce())
    await until(lambda: store.calls == 1)
    store.open.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(SupersededError):
            await producing


async def test_closing_stores_what_is_left_even_if_nobody_flushed(store: Store):
    writer = writer_on(store)
    await writer.write(delta("a"))
    await writer.close()
    assert store.texts == ["a"]
    for call in (lambda: writer.write(delta("b")), writer.flush):
        with pytest.raises(StoreClosedError):
            await call()


async def test_a_hand_over_waits_for_the_flush_under_way_and_holds_back_what_follows(store: Store):
    writer = writer_on(store, SOON)
    store.open.clear()
    await writer.write(delta("a"))
    await until(lambda: store.calls == 1)
    await writer.write(delta("b"))
    handed: list[StreamAppend | None] = []

    async def hand_over() -> None:
        async with writer.take() as append:
            handed.append(append)
            await writer.write(delta("c"))
            await asyncio.sleep(0.02)
            assert store.texts == ["a"]

    handing = asyncio.create_task(hand_over())
    await asyncio.sleep(0.01)
    assert handed == []
    store.open.set()
    await handing
    assert [texts(append.chunks) for append in handed if append is not None] == [["b"]]
    await until(lambda: store.texts == ["a", "c"])
    assert await writer.flush() == 2
    await writer.close()


async def test_a_hand_over_first_stores_what_a_failed_flush_left(store: Store, writer: BufferedWriter):
    store.problem = GONE
    await writer.write(delta("a"))
    with pytest.raises(StoreUnavailableError):
        await writer.flush()
    await writer.write(delta("b"))
    with pytest.raises(StoreUnavailableError):
        async with writer.take():
            pytest.fail("what was written earlier is not stored yet")
    store.problem = None
    async with writer.take() as append:
        assert store.texts == ["a"]
        assert append is not None
        assert texts(append.chunks) == ["b"]
    assert writer.sequence == 2


async def test_a_flush_that_waited_for_its_turn_hears_what_the_one_before_was_told(store: Store) -> None:
    writer = writer_on(store, SOON)
    store.open.clear()
    store.problem = SupersededError("s-1", "r-1", 3, "a newer writer took over")
    await writer.write(delta("thrown away"))
    while not store.at_once:  # noqa: ASYNC110  # the store has no event for being asked
        await asyncio.sleep(0)
    flushing = asyncio.create_task(writer.flush())
    taking = asyncio.create_task(writer.begin_taking())
    await asyncio.sleep(0)
    store.open.set()
    for waiting in (flushing, taking):
        with pytest.raises(SupersededError):
            await waiting
    with pytest.raises(SupersededError):
        await writer.close()


async def test_a_piece_that_is_no_text_is_refused_by_itself(store: Store, writer: BufferedWriter) -> None:
    """Half of a pair of surrogates has no form in UTF-8."""
    first = delta("good ")
    await writer.write(first)
    assert not writer.extend(first, "\ud83d")
    with pytest.raises(UnstorableValueError):
        await writer.write(delta("\ud83d"))
    assert writer.extend(first, "\U0001f30a")
    await writer.flush()
    assert store.texts == ["good \U0001f30a"]


async def test_what_is_written_while_the_writer_closes_is_stored_or_refused(store: Store) -> None:
    writer = writer_on(store)
    await writer.write(delta("before"))
    store.open.clear()
    closing = asyncio.create_task(writer.close())
    await until(lambda: store.at_once == 1)
    await writer.write(delta("meanwhile"))
    store.open.set()
    await closing
    with pytest.raises(StoreClosedError):
        await writer.write(delta("after"))
    assert store.texts == ["before", "meanwhile"]


@pytest.mark.parametrize("limits", [{"max_chunks": 0}, {"max_chunks": -1}, {"chunk_bytes": 0}, {"chunk_bytes": 999}])
def test_limits_that_leave_room_for_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(DefinitionError, match="leaves room for nothing"):
        StreamLimits(**limits)
