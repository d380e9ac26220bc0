"""The reader that every stream manager hands out, against a stream that changes at the worst moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from helix_agents.backends.following_reader import FollowingReader, Look
from helix_agents.backends.stream_rules import Claim, StreamHead, new_head, numbered
from helix_agents.backends.wakeups import Waiter, Wakeups
from helix_agents.domain.chunks import StreamChunk
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.stream_scenes import delta, next_of, texts


class Stream:
    """Chunks that appear when the test says so, also while the reader is about to listen."""

    def __init__(self) -> None:
        self.head: StreamHead = new_head(Claim(stream_id="s-1", run_id="r-1"), "writer", 0)
        self.chunks: list[StreamChunk] = []
        self.wakeups = Wakeups()
        self.listeners = 0
        self.looks = 0
        self.asked: list[int] = []
        self.while_listening_begins: list[str] = []

    def say(self, text: str) -> None:
        self.head, chunks = numbered(self.head, [delta(text)], 0)
        self.chunks += chunks
        self.wakeups.ring([""])

    async def look(self, cursor: int, most: int) -> Look | None:
        self.looks += 1
        self.asked.append(most)
        return Look(self.head, [chunk for chunk in self.chunks if chunk.sequence > cursor][:most])

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Waiter]:
        for text in self.while_listening_begins:
            self.say(text)
        self.while_listening_begins.clear()
        with self.wakeups.listen("") as waiter:
            self.listeners += 1
            yield waiter
            self.listeners -= 1

    def reader(self, poll_seconds: float = 3_600.0) -> FollowingReader:
        return FollowingReader(0, look=self.look, listen=self.listen, poll_seconds=poll_seconds, clock=ManualClock())


@pytest.fixture
def stream() -> Stream:
    return Stream()


async def test_a_chunk_that_comes_just_before_the_reader_listens_is_not_missed(stream: Stream):
    stream.while_listening_begins.append("a")
    assert texts([await next_of(stream.reader())]) == ["a"]


async def test_a_ring_that_got_lost_costs_time_and_nothing_else(stream: Stream):
    reader = stream.reader(poll_seconds=0.01)
    waiting = asyncio.create_task(next_of(reader))
    await asyncio.sleep(0.05)
    stream.head, chunks = numbered(stream.head, [delta("a")], 0)
    stream.chunks += chunks
    assert texts([await waiting]) == ["a"]
    await reader.close()


class Deaf(Waiter):
    """Hears nothing, and takes no time for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        await asyncio.sleep(0)
        return False


async def test_a_reader_of_a_stream_that_is_long_silent_looks_less_often_until_it_finds_something(stream: Stream):
    waiter = Deaf()

    @asynccontextmanager
    async def listen() -> AsyncIterator[Waiter]:
        yield waiter

    reader = FollowingReader(0, look=stream.look, listen=listen, poll_seconds=0.5, clock=ManualClock())
    for text in ("a", "b"):
        waiting = asyncio.create_task(next_of(reader))
        async with asyncio.timeout(10):
            while len(waiter.waits) < 25:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert waiter.waits[:25] == [0.5] * 20 + [2.0] * 5
        stream.say(text)
        assert texts([await waiting]) == [text]
        waiter.waits.clear()
    await reader.close()


async def test_a_ring_for_nothing_is_one_look(stream: Stream):
    reader = stream.reader()
    waiting = asyncio.create_task(next_of(reader))
    await asyncio.sleep(0.01)
    before = stream.looks
    for _ in range(5):
        stream.wakeups.ring([""])
    await asyncio.sleep(0.01)
    assert stream.looks == before + 1
    stream.say("a")
    assert texts([await waiting]) == ["a"]
    await reader.close()


async def test_a_reader_at_the_end_of_a_stream_listens_no_more(stream: Stream):
    reader = stream.reader()
    waiting = asyncio.create_task(next_of(reader))
    await asyncio.sleep(0.01)
    assert stream.listeners == 1
    stream.say("a")
    await waiting
    stream.head = replace(stream.head, status="ended")
    stream.wakeups.ring([""])
    with pytest.raises(StopAsyncIteration):
        await next_of(reader)
    assert stream.listeners == 0


async def test_a_cancelled_wait_loses_no_chunk(stream: Stream):
    reader = stream.reader()
    got: list[str] = []
    for n in range(20):
        waiting = asyncio.create_task(next_of(reader))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        stream.say(str(n))
        for _ in range(n % 3):
            await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        got += texts([outcome]) if not isinstance(outcome, BaseException) else []
    while len(got) < 20:
        got += texts([await next_of(reader)])
    assert got == [str(n) for n in range(20)]
    await reader.close()


async def test_reading_a_long_history_lets_others_have_a_turn(stream: Stream):
    for n in range(50):
        stream.say(str(n))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    reader = stream.reader()
    for _ in range(50):
        await anext(reader)
    task.cancel()
    assert turns >= 1
    await reader.close()


async def test_the_first_look_is_a_small_one_and_later_ones_are_larger(stream: Stream):
    for n in range(1_000):
        stream.say(str(n))
    reader = stream.reader()
    assert texts([await anext(reader) for _ in range(1_000)]) == [str(n) for n in range(1_000)]
    assert stream.asked == [8, 16, 32, 64, 128, 256, 256, 256]
    await reader.close()
