"""A stream inside a transaction: its head in a hash, its chunks in a Redis stream under their sequence numbers."""

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.following_reader import BEYOND_ALL
from helix_agents.backends.redis import index
from helix_agents.backends.redis.errors import LookAgainError
from helix_agents.backends.redis.index import Entry, entry_id, gone
from helix_agents.backends.redis.keys import Slot
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.transaction import Command, Known, Transaction
from helix_agents.backends.stream_rules import Claim, StreamHead
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.commits import Committed
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import Record, decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import StreamAppend, StreamClaim, StreamEnd, StreamInfo, StreamPlace, StreamRest
from helix_agents.ports.clock import Clock

_CHUNK: type[StreamChunk] = cast("type[StreamChunk]", StreamChunk)


class StreamEntry(Record):
    """A stream in the index, once it came to rest: where it is."""

    tag: str


class Stream:
    """An existing stream. Its name is never reused: another stream with the same id has another name."""

    __slots__ = ("head", "name", "prunable")

    def __init__(self, head: StreamHead, name: str) -> None:
        self.head = head
        self.name = name
        self.prunable = head.prunable_since


def topic_of(stream_id: StreamId) -> str:
    """The topic that rings when a stream changed."""
    return f"stream/{stream_id}"


def read_stream(slot: Slot, stream_id: StreamId) -> Command:
    """The command that reads a stream's head."""
    return ("HMGET", slot.stream(stream_id), "head", "name")


def stream_of(fields: list[bytes | None]) -> Stream | None:
    """The stream in these fields."""
    head, name = fields
    return None if head is None or name is None else Stream(decode(head, StreamHead), name.decode())


def stream_entry(tag: str, head: StreamHead) -> Entry:
    """The index entry of a stream."""
    since = head.prunable_since
    orders = () if since is None else ((index.RESTING, float(since)),)
    return Entry(entry_id("h", head.stream_id), encode(StreamEntry(tag=tag)), orders)


async def find_stream(tx: Transaction, stream_id: StreamId) -> Known[Stream | None]:
    """The stream with this id; its value is None if there is none."""
    reads = (read_stream(tx.slot, stream_id),)
    known = await tx.load(tx.slot.stream(stream_id), reads, lambda replies: stream_of(replies[0]))
    if known.value is None and not tx.settled:
        raise LookAgainError(stream_id)
    return known


class StreamWork:
    """Operations on one stream in a transaction."""

    def __init__(self, tx: Transaction, space: Keyspace, known: Known[Stream | None], stream: Stream) -> None:
        self._tx = tx
        self._space = space
        self._known = known
        self.stream = stream
        self._chunks = tx.slot.chunks(stream.head.stream_id)

    @classmethod
    async def find(cls, tx: Transaction, space: Keyspace, stream_id: StreamId) -> "StreamWork | None":
        """The stream of this id."""
        known = await find_stream(tx, stream_id)
        return None if known.value is None else cls(tx, space, known, known.value)

    @classmethod
    async def make(cls, tx: Transaction, space: Keyspace, head: StreamHead) -> "StreamWork":
        """A new stream."""
        known = await find_stream(tx, head.stream_id)
        known.value = Stream(head, tx.ids.new("stream"))
        return cls(tx, space, known, known.value)

    @property
    def head(self) -> StreamHead:
        return self.stream.head

    def save(self, head: StreamHead) -> None:
        """Replace the stream's head, and wake its readers."""
        tx, stream = self._tx, self.stream
        stream.head = head
        tx.change(self._known)
        tx.do("HSET", self._known.key, "head", encode(head), "name", stream.name)
        tx.do("PUBLISH", None, self._space.keys.channel(topic_of(head.stream_id)), "")
        if head.prunable_since != stream.prunable:
            stream.prunable = head.prunable_since
            tx.index(self._known.key, stream_entry(tx.tag, head), ("h", tx.tag, head.stream_id))

    async def append(self, append: StreamAppend) -> int:
        """Append a batch from the stream's current writer; returns its latest number.

        Raises:
            SupersededError: the sender is not the current writer.
        """
        rules.check_append(self.head, append)
        if not rules.is_repeated(self.head, append):
            head, chunks = rules.appended(self.head, append, self._tx.now)
            await self._add(head, chunks, append.bodies)
        return self.head.latest

    async def end_with_commit(self, append: StreamAppend, end: StreamEnd, committed: Committed) -> None:
        """Come to rest in the transaction in which these chunks were added."""
        last = rules.last_of(append, end, committed, self._tx.now)
        await self.rest(rules.claim_of(append), end.rest, last)

    async def rest(self, claim: Claim, rest: StreamRest, last: StreamAppend | None) -> None:
        """Come to rest, after the writer's last chunks.

        Raises:
            SupersededError: another run or attempt owns the stream, or it does not take the last chunks.
        """
        if last is not None and rules.check_last(self.head, claim, last):
            head, chunks = rules.appended(self.head, last, self._tx.now)
            await self._add(head, chunks, last.bodies)
        head = rules.rested(self.head, claim, rest, self._tx.now)
        if head is not self.head:
            self.save(head)

    async def discard(self, claim: Claim, step: int, after: int) -> int:
        """Drop a run's content of this step and later ones above a number; returns how many chunks were removed."""
        start = rules.search_from(self.head, claim.run_id, step, after)
        if start > self.head.latest:
            return 0
        searched = await self.read(start - 1)
        found = [(chunk.sequence, rules.is_content(chunk, claim.run_id, step)) for chunk in searched]
        ranges = rules.ranges_of(found)
        if not ranges:
            return 0
        gone = [f"{sequence}-0" for sequence, goes in found if goes]
        self._tx.do_with_all("XDEL", self._chunks, gone)
        head, notes = rules.discarded(self.head, claim, step, ranges, len(gone), self._tx.now, after)
        await self._add(head, notes)
        return len(gone)

    async def prune(self, due: int) -> int:
        """Drop what a stream that came to rest by then no longer needs; returns how many chunks were removed."""
        head = self.head
        if head.prunable_since is None or head.prunable_since > due:
            return 0
        floor = rules.prunable_below(head)
        (rest,) = await self._tx.read(("XRANGE", self._chunks, f"{floor}-0", "+"))
        gone = head.count - len(rest)
        self._tx.do("XTRIM", self._chunks, "MINID", f"{floor}-0")
        self.save(rules.pruned(rules.trimmed(head, floor, gone)))
        return gone

    def remove(self) -> None:
        """Remove the stream and everything in it."""
        tx, stream_id = self._tx, self.head.stream_id
        tx.change(self._known)
        tx.do("UNLINK", self._known.key)
        tx.do("UNLINK", self._chunks)
        tx.do("PUBLISH", None, self._space.keys.channel(topic_of(stream_id)), "")
        tx.index(self._known.key, gone(entry_id("h", stream_id), tx.now), ("h", tx.tag, stream_id))
        self._known.value = None

    async def read(self, after: int, limit: int | None = None) -> list[StreamChunk]:
        """The next `limit` chunks after a number."""
        if after >= self.head.latest:
            return []
        (rows,) = await self._tx.read(read_chunks(self._tx.slot, self.head.stream_id, after, limit))
        return chunks_of(rows)

    async def of_run(self, run_id: RunId, from_step: int) -> tuple[StreamChunk, ...]:
        """The chunks of a run, starting at a step."""
        return tuple(c for c in await self.read(0) if c.run_id == run_id and c.step >= from_step)

    async def info(self) -> StreamInfo:
        """The stream's public description."""
        (rows,) = await self._tx.read(read_first(self._tx.slot, self.head.stream_id))
        return rules.info_of(self.head, _sequence(rows[0][0]) if rows else None)

    async def _add(self, head: StreamHead, chunks: Sequence[StreamChunk], bodies: Sequence[str] = ()) -> None:
        for chunk, body in zip(chunks, bodies or map(_body, chunks), strict=True):
            self._tx.do("XADD", self._chunks, f"{chunk.sequence}-0", "c", body)
        if head.max_chunks is not None and head.count > head.max_chunks:
            floor = await self._oldest_of_the_newest(head)
            self._tx.do("XTRIM", self._chunks, "MINID", f"{floor}-0")
            head = rules.trimmed(head, floor, head.count - head.max_chunks)
        self.save(head)

    async def _oldest_of_the_newest(self, head: StreamHead) -> int:
        """The number of the oldest chunk that a bounded stream keeps."""
        most = head.max_chunks or 0
        # All chunks that this transaction adds are at the end, without gaps, and reads do not find them yet.
        new = sum(args[:2] == ("XADD", self._chunks) for args in self._tx.commands)
        if new >= most or head.count == head.latest - head.floor + 1:
            return head.latest - most + 1
        (rows,) = await self._tx.read(("XREVRANGE", self._chunks, f"{head.latest - new}-0", "-", "COUNT", head.count))
        going = {args[2:] for args in self._tx.commands if args[:2] == ("XDEL", self._chunks)}
        deleted = {name for names in going for name in names}
        left = [_sequence(row[0]) for row in rows if row[0].decode() not in deleted]
        return left[most - new - 1]


def _body(chunk: StreamChunk) -> str:
    return encode(replace(chunk, sequence=0) if chunk.sequence else chunk).decode()


def _sequence(name: bytes) -> int:
    return int(name.partition(b"-")[0])


def read_first(slot: Slot, stream_id: StreamId) -> Command:
    """The command that reads the oldest chunk."""
    return ("XRANGE", slot.chunks(stream_id), "-", "+", "COUNT", 1)


def read_chunks(slot: Slot, stream_id: StreamId, after: int = 0, limit: int | None = None) -> Command:
    """The command that reads chunks after a number."""
    bound = () if limit is None else ("COUNT", limit)
    first = min(max(after, 0), BEYOND_ALL) + 1
    return ("XRANGE", slot.chunks(stream_id), f"{first}-0", "+", *bound)


def chunks_of(rows: Sequence[Any]) -> list[StreamChunk]:
    """The chunks in entries of a Redis stream."""
    return [replace(decode(fields[1], _CHUNK), sequence=_sequence(name)) for name, fields in rows]


def bring_stream(tx: Transaction, stream_id: StreamId) -> None:
    """Have the next answer include the head of a stream."""
    tx.bring(read_stream(tx.slot, stream_id), of=tx.slot.stream(stream_id))


async def claim_stream(tx: Transaction, space: Keyspace, claim: StreamClaim, run: RunRecord) -> StreamPlace | None:
    """Make a starting run the writer of its stream, together with its start; None if that is not possible."""
    stream = await StreamWork.find(tx, space, claim.stream_id)
    head = rules.with_started_run(stream and stream.head, claim, run, tx.now)
    if head is None:
        return None
    if stream is None:
        stream = await StreamWork.make(tx, space, head)
    stream.save(head)
    return rules.place_of(head)


async def remove_stream(tx: Transaction, space: Keyspace, stream_id: StreamId) -> None:
    """Remove a stream, if it exists, together with its session."""
    work = await StreamWork.find(tx, space, stream_id)
    if work is not None:
        work.remove()


async def delete_stream(space: Keyspace, stream_id: StreamId, clock: Clock) -> None:
    """Remove a stream, if it exists, in a transaction of its own."""
    await space.write("delete_stream", stream_id, lambda tx: remove_stream(tx, space, stream_id), clock=clock)


async def append_chunks(space: Keyspace, append: StreamAppend, clock: Clock) -> int:
    """Append a batch from the stream's current writer, in its own transaction; returns the stream's latest number.

    Raises:
        SupersededError: the sender is not the current writer, or the stream was deleted.
    """

    async def work(tx: Transaction) -> int:
        stream = await StreamWork.find(tx, space, append.stream_id)
        if stream is None:
            raise rules.deleted(append)
        return await stream.append(append)

    return await space.write("append", append.stream_id, work, clock=clock)
