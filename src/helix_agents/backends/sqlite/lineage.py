"""History stored once: messages and state writes in segments that branches and rewinds share."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.rows import SessionHead
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.records import JSON, decode, decode_json, encode
from helix_agents.domain.writes import StepWrites, WriteOp, apply_writes

# A state smaller than this is not worth materialising: replaying its writes costs less than reading a second copy.
SMALLEST_BASE = 8192
_LOW = 0xFFFFFFFF
_SPAN = """
SELECT group_concat('{"sequence":' || sequence || ',"created_at":' || created_at || ',"message":' || body || '}', ',')
FROM (SELECT sequence, created_at, body FROM __agents_messages WHERE id BETWEEN ? AND ? ORDER BY id)
"""


class Segment(NamedTuple):
    """A stretch of history; numbers up to its boundaries belong to the parent's chain."""

    segment: int
    session_id: str
    owned: int
    parent: int | None
    message_boundary: int
    state_boundary: int


def load_segment(connection: Connection, segment: int) -> Segment:
    """A segment that is known to exist."""
    row = connection.one(
        "SELECT segment, session_id, owned, parent, message_boundary, state_boundary FROM __agents_segments"
        " WHERE segment = ?",
        (segment,),
    )
    assert row is not None, f"segment {segment} is referred to and missing"
    return Segment(*row)


def new_segment(
    connection: Connection,
    namespace: str,
    session_id: str,
    *,
    parent: int | None = None,
    message_boundary: int = 0,
    state_boundary: int = 0,
) -> int:
    """Start a segment that sees another one up to the given counts."""
    while parent is not None:
        above = load_segment(connection, parent)
        if message_boundary > above.message_boundary or state_boundary > above.state_boundary:
            break
        # This parent contributes nothing: attach to the segment that owns the boundary instead, so that chains stay
        # short.
        parent = above.parent
    connection.execute(
        "INSERT INTO __agents_segments (namespace, session_id, parent, message_boundary, state_boundary)"
        " VALUES (?, ?, ?, ?, ?)",
        (namespace, session_id, parent, message_boundary, state_boundary),
    )
    return connection.raw.last_insert_rowid()


def read_messages(connection: Connection, segment: int, first: int, last: int) -> list[StoredMessage]:
    """Messages `first` to `last` as a session at this segment sees them, oldest first."""
    spans: list[tuple[int, int]] = []
    at: int | None = segment
    while at is not None and last >= first:
        above = load_segment(connection, at)
        own_first = max(first, above.message_boundary + 1)
        if own_first <= last:
            spans.append((at << 32 | own_first, at << 32 | last))
        last = min(last, above.message_boundary)
        at = above.parent
    return [message for low, high in reversed(spans) for message in _read_span(connection, low, high)]


def _read_span(connection: Connection, low: int, high: int) -> list[StoredMessage]:
    """The messages between two keys. SQLite returns them as one JSON document, which costs far less than row by row."""
    row = connection.one(_SPAN, (low, high))
    return decode(f"[{row[0]}]", list[StoredMessage]) if row is not None and row[0] is not None else []


def append_messages(connection: Connection, row: SessionHead, bodies: Sequence[str], now: int) -> None:
    """Append encoded messages to the session and advance the row's count."""
    key = row.segment << 32 | row.message_count
    connection.execute_many(
        "INSERT INTO __agents_messages (id, session_id, created_at, body) VALUES (?, ?, ?, ?)",
        [(key + place, row.session_id, now, body) for place, body in enumerate(bodies, 1)],
    )
    row.message_count += len(bodies)


def load_custom_state(connection: Connection, segment: int, count: int) -> dict[str, JSON]:
    """The custom state after `count` writes, rebuilt from the nearest materialised one."""
    writes: list[StepWrites] = []
    base: dict[str, JSON] = {}
    at: int | None = segment
    while at is not None and count > 0:
        above = load_segment(connection, at)
        for text, materialised in connection.each(
            "SELECT writes, base FROM __agents_state_log WHERE id BETWEEN ? AND ? ORDER BY id DESC",
            (at << 32 | above.state_boundary + 1, at << 32 | count),
        ):
            if materialised is not None:
                base = decode_json(materialised)
                at = None
                break
            writes.append(decode(text, StepWrites))
        else:
            count = min(count, above.state_boundary)
            at = above.parent
    ops: list[WriteOp] = [op for step in reversed(writes) for op in step.ops]
    return apply_writes(base, ops)


def log_writes(connection: Connection, row: SessionHead, text: str) -> None:
    """Log encoded state writes and advance the row's count and sizes."""
    row.state_count += 1
    row.state_since_bytes += len(text)
    connection.execute(
        "INSERT INTO __agents_state_log (id, writes) VALUES (?, ?)", (row.segment << 32 | row.state_count, text)
    )


def outweighs(row: SessionHead) -> bool:
    """Whether the writes since the last materialised state weigh more than it does."""
    return row.state_since_bytes > SMALLEST_BASE and row.state_since_bytes > row.state_base_bytes


def materialise(connection: Connection, row: SessionHead, state: dict[str, JSON]) -> None:
    """Keep a copy of the state beside its latest write, so that readers need not go back further."""
    text = encode(state).decode()
    connection.execute(
        "UPDATE __agents_state_log SET base = ? WHERE id = ?", (text, row.segment << 32 | row.state_count)
    )
    row.state_base_bytes = len(text)
    row.state_since_bytes = 0


def start_state(connection: Connection, row: SessionHead, state: dict[str, JSON]) -> None:
    """Give a new session its first custom state."""
    if not state:
        return
    log_writes(connection, row, '{"ops":[]}')
    materialise(connection, row, state)


def release_segments(connection: Connection, namespace: str, session_id: str) -> None:
    """Release a deleted session's history, except for what branches still see."""
    owned = connection.all(
        "UPDATE __agents_segments SET owned = 0 WHERE namespace = ? AND session_id = ? AND owned = 1 RETURNING segment",
        (namespace, session_id),
    )
    # Parents are older than their children, so taking the newest first visits each segment once, after all below it.
    ahead = [-row[0] for row in owned]
    heapify(ahead)
    last: int | None = None
    while ahead:
        segment = -heappop(ahead)
        if segment == last:
            continue
        last = segment
        parent = _trim(connection, segment)
        if parent is not None:
            heappush(ahead, -parent)


def _trim(connection: Connection, segment: int) -> int | None:
    """Erase what no segment can see any more of an ownerless one; returns its parent, if it has one."""
    row = connection.one("SELECT owned, parent FROM __agents_segments WHERE segment = ?", (segment,))
    if row is None or row[0]:
        return None
    seen = connection.one(
        "SELECT count(*), max(message_boundary), max(state_boundary) FROM __agents_segments WHERE parent = ?",
        (segment,),
    )
    assert seen is not None
    branches, messages, writes = seen[0], seen[1] or 0, seen[2] or 0
    for table, first in (("messages", messages + 1), ("state_log", writes + 1), ("checkpoints", 0)):
        connection.execute(
            f"DELETE FROM __agents_{table} WHERE id BETWEEN ? AND ?", (segment << 32 | first, segment << 32 | _LOW)
        )
    if branches:
        # It lives on for its branches, and keeps no more of its parents than they see.
        connection.execute(
            "UPDATE __agents_segments SET message_boundary = min(message_boundary, ?),"
            " state_boundary = min(state_boundary, ?) WHERE segment = ?",
            (messages, writes, segment),
        )
    else:
        connection.execute("DELETE FROM __agents_segments WHERE segment = ?", (segment,))
    return row[1]
