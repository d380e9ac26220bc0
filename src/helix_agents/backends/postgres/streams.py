"""Streams in Postgres, written and read by any number of processes on one database."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.following_reader import FollowingReader, Look
from helix_agents.backends.part import Part
from helix_agents.backends.postgres.connection import Connection, Value, askable
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.settings import parse_url
from helix_agents.backends.postgres.stream_rows import (
    APPEND,
    HEAD_COLUMNS,
    INSERT,
    StreamRow,
    append_chunks,
    append_values,
    chunk_of,
    columns_of,
    delete_stream_rows,
    encoded,
    head_of,
    topic_of,
)
from helix_agents.backends.resting_streams import RestingStreams
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.backends.wakeups import Waiter
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId, StreamId, check_id
from helix_agents.domain.streams import StreamAppend, StreamInfo, StreamRest, StreamSnapshot
from helix_agents.ports.backend import Migrate
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamReader, StreamWriter

T = TypeVar("T")

# A look that finds nothing new is one statement, so a waiting reader may look twice a second.
POLL_SECONDS = 0.5
_NO_CHUNKS: tuple[Value, ...] = (None,) * 9
_REST = f"SELECT __agents_rest_stream({', '.join('?' * 18)})"
# The head and the next chunks in one statement, and so as of one moment; without any chunk there is still one row.
_LOOK = f"""
SELECT {", ".join(f"s.{name}" for name in HEAD_COLUMNS.split(", "))}, c.sequence, c.body
FROM __agents_streams s LEFT JOIN LATERAL (
    SELECT c.sequence, c.body FROM __agents_stream_chunks c
    WHERE c.id BETWEEN (s.key << 32) + least(greatest(?2::bigint, 0), s.latest) + 1 AND (s.key << 32) + s.latest
    ORDER BY c.id LIMIT ?3
) c ON true WHERE s.key = ?1 ORDER BY c.sequence
"""
# The head and the number of its first chunk.
_INFO = f"""
SELECT {HEAD_COLUMNS}, (
    SELECT c.sequence FROM __agents_stream_chunks c
    WHERE c.id BETWEEN (s.key << 32) + s.floor AND (s.key << 32) + s.latest ORDER BY c.id LIMIT 1
) FROM __agents_streams s WHERE namespace = ? AND stream_id = ?
"""
# A mark makes writers notify the waiters for this long, then it has to be renewed. Changes before the mark are found by
# the look that follows it.
MARK_AGAIN_SECONDS = 1_500.0
_WATCH = (
    "UPDATE __agents_streams SET watched_until = clock_timestamp() + interval '1 hour'"
    " WHERE key = ? AND watched_until < clock_timestamp() + interval '30 minutes'"
)


class PostgresStreamManager(Part[Database], RestingStreams):
    """Streams in one Postgres database; readers in other processes are notified."""

    def __init__(
        self,
        database: Database,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
    ) -> None:
        self._namespace = check_id(namespace, "namespace") if namespace else ""
        super().__init__(database)
        self._clock = clock or database.clock
        self._limits = limits or StreamLimits()
        self._writers = WriterSettings(clock=self._clock, limits=self._limits, flush=flush or FlushPolicy())

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
        seam: Seam | None = None,
        migrate: Migrate = "auto",
        **options: Any,
    ) -> "PostgresStreamManager":
        """Open a manager with its own connections. See `Database.open` for errors, `PostgresSettings` for options."""
        settings, asked = parse_url(url, options)
        database = await Database.open(settings, seam=seam, migrate=asked.get("migrate", migrate))
        return cls(database, namespace=namespace, clock=clock, limits=limits, flush=flush)

    @property
    def limits(self) -> StreamLimits:
        return self._limits

    def shares_transactions_with(self, store: object) -> bool:
        database = getattr(store, "database", None)
        same = isinstance(database, Database) and database.is_same_as(self._database)
        return same and getattr(store, "namespace", None) == self._namespace

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
        now = self._clock.now_ms()
        first = rules.with_new_writer(None, claim, agent_type, self._limits.max_chunks, now)
        joined = False

        async def work(connection: Connection) -> StreamHead:
            nonlocal joined
            joined = False
            stream = await StreamRow.find(connection, self._namespace, stream_id)
            # Between the two statements, another process may create the stream, and yet another delete it before it is
            # found.
            while stream is None:
                made = await StreamRow.insert(connection, self._namespace, first)
                if made is not None:
                    return made.head
                stream = await StreamRow.find(connection, self._namespace, stream_id)
            joined = join and rules.can_join(stream.head, claim)
            if joined:
                return stream.head
            stream.head = rules.with_new_writer(stream.head, claim, agent_type, self._limits.max_chunks, now)
            if step is None or not await stream.discard(claim, step, now, after):
                await stream.save()
            return stream.head

        # A conversation's first run is nearly always the first to write, and that takes one statement.
        if (
            not join
            and turn <= 1
            and attempt == 1
            and await self._db.call(INSERT, (self._namespace, *columns_of(first)))
        ):
            return BufferedWriter(first, self._append, self._writers)
        head = await self._db.write(work)
        return BufferedWriter(head, self._append, self._writers, joins=self if joined else None)

    async def create_resumable_reader(self, stream_id: StreamId, *, from_sequence: int = 0) -> StreamReader | None:
        found = await self._db.one(
            "SELECT key FROM __agents_streams WHERE namespace = ? AND stream_id = ?", (self._namespace, stream_id)
        )
        if found is None:
            return None
        key: int = found[0]
        marked: float | None = None

        async def mark() -> None:
            nonlocal marked
            marked = time.monotonic()
            await self._db.execute(_WATCH, (key,))

        async def look(cursor: int, most: int) -> Look | None:
            if marked is not None and time.monotonic() - marked > MARK_AGAIN_SECONDS:
                await mark()
            rows = [tuple(row) for row in await self._db.all(_LOOK, (key, cursor, most))]
            if not rows:
                return None
            return Look(head_of(rows[0][:-2]), tuple(chunk_of(row[-2:]) for row in rows if row[-1] is not None))

        @asynccontextmanager
        async def listen() -> AsyncGenerator[Waiter]:
            async with self._db.listener.listen(topic_of(self._namespace, stream_id)) as waiter:
                await mark()
                yield waiter

        return FollowingReader(
            from_sequence,
            look=look,
            listen=listen,
            poll_seconds=POLL_SECONDS,
            clock=self._clock,
        )

    async def get_stream_info(self, stream_id: StreamId) -> StreamInfo | None:
        row = await self._db.one(_INFO, (self._namespace, stream_id))
        if row is None:
            return None
        return rules.info_of(head_of(tuple(row)[:-1]), row[-1])

    async def get_all_chunks(self, stream_id: StreamId) -> tuple[StreamChunk, ...]:
        return await self._read(stream_id, lambda stream: stream.after(0)) or ()

    async def get_chunks_from_step(
        self, stream_id: StreamId, from_step: int, run_id: RunId | None = None
    ) -> tuple[StreamChunk, ...]:
        return await self._read(stream_id, lambda stream: stream.of_run(run_id or stream.head.run_id, from_step)) or ()

    async def cleanup_to_step(self, stream_id: StreamId, run_id: RunId, step: int, *, after: int = 0) -> int:
        claim = Claim(stream_id=stream_id, run_id=run_id)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> int:
            stream = await StreamRow.find(connection, self._namespace, stream_id)
            return await stream.discard(claim, step + 1, now, after) if stream is not None else 0

        return await self._db.write(work)

    async def snapshot(self, stream_id: StreamId, *, after: int = 0) -> StreamSnapshot | None:
        async def question(stream: StreamRow) -> StreamSnapshot:
            return StreamSnapshot(info=await _info(stream), chunks=await stream.after(after))

        return await self._read(stream_id, question)

    async def delete_stream(self, stream_id: StreamId) -> None:
        await self._db.write(lambda connection: delete_stream_rows(connection, self._namespace, stream_id))

    async def prune(self, older_than_ms: int) -> int:
        due = self._clock.now_ms() - older_than_ms
        rows = await self._db.all(
            "SELECT stream_id FROM __agents_streams WHERE namespace = ? AND prunable_since <= ?", (self._namespace, due)
        )

        def prune_one(stream_id: StreamId) -> Callable[[Connection], Awaitable[int]]:
            async def work(connection: Connection) -> int:
                return await _prune(await StreamRow.find(connection, self._namespace, stream_id), due)

            return work

        # One transaction per stream, so that other writers wait for one stream and not for all of them.
        return sum([await self._db.write(prune_one(row[0])) for row in rows])

    async def _append(self, append: StreamAppend) -> int:
        now = self._clock.now_ms()
        stream_id, run_id, attempt, writer, batch, *rest = append_values(append)
        row = await self._db.call(APPEND, (self._namespace, stream_id, run_id, attempt, writer, batch, now, *rest))
        if row is not None and row[0] is not None:
            return row[0]
        return await self._db.write(lambda connection: append_chunks(connection, self._namespace, append, now))

    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: StreamRest, last: StreamAppend | None
    ) -> None:
        """Bring the stream to rest, in one statement if it is active and belongs to this run."""
        now = self._clock.now_ms()
        claim = Claim(stream_id=stream_id, run_id=run_id, attempt=attempt)
        how = (rest.status, rest.end_status, encoded(rest.output), encoded(rest.error))
        chunks = append_values(last)[3:] if last is not None else _NO_CHUNKS
        is_own = last is None or (last.stream_id, last.run_id, last.attempt) == (stream_id, run_id, attempt)
        if is_own:
            whose = (*askable(self._namespace, stream_id, run_id), attempt)
            row = await self._db.call(_REST, (*whose, now, *how, *chunks))
            if row is not None and row[0]:
                return

        async def work(connection: Connection) -> None:
            stream = await StreamRow.find(connection, self._namespace, stream_id)
            if stream is not None:
                await stream.rest(claim, rest, last, now)
            elif last is not None:
                raise rules.deleted(last)

        await self._db.write(work)

    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            stream = await StreamRow.find(connection, self._namespace, stream_id)
            if stream is not None:
                stream.head = change(stream.head, now)
                await stream.save()

        await self._db.write(work)

    async def _read(self, stream_id: StreamId, question: Callable[[StreamRow], Awaitable[T]]) -> T | None:
        async def work(connection: Connection) -> T | None:
            stream = await StreamRow.find(connection, self._namespace, stream_id)
            return await question(stream) if stream is not None else None

        return await self._db.read(work)


async def _info(stream: StreamRow) -> StreamInfo:
    return rules.info_of(stream.head, await stream.first_sequence())


async def _prune(stream: StreamRow | None, due: int) -> int:
    """Drop what a stream that came to rest by then no longer needs."""
    if stream is None or stream.head.prunable_since is None or stream.head.prunable_since > due:
        return 0
    gone = await stream.truncate_below(rules.prunable_below(stream.head))
    stream.head = rules.pruned(stream.head)
    await stream.save()
    return gone
