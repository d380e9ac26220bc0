"""History stored once: sessions and branches share stretches of messages and of state writes."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec

from helix_agents.backends.redis.rows import Session, StatePlace, Stretch, save_session
from helix_agents.backends.redis.transaction import Command, Known, Transaction
from helix_agents.domain.errors import InvalidWriteError, SessionCorruptError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message, StoredMessage, ToolMessage, decode_message
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.writes import AppendToNonListError, WriteOp, apply_writes, write_into

FIRST = "first"
"""What the names of segments begin with that stand on nothing; the others are named after their boundaries."""


class Segment(Record):
    """A stretch of history and everything it stands on, itself first. Without an owner it lives for its branches."""

    owner: SessionId | None
    line: tuple[Stretch, ...]


class StateEntry(Record):
    """The writes of one commit, and now and then the whole state after them; `base` is the last entry that has it."""

    ops: tuple[WriteOp, ...] = ()
    base: int
    state: dict[str, JSON] | None = None


def fork(line: tuple[Stretch, ...], segment: str, messages: int, states: int) -> tuple[Stretch, ...]:
    """The line of a new segment that sees this many messages and state writes of another one.

    It stands on the oldest stretch that holds both ends, so that it keeps nothing alive which it cannot see.
    """
    while len(line) > 1 and messages <= line[0].messages and states <= line[0].states:
        line = line[1:]
    return (Stretch(segment=segment, messages=messages, states=states), *line)


def new_segment(tx: Transaction, owner: SessionId, line: tuple[Stretch, ...] | None = None) -> Segment:
    """A new segment: the first of a history, or one with this line."""
    name = line[0].segment if line is not None else tx.ids.new(FIRST)
    segment = Segment(owner=owner, line=line or (Stretch(segment=name),))
    tx.touch(tx.slot.segments)
    tx.do("HSET", tx.slot.segments, name, encode(segment))
    return segment


async def line_of(tx: Transaction, segment: str) -> tuple[Stretch, ...]:
    """What a segment stands on, itself first; it never changes."""
    if segment.startswith(FIRST):
        return (Stretch(segment=segment),)
    (found,) = await tx.read(("HGET", tx.slot.segments, segment))
    if found is None:
        raise SessionCorruptError("session", f"a stretch of its history is missing from Redis ({segment})")
    return decode(found, Segment).line


async def owners_of(tx: Transaction, line: Sequence[Stretch]) -> list[SessionId | None]:
    """Whose each stretch of a line is; None where that session is gone."""
    (found,) = await tx.read(("HMGET", tx.slot.segments, *(part.segment for part in line)))
    return [None if row is None else decode(row, Segment).owner for row in found]


async def session_line(tx: Transaction, session: Session) -> tuple[Stretch, ...]:
    """What the session's history stands on."""
    if session.line is None:
        session.line = await line_of(tx, session.row.segment)
    return session.line


def _ranges(line: Sequence[Stretch], first: int, last: int, *, states: bool) -> list[tuple[str, int, int, int]]:
    """Where the entries numbered first to last are: segment, first and last place in its list, and their number."""
    found: list[tuple[str, int, int, int]] = []
    for part in line:
        boundary = part.states if states else part.messages
        start, end = max(first, boundary + 1), last
        if start <= end:
            found.append((part.segment, start - boundary - 1, end - boundary - 1, start))
        last = min(last, boundary)
    return found[::-1]


def _reads(tx: Transaction, ranges: Iterable[tuple[str, int, int, int]], *, states: bool) -> list[Command]:
    slot = tx.slot
    return [
        ("LRANGE", slot.states(segment) if states else slot.messages(segment), start, end)
        for segment, start, end, _ in ranges
    ]


def _bring(tx: Transaction, session: Session, first: int, last: int, *, states: bool) -> None:
    """Have the next answer bring entries, if it can be guessed where they are."""
    line = session.line or ((Stretch(segment=session.row.segment),) if _stands_alone(session) else None)
    if line is not None and first <= last:
        tx.bring(*_reads(tx, _ranges(line, first, last, states=states), states=states))


async def _entries(
    tx: Transaction, line: Sequence[Stretch], first: int, last: int, *, states: bool
) -> list[tuple[int, bytes]]:
    """The entries numbered first to last, with their numbers, oldest first.

    Raises:
        SessionCorruptError: some are missing.
    """
    if last < first:
        return []
    ranges = _ranges(line, first, last, states=states)
    reads = _reads(tx, ranges, states=states)
    found: list[tuple[int, bytes]] = []
    for (segment, start, end, number), rows in zip(ranges, await tx.read(*reads), strict=True):
        if len(rows) != end - start + 1:
            kind = "state writes" if states else "messages"
            raise SessionCorruptError("session", f"{kind} are missing from Redis (segment {segment})")
        found.extend(enumerate(cast("list[bytes]", rows), number))
    return found


# ---------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------


def stored_message(number: int, row: bytes) -> StoredMessage:
    """The message that a row of the list holds, after the time it came."""
    at, _, body = row.partition(b" ")
    return StoredMessage(sequence=number, message=decode_message(body), created_at=int(at))


def bring_messages(tx: Transaction, seen: Session, first: int, last: int) -> None:
    """Have the next answer bring messages of a session that was last seen like this."""
    _bring(tx, seen, first, last, states=False)


async def read_messages(tx: Transaction, known: Known[Session], first: int, last: int) -> list[StoredMessage]:
    """The messages numbered first to last, oldest first."""
    if last < first:
        return []
    line = await session_line(tx, known.value)
    return [stored_message(number, row) for number, row in await _entries(tx, line, first, last, states=False)]


def add_messages(tx: Transaction, known: Known[Session], messages: Iterable[Message]) -> None:
    """Append messages to the session's own stretch."""
    bodies = [encode(message) for message in messages]
    if not bodies:
        return
    session = known.value
    if tx.limits.message_bytes is not None:
        for body in bodies:
            check_size(session.record.session_id, "message", len(body), tx.limits.message_bytes)
    at = b"%d " % tx.now
    count = session.record.message_count
    boundary = _own_boundary(session, states=False)
    tx.push(tx.slot.messages(session.row.segment), [at + body for body in bodies], after=count - boundary)
    session.record = msgspec.structs.replace(session.record, message_count=count + len(bodies))
    save_session(tx, known)


async def tail_of(tx: Transaction, line: Sequence[Stretch], count: int) -> list[Message]:
    """The newest messages of a history of so many, the last one first, as far back as its last reply."""
    tail: list[Message] = []
    last = count
    while last > 0:
        first = max(1, last - 15)
        rows = await _entries(tx, line, first, last, states=False)
        for number, row in reversed(rows):
            tail.append(stored_message(number, row).message)
            if not isinstance(tail[-1], ToolMessage):
                return tail
        last = first - 1
    return tail


async def messages_after(tx: Transaction, line: Sequence[Stretch], number: int, most: int) -> list[Message]:
    """The messages that follow this number where there are any, the oldest first."""
    ranges = _ranges(line, number + 1, number + most, states=False)
    replies = await tx.read(*_reads(tx, ranges, states=False))
    return [stored_message(number, row).message for rows in replies for row in cast("list[bytes]", rows)]


def _stands_alone(session: Session) -> bool:
    return session.row.segment.startswith(FIRST)


def _own_boundary(session: Session, *, states: bool) -> int:
    """Up to which number the session's own stretch is shared, which its name says."""
    if _stands_alone(session):
        return 0
    _, messages, writes = session.row.segment.split(".")
    return int(writes) if states else int(messages)


# ---------------------------------------------------------------------------------------------------------
# Custom state
# ---------------------------------------------------------------------------------------------------------


async def state_at(tx: Transaction, line: Sequence[Stretch], place: StatePlace) -> dict[str, JSON]:
    """The custom state at a place, built on the last one that was kept whole."""
    if not place.count:
        return {}
    rows = await _entries(tx, line, max(1, place.base), place.count, states=True)
    entries = [decode(row, StateEntry) for _, row in rows]
    state: dict[str, JSON] = entries[0].state or {}
    later = entries[1:] if entries[0].state is not None else entries
    return apply_writes(state, (op for entry in later for op in entry.ops))


async def place_at(tx: Transaction, line: Sequence[Stretch], count: int) -> StatePlace:
    """The place in the state log after so many writes."""
    if not count:
        return StatePlace()
    ((_, last),) = await _entries(tx, line, count, count, states=True)
    base = decode(last, StateEntry).base
    (_, kept), *since = await _entries(tx, line, max(1, base), count, states=True)
    return StatePlace(count=count, base=base, since=sum(len(row) for _, row in since), kept=len(kept))


def bring_state(tx: Transaction, seen: Session) -> None:
    """Have the next answer bring what the custom state of a session that was last seen like this is made of."""
    place = seen.row.state
    _bring(tx, seen, max(1, place.base), place.count, states=True)


async def custom_state(tx: Transaction, known: Known[Session]) -> dict[str, JSON]:
    """The session's present custom state; it is not the caller's to change."""
    session = known.value
    if session.state is None:
        line = await session_line(tx, session)
        session.state = await state_at(tx, line, session.row.state)
        session.grown = set()
    return session.state


async def add_writes(tx: Transaction, known: Known[Session], ops: tuple[WriteOp, ...]) -> None:
    """Apply state writes and log them; a whole state is kept when the writes since the last outweigh it.

    Raises:
        InvalidWriteError: an append meets something that is not a list.
    """
    if not ops:
        return
    session = known.value
    session_id = session.record.session_id
    state = await custom_state(tx, known)
    try:
        write_into(state, ops, session.grown)
    except AppendToNonListError as problem:
        raise InvalidWriteError(session_id, problem.key, str(problem)) from problem
    if tx.limits.state_bytes is not None:
        keys = tuple(dict.fromkeys(op.key for op in ops))
        check_size(session_id, "state", len(encode(state)), tx.limits.state_bytes, keys)
    before = session.row.state
    number = before.count + 1
    body = encode(StateEntry(ops=ops, base=before.base))
    since = before.since + len(body)
    place = StatePlace(count=number, base=before.base, since=since, kept=before.kept)
    if since > before.kept:
        body = encode(StateEntry(ops=ops, base=number, state=state))
        place = StatePlace(count=number, base=number, kept=len(body))
    boundary = _own_boundary(session, states=True)
    tx.push(tx.slot.states(session.row.segment), [body], after=before.count - boundary)
    session.set(state=place)
    save_session(tx, known)


async def writes_at(tx: Transaction, line: Sequence[Stretch], numbers: Sequence[int]) -> dict[int, tuple[WriteOp, ...]]:
    """The writes of some entries of the state log."""
    found: dict[int, tuple[WriteOp, ...]] = {}
    if numbers:
        reads: list[Command] = []
        for number in numbers:
            ((segment, start, end, _),) = _ranges(line, number, number, states=True)
            reads.append(("LRANGE", tx.slot.states(segment), start, end))
        for number, rows in zip(numbers, await tx.read(*reads), strict=True):
            if not rows:
                raise SessionCorruptError("session", "state writes are missing from Redis")
            found[number] = decode(rows[0], StateEntry).ops
    return found


# ---------------------------------------------------------------------------------------------------------
# Standing somewhere else, and letting go
# ---------------------------------------------------------------------------------------------------------


async def stand_at(
    tx: Transaction, known: Known[Session], line: tuple[Stretch, ...], *, messages: int, state: StatePlace
) -> tuple[Stretch, ...]:
    """Put the session on a new segment of its own that sees this much of another one; answers its line."""
    session = known.value
    name = f"{tx.ids.new('fork')}.{messages}.{state.count}"
    segment = new_segment(tx, session.record.session_id, fork(line, name, messages, state.count))
    if state != session.row.state:
        session.state = None
    session.set(segment=name, state=state)
    session.line = segment.line
    session.record = msgspec.structs.replace(session.record, message_count=messages)
    save_session(tx, known)
    return segment.line


def release(tx: Transaction, segments: dict[str, Segment], owners: set[SessionId]) -> None:
    """Take the owners away, and erase what no session sees any more."""
    slot = tx.slot
    kept = {name for name, segment in segments.items() if segment.owner is not None and segment.owner not in owners}
    seen: dict[str, tuple[int, int]] = {}
    for name in kept:
        line = segments[name].line
        for child, part in pairwise(line):
            messages, states = seen.get(part.segment, (0, 0))
            seen[part.segment] = (max(messages, child.messages), max(states, child.states))
    for name, segment in segments.items():
        if name in kept:
            continue
        if name not in seen:
            tx.do("HDEL", slot.segments, name)
            tx.do("UNLINK", slot.messages(name))
            tx.do("UNLINK", slot.states(name))
            continue
        messages, states = seen[name]
        own = segment.line[0]
        _trim(tx, slot.messages(name), messages - own.messages)
        _trim(tx, slot.states(name), states - own.states)
        if segment.owner is not None:
            tx.do("HSET", slot.segments, name, encode(msgspec.structs.replace(segment, owner=None)))


def _trim(tx: Transaction, key: str, count: int) -> None:
    if count > 0:
        tx.do("LTRIM", key, 0, count - 1)
    else:
        tx.do("UNLINK", key)


async def load_segments(tx: Transaction) -> Known[dict[str, Segment]]:
    """Every segment of the slot."""

    def of(replies: list[Any]) -> dict[str, Segment]:
        flat: list[bytes] = replies[0]
        rows = {flat[n].decode(): flat[n + 1] for n in range(0, len(flat), 2)}
        rows.pop("#", None)
        return {name: decode(row, Segment) for name, row in rows.items()}

    return await tx.load(tx.slot.segments, (("HGETALL", tx.slot.segments),), of)
