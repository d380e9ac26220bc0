"""A stream as rows: how its head and its chunks are read and changed inside a transaction."""

from collections.abc import Sequence

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.sqlite.chunk_rows import LAST_SEQUENCE, ChunkRows
from helix_agents.backends.sqlite.connection import Connection, Row
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.commits import Committed
from helix_agents.domain.ids import StreamId
from helix_agents.domain.records import JSON, decode, decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import StreamAppend, StreamClaim, StreamEnd, StreamError, StreamPlace, StreamRest

_HEAD_FIELDS = StreamHead.__struct_fields__
HEAD_COLUMNS = ", ".join(_HEAD_FIELDS)
_CHANGE_HEAD = f"UPDATE __agents_streams SET {', '.join(f'{name} = ?' for name in _HEAD_FIELDS)} WHERE key = ?"
_INSERT_HEAD = (
    f"INSERT INTO __agents_streams (namespace, {HEAD_COLUMNS}) VALUES (?{', ?' * len(_HEAD_FIELDS)}) RETURNING key"
)
# An append by the current writer in one statement, which also checks that it is the current writer and that the batch
# is new. `StreamRow.append`, where the rules are written out, handles every other case.
_EXTEND = """
UPDATE __agents_streams SET
    latest = latest + ?1, count = count + ?1, batch = ?2, updated_at = ?3,
    committed = iif(?4, latest + ?4, committed),
    top_first = iif(?5 > top_step, latest + ?6, top_first), top_step = max(top_step, ?5)
WHERE namespace = ?7 AND stream_id = ?8 AND run_id = ?9 AND attempt = ?10 AND writer = ?11
    AND status = 'active' AND batch < ?2 AND max_chunks IS NULL
RETURNING key, latest
"""
# The end of the current writer's run, markers included, in one statement; `StreamRow.rest` handles every other case.
_END = """
UPDATE __agents_streams SET
    latest = latest + ?1, count = count + ?1, batch = ?2, updated_at = ?3, prunable_since = ?3,
    committed = iif(?4, latest + ?4, committed), status = ?5, end_status = ?6, output = ?7, error = ?8
WHERE namespace = ?9 AND stream_id = ?10 AND run_id = ?11 AND attempt = ?12 AND writer = ?13
    AND status = 'active' AND max_chunks IS NULL
RETURNING key, latest
"""


def topic_of(namespace: str, stream_id: StreamId) -> str:
    """The topic that rings when a stream changed."""
    return f"stream/{namespace}/{stream_id}"


class StreamRow:
    """One stream inside a transaction. Changes to the head are written by `save`, which also rings its bell."""

    def __init__(self, connection: Connection, namespace: str, key: int, head: StreamHead) -> None:
        self._connection = connection
        self._namespace = namespace
        self._chunks = ChunkRows(connection, key)
        self.key = key
        self.head = head

    @classmethod
    def find(cls, connection: Connection, namespace: str, stream_id: StreamId) -> "StreamRow | None":
        """The stream with this id."""
        row = connection.one(
            f"SELECT key, {HEAD_COLUMNS} FROM __agents_streams WHERE namespace = ? AND stream_id = ?",
            (namespace, stream_id),
        )
        return cls(connection, namespace, row[0], _head_of(row[1:])) if row is not None else None

    @classmethod
    def find_by_key(cls, connection: Connection, namespace: str, key: int) -> "StreamRow | None":
        """The stream with this key, which is never reused for another stream."""
        row = connection.one(f"SELECT {HEAD_COLUMNS} FROM __agents_streams WHERE key = ?", (key,))
        return cls(connection, namespace, key, _head_of(row)) if row is not None else None

    @classmethod
    def insert(cls, connection: Connection, namespace: str, head: StreamHead) -> "StreamRow":
        """Store a new stream."""
        row = connection.one(_INSERT_HEAD, (namespace, *_columns_of(head)))
        assert row is not None
        return cls(connection, namespace, row[0], head)

    def save(self) -> None:
        """Store the present head and wake the readers once that is durable."""
        self._connection.execute(_CHANGE_HEAD, (*_columns_of(self.head), self.key))
        self._connection.ring(topic_of(self._namespace, self.head.stream_id))

    def append(self, append: StreamAppend, now: int) -> None:
        """Append a batch from the stream's current writer.

        Raises:
            SupersededError: the sender is not the current writer.
        """
        rules.check_append(self.head, append)
        if not rules.is_repeated(self.head, append):
            self._add(*rules.appended(self.head, append, now), append.bodies)
            self.save()

    def rest(self, claim: Claim, rest: StreamRest, last: StreamAppend | None, now: int) -> None:
        """Come to rest, after the writer's last chunks.

        Raises:
            SupersededError: another run or attempt owns the stream, or it does not take the last chunks.
        """
        if last is not None and rules.check_last(self.head, claim, last):
            self._add(*rules.appended(self.head, last, now), last.bodies)
        self.head = rules.rested(self.head, claim, rest, now)
        self.save()

    def discard(self, claim: Claim, step: int, now: int, after: int) -> int:
        """Drop a run's content of this step and later ones above a number; returns how many chunks were removed."""
        start = rules.search_from(self.head, claim.run_id, step, after)
        if start > self.head.latest:
            return 0
        searched = self._chunks.since(start, self.head.latest)
        found = [(chunk.sequence, rules.is_content(chunk, claim.run_id, step)) for chunk in searched]
        ranges = rules.ranges_of(found)
        if not ranges:
            return 0
        for first, last in ranges:
            self._chunks.delete(first, last)
        gone = sum(goes for _, goes in found)
        self._add(*rules.discarded(self.head, claim, step, ranges, gone, now, after))
        self.save()
        return gone

    def truncate_below(self, floor: int) -> int:
        """Drop the chunks below a number; returns how many were removed. The caller saves the head."""
        gone = self._chunks.delete(0, floor - 1)
        self.head = rules.trimmed(self.head, floor, gone)
        return gone

    def after(self, sequence: int, limit: int = -1) -> tuple[StreamChunk, ...]:
        """The next `limit` chunks after a number."""
        if sequence >= self.head.latest:
            return ()
        return self._chunks.since(max(sequence, 0) + 1, self.head.latest, limit)

    def of_run(self, run_id: str, from_step: int) -> tuple[StreamChunk, ...]:
        """The chunks of a run, starting at a step."""
        return self._chunks.of_run(run_id, from_step, self.head.latest)

    def first_sequence(self) -> int | None:
        """The number of the oldest stored chunk."""
        return self._chunks.oldest(self.head.floor, self.head.latest)

    def remove(self) -> None:
        """Remove the stream and everything in it."""
        self._chunks.delete(0, LAST_SEQUENCE)
        self._connection.execute("DELETE FROM __agents_streams WHERE key = ?", (self.key,))
        self._connection.ring(topic_of(self._namespace, self.head.stream_id))

    def _add(self, head: StreamHead, chunks: Sequence[StreamChunk], bodies: Sequence[str] = ()) -> None:
        """Store numbered chunks; the caller saves the matching head."""
        self._chunks.add(chunks[0].sequence if chunks else 0, chunks, bodies)
        self.head = head
        if head.max_chunks is not None and head.count > head.max_chunks:
            self.truncate_below(self._chunks.newest(head.max_chunks, head.floor, head.latest))


def claim_stream(
    connection: Connection, namespace: str, claim: StreamClaim, run: RunRecord, now: int
) -> StreamPlace | None:
    """Make a starting run the writer of its stream, in the open transaction; None if that is not possible."""
    stream = StreamRow.find(connection, namespace, claim.stream_id)
    head = rules.with_started_run(stream and stream.head, claim, run, now)
    if head is None:
        return None
    if stream is None:
        StreamRow.insert(connection, namespace, head)
    else:
        stream.head = head
        stream.save()
    return rules.place_of(head)


def append_chunks(connection: Connection, namespace: str, append: StreamAppend, now: int) -> int:
    """Store chunks in the open transaction; returns the stream's latest sequence.

    Raises:
        SupersededError: a newer run, attempt or writer owns the stream; nothing was written.
    """
    extended = _extend(connection, namespace, append, now) if append.batch else None
    if extended is not None:
        return extended
    stream = StreamRow.find(connection, namespace, append.stream_id)
    if stream is None:
        raise rules.deleted(append)
    stream.append(append, now)
    return stream.head.latest


def end_with_commit(
    connection: Connection, namespace: str, append: StreamAppend, end: StreamEnd, committed: Committed, now: int
) -> None:
    """Bring the stream to rest that took these chunks in a commit."""
    last = rules.last_of(append, end, committed, now)
    if last.batch and _end(connection, namespace, last, end.rest, now):
        return
    stream = StreamRow.find(connection, namespace, append.stream_id)
    assert stream is not None, "it took the chunks a moment ago"
    stream.rest(rules.claim_of(append), end.rest, last, now)


def _end(connection: Connection, namespace: str, last: StreamAppend, rest: StreamRest, now: int) -> bool:
    """End an unbounded stream whose writer has only markers left to store; False if the case is not that simple."""
    growth = rules.growth_of(last.chunks, last.run_id)
    if growth.top_first:
        return False
    size, owner = len(last.chunks), (last.stream_id, last.run_id, last.attempt, last.writer)
    how = (rest.status, rest.end_status, _encoded(rest.output), _encoded(rest.error))
    found = connection.one(_END, (size, last.batch, now, growth.committed, *how, namespace, *owner))
    if found is None:
        return False
    key, latest = found
    ChunkRows(connection, key).add(latest - size + 1, last.chunks)
    connection.ring(topic_of(namespace, last.stream_id))
    return True


def _extend(connection: Connection, namespace: str, append: StreamAppend, now: int) -> int | None:
    """Append the current writer's batch to an unbounded stream; None if the case is not that simple."""
    growth = rules.growth_of(append.chunks, append.run_id)
    size, owner = len(append.chunks), (append.stream_id, append.run_id, append.attempt, append.writer)
    found = connection.one(_EXTEND, (size, append.batch, now, *growth, namespace, *owner))
    if found is None:
        return None
    key, latest = found
    ChunkRows(connection, key).add(latest - size + 1, append.chunks, append.bodies)
    connection.ring(topic_of(namespace, append.stream_id))
    return latest


def delete_stream_rows(connection: Connection, namespace: str, stream_id: StreamId) -> None:
    """Remove a stream, if it exists, in the open transaction."""
    stream = StreamRow.find(connection, namespace, stream_id)
    if stream is not None:
        stream.remove()


def _columns_of(head: StreamHead) -> tuple[str | int | None, ...]:
    values = {name: getattr(head, name) for name in _HEAD_FIELDS}
    values["output"] = _encoded(head.output)
    values["error"] = _encoded(head.error)
    return tuple(values.values())


def _encoded(value: JSON | StreamError) -> str | None:
    return encode(value).decode() if value is not None else None


def _head_of(row: Row) -> StreamHead:
    values = dict(zip(_HEAD_FIELDS, row, strict=True))
    values["output"] = decode_json(values["output"]) if values["output"] is not None else None
    values["error"] = decode(values["error"], StreamError) if values["error"] is not None else None
    return StreamHead(**values)
