"""Rows of the sessions and runs tables, and the records they represent."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from helix_agents.backends.postgres.connection import Connection, Row, Value, askable
from helix_agents.backends.session_rows import RUN_COLUMNS, RUN_FIELDS, put_record
from helix_agents.domain.errors import RunAlreadyExistsError, SessionAlreadyExistsError, SessionNotFoundError
from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState, SessionStatus

# An index accepts some 8,000 bytes per label.
LONGEST_LABEL = 4_000


@dataclass(slots=True)
class SessionHead:
    """A session's version, run, and the ends of its logs: all that writing a step needs."""

    namespace: str
    session_id: str
    root_session_id: str
    status: Any
    step_count: int
    run_id: str | None
    attempt: int
    running: bool
    version: int
    segment: int
    message_count: int
    state_count: int
    state_base_bytes: int
    state_since_bytes: int
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
    labels: list[str] = field(default_factory=list[str])
    suspension: str | None = None
    detail: str = ""
    steered: bool = False

    @property
    def suspension_context(self) -> str | None:
        """The record's text; the column of this name holds the same for queries in SQL."""
        return self.suspension

    @suspension_context.setter
    def suspension_context(self, text: str | None) -> None:
        self.suspension = text

    def values(self) -> tuple[Value, ...]:
        return tuple(getattr(self, name) for name in _COLUMNS)


_COLUMNS = tuple(field.name for field in fields(SessionRow))
_CHANGEABLE = tuple(
    name
    for name in _COLUMNS
    # Only the queue changes `steered`.
    if name not in ("namespace", "session_id", "parent_session_id", "root_session_id", "created_at", "steered")
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM __agents_sessions"
_FIND = f"{_SELECT} WHERE namespace = ? AND session_id = ?"
_INSERT = (
    f"INSERT INTO __agents_sessions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    " ON CONFLICT DO NOTHING"
)
_UPDATE = (
    f"UPDATE __agents_sessions SET {', '.join(f'{name} = ?' for name in _CHANGEABLE)}"
    " WHERE namespace = ? AND session_id = ?"
)
SESSION_COLUMNS = ", ".join(f"s.{name}" for name in _COLUMNS)


async def find_session(
    connection: Connection, namespace: str, session_id: str, *, keep: bool = True
) -> SessionRow | None:
    """The session's row, or None; a writing transaction locks it unless `keep` is false."""
    row = await connection.one(f"{_FIND}{connection.lock if keep else ''}", askable(namespace, session_id))
    return SessionRow(*row) if row is not None else None


async def load_session(connection: Connection, namespace: str, session_id: str) -> SessionRow:
    """The session's row.

    Raises:
        SessionNotFoundError: there is none.
    """
    row = await find_session(connection, namespace, session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    return row


async def insert_session(connection: Connection, row: SessionRow) -> None:
    """Store a new session.

    Raises:
        SessionAlreadyExistsError: the id is taken.
    """
    if not await connection.execute(_INSERT, row.values()):
        raise SessionAlreadyExistsError(row.session_id)


async def save_session(connection: Connection, row: SessionRow) -> None:
    """Store a changed session."""
    await connection.execute(_UPDATE, (*(getattr(row, name) for name in _CHANGEABLE), row.namespace, row.session_id))


_LOCK_TREE = """
SELECT pg_advisory_xact_lock(hashtextextended('helix tree ' || ?1 || '/' || coalesce(
    (SELECT root_session_id FROM __agents_sessions WHERE namespace = ?1 AND session_id = ?2), ?2), 0))
"""


async def lock_tree_of(connection: Connection, namespace: str, session_id: str) -> None:
    """Lock out every other operation on more than one session of this tree until the transaction ends.

    Take this lock before any row lock, and lock parents' rows before their children's, so that there can be no
    deadlock. A session never changes its tree, so its root may be read before the lock is held.
    """
    await connection.execute(_LOCK_TREE, askable(namespace, session_id))


async def lock_tree(connection: Connection, namespace: str, session_id: str) -> list[SessionRow]:
    """The session, if it exists, and every session below it, parents before their children.

    The rows of a generation are locked before their children are looked up, so that none can be added meanwhile.
    """
    await lock_tree_of(connection, namespace, session_id)
    rows: list[SessionRow] = []
    # A session may name any parent, even one below itself, so no session is visited twice.
    seen, generation = {session_id}, [session_id]
    while generation:
        found = await connection.all(
            f"{_SELECT} WHERE namespace = ? AND session_id = ANY(?) ORDER BY session_id FOR UPDATE",
            (namespace, generation),
        )
        rows.extend(SessionRow(*row) for row in found)
        below = await connection.all(
            "SELECT session_id FROM __agents_sessions WHERE namespace = ? AND parent_session_id = ANY(?)",
            (namespace, generation),
        )
        generation = [row[0] for row in below if row[0] not in seen]
        seen.update(generation)
    return rows


async def children_of(
    connection: Connection, namespace: str, session_id: str, *, statuses: Sequence[SessionStatus] | None = None
) -> list[str]:
    """Every session below this one, parents before their children; only those with the given statuses, if any."""
    found = await connection.all(
        "WITH RECURSIVE below (id, status) AS ("
        " SELECT session_id, status FROM __agents_sessions WHERE namespace = ?1 AND parent_session_id = ?2"
        " UNION"
        " SELECT s.session_id, s.status FROM __agents_sessions s"
        " JOIN below ON s.namespace = ?1 AND s.parent_session_id = below.id"
        ") SELECT id FROM below WHERE id <> ?2 AND (?3::text[] IS NULL OR status = ANY(?3::text[]))",
        (namespace, session_id, None if statuses is None else list(statuses)),
    )
    return [row[0] for row in found]


def labels_of(tags: Iterable[str], metadata: Mapping[str, str]) -> list[str]:
    """Tags and metadata in the form of their common index.

    Each is JSON, so that no two can coincide by accident. A label too long for the index is represented by its hash,
    which is not JSON.
    """
    return [_indexed(encode(label)) for label in (*tags, *metadata.items())]


def _indexed(label: bytes) -> str:
    return label.decode() if len(label) <= LONGEST_LABEL else f"#{hashlib.sha256(label).hexdigest()}"


def put(row: SessionRow, record: SessionState) -> None:
    """Write a record's fields into its row; the row's counts and pointers stay unchanged."""
    put_record(row, record)
    row.labels = labels_of(record.tags, record.metadata)


def new_row(namespace: str, record: SessionState, segment: int) -> SessionRow:
    """The row of a session that is not stored yet."""
    row = SessionRow(
        namespace=namespace,
        session_id=record.session_id,
        root_session_id=record.root_session_id,
        status=record.status,
        step_count=0,
        run_id=None,
        attempt=0,
        running=False,
        version=record.version,
        segment=segment,
        message_count=0,
        state_count=0,
        state_base_bytes=0,
        state_since_bytes=0,
        mode=record.mode,
        parent_session_id=record.parent_session_id,
        created_at=record.created_at,
    )
    put(row, record)
    return row


# Free text in these columns is JSON, because Postgres text cannot hold every character.
_RUN_JSON = frozenset(("completion_reason", "output", "error"))


def run_of(row: Row) -> RunRecord:
    """A run's record, from `RUN_COLUMNS`."""
    found = dict(zip(RUN_FIELDS, row, strict=True))
    for name in _RUN_JSON:
        if found[name] is not None:
            found[name] = decode_json(found[name])
    return RunRecord(**found)


def _column(run: RunRecord, name: str) -> Value:
    value = getattr(run, name)
    return value if name not in _RUN_JSON or value is None else encode(value).decode()


async def find_run(connection: Connection, namespace: str, run_id: str) -> RunRecord | None:
    """The run with this id, or None."""
    row = await connection.one(
        f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ? AND run_id = ?", askable(namespace, run_id)
    )
    return run_of(row) if row is not None else None


async def insert_run(
    connection: Connection, namespace: str, run: RunRecord, first_answer: tuple[int, int] | None = None
) -> None:
    """Store a new run, with the version and message count its start answered.

    Raises:
        RunAlreadyExistsError: the id is taken.
    """
    stored = await connection.execute(
        f"INSERT INTO __agents_runs (namespace, {RUN_COLUMNS}, start_version, start_messages)"
        f" VALUES (?{', ?' * len(RUN_FIELDS)}, ?, ?) ON CONFLICT (namespace, run_id) DO NOTHING",
        (namespace, *(_column(run, name) for name in RUN_FIELDS), *(first_answer or (None, None))),
    )
    if not stored:
        raise RunAlreadyExistsError(run.run_id)


async def save_run(connection: Connection, namespace: str, run: RunRecord) -> None:
    """Store a changed run."""
    changeable = ("attempt", "status", "step_count", "completion_reason", "output", "error", "owner", "workflow_id")
    await connection.execute(
        f"UPDATE __agents_runs SET {', '.join(f'{name} = ?' for name in changeable)}, ended_at = ?"
        " WHERE namespace = ? AND run_id = ?",
        (*(_column(run, name) for name in changeable), run.ended_at, namespace, run.run_id),
    )
