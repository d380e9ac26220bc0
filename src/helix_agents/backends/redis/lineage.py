"""History stored once: sessions and branches share stretches of messages and of state writes."""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, TypeAlias, cast

import msgspec

from helix_agents.backends.redis.rows import Session, StatePlace, Stretch, save_session
from helix_agents.backends.redis.transaction import AT_ONCE, Command, Known, Transaction
from helix_agents.domain.errors import InvalidWriteError, SessionCorruptError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message, StoredMessage, ToolMessage, decode_message
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.writes import AppendToNonListError, WriteOp, apply_writes, write_into

FIRST = "first"
"""The prefix in the names of segments without a parent; the others are named after their boundaries."""


class Segment(Record):
    """A stretch of history and the stretches it builds on, itself first. Without an owner it lives for its branches.

    A line that ends before the first stretch of its history continues in the row of its last stretch. So a row stays
    small however often a session was cut. Rows that hold the whole line are from an earlier format.
    """

    owner: SessionId | None
    line: tuple[Stretch, ...]

    @property
    def parent(self) -> str | None:
        """The stretch it builds on directly."""
        return self.line[1].segment if len(self.line) > 1 else None


class StateEntry(Record):
    """The writes of one commit, and now and then the full state after them; `base` is the last entry that has it."""

    ops: tuple[WriteOp, ...] = ()
    base: int
    state: dict[str, JSON] | None = None


def fork(line: tuple[Stretch, ...], segment: str, messages: int, states: int) -> tuple[Stretch, ...]:
    """The line of a new segment that sees this many messages and state writes of another one.

    It builds on the oldest stretch that holds both ends, so it keeps nothing alive that it cannot see.
    """
    while len(line) > 1 and messages <= line[0].messages and states <= line[0].states:
        line = line[1:]
    return (Stretch(segment=segment, messages=messages, states=states), *line)


def new_segment(tx: Transaction, owner: SessionId, line: tuple[Stretch, ...] | None = None) -> Segment:
    """A new segment: the first of a history, or one with this line."""
    name = line[0].segment if line is not None else tx.ids.new(FIRST)
    segment = Segment(owner=owner, line=(line or (Stretch(segment=name),))[:2])
    tx.touch(tx.slot.segments)
    tx.do("HSET", tx.slot.segments, name, encode(segment))
    return segment


def line_of(segment: str) -> tuple[Stretch, ...]:
    """A segment and what it builds on, as far as its name tells; `reaching` extends the line if more is needed."""
    if segment.startswith(FIRST):
        return (Stretch(segment=segment),)
    _, messages, states = segment.split(".")
    return (Stretch(segment=segment, messages=int(messages), states=int(states)),)


def _reaches(line: Sequence[Stretch], messages: int, states: int) -> bool:
    last = line[-1]
    return last.messages < messages or last.states < states or last.segment.startswith(FIRST)


async def reaching(
    tx: Transaction, line: tuple[Stretch, ...], *, messages: int = -1, states: int = -1
) -> tuple[Stretch, ...]:
    """The line down to the stretch that holds the message or the state write of this number, or else all of it.

    A line never changes.

    Raises:
        SessionCorruptError: a stretch is missing.
    """
    if _reaches(line, messages, states):
        return line
    segment = line[-1].segment
    (rows,) = await tx.read(("LINE", tx.slot.segments, segment, messages, states))
    found = list(line)
    for row in cast("list[bytes | None]", rows):
        if row is None:
            raise SessionCorruptError("session", f"a stretch of its history is missing from Redis ({segment})")
        found[-1:] = decode(row, Segment).line
    return tuple(found)


async def owners_of(tx: Transaction, line: Sequence[Stretch]) -> list[SessionId | None]:
    """The owner of each stretch of a line; None if that session is gone."""
    names = [part.segment for part in line]
    reads = [("HMGET", tx.slot.segments, *names[at : at + AT_ONCE]) for at in range(0, len(names), AT_ONCE)]
    rows = [row for found in await tx.read(*reads) for row in cast("list[bytes | None]", found)]
    return [None if row is None else decode(row, Segment).owner for row in rows]


def session_line(session: Session) -> tuple[Stretch, ...]:
    """The line of the session's history, as far as it is known."""
    return session.line or line_of(session.row.segment)


def _ranges(line: Sequence[Stretch], first: int, last: int, *, states: bool) -> list[tuple[str, int, int, int]]:
    """Where the entries numbered first to last are: segment, first and last index in its list, and first number."""
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
    """Have the next answer include entries, if their place can be guessed."""
    line = session_line(session)
    if first <= last and _reaches(line, -1 if states else first, first if states else -1):
        tx.bring(*_reads(tx, _ranges(line, first, last, states=states), states=states))


async def _entries(
    tx: Transaction, line: tuple[Stretch, ...], first: int, last: int, *, states: bool
) -> list[tuple[int, bytes]]:
    """The entries numbered first to last, with their numbers, oldest first.

    Raises:
        SessionCorruptError: some are missing.
    """
    if last < first:
        return []
    line = await reaching(tx, line, messages=-1 if states else first, states=first if states else -1)
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
    """The message in a row of the list, which also holds its time."""
    at, _, body = row.partition(b" ")
    return StoredMessage(sequence=number, message=decode_message(body), created_at=int(at))


def bring_messages(tx: Transaction, seen: Session, first: int, last: int) -> None:
    """Have the next answer include messages of a session, guessing from its last seen state."""
    _bring(tx, seen, first, last, states=False)


async def read_messages(tx: Transaction, known: Known[Session], first: int, last: int) -> list[StoredMessage]:
    """The messages numbered first to last, oldest first."""
    if last < first:
        return []
    session = known.value
    session.line = line = await reaching(tx, session_line(session), messages=first)
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
    boundary = line_of(session.row.segment)[0].messages
    tx.push(tx.slot.messages(session.row.segment), [at + body for body in bodies], after=count - boundary)
    session.record = msgspec.structs.replace(session.record, message_count=count + len(bodies))
    save_session(tx, known)


async def tail_of(tx: Transaction, line: tuple[Stretch, ...], count: int) -> list[Message]:
    """The newest messages of a history of this length, the last one first, back to its last reply."""
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


async def messages_after(tx: Transaction, line: tuple[Stretch, ...], number: int, most: int) -> list[Message]:
    """The messages after this number, if there are any, the oldest first."""
    line = await reaching(tx, line, messages=number + 1)
    ranges = _ranges(line, number + 1, number + most, states=False)
    replies = await tx.read(*_reads(tx, ranges, states=False))
    return [stored_message(number, row).message for rows in replies for row in cast("list[bytes]", rows)]


# ---------------------------------------------------------------------------------------------------------
# Custom state
# ---------------------------------------------------------------------------------------------------------


async def state_at(tx: Transaction, line: tuple[Stretch, ...], place: StatePlace) -> dict[str, JSON]:
    """The custom state at a place, built on the last full state."""
    if not place.count:
        return {}
    rows = await _entries(tx, line, max(1, place.base), place.count, states=True)
    entries = [decode(row, StateEntry) for _, row in rows]
    state: dict[str, JSON] = entries[0].state or {}
    later = entries[1:] if entries[0].state is not None else entries
    return apply_writes(state, (op for entry in later for op in entry.ops))


async def place_at(tx: Transaction, line: tuple[Stretch, ...], count: int) -> StatePlace:
    """The place in the state log after this many writes."""
    if not count:
        return StatePlace()
    ((_, last),) = await _entries(tx, line, count, count, states=True)
    base = decode(last, StateEntry).base
    (_, kept), *since = await _entries(tx, line, max(1, base), count, states=True)
    return StatePlace(count=count, base=base, since=sum(len(row) for _, row in since), kept=len(kept))


def bring_state(tx: Transaction, seen: Session) -> None:
    """Have the next answer include the custom state of a session, guessing from its last seen state."""
    place = seen.row.state
    _bring(tx, seen, max(1, place.base), place.count, states=True)


async def custom_state(tx: Transaction, known: Known[Session]) -> dict[str, JSON]:
    """The session's present custom state; the caller must not change it."""
    session = known.value
    if session.state is None:
        session.state = await state_at(tx, session_line(session), session.row.state)
        session.grown = set()
    return session.state


async def add_writes(tx: Transaction, known: Known[Session], ops: tuple[WriteOp, ...]) -> None:
    """Apply state writes and log them; the full state is stored when the writes since the last one outweigh it.

    Raises:
        InvalidWriteError: an append meets a value that is not a list.
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
    boundary = line_of(session.row.segment)[0].states
    tx.push(tx.slot.states(session.row.segment), [body], after=before.count - boundary)
    session.set(state=place)
    save_session(tx, known)


async def writes_made(tx: Transaction, made: Sequence[tuple[str, int]]) -> list[tuple[WriteOp, ...]]:
    """The writes of entries in the state log, each given by its segment and number."""
    reads: list[Command] = []
    for segment, number in made:
        at = number - line_of(segment)[0].states - 1
        reads.append(("LRANGE", tx.slot.states(segment), at, at))
    found = await tx.read(*reads) if reads else []
    if not all(found):
        raise SessionCorruptError("session", "state writes are missing from Redis")
    return [decode(rows[0], StateEntry).ops for rows in found]


# ---------------------------------------------------------------------------------------------------------
# Moving to another point, and releasing history
# ---------------------------------------------------------------------------------------------------------


async def stand_at(
    tx: Transaction, known: Known[Session], line: tuple[Stretch, ...], *, messages: int, state: StatePlace
) -> tuple[Stretch, ...]:
    """Put the session on a new segment of its own that sees this much of another one; returns its line."""
    session = known.value
    name = f"{tx.ids.new('fork')}.{messages}.{state.count}"
    line = fork(await reaching(tx, line, messages=messages, states=state.count), name, messages, state.count)
    new_segment(tx, session.record.session_id, line)
    if state != session.row.state:
        session.state = None
    session.set(segment=name, state=state)
    session.line = line
    session.record = msgspec.structs.replace(session.record, message_count=messages)
    save_session(tx, known)
    return line


Reach: TypeAlias = tuple[int, int]
"""How many messages and state writes of a segment are seen by those that build on it."""


class Segments:
    """The segments of a slot, whose they are, what builds on each, and how much of those without an owner is seen.

    Releasing some costs what is released, however many others there are.
    """

    def __init__(self, rows: dict[str, Segment]) -> None:
        self.rows = rows
        self._owned: dict[SessionId, set[str]] = {}
        self._below: dict[str, set[str]] = {}
        self._seen: dict[str, Reach] = {}
        for name, segment in rows.items():
            if segment.owner is not None:
                self._owned.setdefault(segment.owner, set()).add(name)
            if segment.parent is not None and segment.parent in rows:
                self._below.setdefault(segment.parent, set()).add(name)
        for name in self._upwards(name for name in rows if name not in self._below):
            self._look(name)

    def of(self, owners: Iterable[SessionId]) -> set[str]:
        """The segments that these sessions own."""
        return {name for owner in owners for name in self._owned.get(owner, ())}

    def affected(self, names: Set[str], owners: Set[SessionId]) -> list[str]:
        """These segments and those without another owner that they build on, each after what builds on it."""
        found = set(names)
        for name in names:
            above = self.rows[name].parent
            while above is not None and above in self.rows and above not in found:
                segment = self.rows[above]
                if segment.owner is not None and segment.owner not in owners:
                    break
                found.add(above)
                above = segment.parent
        leaves = [name for name in found if found.isdisjoint(self._below.get(name, ()))]
        return self._upwards(leaves, within=found)

    def seen(self, name: str) -> Reach | None:
        """How much of a segment is seen by those that build on it; None if nothing builds on it."""
        return max_of(self._reaches(name))

    def is_seen(self, name: str, reach: Reach) -> bool:
        """Whether one of those that build on a segment sees at least this much of it."""
        messages, states = reach
        return any(m >= messages and s >= states for m, s in self._reaches(name))

    def erase(self, name: str) -> None:
        """Remove a segment."""
        segment = self.rows.pop(name)
        self._disown(name, segment)
        self._seen.pop(name, None)
        self._below.pop(name, None)
        if segment.parent in self._below:
            self._below[segment.parent].discard(name)

    def let_live(self, name: str) -> None:
        """Let a segment live on for those that build on it, without its owner."""
        segment = self.rows[name]
        self._disown(name, segment)
        self.rows[name] = msgspec.structs.replace(segment, owner=None)
        self._look(name)

    def _disown(self, name: str, segment: Segment) -> None:
        if segment.owner is not None:
            self._owned[segment.owner].discard(name)

    def _look(self, name: str) -> None:
        """Note how much of a segment without an owner is seen."""
        if self.rows[name].owner is None and (seen := self.seen(name)) is not None:
            self._seen[name] = seen

    def _reaches(self, name: str) -> Iterator[Reach]:
        """How much of a segment is seen through each of those that build on it."""
        for child in self._below.get(name, ()):
            segment = self.rows[child]
            messages, states = segment.line[0].messages, segment.line[0].states
            if segment.owner is not None:
                yield messages, states
            elif child in self._seen:
                seen = self._seen[child]
                yield min(messages, seen[0]), min(states, seen[1])

    def _upwards(self, leaves: Iterable[str], within: Set[str] | None = None) -> list[str]:
        """Segments in an order in which each comes after those that build on it."""
        ahead = list(leaves)
        left: dict[str, int] = {}
        for name in ahead:
            parent = self.rows[name].parent
            if parent is None or parent not in self.rows or not (within is None or parent in within):
                continue
            below = self._below[parent]
            left[parent] = left.get(parent, len(below) if within is None else len(below & within)) - 1
            if not left[parent]:
                ahead.append(parent)
        return ahead


def max_of(reaches: Iterable[Reach]) -> Reach | None:
    """The most of each; None of nothing."""
    most: Reach | None = None
    for messages, states in reaches:
        most = (messages, states) if most is None else (max(most[0], messages), max(most[1], states))
    return most


def release(tx: Transaction, segments: Segments, owners: Set[SessionId]) -> None:
    """Remove the owners, and erase what no session sees any more."""
    left = segments.of(owners)
    # For segments without an owner: how much those saw of it that are erased now, or see less.
    lost: dict[str, Reach] = {}
    for name in segments.affected(left, owners):
        if name not in left and (name not in lost or segments.is_seen(name, lost[name])):
            continue
        segment, seen = segments.rows[name], segments.seen(name)
        _shrink(tx, name, segment, seen)
        if seen is None:
            segments.erase(name)
        else:
            segments.let_live(name)
        if segment.parent is not None:
            own = segment.line[0].messages, segment.line[0].states
            lost[segment.parent] = max_of((own, lost.get(segment.parent, own))) or own


def _shrink(tx: Transaction, name: str, segment: Segment, seen: tuple[int, int] | None) -> None:
    """Erase what nobody sees of a segment that has no owner any more."""
    slot, own = tx.slot, segment.line[0]
    if seen is None:
        tx.do("HDEL", slot.segments, name)
        tx.do("UNLINK", slot.messages(name))
        tx.do("UNLINK", slot.states(name))
        return
    _trim(tx, slot.messages(name), seen[0] - own.messages)
    _trim(tx, slot.states(name), seen[1] - own.states)
    if segment.owner is not None:
        tx.do("HSET", slot.segments, name, encode(msgspec.structs.replace(segment, owner=None)))


def _trim(tx: Transaction, key: str, count: int) -> None:
    if count > 0:
        tx.do("LTRIM", key, 0, count - 1)
    else:
        tx.do("UNLINK", key)


async def load_segments(tx: Transaction) -> Known[Segments]:
    """Every segment of the slot."""

    def of(replies: list[Any]) -> Segments:
        flat: list[bytes] = replies[0]
        rows = {flat[n].decode(): flat[n + 1] for n in range(0, len(flat), 2)}
        rows.pop("#", None)
        return Segments({name: decode(row, Segment) for name, row in rows.items()})

    return await tx.load(tx.slot.segments, (("HGETALL", tx.slot.segments),), of)
