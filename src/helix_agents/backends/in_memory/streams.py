"""Streams in the memory of one process, read and written from any number of its threads and event loops."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.following_reader import FollowingReader, Look
from helix_agents.backends.in_memory.handle import SYSTEM_CLOCK, Handle, own
from helix_agents.backends.in_memory.memory import Memory, SharedStream
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.backends.resting_streams import RestingStreams
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.backends.wakeups import Waiter, Wakeups
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.commits import Committed
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import (
    StreamAppend,
    StreamClaim,
    StreamEnd,
    StreamInfo,
    StreamPlace,
    StreamRest,
    StreamSnapshot,
)
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamReader, StreamWriter

T = TypeVar("T")

# Every change in this process rings, so a look without a ring would find nothing. The wait only has to end eventually.
POLL_SECONDS = 3600.0


class MemoryStream(SharedStream):
    """One stream: its head, its chunks in order, and its waiting readers. All but `listen` needs the memory's lock."""

    def __init__(self, head: StreamHead, clock: Clock, chunk_bytes: int | None) -> None:
        self.head = head
        self._chunks: list[StreamChunk] = []
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._wakeups = Wakeups()

    def check_append(self, append: StreamAppend) -> int:
        rules.check_append(self.head, append, self._chunk_bytes)
        return self.head.latest + (0 if rules.is_repeated(self.head, append) else len(append.chunks))

    def append(self, append: StreamAppend) -> None:
        if not rules.is_repeated(self.head, append):
            self._add(*rules.appended(self.head, append, self._clock.now_ms()))

    def end_with_commit(self, append: StreamAppend, end: StreamEnd, committed: Committed) -> None:
        now = self._clock.now_ms()
        self._add(*rules.appended(self.head, rules.last_of(append, end, committed, now), now))
        self.change(rules.rested(self.head, rules.claim_of(append), own(end.rest), now))

    def rest(self, claim: Claim, rest: StreamRest, last: StreamAppend | None, now: int) -> None:
        """Come to rest, after the writer's last chunks."""
        if last is not None and rules.check_last(self.head, claim, last, self._chunk_bytes):
            self.append(last)
        self.change(rules.rested(self.head, claim, rest, now))

    def end_readers(self) -> None:
        """Make the readers look again and find that their stream or their manager is gone."""
        self._wakeups.ring_everybody()

    def change(self, head: StreamHead) -> None:
        """Replace the stream's head."""
        self.head = head
        self._wakeups.ring_everybody()

    def discard(self, claim: Claim, step: int, after: int) -> int:
        """Drop a run's content of this step and later ones above a number; returns how many chunks were removed."""
        start = self._index_after(rules.search_from(self.head, claim.run_id, step, after) - 1)
        searched = self._chunks[start:]
        ranges = rules.ranges_of((chunk.sequence, rules.is_content(chunk, claim.run_id, step)) for chunk in searched)
        if not ranges:
            return 0
        self._chunks[start:] = [chunk for chunk in searched if not rules.is_content(chunk, claim.run_id, step)]
        gone = len(searched) - (len(self._chunks) - start)
        self._add(*rules.discarded(self.head, claim, step, ranges, gone, self._clock.now_ms(), after))
        return gone

    def prune(self, due: int) -> int:
        """Drop what a stream that came to rest by then no longer needs; returns how many chunks were removed."""
        if self.head.prunable_since is None or self.head.prunable_since > due:
            return 0
        gone = self._truncate_below(rules.prunable_below(self.head))
        self.change(rules.pruned(self.head))
        return gone

    def after(self, sequence: int, limit: int | None = None) -> tuple[StreamChunk, ...]:
        """The next `limit` chunks after a number."""
        start = self._index_after(sequence)
        return tuple(map(own, self._chunks[start : None if limit is None else start + limit]))

    def of_run(self, run_id: RunId, from_step: int) -> tuple[StreamChunk, ...]:
        """The chunks of a run, starting at a step."""
        return tuple(own(chunk) for chunk in self._chunks if chunk.run_id == run_id and chunk.step >= from_step)

    def info(self) -> StreamInfo:
        return own(rules.info_of(self.head, self._chunks[0].sequence if self._chunks else None))

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Waiter]:
        with self._wakeups.listen("") as waiter:
            yield waiter

    def _add(self, head: StreamHead, chunks: tuple[StreamChunk, ...]) -> None:
        self._chunks.extend(map(own, chunks))
        self.change(head)
        if head.max_chunks is not None and len(self._chunks) > head.max_chunks:
            self._truncate_below(self._chunks[-head.max_chunks].sequence)

    def _truncate_below(self, floor: int) -> int:
        gone = self._index_after(floor - 1)
        del self._chunks[:gone]
        self.head = rules.trimmed(self.head, floor, gone)
        return gone

    def _index_after(self, sequence: int) -> int:
        return bisect_right(self._chunks, sequence, key=lambda chunk: chunk.sequence)


class InMemoryStreamManager(Handle, RestingStreams):
    """Streams that live as long as their `Memory`; managers on the same one see the same streams."""

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        namespace: str = "",
        clock: Clock = SYSTEM_CLOCK,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
        seam: Seam | None = None,
    ) -> None:
        super().__init__(memory, namespace=namespace, clock=clock, seam=seam)
        self._bounds = limits or StreamLimits()
        self._writers = WriterSettings(clock=clock, limits=self._bounds, flush=flush or FlushPolicy())

    @property
    def limits(self) -> StreamLimits:
        return self._bounds

    def shares_transactions_with(self, store: object) -> bool:
        return isinstance(store, Handle) and (store.memory, store.namespace) == (self.memory, self.namespace)

    async def create_writer(
        self,
        stream_id: StreamId,
        run_id: RunId,
        agent_type: str,
        *,
        turn: int = 0,
        attempt: int = 1,
        step: int | None = None,
        after: int = 0,
        join: bool = False,
    ) -> StreamWriter:
        claim = rules.checked_claim(stream_id, run_id, turn, attempt)
        async with self._changing("create_writer") as now:
            stream = self._find(stream_id)
            if join and stream is not None and rules.can_join(stream.head, claim):
                return BufferedWriter(stream.head, self._append, self._writers, joins=self)
            head = rules.with_new_writer(stream and stream.head, claim, agent_type, self._bounds.max_chunks, now)
            if stream is None:
                stream = MemoryStream(head, self._clock, self._bounds.chunk_bytes)
                self.memory.streams[self.namespace, stream_id] = stream
            stream.change(head)
            if step is not None:
                stream.discard(claim, step, after)
            head = stream.head
        return BufferedWriter(head, self._append, self._writers)

    async def create_resumable_reader(self, stream_id: StreamId, *, from_sequence: int = 0) -> StreamReader | None:
        stream = self._ask(stream_id, lambda stream: stream)
        if stream is None:
            return None

        async def look(cursor: int, most: int) -> Look | None:
            return self._ask(stream_id, lambda now: Look(now.head, now.after(cursor, most)) if now is stream else None)

        return FollowingReader(
            from_sequence, look=look, listen=stream.listen, poll_seconds=POLL_SECONDS, clock=self._clock
        )

    async def get_stream_info(self, stream_id: StreamId) -> StreamInfo | None:
        return self._ask(stream_id, MemoryStream.info)

    async def get_all_chunks(self, stream_id: StreamId) -> tuple[StreamChunk, ...]:
        return self._ask(stream_id, lambda stream: stream.after(0)) or ()

    async def get_chunks_from_step(
        self, stream_id: StreamId, from_step: int, run_id: RunId | None = None
    ) -> tuple[StreamChunk, ...]:
        return self._ask(stream_id, lambda stream: stream.of_run(run_id or stream.head.run_id, from_step)) or ()

    async def cleanup_to_step(self, stream_id: StreamId, run_id: RunId, step: int, *, after: int = 0) -> int:
        claim = Claim(stream_id=stream_id, run_id=run_id)
        async with self._changing("cleanup_to_step"):
            stream = self._find(stream_id)
            return stream.discard(claim, step + 1, after) if stream is not None else 0

    async def snapshot(self, stream_id: StreamId, *, after: int = 0) -> StreamSnapshot | None:
        return self._ask(stream_id, lambda stream: StreamSnapshot(info=stream.info(), chunks=stream.after(after)))

    async def delete_stream(self, stream_id: StreamId) -> None:
        async with self._changing("delete_stream"):
            stream = self.memory.streams.pop((self.namespace, stream_id), None)
            if stream is not None:
                stream.end_readers()

    async def prune(self, older_than_ms: int) -> int:
        async with self._changing("prune") as now:
            return sum(stream.prune(now - older_than_ms) for stream in self._own_streams())

    async def close(self) -> None:
        await super().close()
        with self.memory.lock:
            for stream in self._own_streams():
                stream.end_readers()

    @asynccontextmanager
    async def _changing(self, operation: str) -> AsyncGenerator[int]:
        """The lock and the current time. The body must not await; if the seam raises, it does so before the body."""
        self._check_open()
        with self.memory.lock:
            held = self._pass_seam(operation)
            yield self._clock.now_ms()
        if held is not None:
            await held

    def _pass_seam(self, operation: str) -> Awaitable[None] | None:
        try:
            return self._seam(operation) if self._seam is not None else None
        except Exception as problem:
            raise StoreUnavailableError(type(self).__name__, str(problem)) from problem

    def _own_streams(self) -> list[MemoryStream]:
        return [stream for (namespace, _), stream in self.memory.streams.items() if namespace == self.namespace]

    def _find(self, stream_id: StreamId) -> MemoryStream | None:
        return self.memory.streams.get((self.namespace, stream_id))

    def _ask(self, stream_id: StreamId, question: Callable[[MemoryStream], T]) -> T | None:
        self._check_open()
        with self.memory.lock:
            stream = self._find(stream_id)
            return question(stream) if stream is not None else None

    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        async with self._changing(what) as now:
            stream = self._find(stream_id)
            if stream is not None:
                stream.change(change(stream.head, now))

    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: StreamRest, last: StreamAppend | None
    ) -> None:
        claim = Claim(stream_id=stream_id, run_id=run_id, attempt=attempt)
        async with self._changing("rest") as now:
            stream = self._find(stream_id)
            if stream is not None:
                stream.rest(claim, own(rest), last, now)
            elif last is not None:
                raise rules.deleted(last)

    async def _append(self, append: StreamAppend) -> int:
        async with self._changing("append"):
            stream = self._find(append.stream_id)
            if stream is None:
                raise rules.deleted(append)
            latest = stream.check_append(append)
            stream.append(append)
        return latest


def claim_stream(
    memory: Memory, namespace: str, clock: Clock, tx: Transaction, claim: StreamClaim, run: RunRecord
) -> StreamPlace | None:
    """Make a starting run the writer of its stream once its start is committed; None if that is not possible."""
    stream: MemoryStream | None = memory.streams.get((namespace, claim.stream_id))
    head = rules.with_started_run(stream and stream.head, claim, run, tx.now)
    if head is None:
        return None
    taken = stream or MemoryStream(head, clock, claim.chunk_bytes)

    def take() -> None:
        memory.streams[namespace, claim.stream_id] = taken
        taken.change(head)

    tx.afterwards(take)
    return rules.place_of(head)
