"""Streams in SQLite, written and read by any number of processes on one file."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.following_reader import FollowingReader, Look
from helix_agents.backends.part import Part
from helix_agents.backends.resting_streams import RestingStreams
from helix_agents.backends.sqlite.connection import Connection, Synchronous
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.stream_rows import StreamRow, append_chunks, delete_stream_rows, topic_of
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId, StreamId, check_id
from helix_agents.domain.streams import StreamAppend, StreamInfo, StreamRest, StreamSnapshot
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.streams import FlushPolicy, StreamLimits, StreamReader, StreamWriter
from helix_agents.system import SystemClock

T = TypeVar("T")

# A look that finds nothing new is one statement, so a waiting reader may look twice a second.
POLL_SECONDS = 0.5


class SQLiteStreamManager(Part[Database], RestingStreams):
    """Streams in one SQLite file; readers in other processes are woken by its doorbell."""

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
        self._clock = clock or SystemClock()
        self._limits = limits or StreamLimits()
        self._writers = WriterSettings(clock=self._clock, limits=self._limits, flush=flush or FlushPolicy())

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        limits: StreamLimits | None = None,
        flush: FlushPolicy | None = None,
        seam: Seam | None = None,
        synchronous: Synchronous = "FULL",
    ) -> "SQLiteStreamManager":
        """Open a manager with its own connection to a file; `Database.open` lists what can go wrong."""
        database = await Database.open(path, synchronous=synchronous, seam=seam)
        return cls(database, namespace=namespace, clock=clock, limits=limits, flush=flush)

    @property
    def limits(self) -> StreamLimits:
        return self._limits

    def shares_transactions_with(self, store: object) -> bool:
        database = getattr(store, "database", None)
        same_file = isinstance(database, Database) and database.path == self._database.path
        return same_file and getattr(store, "namespace", None) == self._namespace

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
        joined = False

        def work(connection: Connection) -> StreamHead:
            nonlocal joined
            stream = StreamRow.find(connection, self._namespace, stream_id)
            if join and stream is not None and rules.can_join(stream.head, claim):
                joined = True
                return stream.head
            head = rules.with_new_writer(stream and stream.head, claim, agent_type, self._limits.max_chunks, now)
            if stream is None:
                return StreamRow.insert(connection, self._namespace, head).head
            stream.head = head
            if step is None or not stream.discard(claim, step, now, after):
                stream.save()
            return stream.head

        # Nothing is written to the stream yet, and the first chunks are synced together with this.
        head = await self._db.write(work, synced=False)
        return BufferedWriter(head, self._append, self._writers, joins=self if joined else None)

    async def create_resumable_reader(self, stream_id: StreamId, *, from_sequence: int = 0) -> StreamReader | None:
        seen = await self._db.look_up(
            "SELECT key, latest FROM __agents_streams WHERE namespace = ? AND stream_id = ?",
            (self._namespace, stream_id),
        )
        if seen is None:
            return None
        key, latest = seen

        def find(connection: Connection) -> StreamRow | None:
            return StreamRow.find_by_key(connection, self._namespace, key)

        def read(connection: Connection, cursor: int, most: int) -> Look | None:
            stream = find(connection)
            return Look(stream.head, stream.after(cursor, most)) if stream is not None else None

        async def look(cursor: int, most: int) -> Look | None:
            nonlocal latest
            if latest <= cursor:
                # Most looks by an up-to-date reader find nothing new, and one statement is enough to tell.
                stream = await self._db.read_by_key(find, transaction=False)
                if stream is None or stream.head.latest <= cursor:
                    return Look(stream.head, ()) if stream is not None else None
            found = await self._db.read_by_key(lambda connection: read(connection, cursor, most))
            latest = found.head.latest if found is not None else latest
            return found

        return FollowingReader(
            from_sequence,
            look=look,
            listen=lambda: self._db.bell.listen(topic_of(self._namespace, stream_id)),
            poll_seconds=POLL_SECONDS,
            clock=self._clock,
        )

    async def get_stream_info(self, stream_id: StreamId) -> StreamInfo | None:
        return await self._read_by_key(stream_id, _info)

    async def get_all_chunks(self, stream_id: StreamId) -> tuple[StreamChunk, ...]:
        return await self._read(stream_id, lambda stream: stream.after(0)) or ()

    async def get_chunks_from_step(
        self, stream_id: StreamId, from_step: int, run_id: RunId | None = None
    ) -> tuple[StreamChunk, ...]:
        return await self._read(stream_id, lambda stream: stream.of_run(run_id or stream.head.run_id, from_step)) or ()

    async def cleanup_to_step(self, stream_id: StreamId, run_id: RunId, step: int, *, after: int = 0) -> int:
        claim = Claim(stream_id=stream_id, run_id=run_id)
        now = self._clock.now_ms()

        def work(connection: Connection) -> int:
            stream = StreamRow.find(connection, self._namespace, stream_id)
            return stream.discard(claim, step + 1, now, after) if stream is not None else 0

        return await self._db.write(work)

    async def snapshot(self, stream_id: StreamId, *, after: int = 0) -> StreamSnapshot | None:
        return await self._read(
            stream_id, lambda stream: StreamSnapshot(info=_info(stream), chunks=stream.after(after))
        )

    async def delete_stream(self, stream_id: StreamId) -> None:
        await self._db.write(lambda connection: delete_stream_rows(connection, self._namespace, stream_id))

    async def prune(self, older_than_ms: int) -> int:
        due = self._clock.now_ms() - older_than_ms

        def find(connection: Connection) -> list[StreamId]:
            rows = connection.all(
                "SELECT stream_id FROM __agents_streams WHERE namespace = ? AND prunable_since <= ?",
                (self._namespace, due),
            )
            return [stream_id for (stream_id,) in rows]

        def prune_one(stream_id: StreamId) -> Callable[[Connection], int]:
            return lambda connection: _prune(StreamRow.find(connection, self._namespace, stream_id), due)

        # One transaction per stream, so that other writers wait for one stream and not for all of them.
        return sum([await self._db.write(prune_one(stream_id)) for stream_id in await self._db.read(find)])

    async def _append(self, append: StreamAppend) -> int:
        now = self._clock.now_ms()
        return await self._db.write(lambda connection: append_chunks(connection, self._namespace, append, now))

    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: StreamRest, last: StreamAppend | None
    ) -> None:
        claim = Claim(stream_id=stream_id, run_id=run_id, attempt=attempt)
        now = self._clock.now_ms()

        def work(connection: Connection) -> None:
            stream = StreamRow.find(connection, self._namespace, stream_id)
            if stream is not None:
                stream.rest(claim, rest, last, now)
            elif last is not None:
                raise rules.deleted(last)

        # The end of its run is durable already, so an end lost in a power cut is repaired from there.
        await self._db.write(work, synced=False)

    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        now = self._clock.now_ms()

        def work(connection: Connection) -> None:
            stream = StreamRow.find(connection, self._namespace, stream_id)
            if stream is not None:
                stream.head = change(stream.head, now)
                stream.save()

        await self._db.write(work, synced=False)

    async def _read(self, stream_id: StreamId, question: Callable[[StreamRow], T]) -> T | None:
        return await self._db.read(self._asking(stream_id, question))

    async def _read_by_key(self, stream_id: StreamId, question: Callable[[StreamRow], T]) -> T | None:
        return await self._db.read_by_key(self._asking(stream_id, question))

    def _asking(self, stream_id: StreamId, question: Callable[[StreamRow], T]) -> Callable[[Connection], T | None]:
        def work(connection: Connection) -> T | None:
            stream = StreamRow.find(connection, self._namespace, stream_id)
            return question(stream) if stream is not None else None

        return work


def _info(stream: StreamRow) -> StreamInfo:
    return rules.info_of(stream.head, stream.first_sequence())


def _prune(stream: StreamRow | None, due: int) -> int:
    """Drop what a stream that came to rest by then no longer needs."""
    if stream is None or stream.head.prunable_since is None or stream.head.prunable_since > due:
        return 0
    gone = stream.truncate_below(rules.prunable_below(stream.head))
    stream.head = rules.pruned(stream.head)
    stream.save()
    return gone
