"""History stored once: messages and state writes in segments that branches and rewinds share."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from helix_agents.backends.postgres.connection import Connection, Row
from helix_agents.backends.postgres.rows import SessionHead
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.records import JSON, decode, decode_json, encode
from helix_agents.domain.writes import StepWrites, WriteOp, apply_writes

# A state smaller than this is not worth materialising: replaying its writes costs less than reading a second copy.
SMALLEST_BASE = 8192
_LOW = 0xFFFFFFFF
# A chain of segments, newest first, down to the one that holds the first number wanted. Each comes with the numbers of
# its log that are visible from the chain's end.
_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT g.segment, g.parent, g.{boundary} AS low, ?2::bigint AS high
    FROM __agents_segments g WHERE g.segment = ?1
    UNION ALL
    SELECT g.segment, g.parent, g.{boundary}, least(c.low, c.high)
    FROM chain c JOIN __agents_segments g ON g.segment = c.parent WHERE c.low >= greatest({first}, 1)
)
"""
_MESSAGES = (
    _CHAIN.format(boundary="message_boundary", first="?3::bigint")
    + """
SELECT string_agg('{"sequence":' || m.sequence || ',"created_at":' || m.created_at || ',"message":' || m.body || '}',
    ',' ORDER BY m.sequence)
FROM chain c JOIN __agents_messages m
    ON m.id BETWEEN (c.segment << 32) + greatest(c.low + 1, ?3) AND (c.segment << 32) + c.high
"""
)
_STATE = (
    _CHAIN.format(boundary="state_boundary", first="1")
    + """
, newest AS (
    SELECT max(b.id & 4294967295) AS number FROM chain c JOIN __agents_state_log b
        ON b.id BETWEEN (c.segment << 32) + c.low + 1 AND (c.segment << 32) + c.high AND b.base IS NOT NULL
)
SELECT l.writes, l.base FROM newest, chain c JOIN __agents_state_log l
    ON l.id BETWEEN (c.segment << 32) + c.low + 1 AND (c.segment << 32) + c.high
WHERE l.id & 4294967295 >= coalesce(newest.number, 0)
ORDER BY l.id & 4294967295
"""
)


class Segment(NamedTuple):
    """A stretch of history; numbers up to its boundaries belong to the parent's chain."""

    segment: int
    session_id: str
    owned: bool
    parent: int | None
    message_boundary: int
    state_boundary: int


async def load_segment(connection: Connection, segment: int) -> Segment:
    """A segment that is known to exist."""
    row = await connection.one(
        "SELECT segment, session_id, owned, parent, message_boundary, state_boundary FROM __agents_segments"
        " WHERE segment = ?",
        (segment,),
    )
    assert row is not None, f"segment {segment} is referred to and missing"
    return Segment(*row)


async def new_segment(
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
        above = await load_segment(connection, parent)
        if message_boundary > above.message_boundary or state_boundary > above.state_boundary:
            break
        # This parent contributes nothing: attach to the segment that owns the boundary instead, so that chains stay
        # short.
        parent = above.parent
    row = await connection.one(
        "INSERT INTO __agents_segments (namespace, session_id, parent, message_boundary, state_boundary)"
        " VALUES (?, ?, ?, ?, ?) RETURNING segment",
        (namespace, session_id, parent, message_boundary, state_boundary),
    )
    assert row is not None
    return row[0]


async def read_messages(connection: Connection, segment: int, first: int, last: int) -> list[StoredMessage]:
    """Messages `first` to `last` as a session at this segment sees them, oldest first."""
    row = await connection.one(_MESSAGES, (segment, last, first))
    return messages_of(row[0] if row is not None else None)


def messages_of(text: str | None) -> list[StoredMessage]:
    """Messages from one JSON document, which costs far less than row by row."""
    return decode(f"[{text}]", list[StoredMessage]) if text is not None else []


async def append_messages(connection: Connection, row: SessionHead, bodies: Sequence[str], now: int) -> None:
    """Append encoded messages to the session and advance the row's count."""
    if not bodies:
        return
    await connection.execute(
        "INSERT INTO __agents_messages (id, session_id, created_at, body) SELECT ?1 + m.place, ?2, ?3, m.body"
        " FROM unnest(?4::text[]) WITH ORDINALITY AS m (body, place)",
        (row.segment << 32 | row.message_count, row.session_id, now, bodies),
    )
    row.message_count += len(bodies)


async def load_custom_state(connection: Connection, segment: int, count: int) -> dict[str, JSON]:
    """The custom state after `count` writes, rebuilt from the nearest materialised one."""
    return rebuilt(await connection.all(_STATE, (segment, count)) if count else ())


def rebuilt(log: Sequence[Row]) -> dict[str, JSON]:
    """The state that rows of the log add up to, oldest first; if one has a base, it is the first."""
    base: dict[str, JSON] = {}
    ops: list[WriteOp] = []
    for writes, materialised in log:
        if materialised is not None:
            base = decode_json(materialised)
        else:
            ops.extend(decode(writes, StepWrites).ops)
    return apply_writes(base, ops)


async def log_writes(connection: Connection, row: SessionHead, text: str) -> None:
    """Log encoded state writes and advance the row's count and sizes."""
    row.state_count += 1
    row.state_since_bytes += len(text.encode())
    await connection.execute(
        "INSERT INTO __agents_state_log (id, writes) VALUES (?, ?)", (row.segment << 32 | row.state_count, text)
    )


def outweighs(base_bytes: int, since_bytes: int) -> bool:
    """Whether the writes since the last materialised state weigh more than it does."""
    return since_bytes > SMALLEST_BASE and since_bytes > base_bytes


async def materialise(connection: Connection, row: SessionHead, state: dict[str, JSON]) -> None:
    """Keep a copy of the state beside its latest write, so that readers need not go back further."""
    text = encode(state).decode()
    await connection.execute(
        "UPDATE __agents_state_log SET base = ? WHERE id = ?", (text, row.segment << 32 | row.state_count)
    )
    row.state_base_bytes = len(text.encode())
    row.state_since_bytes = 0


async def start_state(connection: Connection, row: SessionHead, state: dict[str, JSON]) -> None:
    """Give a new session its first custom state."""
    if not state:
        return
    await log_writes(connection, row, '{"ops":[]}')
    await materialise(connection, row, state)


async def release_segments(connection: Connection, namespace: str, session_ids: Sequence[str]) -> None:
    """Release the history of deleted sessions, except for what branches still see."""
    owned = await connection.all(
        "UPDATE __agents_segments s SET owned = false WHERE namespace = ? AND session_id = ANY(?) AND owned"
        " RETURNING segment, parent IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM __agents_segments above WHERE above.parent = s.segment)",
        (namespace, session_ids),
    )
    await _erase(connection, [segment for segment, stands_alone in owned if stands_alone])
    # Parents are older than their children, so taking the newest first visits each segment once, after all below it.
    ahead = [-segment for segment, stands_alone in owned if not stands_alone]
    heapify(ahead)
    last: int | None = None
    while ahead:
        segment = -heappop(ahead)
        if segment == last:
            continue
        last = segment
        parent = await _trim(connection, segment)
        if parent is not None:
            heappush(ahead, -parent)


async def _erase(connection: Connection, segments: Sequence[int]) -> None:
    """Erase segments without parents and children: those of sessions that were never cut or branched."""
    if not segments:
        return
    for table in ("messages", "state_log", "checkpoints"):
        await connection.execute(
            f"DELETE FROM __agents_{table} t USING unnest(?1::bigint[]) AS gone (segment)"
            f" WHERE t.id BETWEEN gone.segment << 32 AND gone.segment << 32 | {_LOW}",
            (segments,),
        )
    await connection.execute("DELETE FROM __agents_segments WHERE segment = ANY(?)", (segments,))


async def _trim(connection: Connection, segment: int) -> int | None:
    """Erase what no segment can see any more of an ownerless one; returns its parent, if it has one."""
    row = await connection.one("SELECT owned, parent FROM __agents_segments WHERE segment = ? FOR UPDATE", (segment,))
    if row is None or row[0]:
        return None
    seen = await connection.one(
        "SELECT count(*), max(message_boundary), max(state_boundary) FROM __agents_segments WHERE parent = ?",
        (segment,),
    )
    assert seen is not None
    branches, messages, writes = seen[0], seen[1] or 0, seen[2] or 0
    for table, first in (("messages", messages + 1), ("state_log", writes + 1), ("checkpoints", 0)):
        await connection.execute(
            f"DELETE FROM __agents_{table} WHERE id BETWEEN ? AND ?", (segment << 32 | first, segment << 32 | _LOW)
        )
    if branches:
        # It lives on for its branches, and keeps no more of its parents than they see.
        await connection.execute(
            "UPDATE __agents_segments SET message_boundary = least(message_boundary, ?),"
            " state_boundary = least(state_boundary, ?) WHERE segment = ?",
            (messages, writes, segment),
        )
    else:
        await connection.execute("DELETE FROM __agents_segments WHERE segment = ?", (segment,))
    return row[1]
