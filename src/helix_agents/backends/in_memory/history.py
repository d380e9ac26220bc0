"""What moves a session along its lineage: messages, state writes, checkpoints, and jumps to another point."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from helix_agents.backends.in_memory.lineage import MessageEntry, Segment, fork, next_state_entry, state_at
from helix_agents.backends.in_memory.tables import CheckpointRow, SessionRow
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.checkpoints import Checkpoint, CheckpointMeta
from helix_agents.domain.errors import InvalidWriteError
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message
from helix_agents.domain.records import encode
from helix_agents.domain.session_changes import pointed_at
from helix_agents.domain.sessions import CheckpointSource
from helix_agents.domain.writes import AppendToNonListError, StepWrites, WriteOp, apply_writes


def with_messages(tx: Transaction, row: SessionRow, messages: Iterable[Message]) -> SessionRow:
    """The session after these messages."""
    session_id = row.record.session_id
    count = row.record.message_count
    for message in messages:
        data = encode(message)
        check_size(session_id, "message", len(data), tx.limits.message_bytes)
        tx.append(row.segment.messages, MessageEntry(data, tx.now))
        count += 1
    return replace(row, record=msgspec.structs.replace(row.record, message_count=count))


def with_state(tx: Transaction, row: SessionRow, ops: tuple[WriteOp, ...]) -> SessionRow:
    """The session after these state writes.

    Raises:
        InvalidWriteError: an append meets a value that is not a list.
    """
    if not ops:
        return row
    session_id = row.record.session_id
    try:
        state = apply_writes(row.custom_state, ops)
    except AppendToNonListError as problem:
        raise InvalidWriteError(session_id, problem.key, str(problem)) from problem
    if tx.limits.state_bytes is not None:
        keys = tuple(dict.fromkeys(op.key for op in ops))
        check_size(session_id, "state", len(encode(state)), tx.limits.state_bytes, keys)
    tx.append(row.segment.states, next_state_entry(row.segment, row.state_count, ops, state))
    return replace(row, custom_state=state, state_count=row.state_count + 1)


def with_checkpoint(
    tx: Transaction,
    row: SessionRow,
    source: CheckpointSource,
    *,
    ops: tuple[WriteOp, ...] = (),
    meta: CheckpointMeta | None = None,
) -> SessionRow:
    """The session with a checkpoint of its present state, and its pointer on that checkpoint."""
    record = row.record
    checkpoint = Checkpoint(
        checkpoint_id=tx.ids.new("cp"),
        session_id=record.session_id,
        run_id=record.current_run_id,
        step_id=meta.step_id if meta else None,
        step_count=meta.step_count if meta else record.step_count,
        status=record.status,
        message_count=record.message_count,
        stream_sequence=meta.stream_sequence if meta else 0,
        writes=StepWrites(ops=ops),
        source=source,
        version=record.version,
        created_at=tx.now,
    )
    tx.put(
        tx.within(tx.tables.checkpoints, record.session_id),
        checkpoint.checkpoint_id,
        CheckpointRow(checkpoint=checkpoint, segment=row.segment, state_count=row.state_count),
    )
    return replace(row, record=pointed_at(record, checkpoint))


def standing_at(tx: Transaction, row: SessionRow, place: Segment, *, messages: int, states: int) -> SessionRow:
    """The session on a new segment of its own, which sees this much of another segment."""
    segment = fork(place, row.record.session_id, messages=messages, states=states)
    if segment.parent is not None:
        tx.append(segment.parent.children, segment)
    tx.append_under(tx.tables.segments, row.record.session_id, segment)
    state = row.custom_state
    if place is not row.segment or states != row.state_count:
        state = state_at(segment, states)
    return replace(
        row,
        segment=segment,
        custom_state=state,
        state_count=states,
        record=msgspec.structs.replace(row.record, message_count=messages),
    )
