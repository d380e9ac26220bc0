"""A stream as rows: how its head and its chunks are read and changed."""

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.postgres.connection import Connection, Row, Value, askable
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.domain.chunks import MARKERS, StreamChunk
from helix_agents.domain.commits import Committed
from helix_agents.domain.ids import StreamId
from helix_agents.domain.records import decode, decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import StreamAppend, StreamClaim, StreamEnd, StreamError, StreamPlace, StreamRest

_HEAD_FIELDS = StreamHead.__struct_fields__
HEAD_COLUMNS = ", ".join(_HEAD_FIELDS)
FIND = f"SELECT key, {HEAD_COLUMNS} FROM __agents_streams WHERE namespace = ? AND stream_id = ?"
_CHANGE_HEAD = f"UPDATE __agents_streams SET {', '.join(f'{name} = ?' for name in _HEAD_FIELDS)} WHERE key = ?"
INSERT = (
    f"INSERT INTO __agents_streams (namespace, {HEAD_COLUMNS}) VALUES (?{', ?' * len(_HEAD_FIELDS)})"
    " ON CONFLICT DO NOTHING RETURNING key"
)
_INSERT_CHUNKS = (
    "INSERT INTO __agents_stream_chunks (id, run_id, step, type, body)"
    " SELECT ?1 + c.place, c.run_id, c.step, c.type, c.body"
    " FROM unnest(?2::text[], ?3::bigint[], ?4::text[], ?5::text[])"
    " WITH ORDINALITY AS c (run_id, step, type, body, place)"
)
# An append by the current writer to an unbounded stream in one statement, chunks included. `StreamRow.append`, where
# the rules are written out, handles every other case.
APPEND = f"SELECT __agents_append_chunks({', '.join('?' * 14)})"
CHUNKS = (
    "SELECT sequence, body FROM __agents_stream_chunks WHERE id BETWEEN ?1 AND ?2"
    " AND (?3::text IS NULL OR run_id = ?3 AND step >= ?4) ORDER BY id LIMIT ?5"
)
_CHUNK: type[StreamChunk] = cast("type[StreamChunk]", StreamChunk)
_MARKER_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in MARKERS)
LAST_SEQUENCE = 0xFFFF_FFFF


def topic_of(namespace: str, stream_id: StreamId) -> str:
    """The topic that rings when a stream changed; the SQL functions use the same."""
    return f"stream/{namespace}/{stream_id}"


class StreamRow:
    """One stream inside a transaction. Changes to the head are written by `save`, which also notifies its readers."""

    def __init__(self, connection: Connection, namespace: str, key: int, head: StreamHead) -> None:
        self._connection = connection
        self._namespace = namespace
        self.key = key
        self.head = head

    @classmethod
    async def find(cls, connection: Connection, namespace: str, stream_id: StreamId) -> "StreamRow | None":
        """The stream with this id; a writing transaction locks it."""
        row = await connection.one(f"{FIND}{connection.lock}", askable(namespace, stream_id))
        return cls(connection, namespace, row[0], head_of(tuple(row)[1:])) if row is not None else None

    @classmethod
    async def insert(cls, connection: Connection, namespace: str, head: StreamHead) -> "StreamRow | None":
        """Store a new stream; None if it was already created elsewhere."""
        row = await connection.one(INSERT, (namespace, *columns_of(head)))
        return cls(connection, namespace, row[0], head) if row is not None else None

    async def save(self) -> None:
        """Store the present head and wake the readers with the commit."""
        await self._connection.execute(_CHANGE_HEAD, (*columns_of(self.head), self.key))
        await self._connection.ring(topic_of(self._namespace, self.head.stream_id))

    async def append(self, append: StreamAppend, now: int) -> None:
        """Append a batch from the stream's current writer.

        Raises:
            SupersededError: the sender is not the current writer.
        """
        rules.check_append(self.head, append)
        if not rules.is_repeated(self.head, append):
            await self._add(*rules.appended(self.head, append, now))

    async def rest(self, claim: Claim, rest: StreamRest, last: StreamAppend | None, now: int) -> None:
        """Come to rest, after the writer's last chunks.

        Raises:
            SupersededError: another run or attempt owns the stream, or it does not take the last chunks.
        """
        if last is not None and rules.check_last(self.head, claim, last):
            await self._add(*rules.appended(self.head, last, now))
        self.head = rules.rested(self.head, claim, rest, now)
        await self.save()

    async def discard(self, claim: Claim, step: int, now: int, after: int) -> int:
        """Drop a run's content of this step and later ones above a number; returns how many chunks were removed."""
        start = rules.search_from(self.head, claim.run_id, step, after)
        if start > self.head.latest:
            return 0
        searched = await self._connection.all(
            "SELECT sequence, run_id = ? AND step >= ?, type FROM __agents_stream_chunks WHERE id BETWEEN ? AND ?"
            " ORDER BY id",
            (*askable(claim.run_id), step, self._id(start), self._id(self.head.latest)),
        )
        found = [(sequence, fits and kind not in _MARKER_TYPES) for sequence, fits, kind in searched]
        ranges = rules.ranges_of(found)
        if not ranges:
            return 0
        for first, last in ranges:
            await self._delete(first, last)
        gone = sum(goes for _, goes in found)
        await self._add(*rules.discarded(self.head, claim, step, ranges, gone, now, after))
        return gone

    async def truncate_below(self, floor: int) -> int:
        """Drop the chunks below a number; returns how many were removed. The caller saves the head."""
        gone = await self._delete(0, floor - 1)
        self.head = rules.trimmed(self.head, floor, gone)
        return gone

    async def after(self, sequence: int) -> tuple[StreamChunk, ...]:
        """The chunks after a number."""
        return await self._chunks(max(sequence, 0) + 1)

    async def of_run(self, run_id: str, from_step: int) -> tuple[StreamChunk, ...]:
        """The chunks of a run, starting at a step."""
        return await self._chunks(0, run_id, from_step)

    async def first_sequence(self) -> int | None:
        """The number of the oldest stored chunk."""
        row = await self._connection.one(
            "SELECT sequence FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1",
            (self._id(self.head.floor), self._id(self.head.latest)),
        )
        return row[0] if row is not None else None

    async def remove(self) -> None:
        """Remove the stream and everything in it."""
        await self._delete(0, LAST_SEQUENCE)
        await self._connection.execute("DELETE FROM __agents_streams WHERE key = ?", (self.key,))
        await self._connection.ring(topic_of(self._namespace, self.head.stream_id))

    async def _add(self, head: StreamHead, chunks: Sequence[StreamChunk]) -> None:
        if chunks:
            bodies = [encode(replace(chunk, sequence=0)).decode() for chunk in chunks]
            first = self._id(chunks[0].sequence - 1)
            await self._connection.execute(_INSERT_CHUNKS, (first, *_chunk_columns(chunks, bodies)))
        self.head = head
        if head.max_chunks is not None and head.count > head.max_chunks:
            await self.truncate_below(await self._oldest_of_the_newest(head.max_chunks))
        await self.save()

    async def _oldest_of_the_newest(self, count: int) -> int:
        row = await self._connection.one(
            "SELECT sequence FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1 OFFSET ?",
            (self._id(self.head.floor), self._id(self.head.latest), count - 1),
        )
        return row[0] if row is not None else self.head.latest + 1

    async def _delete(self, first: int, last: int) -> int:
        return await self._connection.execute(
            "DELETE FROM __agents_stream_chunks WHERE id BETWEEN ? AND ?", (self._id(first), self._id(last))
        )

    async def _chunks(self, first: int, run_id: str | None = None, from_step: int = 0) -> tuple[StreamChunk, ...]:
        if first > self.head.latest:
            return ()
        found = await self._connection.all(
            CHUNKS, (self._id(first), self._id(self.head.latest), run_id, from_step, None)
        )
        return tuple(chunk_of(row) for row in found)

    def _id(self, sequence: int) -> int:
        return self.key << 32 | sequence


async def claim_stream(
    connection: Connection, namespace: str, claim: StreamClaim, run: RunRecord, now: int
) -> StreamPlace | None:
    """Make a starting run the writer of its stream, in the open transaction; None if that is not possible."""
    stream = await StreamRow.find(connection, namespace, claim.stream_id)
    head = rules.with_started_run(stream and stream.head, claim, run, now)
    if head is None:
        return None
    if stream is None:
        # A stream created meanwhile cannot be by a run of this session, whose row is locked here.
        return rules.place_of(head) if await StreamRow.insert(connection, namespace, head) is not None else None
    stream.head = head
    await stream.save()
    return rules.place_of(head)


async def append_chunks(connection: Connection, namespace: str, append: StreamAppend, now: int) -> int:
    """Store chunks in the open transaction; returns the stream's latest sequence.

    Raises:
        SupersededError: a newer run, attempt or writer owns the stream; nothing was written.
    """
    stream = await StreamRow.find(connection, namespace, append.stream_id)
    if stream is None:
        raise rules.deleted(append)
    await stream.append(append, now)
    return stream.head.latest


async def end_with_commit(
    connection: Connection, namespace: str, append: StreamAppend, end: StreamEnd, committed: Committed, now: int
) -> None:
    """Bring the stream to rest that took these chunks in a commit."""
    stream = await StreamRow.find(connection, namespace, append.stream_id)
    assert stream is not None, "it took the chunks a moment ago"
    await stream.rest(rules.claim_of(append), end.rest, rules.last_of(append, end, committed, now), now)


def append_values(append: StreamAppend) -> tuple[Value, ...]:
    """An append as the SQL functions expect it: its owner, its changes to the head, and the chunks."""
    growth = rules.growth_of(append.chunks, append.run_id)
    bodies = append.bodies or [encode(replace(chunk, sequence=0)).decode() for chunk in append.chunks]
    owner = (append.stream_id, append.run_id, append.attempt, append.writer, append.batch)
    return (*owner, *growth, *_chunk_columns(append.chunks, bodies))


def _chunk_columns(chunks: Sequence[StreamChunk], bodies: Sequence[str]) -> tuple[Value, ...]:
    return (
        [chunk.run_id for chunk in chunks],
        [chunk.step for chunk in chunks],
        [str(chunk.__struct_config__.tag) for chunk in chunks],
        bodies,
    )


async def delete_stream_rows(connection: Connection, namespace: str, stream_id: StreamId) -> None:
    """Remove a stream, if it exists, in the open transaction."""
    stream = await StreamRow.find(connection, namespace, stream_id)
    if stream is not None:
        await stream.remove()


def chunk_of(row: Row) -> StreamChunk:
    """A chunk with its number, from `sequence, body`."""
    return replace(decode(row[1], _CHUNK), sequence=row[0])


def columns_of(head: StreamHead) -> tuple[Value, ...]:
    """A head in the form of its columns."""
    values: dict[str, Any] = {name: getattr(head, name) for name in _HEAD_FIELDS}
    values["output"] = encoded(head.output)
    values["error"] = encoded(head.error)
    return tuple(values.values())


def encoded(value: Any) -> str | None:
    """An output or error in the form of its column."""
    return encode(value).decode() if value is not None else None


def head_of(row: Row) -> StreamHead:
    """A head, from `HEAD_COLUMNS`."""
    values = dict(zip(_HEAD_FIELDS, row, strict=True))
    values["output"] = decode_json(values["output"]) if values["output"] is not None else None
    values["error"] = decode(values["error"], StreamError) if values["error"] is not None else None
    return StreamHead(**values)
