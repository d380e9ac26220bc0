"""The engine's step commit in SQLite: the hot path, whose cost does not depend on the session's history."""

from dataclasses import dataclass, field

from helix_agents.backends.session_rows import (
    CommitExtra,
    checkpoint_name,
    encode_suspension,
    first_answer,
    was_committed,
)
from helix_agents.backends.sqlite.checkpoints import read_checkpoint, write_checkpoint
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.effects import forget_effects
from helix_agents.backends.sqlite.entry_rows import write_session_entries
from helix_agents.backends.sqlite.flags import drop_flag, read_flag
from helix_agents.backends.sqlite.lineage import append_messages
from helix_agents.backends.sqlite.pending import (
    ask_calls,
    calls_below,
    change_calls,
    driven_calls,
    find_call,
    own_calls,
)
from helix_agents.backends.sqlite.queues import take_steering
from helix_agents.backends.sqlite.rows import SessionHead, SessionRow, load_session
from helix_agents.backends.sqlite.runs import current_run, store_current
from helix_agents.backends.sqlite.staging import stage, take_staged
from helix_agents.backends.sqlite.state_writes import StateWrites
from helix_agents.backends.sqlite.stream_rows import append_chunks, end_with_commit
from helix_agents.backends.sqlite.sub_sessions import add_refs, some_went_on, update_ref
from helix_agents.backends.sqlite.usage_rows import insert_usage, used_in_step
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, StepCommit, awaited_children, committed_run, stream_end_of
from helix_agents.domain.errors import ModeIsWriteOnceError, StaleStateError
from helix_agents.domain.flags import comes_first, is_taken
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.pending import OPEN, READY, PendingCall, consume, deliver_late_answer, drop
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import SessionDetail, SessionState
from helix_agents.domain.writes import WriteOp, merge_warnings

# One statement checks the fence, takes the next version and advances every count; the rows to insert follow from what
# it returns. It changes no indexed column, except the status of a session that expires.
_ADVANCE = """
UPDATE __agents_sessions SET
    version = version + 1, status = iif(status = 'paused' AND ?1 = 'active', 'paused', ?1), step_count = ?,
    updated_at = ?, message_count = message_count + ?,
    checkpoint = (segment << 32) | (version + 1), checkpointed_at = ?, checkpoint_source = 'staging',
    state_count = state_count + ?, state_since_bytes = state_since_bytes + ?,
    commit_attempt = attempt, commit_step = ?, commit_round = ?,
    commit_checkpoint = (segment << 32) | (version + 1), commit_extra = NULL,
    agent_type = ?, mode = coalesce(mode, ?), suspension_context = ?, detail = ?
WHERE namespace = ? AND session_id = ? AND run_id = ? AND attempt = ? AND running = 1
    AND (commit_step, commit_round) < (?, ?) AND version = coalesce(?, version)
RETURNING key, root_session_id, status, version, segment, message_count, state_count, state_base_bytes,
    state_since_bytes, staged, mode, steered
"""


_PATCH = "UPDATE __agents_sessions SET metadata = nullif(json_patch(coalesce(metadata, '{}'), ?), '{}') WHERE key = ?"


@dataclass(slots=True)
class EncodedStep:
    """A step with everything encoded that can be encoded before the writing thread takes over."""

    namespace: str
    state: SessionState
    bodies: list[str]
    meta: CheckpointMeta
    commit: StepCommit
    expected_version: int | None
    now: int
    writes: str | None = field(init=False)
    detail: str = field(init=False)
    suspension: str | None = field(init=False)
    used: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.suspension = encode_suspension(self.state.suspension_context)
        self.writes = encode(self.commit.writes).decode() if self.commit.writes.ops else None
        self.detail = encode(SessionDetail.of(self.state)).decode()
        self.used = used_in_step(self.state, self.commit)


def commit_step(connection: Connection, step: EncodedStep, state_writes: StateWrites) -> Committed:
    """Commit a step of the run that holds the fence.

    Raises:
        SupersededError: another run or attempt holds the fence, or this one already made a later commit.
        StaleStateError: the caller expected another version.
    """
    commit, meta, now = step.commit, step.meta, step.now
    advanced = _advance(connection, step)
    if advanced is None:
        return _explain(connection, step)
    row, is_steered = advanced
    version_before = row.version - 1
    _check_mode(row, step.state)
    if commit.stage:
        stage(connection, row, commit.stage, now)
    ops = commit.writes.ops
    staged = take_staged(connection, row, meta.step_id) if row.staged and commit.promote_staging else ()
    if step.bodies:
        row.message_count -= len(step.bodies)
        append_messages(connection, row, step.bodies, now)
    if is_steered and commit.takes_messages:
        take_steering(connection, row, commit.fence.run_id, now)
    if ops or staged:
        _log_writes(connection, step, row, state_writes, (*staged, *ops), version_before)
    else:
        state_writes.keep(row, version_before)
    sequence = meta.stream_sequence
    if commit.stream is not None:
        sequence = append_chunks(connection, step.namespace, commit.stream, now)
    write_checkpoint(
        connection,
        row,
        source="staging",
        now=now,
        has_writes=bool(ops or staged),
        step_id=meta.step_id,
        step_count=meta.step_count,
        stream_sequence=sequence,
        used=step.used,
    )
    extra = _side_rows(connection, step, row)
    end = stream_end_of(commit, again=extra.again)
    committed = Committed(
        checkpoint_id=checkpoint_name(row.checkpoint) or "",
        new_version=row.version,
        message_count=row.message_count,
        stream_sequence=sequence,
        warnings=merge_warnings((*staged, *ops)),
        again=extra.again,
        pending=extra.pending,
        status=row.status,
        stream_ended=end is not None,
    )
    if end is not None:
        end_with_commit(connection, step.namespace, *end, committed, now)
    return committed


def _advance(connection: Connection, step: EncodedStep) -> tuple[SessionHead, bool] | None:
    """Take the next version under the fence, and learn whether messages wait for the run; None if the fence or the
    expected version does not match."""
    state, commit, meta = step.state, step.commit, step.meta
    found = connection.one(
        _ADVANCE,
        (
            state.status,
            meta.step_count,
            step.now,
            len(step.bodies),
            step.now,
            0 if step.writes is None else 1,
            0 if step.writes is None else len(step.writes),
            commit.step,
            commit.round,
            state.agent_type,
            state.mode,
            step.suspension,
            step.detail,
            step.namespace,
            state.session_id,
            commit.fence.run_id,
            commit.fence.attempt,
            commit.step,
            commit.round,
            step.expected_version,
        ),
    )
    if found is None:
        return None
    key, root, status, *ends, steered = found
    of_run = (meta.step_count, commit.fence.run_id, commit.fence.attempt, 1)
    return SessionHead(key, step.namespace, state.session_id, root, status, *of_run, *ends), bool(steered)


def _log_writes(
    connection: Connection,
    step: EncodedStep,
    row: SessionHead,
    state_writes: StateWrites,
    ops: tuple[WriteOp, ...],
    version_before: int,
) -> None:
    """Log the step's writes; so far the row was advanced as if there were only the commit's own writes."""
    expected = (row.state_count, row.state_base_bytes, row.state_since_bytes)
    if step.writes is not None:
        row.state_count -= 1
        row.state_since_bytes -= len(step.writes)
    text = step.writes if len(ops) == len(step.commit.writes.ops) else None
    state_writes.log(connection, row, ops, version_before=version_before, text=text)
    if (row.state_count, row.state_base_bytes, row.state_since_bytes) != expected:
        connection.execute(
            "UPDATE __agents_sessions SET state_count = ?, state_base_bytes = ?, state_since_bytes = ? WHERE key = ?",
            (row.state_count, row.state_base_bytes, row.state_since_bytes, row.key),
        )


def _side_rows(connection: Connection, step: EncodedStep, row: SessionHead) -> CommitExtra:
    """Write everything in the commit besides messages, state and checkpoint; most steps have none of it."""
    commit, now, namespace = step.commit, step.now, step.namespace
    if commit.refs:
        add_refs(connection, namespace, row.session_id, commit.refs, now)
    for update in commit.ref_updates:
        update_ref(connection, namespace, row.session_id, update, now)
    if commit.pending:
        ask_calls(connection, namespace, commit.pending)
    if commit.consume:
        change_calls(connection, namespace, _named(connection, row, commit.consume), lambda call: consume(call, now))
    if commit.deliver_late_answers:
        told = _named(connection, row, commit.deliver_late_answers)
        change_calls(connection, namespace, told, deliver_late_answer)
    if commit.drop_pending:
        change_calls(connection, namespace, own_calls(connection, row), drop)
    if commit.forget_effects:
        forget_effects(connection, namespace, row.session_id, commit.forget_effects)
    flag = read_flag(connection, namespace, row.session_id) if commit.take_stop or commit.suspend else None
    if is_taken(flag, commit):
        drop_flag(connection, namespace, row.session_id, commit.fence.run_id)
    if commit.usage and step.used is None:
        insert_usage(connection, namespace, commit.usage, now)
    if commit.entries or commit.audit:
        owner = step.state.worked_by
        write_session_entries(
            connection, namespace, commit.entries, commit.audit, owner=owner, mark=row.version, now=now
        )
    if commit.metadata:
        connection.execute(_PATCH, (encode(commit.metadata).decode(), row.key))
    extra = CommitExtra()
    if commit.suspend:
        waiting = tuple(call for call in calls_below(connection, row) if call.state in OPEN)
        again = (
            comes_first(flag, commit)
            or any(call.state in READY for call in driven_calls(connection, row))
            or some_went_on(connection, namespace, awaited_children(step.state))
        )
        extra = CommitExtra(again=again, pending=waiting)
        connection.execute(
            "UPDATE __agents_sessions SET commit_extra = ? WHERE key = ?", (encode(extra).decode(), row.key)
        )
    if commit.run is not None:
        _update_run(connection, step, row, commit.run, again=extra.again)
    return extra


def _named(connection: Connection, row: SessionHead, call_ids: tuple[ToolCallId, ...]) -> list[PendingCall]:
    """The calls with these ids that the tree knows."""
    found = (find_call(connection, row.namespace, row.root_session_id, call_id) for call_id in call_ids)
    return [call for call in found if call is not None]


def _update_run(connection: Connection, step: EncodedStep, row: SessionHead, update: RunUpdate, *, again: bool) -> None:
    run = current_run(connection, row)
    assert run is not None
    changed = committed_run(run, update, step.meta.step_count, again=again, now=step.now)
    store_current(connection, row, changed)
    if changed.status != "running":
        connection.execute("UPDATE __agents_sessions SET running = 0 WHERE key = ?", (row.key,))


def _check_mode(row: SessionHead, state: SessionState) -> None:
    if row.mode != state.mode:
        raise ModeIsWriteOnceError(state.session_id, str(row.mode), str(state.mode))


def _explain(connection: Connection, step: EncodedStep) -> Committed:
    """The first answer if the commit was made before; otherwise raises the reason why it is refused."""
    row = load_session(connection, step.namespace, step.state.session_id)
    if was_committed(row, current_run(connection, row), step.commit):
        return _remembered(connection, row)
    raise StaleStateError(row.session_id, step.expected_version or 0, row.version)


def _remembered(connection: Connection, row: SessionRow) -> Committed:
    assert row.commit_checkpoint is not None
    checkpoint = read_checkpoint(connection, row.commit_checkpoint)
    assert checkpoint is not None
    return first_answer(checkpoint, row.commit_extra)
