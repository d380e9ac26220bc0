"""Rows of the sessions and runs tables, and the records they stand for."""

from dataclasses import dataclass, fields
from typing import Any

from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.records import decode, decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionDetail, SessionState, SessionSummary, SuspensionContext


@dataclass(slots=True)
class Place:
    """Where a session stands: its version, its run, and the ends of its logs. All that writing a step needs."""

    key: int
    namespace: str
    session_id: str
    root_session_id: str
    status: Any
    step_count: int
    run_id: str | None
    attempt: int
    running: int
    version: int
    segment: int
    message_count: int
    state_count: int
    state_base_bytes: int
    state_since_bytes: int
    staged: int
    mode: Any
    checkpoint: int | None = None
    checkpointed_at: int | None = None
    checkpoint_source: Any = None


@dataclass(slots=True)
class SessionRow(Place):
    """One row of `__agents_sessions`, column by column."""

    agent_type: str = ""
    resume_count: int = 0
    user_id: str | None = None
    parent_session_id: str | None = None
    created_at: int = 0
    updated_at: int = 0
    expires_at: int | None = None
    commit_attempt: int = 0
    commit_step: int = -1
    commit_round: int = -1
    commit_checkpoint: int | None = None
    commit_extra: str | None = None
    tags: str | None = None
    metadata: str | None = None
    suspension_context: str | None = None
    detail: str = ""

    def values(self) -> tuple[Value, ...]:
        return tuple(getattr(self, name) for name in _COLUMNS)


_COLUMNS = tuple(field.name for field in fields(SessionRow))
_CHANGEABLE = tuple(
    name
    for name in _COLUMNS
    if name not in ("key", "namespace", "session_id", "parent_session_id", "root_session_id", "created_at")
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM __agents_sessions"
_FIND = f"{_SELECT} WHERE namespace = ? AND session_id = ?"
_INSERT = f"INSERT INTO __agents_sessions ({', '.join(_COLUMNS[1:])}) VALUES ({', '.join('?' * (len(_COLUMNS) - 1))})"
_UPDATE = f"UPDATE __agents_sessions SET {', '.join(f'{name} = ?' for name in _CHANGEABLE)} WHERE key = ?"


def find_session(connection: Connection, namespace: str, session_id: str) -> SessionRow | None:
    """The session's row, or None."""
    row = connection.one(_FIND, (namespace, session_id))
    return SessionRow(*row) if row is not None else None


def load_session(connection: Connection, namespace: str, session_id: str) -> SessionRow:
    """The session's row.

    Raises:
        SessionNotFoundError: there is none.
    """
    row = find_session(connection, namespace, session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    return row


def insert_session(connection: Connection, row: SessionRow) -> None:
    """Store a new session."""
    connection.execute(_INSERT, row.values()[1:])


def save_session(connection: Connection, row: SessionRow) -> None:
    """Store a changed session."""
    connection.execute(_UPDATE, (*(getattr(row, name) for name in _CHANGEABLE), row.key))


def children_of(connection: Connection, namespace: str, session_id: str) -> list[str]:
    """Every session below this one, parents before their children."""
    found = connection.all(
        "WITH RECURSIVE below (id) AS ("
        " SELECT session_id FROM __agents_sessions WHERE namespace = ?1 AND parent_session_id = ?2"
        " UNION"
        " SELECT s.session_id FROM __agents_sessions s"
        " JOIN below ON s.namespace = ?1 AND s.parent_session_id = below.id"
        ") SELECT id FROM below",
        (namespace, session_id),
    )
    return [row[0] for row in found]


def encode_tags(tags: tuple[str, ...]) -> str | None:
    """Tags as their column holds them."""
    return encode(tags).decode() if tags else None


def encode_metadata(metadata: dict[str, str]) -> str | None:
    """Metadata as its column holds it."""
    return encode(metadata).decode() if metadata else None


def encode_suspension(context: SuspensionContext | None) -> str | None:
    """The suspension context as its column holds it."""
    return encode(context).decode() if context is not None else None


def checkpoint_name(number: int | None) -> str | None:
    """The public id of a checkpoint row."""
    return f"cpv1-{number >> 32:x}-{number & 0xFFFFFFFF:x}" if number is not None else None


def checkpoint_number(name: str) -> int | None:
    """The row of a checkpoint id, or None when no checkpoint can have this id."""
    version, _, place = name.partition("-")
    segment, _, number = place.partition("-")
    try:
        if version != "cpv1" or not 0 <= int(number, 16) < 1 << 32 or not 0 <= int(segment, 16) < 1 << 31:
            return None
        key = int(segment, 16) << 32 | int(number, 16)
    except ValueError:
        return None
    return key if checkpoint_name(key) == name else None


def put(row: SessionRow, record: SessionState) -> None:
    """Write a record's fields into its row; counts and pointers of the row stay."""
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


def new_row(namespace: str, record: SessionState, segment: int) -> SessionRow:
    """The row of a session that is not stored yet."""
    row = SessionRow(
        key=0,
        namespace=namespace,
        session_id=record.session_id,
        root_session_id=record.root_session_id,
        status=record.status,
        step_count=0,
        run_id=None,
        attempt=0,
        running=0,
        version=record.version,
        segment=segment,
        message_count=0,
        state_count=0,
        state_base_bytes=0,
        state_since_bytes=0,
        staged=0,
        mode=record.mode,
        parent_session_id=record.parent_session_id,
        created_at=record.created_at,
    )
    put(row, record)
    return row


def record_of(row: SessionRow) -> SessionState:
    """The session record of a row, without its custom state and the rows that others write."""
    detail = decode(row.detail, SessionDetail)
    return SessionState(
        session_id=row.session_id,
        agent_type=row.agent_type,
        agent_version=detail.agent_version,
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
        message_count=row.message_count,
        current_run_id=row.run_id,
        checkpoint_id=checkpoint_name(row.checkpoint),
        checkpointed_at=row.checkpointed_at,
        checkpoint_source=row.checkpoint_source,
        user_id=row.user_id,
        tags=tuple(decode_json(row.tags)) if row.tags else (),
        metadata=decode_json(row.metadata) if row.metadata else {},
        workspace_ref=detail.workspace_ref,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


SUMMARY_COLUMNS = (
    "session_id, agent_type, status, step_count, message_count, version, user_id, tags, metadata, parent_session_id, "
    "root_session_id, run_id, expires_at, created_at, updated_at"
)


def summary_of(row: Row) -> SessionSummary:
    """One line of a listing, from `SUMMARY_COLUMNS`."""
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
    )


_RUN_FIELDS = (
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
    "started_at",
    "ended_at",
)
RUN_COLUMNS = ", ".join(_RUN_FIELDS)
_INSERT_RUN = (
    f"INSERT INTO __agents_runs (namespace, start_version, start_messages, {RUN_COLUMNS})"
    f" VALUES (?, ?, ?{', ?' * len(_RUN_FIELDS)})"
)


def run_of(row: Row) -> RunRecord:
    """A run's record, from `RUN_COLUMNS`."""
    fields = dict(zip(_RUN_FIELDS, row, strict=True))
    output, call_hooks = fields.pop("output"), bool(fields.pop("call_hooks"))
    return RunRecord(**fields, output=None if output is None else decode_json(output), call_hooks=call_hooks)


def _output_of(run: RunRecord) -> str | None:
    return None if run.output is None else encode(run.output).decode()


def find_run(connection: Connection, namespace: str, run_id: str) -> RunRecord | None:
    """The run with this id, or None."""
    row = connection.one(
        f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ? AND run_id = ?", (namespace, run_id)
    )
    return run_of(row) if row is not None else None


def insert_run(connection: Connection, namespace: str, run: RunRecord, answered: tuple[int, int] | None) -> None:
    """Store a new run, with what its start answers."""
    values = (_output_of(run) if name == "output" else getattr(run, name) for name in _RUN_FIELDS)
    connection.execute(_INSERT_RUN, (namespace, *(answered or (None, None)), *values))


def save_run(connection: Connection, namespace: str, run: RunRecord) -> None:
    """Store a changed run."""
    connection.execute(
        "UPDATE __agents_runs SET attempt = ?, status = ?, step_count = ?, completion_reason = ?, output = ?,"
        " error = ?, owner = ?, workflow_id = ?, ended_at = ? WHERE namespace = ? AND run_id = ?",
        (
            run.attempt,
            run.status,
            run.step_count,
            run.completion_reason,
            _output_of(run),
            run.error,
            run.owner,
            run.workflow_id,
            run.ended_at,
            namespace,
            run.run_id,
        ),
    )
