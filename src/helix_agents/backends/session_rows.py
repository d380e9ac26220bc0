"""Rows of sessions, runs and checkpoints as every SQL backend stores them, and the records they represent."""

from collections.abc import Sequence
from typing import Any, Protocol

from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.commits import Committed, StepCommit
from helix_agents.domain.entries import RunSummary
from helix_agents.domain.errors import SupersededError
from helix_agents.domain.ids import CheckpointId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import Record, decode, decode_json, encode
from helix_agents.domain.runs import RunRecord, check_fence
from helix_agents.domain.sessions import SessionDetail, SessionState, SessionSummary, SuspensionContext
from helix_agents.domain.writes import NO_WRITES, StepWrites, merge_warnings

_SUMMARY = (
    "session_id, agent_type, status, step_count, message_count, version, user_id, tags, metadata, parent_session_id, "
    "root_session_id, run_id, expires_at, created_at, updated_at"
)
RUN_FIELDS = (
    "run_id",
    "session_id",
    "turn",
    "attempt",
    "status",
    "step_count",
    "start_sequence",
    "previous_run_id",
    "parent_run_id",
    "completion_reason",
    "output",
    "error",
    "owner",
    "workflow_id",
    "call_hooks",
    "told",
    "started_at",
    "ended_at",
)
RUN_COLUMNS = ", ".join(RUN_FIELDS)
# `is_untold` in SQL; the index on these runs has the same condition.
UNTOLD = "told <> status AND status <> 'running' AND (parent_run_id IS NULL OR status LIKE 'suspended%')"
# The check on the session's owner comes last: few runs are recent and few calls wait, however many sessions there are.
_AGENT = (
    "(SELECT agent_type FROM __agents_sessions s WHERE s.namespace = {0}.namespace AND s.session_id = {0}.session_id)"
)
_RUNS = (
    f"SELECT run_id, session_id, {_AGENT.format('r')} AS agent, turn, status, started_at, ended_at"
    " FROM __agents_runs r WHERE namespace = ?"
)
CHECKPOINT_COLUMNS = (
    "c.id, c.session_id, c.run_id, c.step_id, c.step_count, c.status, c.message_count, c.state_count, c.has_writes,"
    " c.stream_sequence, c.source, c.created_at,"
    " CASE WHEN c.has_writes THEN"
    " (SELECT writes FROM __agents_state_log l WHERE l.id = ((c.id >> 32 << 32) | c.state_count)) END"
)


class SessionColumns(Protocol):
    """The columns of a session's row that make up its record; text columns hold JSON."""

    session_id: str
    root_session_id: str
    parent_session_id: str | None
    agent_type: str
    status: Any
    version: int
    step_count: int
    resume_count: int
    message_count: int
    run_id: str | None
    mode: Any
    user_id: str | None
    created_at: int
    updated_at: int
    expires_at: int | None
    checkpoint: int | None
    checkpointed_at: int | None
    checkpoint_source: Any
    tags: str | None
    metadata: str | None
    detail: str

    @property
    def suspension_context(self) -> str | None: ...

    @suspension_context.setter
    def suspension_context(self, text: str | None) -> None: ...


class CommitColumns(Protocol):
    """The columns of a session's row that describe the last step its current run committed."""

    session_id: str
    commit_attempt: int
    commit_step: int
    commit_round: int


def was_committed(row: CommitColumns, current: RunRecord | None, commit: StepCommit) -> bool:
    """Whether this very commit was already made, so that its first answer is due; False if it is new and may write.

    Raises:
        SupersededError: another run or attempt is current, the run ended, or a later commit was made.
    """
    place, last = (commit.step, commit.round), (row.commit_step, row.commit_round)
    is_theirs = current is not None and current.fence == commit.fence
    if is_theirs and (commit.fence.attempt, place) == (row.commit_attempt, last):
        return True
    run = check_fence(row.session_id, current, commit.fence)
    if place <= last:
        reason = f"step {row.commit_step} round {row.commit_round} is committed already"
        raise SupersededError(row.session_id, run.run_id, run.attempt, reason)
    return False


def put_record(row: SessionColumns, record: SessionState) -> None:
    """Write a record's fields into its row; the row's counts and pointers stay unchanged."""
    row.agent_type = record.agent_type
    row.status = record.status
    row.version = record.version
    row.step_count = record.step_count
    row.resume_count = record.resume_count
    row.mode = record.mode
    row.user_id = record.user_id
    row.updated_at = record.updated_at
    row.expires_at = record.expires_at
    row.run_id = record.current_run_id
    row.tags = encode_tags(record.tags)
    row.metadata = encode_metadata(record.metadata)
    row.suspension_context = encode_suspension(record.suspension_context)
    row.detail = encode(SessionDetail.of(record)).decode()


def record_of(row: SessionColumns) -> SessionState:
    """The session record of a row, without its custom state and without the rows that other operations write."""
    detail = decode(row.detail, SessionDetail)
    return SessionState(
        session_id=row.session_id,
        agent_type=row.agent_type,
        held_by=detail.held_by,
        agent_version=detail.agent_version,
        earlier_versions=detail.earlier_versions,
        stream_id=detail.stream_id,
        status=row.status,
        step_count=row.step_count,
        output=detail.output,
        error=detail.error,
        failure_reason=detail.failure_reason,
        interrupt_context=detail.interrupt_context,
        suspended_awaiting_children=detail.suspended_awaiting_children,
        suspended_step_id=detail.suspended_step_id,
        suspension_context=decode(row.suspension_context, SuspensionContext) if row.suspension_context else None,
        tracing_context=detail.tracing_context,
        expires_at=row.expires_at,
        parent_session_id=row.parent_session_id,
        root_session_id=row.root_session_id,
        mode=row.mode,
        version=row.version,
        resume_count=row.resume_count,
        resumed=detail.resumed,
        message_count=row.message_count,
        current_run_id=row.run_id,
        checkpoint_id=checkpoint_name(row.checkpoint),
        checkpointed_at=row.checkpointed_at,
        checkpoint_source=row.checkpoint_source,
        user_id=row.user_id,
        tags=tuple(decode_json(row.tags)) if row.tags else (),
        metadata=decode_json(row.metadata) if row.metadata else {},
        workspace_ref=detail.workspace_ref,
        budget=detail.budget,
        spent=detail.spent,
        queued_at=detail.queued_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def summary_columns(holder: str) -> str:
    """The columns of a listing's line; `holder` is how the database reads who has the session from its `detail`."""
    # A field without a value is left out, and this one comes first: hardly any detail is parsed.
    return f"{_SUMMARY}, CASE WHEN substr(detail, 1, 11) = '{{\"held_by\":' THEN {holder} END"


def summary_of(row: Sequence[Any]) -> SessionSummary:
    """One line of a listing, from `summary_columns`."""
    return SessionSummary(
        session_id=row[0],
        agent_type=row[1],
        status=row[2],
        step_count=row[3],
        message_count=row[4],
        version=row[5],
        user_id=row[6],
        tags=tuple(decode_json(row[7])) if row[7] else (),
        metadata=decode_json(row[8]) if row[8] else {},
        parent_session_id=row[9],
        root_session_id=row[10],
        current_run_id=row[11],
        expires_at=row[12],
        created_at=row[13],
        updated_at=row[14],
        held_by=row[15],
    )


def encode_tags(tags: tuple[str, ...]) -> str | None:
    """Tags in the form of their column."""
    return encode(tags).decode() if tags else None


def encode_metadata(metadata: dict[str, str]) -> str | None:
    """Metadata in the form of its column."""
    return encode(metadata).decode() if metadata else None


def encode_suspension(context: SuspensionContext | None) -> str | None:
    """The suspension context in the form of its column."""
    return encode(context).decode() if context is not None else None


def checkpoint_name(number: int | None) -> str | None:
    """The public id of a checkpoint row."""
    return f"cpv1-{number >> 32:x}-{number & 0xFFFFFFFF:x}" if number is not None else None


def checkpoint_number(name: str) -> int | None:
    """The row number of a checkpoint id, or None if no checkpoint can have this id."""
    version, _, place = name.partition("-")
    segment, _, number = place.partition("-")
    try:
        if version != "cpv1" or not 0 <= int(number, 16) < 1 << 32 or not 0 <= int(segment, 16) < 1 << 31:
            return None
        key = int(segment, 16) << 32 | int(number, 16)
    except ValueError:
        return None
    return key if checkpoint_name(key) == name else None


def checkpoint_of(row: Sequence[Any]) -> Checkpoint:
    """A checkpoint's record, from `CHECKPOINT_COLUMNS`."""
    name = checkpoint_name(row[0])
    assert name is not None
    return Checkpoint(
        checkpoint_id=name,
        session_id=row[1],
        run_id=row[2],
        step_id=row[3],
        step_count=row[4],
        status=row[5],
        message_count=row[6],
        writes=decode(row[12], StepWrites) if row[12] is not None else NO_WRITES,
        stream_sequence=row[9],
        source=row[10],
        version=row[0] & 0xFFFFFFFF,
        created_at=row[11],
    )


class CommitExtra(Record):
    """The part of a step commit's answer that its checkpoint does not hold."""

    again: bool = False
    pending: tuple[PendingCall, ...] = ()


def first_answer(checkpoint: Checkpoint, extra: str | None) -> Committed:
    """The first answer to a step commit, for a caller that never got it; `extra` was stored beside its checkpoint."""
    more = decode(extra, CommitExtra) if extra is not None else CommitExtra()
    return Committed(
        checkpoint_id=checkpoint.checkpoint_id,
        new_version=checkpoint.version,
        message_count=checkpoint.message_count,
        stream_sequence=checkpoint.stream_sequence,
        warnings=merge_warnings(checkpoint.writes.ops),
        again=more.again,
        pending=more.pending,
        status=checkpoint.status,
    )


def version_of(checkpoint_id: CheckpointId) -> int:
    """The session's version that a checkpoint marks."""
    return (checkpoint_number(checkpoint_id) or 0) & 0xFFFFFFFF


def recent_runs(namespace: str, agent: str | None, since: int) -> tuple[str, tuple[Any, ...]]:
    """The statement that finds the runs that are still going or ended since a time, and its values."""
    runs = f"{_RUNS} AND status = 'running' UNION ALL {_RUNS} AND ended_at >= ?"
    whose, given = ("agent IS NOT NULL", ()) if agent is None else ("agent = ?", (agent,))
    text = f"SELECT * FROM ({runs}) AS recent WHERE {whose} ORDER BY started_at, session_id, turn"
    return text, (namespace, namespace, since, *given)


def waiting_calls(namespace: str, agent: str | None = None) -> tuple[str, tuple[Any, ...]]:
    """The statement that finds the waiting calls, and its values."""
    whose, given = ("", ()) if agent is None else (f" AND {_AGENT.format('p')} = ?", (agent,))
    text = (
        f"SELECT body FROM __agents_pending_calls p WHERE namespace = ? AND state = 'waiting'{whose}"
        " ORDER BY created_at, tool_call_id"
    )
    return text, (namespace, *given)


def run_summary(row: Sequence[Any]) -> RunSummary:
    """The run in a row of `recent_runs`."""
    run_id, session_id, agent, turn, status, started_at, ended_at = row
    return RunSummary(
        run_id=run_id,
        session_id=session_id,
        agent=agent,
        turn=turn,
        status=status,
        started_at=started_at,
        ended_at=ended_at,
    )
