"""How a session is created: from nothing, or as a branch of another session."""

from dataclasses import replace

from helix_agents.backends.in_memory.checkpoints import checkpoint_row
from helix_agents.backends.in_memory.history import standing_at, with_checkpoint, with_messages, with_state
from helix_agents.backends.in_memory.lineage import Segment, messages_after, newest_messages
from helix_agents.backends.in_memory.messages import message_of
from helix_agents.backends.in_memory.pending import find_call
from helix_agents.backends.in_memory.rows import session_row
from helix_agents.backends.in_memory.tables import SessionRow, Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.checkpoints import BEGINNING, Cut, check_cut
from helix_agents.domain.errors import SessionAlreadyExistsError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, ToolMessage
from helix_agents.domain.queued import follows_a_step
from helix_agents.domain.session_changes import BEGAN, branched, created, holder_at, holder_of
from helix_agents.domain.sessions import BranchPoint, CreateSession, Holder
from helix_agents.domain.transcript import missing_results, open_step, open_tail
from helix_agents.domain.writes import difference


def create(tx: Transaction, session_id: SessionId, options: CreateSession) -> SessionRow:
    """The new session's row, for the caller to store.

    Raises:
        SessionAlreadyExistsError: the id is taken.
    """
    if session_id in tx.tables.sessions:
        raise SessionAlreadyExistsError(session_id)
    if options.branch is not None:
        return _branch(tx, session_id, options, options.branch)
    parent_id = options.parent_session_id
    parent = tx.tables.sessions.get(parent_id) if parent_id is not None else None
    segment = Segment(owner=session_id)
    tx.append_under(tx.tables.segments, session_id, segment)
    if parent_id is not None:
        tx.append_under(tx.tables.children, parent_id, session_id)
    row = SessionRow(
        record=created(session_id, options, tx.now, parent=parent.record if parent else None),
        custom_state={},
        segment=segment,
        state_count=0,
        first_state_count=0,
    )
    row = with_state(tx, row, difference({}, options.custom_state).ops)
    return replace(row, first_state_count=row.state_count)


def _branch(tx: Transaction, session_id: SessionId, options: CreateSession, point: BranchPoint) -> SessionRow:
    source = session_row(tx.tables, point.from_session_id)
    segment, messages, states, holder = place_of(tx.tables, source, point)
    record = branched(session_id, source.record, options, tx.now, holder=holder)
    blank = replace(source, record=record, remembered=None)
    row = standing_at(tx, blank, segment, messages=messages, states=states)
    row = replace(row, first_state_count=row.state_count)
    results = results_missing_at(tx.tables, point, segment, messages)
    return with_checkpoint(tx, with_messages(tx, row, results), "save")


def results_missing_at(tables: Tables, point: BranchPoint, segment: Segment, messages: int) -> tuple[ToolMessage, ...]:
    """Results for the calls that are still open at a point, given the number of messages in the history there."""
    source = point.from_session_id
    tail: list[Message] = []
    for _, entry in newest_messages(segment, messages):
        tail.append(message_of(entry))
        if not isinstance(tail[-1], ToolMessage):
            break
    calls = open_tail(tail)
    if not calls:
        return ()
    step_id = open_step(tail)
    held = [row for row in tables.staged.get(source, {}).values() if row.step_id == step_id]
    later = map(message_of, messages_after(segment, messages, len(calls)))
    children = tables.refs.get(source, {}).values()
    rows = [find_call(tables, source, call.id) for call in calls]
    effects = tables.effects.get(source, {}).values()
    at = None if point.checkpoint_id is None else checkpoint_row(tables, source, point.checkpoint_id).checkpoint
    return missing_results(
        tail,
        held,
        later=later,
        children=children,
        questions=[row for row in rows if row is not None],
        effects=effects,
        by=None if at is None else at.created_at,
    )


def place_of(tables: Tables, source: SessionRow, point: BranchPoint) -> tuple[Segment, int, int, Holder]:
    """The starting point of a branch or the target of a rewind.

    Returns the segment, message count and state count there, and who has the session there.
    """
    session_id = source.record.session_id
    messages = 0 if point.checkpoint_id == BEGINNING else point.message_count
    if point.checkpoint_id is not None and point.checkpoint_id != BEGINNING:
        found = checkpoint_row(tables, session_id, point.checkpoint_id)
        holder = holder_at(source.record, found.checkpoint.version)
        return found.segment, found.checkpoint.message_count, found.state_count, holder
    if messages is None:
        return source.segment, source.record.message_count, source.state_count, holder_of(source.record)
    check_cut(session_id, messages, source.record.message_count)
    return source.segment, messages, *_states_at(tables, source, messages)


def _states_at(tables: Tables, source: SessionRow, messages: int) -> tuple[int, Holder]:
    """How many state writes belong to a session's first messages, and who has it there."""
    while follows_a_step(map(message_of, messages_after(source.segment, messages, 1))):
        messages += 1
    cut, part = Cut(messages, source.state_count), source.segment
    while True:
        whose = (source if part.owner is None else tables.sessions[part.owner]).record
        rows = tables.checkpoints.get(part.owner, {}).values() if part.owner is not None else ()
        for row in reversed(rows):
            if row.segment is part and row.checkpoint.message_count <= cut.messages and row.state_count <= cut.states:
                return row.state_count, holder_at(whose, row.checkpoint.version)
        count = cut.without_checkpoint(
            owned=part.owner is not None,
            made_with=_made_with(tables, part),
            messages=part.message_boundary,
            states=part.state_boundary,
        )
        if count is not None:
            return count, holder_at(whose, BEGAN)
        assert part.parent is not None
        part = part.parent


def _made_with(tables: Tables, part: Segment) -> int | None:
    """How many state writes the session of a segment was created with, if it starts in that segment."""
    if part.parent is None:
        return tables.sessions[part.owner].first_state_count if part.owner is not None else 0
    return None if part.parent.owner == part.owner else part.state_boundary
