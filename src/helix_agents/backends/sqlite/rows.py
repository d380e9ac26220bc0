"""Rows of the sessions and runs tables, and the records they represent."""

from dataclasses import dataclass, fields
from typing import Any

from helix_agents.backends.session_rows import RUN_COLUMNS, RUN_FIELDS, put_record
from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState


@dataclass(slots=True)
class SessionHead:
    """A session's version, run, and the ends of its logs: all that writing a step needs."""

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
class SessionRow(SessionHead):
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
        # A cross join fixes the order: from the sessions found so far to their children, not from all sessions to those
        # found.
        " SELECT s.session_id FROM below CROSS JOIN __agents_sessions s"
        " WHERE s.namespace = ?1 AND s.parent_session_id = below.id"
        # A session may name any parent, even one below itself.
        ") SELECT id FROM below WHERE id <> ?2",
        (namespace, session_id),
    )
    return [row[0] for row in found]


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
    put_record(row, record)
    return row


_INSERT_RUN = (
    f"INSERT INTO __agents_runs (namespace, start_version, start_messages, {RUN_COLUMNS})"
    f" VALUES (?, ?, ?{', ?' * len(RUN_FIELDS)})"
)


def run_of(row: Row) -> RunRecord:
    """A run's record, from `RUN_COLUMNS`."""
    fields = dict(zip(RUN_FIELDS, row, strict=True))
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
    """Store a new run, with the answer to its start."""
    values = (_output_of(run) if name == "output" else getattr(run, name) for name in RUN_FIELDS)
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
