"""The writer that every stream manager hands out: it accepts chunks at once and stores them in few, ordered flushes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from msgspec.structs import replace

from helix_agents.backends.stream_rules import StreamHead, check_chunk_size
from helix_agents.domain.chunks import MOST_BYTES_A_CHARACTER, Delta, StreamChunk, text_of, with_text
from helix_agents.domain.errors import HelixError, StoreClosedError
from helix_agents.domain.records import encode
from helix_agents.domain.streams import StreamAppend, StreamSnapshot
from helix_agents.domain.texts import storable
from helix_agents.ports.clock import Clock
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamManager, StreamWriter

WAITING_BYTES = 4_194_304
"""How many bytes may wait for a slow store before a write has to wait as well."""

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """The settings that all writers of one manager share."""

    clock: Clock
    limits: StreamLimits
    flush: FlushPolicy
    waiting_bytes: int = WAITING_BYTES


class BufferedWriter(StreamWriter):
    """Buffers chunks and stores them when the flush policy says so, one flush at a time, in the order of the writes.

    A flush whose outcome is unknown is sent again unchanged; the store recognises it by its batch number. A writer that
    `joins` others cannot number its batches, because other handles of the same writer store batches too. It looks into
    the stream instead.
    """

    def __init__(
        self,
        head: StreamHead,
        store: Callable[[StreamAppend], Awaitable[int]],
        settings: WriterSettings,
        *,
        joins: StreamManager | None = None,
    ) -> None:
        self._head = head
        self._joins = joins
        self._store = store
        self._clock = settings.clock
        self._policy = settings.flush
        self._chunk_bytes = settings.limits.chunk_bytes
        self._waiting_bytes = settings.waiting_bytes
        self._loop = asyncio.get_running_loop()
        self._latest = head.latest
        self._chunks: list[StreamChunk] = []
        self._bodies: list[str] = []
        self._bytes = 0
        self._growing: StreamChunk | None = None
        self._growing_bytes = 0
        self._growth: list[str] = []
        self._oldest = 0.0
        self._batch = 0
        self._unsettled: StreamAppend | None = None
        self._unsettled_bytes = 0
        self._may_be_stored = False
        self._failure: BaseException | None = None
        self._closed = False
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._background: asyncio.Task[None] | None = None
        self._retry_seconds = 0.0

    @property
    def writer(self) -> int:
        return self._head.writer

    @property
    def sequence(self) -> int:
        return self._latest

    async def write(self, chunk: StreamChunk) -> None:
        if self._closed or self._failure is not None:
            self._check_usable()
        written = chunk
        if chunk.sequence or not chunk.timestamp:
            chunk = replace(chunk, sequence=0, timestamp=chunk.timestamp or self._clock.now_ms())
        body = encode(chunk)
        size = len(body)
        check_chunk_size(self._head.stream_id, size, self._chunk_bytes)
        if self._bytes + self._unsettled_bytes >= self._waiting_bytes:
            await self._wait_for_room()
        if not self._chunks:
            self._oldest = self._loop.time()
        elif self._growth:
            self._end_growth()
        self._growing, self._growing_bytes = written, size
        self._chunks.append(chunk)
        self._bodies.append(body.decode())
        self._bytes += size
        if self._timer is None or self._is_due():
            self._plan_flush()

    def extend(self, chunk: Delta, text: str) -> bool:
        if chunk is not self._growing or self._bytes + self._unsettled_bytes >= self._waiting_bytes:
            return False
        size = self._growing_bytes + len(text) * MOST_BYTES_A_CHARACTER
        if self._chunk_bytes is not None and size > self._chunk_bytes:
            return False
        if not text.isascii() and storable(text) != text:
            # Refuse it here so that it fails as a chunk of its own. Inside this chunk it would take the text accepted
            # before down with it.
            return False
        self._growing_bytes = size
        self._growth.append(text)
        self._bytes += len(text)
        if self._bytes >= self._policy.bytes:
            self._plan_flush()
        return True

    def _end_growth(self) -> None:
        """Merge the last chunk and the text added to it into one chunk."""
        self._growing = None
        if self._growth:
            last = cast("Delta", self._chunks[-1])
            grown = with_text(last, "".join((text_of(last), *self._growth)))
            self._chunks[-1], self._bodies[-1] = grown, encode(grown).decode()
            self._growth = []

    async def _wait_for_room(self) -> None:
        while self._bytes + self._unsettled_bytes >= self._waiting_bytes:
            self._room.clear()
            await self._room.wait()
            self._check_usable()

    async def flush(self) -> int:
        self._check_usable()
        async with self._turn:
            # While this flush waited for its turn, the one before it may have found that another writer owns the
            # stream.
            self._check_usable()
            await self._store_everything()
        self._plan_flush()
        return self._latest

    def take(self) -> "Taking":
        return Taking(self)

    async def begin_taking(self) -> StreamAppend | None:
        """Cut the buffered chunks into a batch for the caller to store; nothing else is stored until `end_taking`."""
        self._check_usable()
        await self._turn.acquire()
        try:
            self._check_usable()
            if self._unsettled is not None:
                await self._store_batch()
            self._cut()
        except BaseException:
            self._turn.release()
            raise
        self._may_be_stored = True
        return self._unsettled

    def end_taking(self, *, stored: bool) -> None:
        """Record whether the batch was stored. If that is uncertain, the batch goes with the next flush."""
        if stored and self._unsettled is not None:
            self._settle(self._latest + len(self._unsettled.chunks))
        self._turn.release()
        self._plan_flush()

    async def close(self) -> None:
        if self._closed:
            return
        try:
            await self.flush()
            while self._chunks:
                # Another task wrote in the meantime, and the write was accepted.
                await self.flush()
        finally:
            self._closed = True
            self._growing = None
            self._stop_timer()
            self._room.set()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StoreClosedError(f"The writer of stream {self._head.stream_id!r}")

    # -- when to flush ----------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        if self._background is not None or self._closed or not (self._chunks or self._unsettled):
            return
        if self._retry_seconds:
            self._flush_after(self._retry_seconds)
        elif self._is_due():
            self._flush_in_background()
        elif self._timer is None:
            left = self._oldest + self._policy.interval_ms / 1000 - self._loop.time()
            self._flush_after(left) if left > 0 else self._flush_in_background()

    def _is_due(self) -> bool:
        """Whether so much is buffered that it should not wait for the interval."""
        return self._bytes >= self._policy.bytes or len(self._chunks) >= self._policy.chunks

    def _flush_after(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        """Called by the timer. A commit may have taken the chunks it was set for; then the timer is set anew."""
        self._timer = None
        if self._retry_seconds:
            self._flush_in_background()
        else:
            self._plan_flush()

    def _flush_in_background(self) -> None:
        self._stop_timer()
        if self._background is None:
            self._background = self._loop.create_task(self._flush_once())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _flush_once(self) -> None:
        try:
            async with self._turn:
                await self._store_everything()
        except Exception:
            # A failure that must stop the writer is kept for its next call. Anything else means the store does not
            # answer.
            if self._failure is None:
                self._retry_seconds = min(self._retry_seconds * 2 or FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        finally:
            self._background = None
            self._plan_flush()

    # -- how to flush: the caller holds the turn --------------------------------------------------------

    async def _store_everything(self) -> None:
        if self._unsettled is not None:
            await self._store_batch()
        self._cut()
        if self._unsettled is not None:
            await self._store_batch()

    def _cut(self) -> None:
        """Cut everything that is buffered into one batch."""
        if not self._chunks:
            return
        self._end_growth()
        self._batch += 1
        self._unsettled = StreamAppend(
            stream_id=self._head.stream_id,
            run_id=self._head.run_id,
            attempt=self._head.attempt,
            writer=self._head.writer,
            batch=self._batch if self._joins is None else 0,
            chunks=tuple(self._chunks),
            bodies=tuple(self._bodies),
        )
        self._chunks, self._bodies = [], []
        self._bytes, self._unsettled_bytes = 0, self._bytes
        self._may_be_stored = False

    async def _store_batch(self) -> None:
        append, joins = self._unsettled, self._joins
        assert append is not None
        try:
            latest = None
            if joins is not None and self._may_be_stored:
                latest = _found_in(await joins.snapshot(append.stream_id, after=self._latest), append)
            self._may_be_stored = True
            if latest is None:
                latest = await self._store(append)
        except HelixError as problem:
            if not problem.retryable:
                self._fail(problem)
            raise
        except Exception as problem:
            self._fail(problem)
            raise
        if self._retry_seconds:
            self._retry_seconds = 0.0
            self._stop_timer()
        self._settle(latest)

    def _settle(self, latest: int) -> None:
        """Forget the batch, which is stored, and let waiting writes continue."""
        self._latest = latest
        self._unsettled = None
        self._unsettled_bytes = 0
        self._room.set()

    def _fail(self, problem: Exception) -> None:
        self._failure = problem
        self._chunks, self._bodies, self._growing, self._growth = [], [], None, []
        self._settle(self._latest)
        self._stop_timer()


def _found_in(snapshot: StreamSnapshot | None, append: StreamAppend) -> int | None:
    """The latest sequence of a stream that already holds these chunks; None if it does not."""
    if snapshot is None:
        return None
    # Chunks that were stored together are adjacent, whatever other handles wrote before and after them.
    bodies = [encode(replace(chunk, sequence=0)).decode() for chunk in snapshot.chunks]
    size = len(append.bodies)
    stands = any(tuple(bodies[at : at + size]) == append.bodies for at in range(len(bodies) - size + 1))
    return snapshot.info.latest_sequence if stands else None


class Taking:
    """The result of `take`: an async context around the commit that carries the chunks. Every step uses one."""

    __slots__ = ("_writer",)

    def __init__(self, writer: BufferedWriter) -> None:
        self._writer = writer

    async def __aenter__(self) -> StreamAppend | None:
        return await self._writer.begin_taking()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.end_taking(stored=kind is None)
