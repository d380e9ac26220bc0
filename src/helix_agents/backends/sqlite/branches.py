"""Branching and rewinding: new segments over the same history, at a cost that does not grow with it."""

from helix_agents.backends.session_rows import record_of, version_of
from helix_agents.backends.sqlite.checkpoints import created_at, own_checkpoint, state_count_at, write_checkpoint
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.effects import find_effect
from helix_agents.backends.sqlite.lineage import append_messages, new_segment, read_messages
from helix_agents.backends.sqlite.pending import find_call
from helix_agents.backends.sqlite.rows import SessionRow, load_session, new_row
from helix_agents.backends.sqlite.staging import read_staged
from helix_agents.backends.sqlite.sub_sessions import read_refs
from helix_agents.domain.checkpoints import BEGINNING, check_cut
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.messages import Message, ToolMessage
from helix_agents.domain.records import encode
from helix_agents.domain.session_changes import branched, holder_at, holder_of
from helix_agents.domain.sessions import BranchPoint, CreateSession, Holder
from helix_agents.domain.transcript import missing_results, only_held, open_step, open_tail


def open_branch(
    connection: Connection, namespace: str, session_id: SessionId, options: CreateSession, now: int
) -> SessionRow:
    """The row, not stored yet, of a session that starts from a point of another one."""
    assert options.branch is not None
    source = load_session(connection, namespace, options.branch.from_session_id)
    segment, messages, writes, holder = _branch_point(connection, namespace, source, options.branch)
    own = new_segment(
        connection, namespace, session_id, parent=segment, message_boundary=messages, state_boundary=writes
    )
    record = branched(session_id, record_of(source), options, now, holder=holder)
    row = new_row(namespace, record, own)
    row.message_count, row.state_count = messages, writes
    results = _missing_results(connection, namespace, options.branch, segment, messages)
    _append(connection, row, results, now)
    write_checkpoint(connection, row, source="save", now=now, has_writes=False)
    return row


def cut_back(connection: Connection, row: SessionRow, segment: int, messages: int, writes: int) -> None:
    """Continue a session from an earlier point of its own history; what branches see does not change."""
    row.segment = new_segment(
        connection,
        row.namespace,
        row.session_id,
        parent=segment,
        message_boundary=messages,
        state_boundary=writes,
    )
    row.message_count, row.state_count = messages, writes
    row.state_base_bytes = row.state_since_bytes = 0


def rewind(connection: Connection, row: SessionRow, checkpoint_id: CheckpointId, now: int) -> Holder:
    """Restore a session's messages and state to one of its checkpoints, and answer calls that were open there.

    Returns who has the session there.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    point = BranchPoint(from_session_id=row.session_id, checkpoint_id=checkpoint_id)
    segment, messages, writes, holder = _branch_point(connection, row.namespace, row, point)
    results = _missing_results(connection, row.namespace, point, segment, messages)
    # A later return to this point finds the results that the open step held.
    here = BranchPoint(from_session_id=row.session_id)
    left = _missing_results(connection, row.namespace, here, row.segment, row.message_count)
    _append(connection, row, only_held(left), now)
    cut_back(connection, row, segment, messages, writes)
    _append(connection, row, results, now)
    return holder


def _branch_point(
    connection: Connection, namespace: str, source: SessionRow, at: BranchPoint
) -> tuple[int, int, int, Holder]:
    """Segment, message count and state count to branch from or rewind to, and who has the session there."""
    messages = 0 if at.checkpoint_id == BEGINNING else at.message_count
    if at.checkpoint_id is not None and at.checkpoint_id != BEGINNING:
        there = own_checkpoint(connection, namespace, source.session_id, at.checkpoint_id)
        return *there, holder_at(record_of(source), version_of(at.checkpoint_id))
    if messages is None:
        return source.segment, source.message_count, source.state_count, holder_of(record_of(source))
    check_cut(source.session_id, messages, source.message_count)
    return source.segment, messages, *state_count_at(connection, source, messages)


def _missing_results(
    connection: Connection, namespace: str, point: BranchPoint, segment: int, messages: int
) -> tuple[ToolMessage, ...]:
    """Results for the calls that are still open at a point, given the number of messages in the segment there."""
    tail: list[Message] = []
    for sequence in range(messages, 0, -1):
        tail.append(read_messages(connection, segment, sequence, sequence)[0].message)
        if not isinstance(tail[-1], ToolMessage):
            break
    calls = open_tail(tail)
    if not calls:
        return ()
    step_id = open_step(tail)
    held = read_staged(connection, namespace, point.from_session_id, step_id) if step_id is not None else []
    later = read_messages(connection, segment, messages + 1, messages + len(calls))
    children = read_refs(connection, namespace, point.from_session_id)
    rows = [find_call(connection, namespace, point.from_session_id, call.id) for call in calls]
    effects = [find_effect(connection, namespace, point.from_session_id, call.id) for call in calls]
    by = created_at(connection, point.checkpoint_id) if point.checkpoint_id is not None else None
    return missing_results(
        tail,
        held,
        later=(stored.message for stored in later),
        children=children,
        questions=[row for row in rows if row is not None],
        effects=[effect for effect in effects if effect is not None],
        by=by,
    )


def _append(connection: Connection, row: SessionRow, results: tuple[ToolMessage, ...], now: int) -> None:
    append_messages(connection, row, [encode(result).decode() for result in results], now)
