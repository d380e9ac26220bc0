"""Streams on Redis, written and read by any number of processes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.following_reader import FollowingReader, Look
from helix_agents.backends.redis import index
from helix_agents.backends.redis.index import names_of
from helix_agents.backends.redis.keys import Slot
from helix_agents.backends.redis.keyspace import Keyspace, ServerClock
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.stream_rows import (
    StreamEntry,
    StreamWork,
    append_chunks,
    chunks_of,
    delete_stream,
    read_chunks,
    read_first,
    read_stream,
    stream_of,
    topic_of,
)
from helix_agents.backends.redis.transaction import Command, Transaction
from helix_agents.backends.resting_streams import RestingStreams
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.errors import StoreClosedError, StoreUnavailableError
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import decode
from helix_agents.domain.streams import StreamAppend, StreamInfo, StreamRest, StreamSnapshot
from helix_agents.ports.clock import Clock
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamReader, StreamWriter
from helix_agents.system import jitter

T = TypeVar("T")

# A look is one statement, so a waiting reader may look twice a second.
POLL_SECONDS = 0.5
LOOK_AGAIN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The waits of a reader between its looks at a server that does not answer, before it reports that."""


class RedisStreamManager(RestingStreams):
    """Streams on a Redis or Valkey server; readers anywhere are woken by one subscription per process."""

    def __init__(
        self,
        server: RedisServer,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
    ) -> None:
        self._keyspace = keyspace_on(server.use(), namespace)
        self._clock = clock or ServerClock(server)
        self._limits = limits or StreamLimits()
        self._writers = WriterSettings(clock=self._clock, limits=self._limits, flush=flush or FlushPolicy())
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
        **of_server: Any,
    ) -> "RedisStreamManager":
        """Open a manager with its own connection to a server; `RedisServer.open` lists what can go wrong."""
        server = await RedisServer.open(url, **of_server)
        return cls(server, namespace=namespace, clock=clock, limits=limits, flush=flush)

    @property
    def _space(self) -> Keyspace:
        if self._closed:
            raise StoreClosedError(self._keyspace.server.name)
        return self._keyspace

    @property
    def limits(self) -> StreamLimits:
        return self._limits

    def shares_transactions_with(self, store: object) -> bool:
        server = getattr(store, "server", None)
        here = self._keyspace.server
        same = isinstance(server, RedisServer) and (server.url, server.prefix) == (here.url, here.prefix)
        return same and getattr(store, "namespace", None) == self._keyspace.keys.namespace

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
        space, most = self._space, self._limits.max_chunks
        joined = False

        async def work(tx: Transaction) -> StreamHead:
            nonlocal joined
            stream = await StreamWork.find(tx, space, stream_id)
            joined = join and stream is not None and rules.can_join(stream.head, claim)
            if stream is not None and joined:
                return stream.head
            head = rules.with_new_writer(stream and stream.head, claim, agent_type, most, tx.now)
            if stream is None:
                stream = await StreamWork.make(tx, space, head)
            stream.stream.head = head
            if step is None or not await stream.discard(claim, step, after):
                stream.save(head)
            return stream.head

        head = await self._write("create_writer", stream_id, work)
        return BufferedWriter(head, self._append, self._writers, joins=self if joined else None)

    async def create_resumable_reader(self, stream_id: StreamId, *, from_sequence: int = 0) -> StreamReader | None:
        found = await self._ask(stream_id, _place)
        if found is None:
            return None
        tag, name = found
        slot = self._space.slot(tag)

        async def look_once(cursor: int, most: int) -> Look | None:
            reads = (read_stream(slot, stream_id), read_chunks(slot, stream_id, cursor, most))
            fields, rows = (await self._space.run("look", (), reads, 0)).replies
            stream = stream_of(fields)
            if stream is None or stream.name != name:
                return None
            return Look(stream.head, chunks_of(rows) if cursor <= stream.head.latest else ())

        async def look(cursor: int, most: int) -> Look | None:
            # A reader that follows a stream may as well wait for a restarting server.
            for seconds in LOOK_AGAIN_SECONDS:
                try:
                    return await look_once(cursor, most)
                except StoreUnavailableError:
                    await asyncio.sleep(seconds * jitter())
            return await look_once(cursor, most)

        return FollowingReader(
            from_sequence,
            look=look,
            listen=lambda: self._space.server.bell.listen(self._space.keys.channel(topic_of(stream_id))),
            poll_seconds=POLL_SECONDS,
            clock=self._clock,
        )

    async def get_stream_info(self, stream_id: StreamId) -> StreamInfo | None:
        return await self._ask(stream_id, lambda _, stream: stream.info(), read_first)

    async def get_all_chunks(self, stream_id: StreamId) -> tuple[StreamChunk, ...]:
        return tuple(await self._ask(stream_id, lambda _, stream: stream.read(0), read_chunks) or ())

    async def get_chunks_from_step(
        self, stream_id: StreamId, from_step: int, run_id: RunId | None = None
    ) -> tuple[StreamChunk, ...]:
        async def question(_: Transaction, stream: StreamWork) -> tuple[StreamChunk, ...]:
            return await stream.of_run(run_id or stream.head.run_id, from_step)

        return await self._ask(stream_id, question, read_chunks) or ()

    async def cleanup_to_step(self, stream_id: StreamId, run_id: RunId, step: int, *, after: int = 0) -> int:
        space = self._space

        async def work(tx: Transaction) -> int:
            stream = await StreamWork.find(tx, space, stream_id)
            claim = Claim(stream_id=stream_id, run_id=run_id)
            return await stream.discard(claim, step + 1, after) if stream is not None else 0

        return await self._write("cleanup_to_step", stream_id, work)

    async def snapshot(self, stream_id: StreamId, *, after: int = 0) -> StreamSnapshot | None:
        async def question(_: Transaction, stream: StreamWork) -> StreamSnapshot:
            return StreamSnapshot(info=await stream.info(), chunks=tuple(await stream.read(after)))

        return await self._ask(stream_id, question, read_first, partial(read_chunks, after=after))

    async def delete_stream(self, stream_id: StreamId) -> None:
        await delete_stream(self._space, stream_id, self._clock)

    async def prune(self, older_than_ms: int) -> int:
        space, due = self._space, self._clock.now_ms() - older_than_ms

        async def prune_one(stream_id: StreamId, tag: str) -> int:
            async def work(tx: Transaction) -> int:
                stream = await StreamWork.find(tx, space, stream_id)
                return await stream.prune(due) if stream is not None else 0

            return await space.write("prune", stream_id, work, clock=self._clock, tag=tag)

        resting = (await space.find(index.RESTING, highest=due)).entries
        return sum([await prune_one(names_of(name)[0], decode(payload, StreamEntry).tag) for name, payload in resting])

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._keyspace.server.bell.wake_everybody()
            await self._keyspace.server.close()

    async def _append(self, append: StreamAppend) -> int:
        return await append_chunks(self._space, append, self._clock)

    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: StreamRest, last: StreamAppend | None
    ) -> None:
        space, claim = self._space, Claim(stream_id=stream_id, run_id=run_id, attempt=attempt)

        async def work(tx: Transaction) -> None:
            stream = await StreamWork.find(tx, space, stream_id)
            if stream is not None:
                await stream.rest(claim, rest, last)
            elif last is not None:
                raise rules.deleted(last)

        await self._write("rest", stream_id, work)

    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        space = self._space

        async def work(tx: Transaction) -> None:
            stream = await StreamWork.find(tx, space, stream_id)
            if stream is not None:
                stream.save(change(stream.head, tx.now))

        await self._write(what, stream_id, work)

    async def _ask(
        self,
        stream_id: StreamId,
        question: Callable[[Transaction, StreamWork], Awaitable[T]],
        *reads: Callable[[Slot, StreamId], Command],
    ) -> T | None:
        """Query a stream; the given read will probably be needed."""
        space = self._space

        async def work(tx: Transaction) -> T | None:
            for read in reads:
                tx.bring(read(tx.slot, stream_id))
            stream = await StreamWork.find(tx, space, stream_id)
            return await question(tx, stream) if stream is not None else None

        return await space.read("stream", stream_id, work, clock=self._clock)

    async def _write(self, what: str, stream_id: StreamId, work: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self._space.write(what, stream_id, work, clock=self._clock)


async def _place(tx: Transaction, stream: StreamWork) -> tuple[str, str]:
    """The tag of a stream's slot, and its name."""
    return tx.tag, stream.stream.name
