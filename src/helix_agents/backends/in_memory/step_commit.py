"""The step commit: messages, state, staging, checkpoint and everything else a step writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from helix_agents.backends.in_memory.entry_rows import write_session_entries
from helix_agents.backends.in_memory.history import with_checkpoint, with_messages, with_state
from helix_agents.backends.in_memory.memory import Memory, SharedStream
from helix_agents.backends.in_memory.pending import ask_for, change_calls
from helix_agents.backends.in_memory.queues import take_steering
from helix_agents.backends.in_memory.rows import current_run, driven_calls, session_row, tree_calls
from helix_agents.backends.in_memory.runs import put_run
from helix_agents.backends.in_memory.sessions import check_version, committed, store
from helix_agents.backends.in_memory.staging import promote, stage
from helix_agents.backends.in_memory.sub_sessions import add_refs, some_went_on, update_ref
from helix_agents.backends.in_memory.tables import SessionRow
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.backends.in_memory.usage import record_usage
from helix_agents.backends.stream_rules import deleted
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import (
    Committed,
    RememberedCommit,
    StepCommit,
    awaited_children,
    check_step_commit,
    committed_run,
    status_after,
    stream_end_of,
)
from helix_agents.domain.flags import comes_first, is_taken
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import OPEN, READY, consume, deliver_late_answer, drop
from helix_agents.domain.session_changes import saved, stepped
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamAppend
from helix_agents.domain.writes import WriteOp, difference, merge_warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The arguments of `save_state_and_promote_staging`, copied so that the caller cannot reach them any more."""

    session_id: SessionId
    state: SessionState
    messages: Sequence[Message]
    meta: CheckpointMeta
    expected_version: int | None
    commit: StepCommit | None


def commit_step(tx: Transaction, memory: Memory, namespace: str, step: Step) -> Committed:
    """Commit a step, or repeat the first answer if it was committed before.

    Raises:
        SupersededError: the commit's fence is not the current one; checked before anything else.
        StaleStateError: the caller expected another version.
    """
    row, commit = session_row(tx.tables, step.session_id), step.commit
    if commit is not None:
        first_answer = check_step_commit(
            step.session_id, current_run(tx.tables, step.session_id), commit, row.remembered
        )
        if first_answer is not None:
            return first_answer
    check_version(row, step.expected_version)
    meta = step.meta
    if commit is not None and commit.stream is not None:
        sequence = _append_to_stream(tx, memory, namespace, commit.stream)
        meta = msgspec.structs.replace(meta, stream_sequence=sequence)
    row, ops = _with_step(tx, row, step, meta)
    answer = msgspec.structs.replace(
        committed(row),
        stream_sequence=meta.stream_sequence,
        warnings=merge_warnings(ops),
        status=row.record.status,
    )
    if commit is not None:
        answer = _side_rows(tx, row, commit, meta, answer)
        remembered = RememberedCommit(fence=commit.fence, step=commit.step, round=commit.round, answer=answer)
        row = replace(row, remembered=remembered)
        answer = _end_stream(tx, memory, namespace, commit, answer)
    store(tx, row)
    return answer


def _with_step(
    tx: Transaction, row: SessionRow, step: Step, meta: CheckpointMeta
) -> tuple[SessionRow, tuple[WriteOp, ...]]:
    """The session after the step's messages and state writes, with its checkpoint, and those writes."""
    commit = step.commit
    if commit is None:
        record = saved(row.record, step.state, tx.now)
        writes = difference(row.custom_state, step.state.custom_state).ops
    else:
        record = stepped(row.record, step.state, commit.metadata, tx.now)
        status = status_after(row.record.status, record.status)
        record = msgspec.structs.replace(record, step_count=meta.step_count, status=status)
        writes = commit.writes.ops
        stage(tx, step.session_id, commit.stage)
    ops = writes
    if commit is None or commit.promote_staging:
        ops = (*promote(tx, step.session_id, meta.step_id), *writes)
    row = with_messages(tx, replace(row, record=record), step.messages)
    if commit is not None and commit.takes_messages:
        row = with_messages(tx, row, take_steering(tx, step.session_id, commit.fence.run_id))
    row = with_state(tx, row, ops)
    return with_checkpoint(tx, row, "staging", ops=ops, meta=meta), ops


def _side_rows(
    tx: Transaction, row: SessionRow, commit: StepCommit, meta: CheckpointMeta, answer: Committed
) -> Committed:
    """Write everything in the commit besides messages and state; the answer tells whether the run continues."""
    session_id = row.record.session_id
    add_refs(tx, session_id, commit.refs)
    for update in commit.ref_updates:
        update_ref(tx, session_id, update)
    for call_id in commit.forget_effects:
        tx.remove(tx.tables.effects.get(session_id, {}), call_id)
    flag = tx.tables.flags.get(session_id)
    if is_taken(flag, commit):
        tx.remove(tx.tables.flags, session_id)
    record_usage(tx, commit.usage)
    if commit.entries or commit.audit:
        owner, mark = row.record.worked_by, row.record.version
        write_session_entries(tx, commit.entries, commit.audit, owner=owner, mark=mark)
    _change_pending(tx, row, commit)
    if commit.suspend:
        calls = sorted(tree_calls(tx.tables, session_id), key=lambda call: (call.created_at, call.tool_call_id))
        again = (
            comes_first(flag, commit)
            or any(call.state in READY for call in driven_calls(tx.tables, session_id))
            or some_went_on(tx, awaited_children(row.record))
        )
        waiting = tuple(call for call in calls if call.state in OPEN)
        answer = msgspec.structs.replace(answer, again=again, pending=waiting)
    run = current_run(tx.tables, session_id)
    if run is not None and commit.run is not None:
        put_run(tx, committed_run(run, commit.run, meta.step_count, again=answer.again, now=tx.now))
    return answer


def _change_pending(tx: Transaction, row: SessionRow, commit: StepCommit) -> None:
    ask_for(tx, commit.pending)
    calls = tx.tables.pending.get(row.record.root_session_id, {})
    change_calls(tx, (calls[i] for i in commit.consume if i in calls), lambda call: consume(call, tx.now))
    change_calls(tx, (calls[i] for i in commit.deliver_late_answers if i in calls), deliver_late_answer)
    if commit.drop_pending:
        session_id = row.record.session_id
        change_calls(tx, (call for call in calls.values() if call.session_id == session_id), drop)


def _append_to_stream(tx: Transaction, memory: Memory, namespace: str, append: StreamAppend) -> int:
    """Append the commit's chunks within the transaction; returns the stream's latest sequence after them."""
    stream: SharedStream | None = memory.streams.get((namespace, append.stream_id))
    if stream is None:
        raise deleted(append)
    sequence = stream.check_append(append)
    tx.afterwards(lambda: stream.append(append))
    return sequence


def _end_stream(tx: Transaction, memory: Memory, namespace: str, commit: StepCommit, answer: Committed) -> Committed:
    """Bring the stream that takes the commit's chunks to rest with the commit, unless the run continues."""
    end = stream_end_of(commit, again=answer.again)
    if end is None:
        return answer
    stream = memory.streams[namespace, end[0].stream_id]
    tx.afterwards(lambda: stream.end_with_commit(*end, answer))
    return msgspec.structs.replace(answer, stream_ended=True)
