"""A stream's chunks as rows: chunks stored together form few rows, each under the id of its last chunk."""

from collections.abc import Sequence
from itertools import compress

import msgspec
from msgspec.structs import replace

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId
from helix_agents.domain.records import decode, encode

LAST_SEQUENCE = 0xFFFF_FFFF
MOST_IN_A_ROW = 256
"""A reader reads whole rows, so a long one would cost it as much for the first chunk as for all."""
FEW = 4
"""A reader that wants at most one in so many chunks of a row decodes only those."""

_INSERT = "INSERT INTO __agents_stream_chunks (id, first, bodies) VALUES (?, ?, ?)"


class _Head(msgspec.Struct):
    """The part of a chunk that tells which run and step it belongs to."""

    run_id: RunId
    step: int = 0


def _some(bodies: str, count: int, first: int, wanted: int) -> Sequence[StreamChunk]:
    """Some of the chunks in a row. If they are few, the others are not decoded: finding where they end costs less."""
    if wanted * FEW <= count:
        some = b",".join(decode(bodies, list[msgspec.Raw])[first : first + wanted])
        return decode(b"[%s]" % some, list[StreamChunk])
    return decode(bodies, list[StreamChunk])[first : first + wanted]


class ChunkRows:
    """The chunks of the stream with this key, inside a transaction."""

    def __init__(self, connection: Connection, key: int) -> None:
        self._connection = connection
        self._key = key

    def add(self, first: int, chunks: Sequence[StreamChunk], bodies: Sequence[str] = ()) -> None:
        """Store chunks under consecutive numbers, which their bodies do not repeat."""
        if chunks:
            self._insert(self._id(first), bodies or [_body(chunk) for chunk in chunks])

    def since(self, first: int, latest: int, limit: int = -1) -> tuple[StreamChunk, ...]:
        """The next `limit` chunks, starting at a number."""
        found: list[StreamChunk] = []
        for last, begin, bodies in self._connection.each(
            "SELECT id, first, bodies FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id",
            (self._id(first), self._id(latest)),
        ):
            number, count = begin & LAST_SEQUENCE, last - begin + 1
            skipped = max(first - number, 0)
            wanted = count - skipped if limit < 0 else min(limit - len(found), count - skipped)
            chunks = _some(bodies, count, skipped, wanted)
            found.extend(replace(chunk, sequence=at) for at, chunk in enumerate(chunks, number + skipped))
            if len(found) == limit:
                break
        return tuple(found)

    def of_run(self, run_id: RunId, from_step: int, latest: int) -> tuple[StreamChunk, ...]:
        """The chunks of a run, starting at a step."""
        found: list[StreamChunk] = []
        for begin, bodies in self._connection.each(
            "SELECT first, bodies FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? AND instr(bodies, ?)"
            " ORDER BY id",
            (self._id(0), self._id(latest), encode(run_id).decode()),
        ):
            wanted = [head.run_id == run_id and head.step >= from_step for head in decode(bodies, list[_Head])]
            if any(wanted):
                numbered = enumerate(decode(bodies, list[StreamChunk]), begin & LAST_SEQUENCE)
                found.extend(replace(chunk, sequence=at) for at, chunk in compress(numbered, wanted))
        return tuple(found)

    def oldest(self, floor: int, latest: int) -> int | None:
        """The number of the oldest stored chunk."""
        row = self._connection.one(
            "SELECT first FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1",
            (self._id(floor), self._id(latest)),
        )
        return row[0] & LAST_SEQUENCE if row is not None else None

    def newest(self, count: int, floor: int, latest: int) -> int:
        """The number at which the newest `count` chunks start."""
        for last, first in self._connection.each(
            "SELECT id, first FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id DESC",
            (self._id(floor), self._id(latest)),
        ):
            if last - first + 1 >= count:
                return (last - count + 1) & LAST_SEQUENCE
            count -= last - first + 1
        return latest + 1

    def delete(self, first: int, last: int) -> int:
        """Delete the chunks numbered from one to another; returns how many there were."""
        low, high = self._id(first), self._id(last)
        self._part(low)
        self._part(high + 1)
        row = self._connection.one(
            "SELECT coalesce(sum(id - first + 1), 0) FROM __agents_stream_chunks WHERE id BETWEEN ? AND ?", (low, high)
        )
        assert row is not None
        self._connection.execute("DELETE FROM __agents_stream_chunks WHERE id BETWEEN ? AND ?", (low, high))
        return row[0]

    def _part(self, at: int) -> None:
        """Make a row start at this id, if the chunk with it is stored together with the one before."""
        row = self._connection.one(
            "SELECT id, first, bodies FROM __agents_stream_chunks WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1",
            (at, self._id(LAST_SEQUENCE)),
        )
        if row is None or row[1] >= at:
            return
        last, first, text = row
        bodies = [bytes(body).decode() for body in decode(text, list[msgspec.Raw])]
        self._connection.execute("DELETE FROM __agents_stream_chunks WHERE id = ?", (last,))
        self._insert(first, bodies[: at - first])
        self._insert(at, bodies[at - first :])

    def _insert(self, first: int, bodies: Sequence[str]) -> None:
        if len(bodies) > MOST_IN_A_ROW:
            for begin in range(0, len(bodies), MOST_IN_A_ROW):
                self._insert(first + begin, bodies[begin : begin + MOST_IN_A_ROW])
            return
        self._connection.execute(_INSERT, (first + len(bodies) - 1, first, f"[{','.join(bodies)}]"))

    def _id(self, sequence: int) -> int:
        return self._key << 32 | sequence


def _body(chunk: StreamChunk) -> str:
    return encode(replace(chunk, sequence=0) if chunk.sequence else chunk).decode()
