"""The reader that every stream manager hands out: it delivers what is stored, then waits for new chunks."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple

from helix_agents.backends.stream_rules import StreamHead, failure_of, notice
from helix_agents.backends.wakeups import Waiter
from helix_agents.domain.chunks import StreamChunk
from helix_agents.ports.clock import Clock
from helix_agents.ports.streams import StreamReader

# The first look is small, so that a returning reader does not wait for a long history.
FIRST_LOOK, LARGEST_LOOK = 8, 256

# Rings are rarely lost. A reader that heard none for this many looks, and missed nothing, looks less often.
LOOKS_IN_VAIN, LESS_OFTEN = 20, 4

# No stream reaches this number, and not every store can be queried with a larger one.
BEYOND_ALL = 1 << 62


class Look(NamedTuple):
    """What a manager found after a cursor in one consistent read: the stream and the next chunks, perhaps not all."""

    head: StreamHead
    chunks: Sequence[StreamChunk]


class FollowingReader(StreamReader):
    """Follows one stream from a cursor.

    `look` takes a cursor and the number of chunks it may return, and returns None when the stream is gone. `listen` is
    entered before the look that finds nothing new, so a chunk that arrives between look and wait still wakes the
    reader. `poll_seconds` is how long the reader relies on being woken before it looks anyway; after a while without
    any activity it waits longer.
    """

    def __init__(
        self,
        cursor: int,
        *,
        look: Callable[[int, int], Awaitable[Look | None]],
        listen: Callable[[], AbstractAsyncContextManager[Waiter]],
        poll_seconds: float,
        clock: Clock,
    ) -> None:
        self._sequence = min(max(cursor, 0), BEYOND_ALL)
        self._look = look
        self._listen = listen
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._ready: deque[StreamChunk] = deque()
        self._most = FIRST_LOOK
        self._busy = False
        self._in_vain = 0
        self._waiter: Waiter | None = None
        self._listening = AsyncExitStack()
        self._closed = False

    @property
    def sequence(self) -> int:
        return self._sequence

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __anext__(self) -> StreamChunk:
        while not self._closed:
            if self._ready:
                chunk = self._ready.popleft()
                self._sequence = chunk.sequence
                return chunk
            if self._busy:
                # A look may be answered without waiting, so a reader of a long history yields to other tasks here.
                await asyncio.sleep(0)
            look = await self._look(self._sequence, self._most)
            if look is None:
                break
            self._busy = self._take(look)
            if self._busy:
                continue
            if look.head.status != "active":
                await self._stop_listening()
                if look.head.status == "failed":
                    raise failure_of(look.head)
                raise StopAsyncIteration
            await self._wait()
        await self.close()
        raise StopAsyncIteration

    async def close(self) -> None:
        self._closed = True
        self._ready.clear()
        if self._waiter is not None:
            # A task that waits in this reader finds it closed.
            self._waiter.ring()
        await self._stop_listening()

    def _take(self, look: Look) -> bool:
        """Keep what the look found; returns whether it found anything."""
        note = notice(look.head, self._sequence, self._clock.now_ms())
        if note is not None:
            self._ready.append(note)
        self._ready.extend(look.chunks)
        self._most = min(self._most * 2, LARGEST_LOOK)
        if self._ready:
            self._in_vain = 0
        return bool(self._ready)

    async def _wait(self) -> None:
        if self._waiter is None:
            self._waiter = await self._listening.enter_async_context(self._listen())
        else:
            quiet = self._in_vain >= LOOKS_IN_VAIN
            rung = await self._waiter.wait(self._poll_seconds * (LESS_OFTEN if quiet else 1))
            self._in_vain = 0 if rung else self._in_vain + 1

    async def _stop_listening(self) -> None:
        self._waiter = None
        listening, self._listening = self._listening, AsyncExitStack()
        await listening.aclose()
