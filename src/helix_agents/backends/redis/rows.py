"""A session as it is stored: its row, its current run, its stop and its remembered answer, in one hash."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.errors import LookAgainError
from helix_agents.backends.redis.index import Entry, entry_id, gone
from helix_agents.backends.redis.keys import LINE, Slot
from helix_agents.backends.redis.transaction import READ_AT_ONCE, Command, Known, Transaction
from helix_agents.domain.commits import RememberedCommit, is_detached
from helix_agents.domain.effects import Effect, oldest_first
from helix_agents.domain.errors import SessionCorruptError, SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.sessions import MARKS, InterruptFlag, SessionState
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.webhooks import is_untold


class StatePlace(Record):
    """A place in the log of state writes: how many there are, and which one last holds the full state.

    `since` is the size of the writes after that one, `kept` the size of that state.
    """

    count: int = 0
    base: int = 0
    since: int = 0
    kept: int = 0


class Stretch(Record, array_like=True):
    """One stretch of a line of history: numbers up to its boundaries belong to the next one, those above to itself."""

    segment: str
    messages: int = 0
    states: int = 0


class SessionRow(Record):
    """The record without its custom state, and the session's position in its history.

    `name` belongs to this session forever, unlike its id; its checkpoints are named after it. `turn` is the highest so
    far. `staged` says that staging holds something, `stages` that it did since the last cleanup, `used` that there is
    usage. `queued` counts the waiting turns, `steered` those that steer. `vanishes_at` is when the whole session
    expires unless it is changed.
    """

    record: SessionState
    segment: str
    state: StatePlace = StatePlace()
    first_state: StatePlace = StatePlace()
    name: str
    checkpoints: int = 0
    turn: int = 0
    staged: bool = False
    stages: bool = False
    used: bool = False
    queued: int = 0
    steered: int = 0
    vanishes_at: int | None = None


class RunRow(Record):
    """A run, and the answer to its start, for a caller that never got it; `first` is the run as it started."""

    run: RunRecord
    start_version: int | None = None
    start_messages: int = 0
    then: RunRecord | None = None

    @property
    def first(self) -> RunRecord:
        return self.then or self.run


class Session:
    """A session inside a transaction; changes made here are stored when it commits."""

    __slots__ = ("_stored", "flag", "grown", "line", "memo", "row", "run", "shown", "state")

    def __init__(
        self,
        row: SessionRow,
        run: RunRecord | None = None,
        flag: InterruptFlag | None = None,
        memo: RememberedCommit | None = None,
        *,
        new: bool = False,
    ) -> None:
        self.row = row
        self.run = run
        self.flag = flag
        self.memo = memo
        # The line of its history, once it was needed.
        self.line: tuple[Stretch, ...] | None = None
        # The custom state, once it was needed, and which of its lists we may grow in place.
        self.state: dict[str, JSON] | None = None
        self.grown: set[str] = set()
        self._stored: tuple[Any, ...] = (None, None, None, None) if new else (row, run, flag, memo)
        self.shown = _shown(row, run)

    @property
    def record(self) -> SessionState:
        return self.row.record

    @record.setter
    def record(self, record: SessionState) -> None:
        self.row = msgspec.structs.replace(self.row, record=record)

    def set(self, **fields: Any) -> None:
        """Change fields of the row."""
        self.row = msgspec.structs.replace(self.row, **fields)

    def unstored(self) -> tuple[list[Any], list[str]]:
        """Fields to set, each followed by its value, and fields to remove; they count as stored from here on."""
        put: list[Any] = []
        remove: list[str] = []
        now = (self.row, self.run, self.flag, self.memo)
        for name, before, value in zip(("row", "run", "flag", "memo"), self._stored, now, strict=True):
            if value is before:
                continue
            if value is None:
                remove.append(name)
            else:
                put += (name, encode(value))
        self._stored = now
        return put, remove


def _shown(row: SessionRow, run: RunRecord | None) -> tuple[Any, ...]:
    """The parts of a session that its index entry depends on."""
    record = row.record
    return (
        record.status,
        run.status if run is not None else None,
        record.agent_type,
        record.user_id,
        record.parent_session_id,
        record.root_session_id,
        record.expires_at,
        row.stages,
        row.queued > 0,
        row.vanishes_at,
        record.tags,
        record.metadata,
    )


def last_seen(tx: Transaction, session_id: SessionId) -> Session | None:
    """The session as this process last left it, for guessing what to read along with it."""
    return tx.last_seen(tx.slot.session(session_id))


def read_session(slot: Slot, session_id: SessionId) -> tuple[Any, ...]:
    """The command that reads a session."""
    return ("HMGET", slot.session(session_id), "row", "run", "flag", "memo")


def session_of(fields: list[bytes | None], revision: bytes, session_id: SessionId) -> Session | None:
    """The session in these fields; None if there is none."""
    row, run, flag, memo = fields
    if row is None:
        if revision:
            raise SessionCorruptError("session", f"the row of {session_id!r} is missing from Redis")
        return None
    return Session(
        decode(row, SessionRow),
        decode(run, RunRecord) if run is not None else None,
        decode(flag, InterruptFlag) if flag is not None else None,
        decode(memo, RememberedCommit) if memo is not None else None,
    )


def _session_reads(slot: Slot, session_id: SessionId) -> tuple[tuple[Any, ...], ...]:
    key = slot.session(session_id)
    return (read_session(slot, session_id), ("HGET", key, "#"), ("HEXISTS", slot.members, session_id))


async def find_session(tx: Transaction, session_id: SessionId) -> Known[Session] | None:
    """The session, if it exists.

    Raises:
        SessionCorruptError: part of it is missing.
    """

    def found(replies: list[Any]) -> Session | None:
        session = session_of(replies[0], replies[1] or b"", session_id)
        if session is None and replies[2]:
            raise SessionCorruptError(
                "session", f"{session_id!r} itself is missing from Redis, but its parts are there"
            )
        return session

    slot = tx.slot
    known: Known[Session | None] = await tx.load(slot.session(session_id), _session_reads(slot, session_id), found)
    if known.value is None and not tx.certain:
        raise LookAgainError(session_id)
    return known if known.value is not None else None  # pyright: ignore[reportReturnType]


async def find_sessions(tx: Transaction, session_ids: Sequence[SessionId]) -> list[Known[Session]]:
    """The existing ones among these sessions, many with each answer."""
    found: list[Known[Session] | None] = []
    for first in range(0, len(session_ids), READ_AT_ONCE):
        some = session_ids[first : first + READ_AT_ONCE]
        for session_id in some:
            key = tx.slot.session(session_id)
            if key not in tx.known:
                tx.bring(*_session_reads(tx.slot, session_id), of=key)
        found += [await find_session(tx, session_id) for session_id in some]
    return [known for known in found if known is not None]


async def load_session(tx: Transaction, session_id: SessionId) -> Known[Session]:
    """The session.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    known = await find_session(tx, session_id)
    if known is None:
        raise SessionNotFoundError(session_id)
    return known


def save_session(tx: Transaction, known: Known[Session]) -> None:
    """Have the session stored in its final state when the transaction commits."""
    if known.key in tx.changed:
        return
    tx.change(known)

    def store() -> None:
        session = known.value
        if session is None:  # pyright: ignore[reportUnnecessaryComparison]
            return
        put, remove = session.unstored()
        if put:
            tx.do("HSET", known.key, *put)
        if remove:
            tx.do("HDEL", known.key, *remove)
        show_session(tx, known)

    tx.before_commit.append(store)


def show_session(tx: Transaction, known: Known[Session]) -> None:
    """Update the session's index entry, if what it depends on has changed."""
    session = known.value
    shown = _shown(session.row, session.run)
    if known.revision and shown == session.shown:
        return
    session.shown = shown
    entry = session_entry(tx.tag, session)
    tx.index(known.key, entry, ("s", tx.tag, session.record.session_id))


# ---------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------


def put_run(
    tx: Transaction,
    known: Known[Session],
    run: RunRecord,
    *,
    row: RunRow | None = None,
    start: tuple[int, int] | None = None,
) -> None:
    """Store a run of the session, new or changed; `row` belongs to a run that may not be the current one.

    The current run is also in the session's own hash. The answer to its start stays beside it unchanged.
    """
    session, slot = known.value, tx.slot
    session_id = session.record.session_id
    is_current = session.record.current_run_id == run.run_id
    before = row.run if row is not None else session.run if is_current else None
    if is_current or (session.run is not None and session.run.run_id == run.run_id):
        before = before or session.run
        session.run = run
    save_session(tx, known)
    if before is None:
        version, messages = start or (None, 0)
        first = RunRow(run=run, start_version=version, start_messages=messages)
        tx.do("HSET", slot.runs(session_id), run.run_id, encode(first))
        tx.do("ZADD", slot.turns(session_id), run.turn, run.run_id)
    else:
        tx.do("HSET", slot.runs(session_id), _now(run.run_id), encode(run))
    if before is None or (before.status, before.owner, before.told) != (run.status, run.owner, run.told):
        tx.index(known.key, run_entry(tx.tag, run), ("r", tx.tag, session_id, run.run_id))


def _now(run_id: RunId) -> str:
    """The field of a run's present state, beside the one of its state at the start."""
    return f"{run_id}{LINE}now"


def read_run(slot: Slot, session_id: SessionId, run_id: RunId) -> tuple[Any, ...]:
    """The command that reads a run."""
    return ("HMGET", slot.runs(session_id), run_id, _now(run_id))


def run_row(first: bytes | None, now: bytes | None) -> RunRow | None:
    """A run from its two fields: its state at the start, and its present one."""
    if first is None:
        return None
    row = decode(first, RunRow)
    return row if now is None else msgspec.structs.replace(row, run=decode(now, RunRecord), then=row.run)


def bring_run(tx: Transaction, session_id: SessionId, run_id: RunId) -> None:
    """Have the next answer include a run."""
    tx.bring(read_run(tx.slot, session_id, run_id))


async def find_run(tx: Transaction, known: Known[Session], run_id: RunId) -> RunRow | None:
    """A run of the session by its id."""
    (fields,) = await tx.read(read_run(tx.slot, known.value.record.session_id, run_id))
    return run_row(*fields)


# ---------------------------------------------------------------------------------------------------------
# Staging, and the ledger
# ---------------------------------------------------------------------------------------------------------


async def read_staged(tx: Transaction, known: Known[Session]) -> list[StagedChange]:
    """Everything staged for the session."""
    if not known.value.row.staged:
        return []
    (values,) = await tx.read(("HVALS", tx.slot.staging(known.value.record.session_id)))
    return [decode(value, StagedChange) for value in values]


class EffectRow(Record):
    """An entry of the ledger and its position among the others."""

    place: int
    effect: Effect | None = None


def every_effect(tx: Transaction, session_id: SessionId) -> Command:
    """The command that reads a session's entries in the ledger."""
    return ("HVALS", tx.slot.effects(session_id))


async def read_effects(tx: Transaction, session_id: SessionId) -> tuple[Effect, ...]:
    """The ledger's entries of a session, oldest first."""
    (rows,) = await tx.read(every_effect(tx, session_id))
    found = sorted((decode(row, EffectRow) for row in rows), key=lambda row: row.place)
    return oldest_first(row.effect for row in found if row.effect is not None)


# ---------------------------------------------------------------------------------------------------------
# Trees
# ---------------------------------------------------------------------------------------------------------


class Members:
    """The sessions of a slot. One step down the tree costs what is there, however many sessions the slot has."""

    def __init__(self, parents: dict[SessionId, SessionId]) -> None:
        self.parents = parents
        self._below: dict[SessionId, dict[SessionId, None]] = {}
        for member, parent in parents.items():
            self._below.setdefault(parent, {})[member] = None

    def tree(self, session_id: SessionId) -> list[SessionId]:
        """The session and every session below it, each after its parent."""
        found = {session_id: None}
        ahead = [session_id]
        for member in ahead:
            # A session may name any parent, even one below itself, so no session is visited twice.
            new = [child for child in self._below.get(member, ()) if child not in found]
            found.update(dict.fromkeys(new))
            ahead.extend(new)
        return ahead

    def remove(self, gone: Iterable[SessionId]) -> None:
        """Remove whole trees."""
        for member in gone:
            parent = self.parents.pop(member, None)
            if parent in self._below:
                self._below[parent].pop(member, None)
            self._below.pop(member, None)


async def load_members(tx: Transaction) -> Known[Members]:
    """Every session of the slot with its parent ('' if it has none), oldest first."""

    def of(replies: list[Any]) -> Members:
        flat: list[bytes] = replies[0]
        found = {flat[n].decode(): flat[n + 1].decode() for n in range(0, len(flat), 2)}
        found.pop("#", None)
        return Members(found)

    return await tx.load(tx.slot.members, (("HGETALL", tx.slot.members),), of)


async def tree(tx: Transaction, session_id: SessionId) -> list[SessionId]:
    """The session and every session below it, each after its parent."""
    return (await load_members(tx)).value.tree(session_id)


async def driver_of(tx: Transaction, session_id: SessionId) -> SessionId:
    """The session whose run drives this one: the nearest detached companion, itself or above, or else the root."""
    member: SessionId | None = session_id
    seen: set[SessionId] = set()
    while member is not None and member not in seen:
        seen.add(member)
        known = await find_session(tx, member)
        if known is None:
            break
        session = known.value
        if is_detached(session.record, session.run):
            return member
        member = session.record.parent_session_id
    return (await load_session(tx, session_id)).value.record.root_session_id


# ---------------------------------------------------------------------------------------------------------
# Index entries
# ---------------------------------------------------------------------------------------------------------


class SessionEntry(Record):
    """A session in the index: what listings filter by, where it is, and the status of its current run."""

    tag: str
    session: SessionState
    run_status: RunStatus | None = None
    vanishes_at: int | None = None


class RunEntry(Record):
    """A run in the index: its session, and what decides whether it is an orphan."""

    tag: str
    run: RunRecord


def session_entry(tag: str, session: Session) -> Entry:
    """The index entry of a session."""
    record, run = session.record, session.run
    told = SessionState(
        session_id=record.session_id,
        agent_type=record.agent_type,
        status=record.status,
        user_id=record.user_id,
        parent_session_id=record.parent_session_id,
        root_session_id=record.root_session_id,
        tags=record.tags,
        metadata=record.metadata,
        expires_at=record.expires_at,
        created_at=record.created_at,
    )
    at = record.created_at
    part = 0 if record.parent_session_id is None else 1
    orders: list[tuple[str, float]] = [
        (index.SESSIONS, at),
        (index.parts_by_parent()[part], at),
        (f"root/{record.root_session_id}", at),
    ]
    if record.user_id is not None:
        orders += ((f"user/{record.user_id}", at), (index.parts_by_parent(record.user_id)[part], at))
    if record.parent_session_id is not None:
        orders.append((f"parent/{record.parent_session_id}", at))
    if record.expires_at is not None:
        orders += (
            (index.EXPIRING, record.expires_at),
            (index.expiring_part(record.status), record.expires_at),
        )
    orders.extend((index.mark_order(key, record.metadata[key]), at) for key in MARKS if key in record.metadata)
    if session.row.stages:
        orders.append((index.STAGED, at))
    if session.row.queued:
        orders.append((index.QUEUED, at))
    if (vanishes_at := session.row.vanishes_at) is not None:
        orders.append((index.VANISHING, vanishes_at))
        told = msgspec.structs.replace(told, stream_id=record.stream_id)
    status = run.status if run is not None else None
    payload = SessionEntry(tag=tag, session=told, run_status=status, vanishes_at=vanishes_at)
    return Entry(entry_id("s", record.session_id), encode(payload), tuple(orders))


def run_entry(tag: str, run: RunRecord) -> Entry:
    """The index entry of a run."""
    told = RunRecord(
        run_id=run.run_id,
        session_id=run.session_id,
        turn=run.turn,
        status=run.status,
        parent_run_id=run.parent_run_id,
        owner=run.owner,
        started_at=run.started_at,
    )
    orders = ((index.RUNNING, float(run.started_at)),) if run.status == "running" else ()
    if is_untold(run):
        orders = ((index.UNTOLD, float(run.ended_at or 0)),)
    return Entry(entry_id("r", run.run_id), encode(RunEntry(tag=tag, run=told)), orders)


def gone_entry(tx: Transaction, key: str, id: str, origin: tuple[str, ...]) -> None:
    """Make the index forget something."""
    tx.index(key, gone(id, int(tx.now)), origin)
