"""How a session is created, from nothing or as a branch of another one, and where it is put."""

from itertools import groupby

from helix_agents.backends.redis.checkpoints import add_checkpoint, checkpoint_row, checkpoints_of
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import (
    add_messages,
    add_writes,
    line_of,
    messages_after,
    new_segment,
    owners_of,
    place_at,
    reaching,
    session_line,
    stand_at,
    tail_of,
)
from helix_agents.backends.redis.pending import find_call
from helix_agents.backends.redis.rows import (
    Session,
    SessionRow,
    StatePlace,
    Stretch,
    find_session,
    load_session,
    read_effects,
    read_staged,
    save_session,
)
from helix_agents.backends.redis.sub_sessions import Refs
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain.checkpoints import BEGINNING, Cut, check_cut
from helix_agents.domain.errors import SessionAlreadyExistsError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.queued import follows_a_step
from helix_agents.domain.session_changes import BEGAN, branched, created, holder_at, holder_of
from helix_agents.domain.sessions import BranchPoint, CreateSession, Holder
from helix_agents.domain.transcript import missing_results, open_step, open_tail
from helix_agents.domain.writes import difference
from helix_agents.ports.clock import Clock


class ClaimLostError(Exception):
    """The place of a new session has to be settled first. Never leaves the backend."""


async def home_of(space: Keyspace, session_id: SessionId, options: CreateSession, parent: SessionId | None) -> str:
    """The tag of a new session's slot: that of its source, its parent or its root, or its own."""
    if options.branch is not None:
        return await space.locate(options.branch.from_session_id, fresh=True)
    above = parent or options.parent_session_id or options.root_session_id
    if above is None or above == session_id:
        return session_id
    return await space.locate(above, fresh=True)


async def claim_place(space: Keyspace, session_id: SessionId, tag: str, clock: Clock) -> str | None:
    """Record, in the slot of the session's name, in which slot the session is about to be created.

    Returns the claim that the creation has to hold, or None for a session in the slot of its own name. A claim whose
    owner never created anything is revoked first.

    Raises:
        SessionAlreadyExistsError: the id is taken.
    """

    async def work(tx: Transaction) -> tuple[str | None, tuple[str, str] | None]:
        if await find_session(tx, session_id) is not None:
            raise SessionAlreadyExistsError(session_id)
        key = tx.slot.place(session_id)
        place: Known[list[bytes | None]] = await tx.load(
            key, (("HMGET", key, "tag", "claim"),), lambda replies: replies[0]
        )
        there, claim = (part.decode() if part is not None else "" for part in place.value)
        if claim and there != tag:
            return None, (there, claim)
        if tag == session_id:
            return None, None
        mine = tx.ids.new("claim")
        tx.change(place)
        tx.do("HSET", key, "tag", tag, "claim", mine)
        place.value[:] = [tag.encode(), mine.encode()]
        return mine, None

    while True:
        mine, other = await space.write("claim", session_id, work, clock=clock, tag=session_id)
        if other is None:
            return mine
        await _take_away(space, session_id, *other, clock)


async def _take_away(space: Keyspace, session_id: SessionId, tag: str, claim: str, clock: Clock) -> None:
    """Make sure that a claim can no longer lead to a session, then remove it.

    Raises:
        SessionAlreadyExistsError: it led to a session.
    """

    async def bar(tx: Transaction) -> None:
        if await find_session(tx, session_id) is not None:
            raise SessionAlreadyExistsError(session_id)
        tx.touch(tx.slot.barrier(claim))

    async def remove(tx: Transaction) -> None:
        key = tx.slot.place(session_id)
        place: Known[list[bytes | None]] = await tx.load(key, (("HMGET", key, "tag", "claim"),), lambda found: found[0])
        if place.value[1] == claim.encode():
            tx.change(place)
            tx.do("DEL", key)
            place.value = None  # pyright: ignore[reportAttributeAccessIssue]

    await space.write("bar", session_id, bar, clock=clock, tag=tag)
    await space.write("unclaim", session_id, remove, clock=clock, tag=session_id)


async def create(tx: Transaction, session_id: SessionId, options: CreateSession, claim: str | None) -> Known[Session]:
    """The new session, stored when the transaction commits.

    Raises:
        SessionAlreadyExistsError: the id is taken.
    """
    if await find_session(tx, session_id) is not None:
        raise SessionAlreadyExistsError(session_id)
    known: Known[Session] = tx.known[tx.slot.session(session_id)]
    await _hold_claim(tx, session_id, claim)
    if tx.tag != session_id:
        # Loaded because the slot's first session no longer expires once another one is beside it.
        await find_session(tx, tx.tag)
    if options.branch is not None:
        await _branch(tx, known, session_id, options, options.branch)
    else:
        parent_id = options.parent_session_id
        parent = await find_session(tx, parent_id) if parent_id is not None and parent_id != session_id else None
        record = created(session_id, options, tx.now, parent=parent.value.record if parent else None)
        segment = new_segment(tx, session_id)
        known.value = Session(
            SessionRow(record=record, segment=segment.line[0].segment, name=tx.ids.new("s")), new=True
        )
        known.value.state = {}
        await add_writes(tx, known, difference({}, options.custom_state).ops)
        known.value.set(first_state=known.value.row.state)
    _enter(tx, known)
    return known


def bring_claim(tx: Transaction, session_id: SessionId, claim: str | None) -> None:
    """Have the next answer tell whether the claim is still valid."""
    tx.bring(of=_barrier(tx, session_id, claim))


def _barrier(tx: Transaction, session_id: SessionId, claim: str | None) -> str:
    return tx.slot.barrier(claim) if claim is not None else tx.slot.place(session_id)


async def _hold_claim(tx: Transaction, session_id: SessionId, claim: str | None) -> None:
    """Allow the creation only while the claim is valid."""
    key = _barrier(tx, session_id, claim)
    barrier: Known[None] = await tx.load(key, (), lambda _: None)
    if barrier.revision:
        raise ClaimLostError(key)


def _enter(tx: Transaction, known: Known[Session]) -> None:
    session = known.value
    record = session.record
    tx.touch(tx.slot.members)
    tx.do("HSET", tx.slot.members, record.session_id, record.parent_session_id or "")
    save_session(tx, known)


async def _branch(
    tx: Transaction, known: Known[Session], session_id: SessionId, options: CreateSession, point: BranchPoint
) -> None:
    source = await load_session(tx, point.from_session_id)
    line, messages, state, holder = await place_of(tx, source.value, point)
    results = await results_missing_at(tx, source, point, line, messages)
    record = branched(session_id, source.value.record, options, tx.now, holder=holder)
    known.value = Session(SessionRow(record=record, segment="", name=tx.ids.new("s")), new=True)
    await stand_at(tx, known, line, messages=messages, state=state)
    known.value.set(first_state=state)
    add_messages(tx, known, results)
    add_checkpoint(tx, known, "save")


async def results_missing_at(
    tx: Transaction, source: Known[Session], point: BranchPoint, line: tuple[Stretch, ...], messages: int
) -> tuple[ToolMessage, ...]:
    """Results for the calls that are still open at a point, given the number of messages in the history there."""
    tail = await tail_of(tx, line, messages)
    calls = open_tail(tail)
    if not calls:
        return ()
    step_id = open_step(tail)
    held = [row for row in await read_staged(tx, source) if row.step_id == step_id] if step_id is not None else []
    later = await messages_after(tx, line, messages, len(calls))
    children = (await Refs.of(tx, source)).all()
    at = None if point.checkpoint_id is None else await checkpoint_row(tx, source.value, point.checkpoint_id)
    rows = [await find_call(tx, point.from_session_id, call.id) for call in calls]
    return missing_results(
        tail,
        held,
        later=later,
        children=children,
        questions=[row for row in rows if row is not None],
        effects=await read_effects(tx, point.from_session_id),
        by=None if at is None else at.checkpoint.created_at,
    )


async def place_of(
    tx: Transaction, source: Session, point: BranchPoint
) -> tuple[tuple[Stretch, ...], int, StatePlace, Holder]:
    """The starting point of a branch or the target of a rewind.

    Returns the line, message count and place in the state log there, and who has the session there.
    """
    session_id = source.record.session_id
    messages = 0 if point.checkpoint_id == BEGINNING else point.message_count
    if point.checkpoint_id is not None and point.checkpoint_id != BEGINNING:
        found = await checkpoint_row(tx, source, point.checkpoint_id)
        holder = holder_at(source.record, found.checkpoint.version)
        return line_of(found.segment), found.checkpoint.message_count, found.state, holder
    line = session_line(source)
    if messages is None:
        return line, source.record.message_count, source.row.state, holder_of(source.record)
    check_cut(session_id, messages, source.record.message_count)
    return line, messages, *(await _state_at(tx, source, line, messages))


async def _state_at(
    tx: Transaction, source: Session, line: tuple[Stretch, ...], messages: int
) -> tuple[StatePlace, Holder]:
    """The place in the state log that belongs to a session's first messages, and who has the session there."""
    while follows_a_step(await messages_after(tx, line, messages, 1)):
        messages += 1
    cut = Cut(messages, source.row.state.count)
    line = await reaching(tx, line)
    for owner, parts in groupby(zip(line, await owners_of(tx, line), strict=True), key=lambda each: each[1]):
        stretches = [part for part, _ in parts]
        session = await find_session(tx, owner) if owner is not None else None
        whose = (source if session is None else session.value).record
        within: dict[str, tuple[int, int]] = {}
        count: int | None = None
        for part in stretches:
            within[part.segment] = cut.within
            made_with = part.states
            if part is line[-1] and session is not None:
                made_with = session.value.row.first_state.count
            count = cut.without_checkpoint(
                owned=session is not None,
                made_with=made_with if part is stretches[-1] else None,
                messages=part.messages,
                states=part.states,
            )
            if count is not None:
                break
        if session is not None:
            async for row in checkpoints_of(tx, session.value):
                most = within.get(row.segment, (-1, -1))
                if row.checkpoint.message_count <= most[0] and row.state.count <= most[1]:
                    return row.state, holder_at(whose, row.checkpoint.version)
            if count is not None and stretches[-1] is line[-1]:
                return session.value.row.first_state, holder_at(whose, BEGAN)
        if count is not None:
            return await place_at(tx, line, count), holder_at(whose, BEGAN)
    raise AssertionError("a line of history has an end")
