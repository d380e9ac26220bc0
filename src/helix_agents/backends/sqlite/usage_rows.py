"""Usage as rows in SQLite: a step's usage is stored in its checkpoint, everything else in one row per entry."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.domain.commits import StepCommit
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.usage import ENTRIES_PER_ROUND, SourceType, TokenCount, UsageEntry

COLUMNS = (
    "session_id, root_session_id, run_id, attempt, step, n, source_type, source_name, user_id, agent_type, recorded_at,"
    " body"
)
_INSERT = (
    f"INSERT INTO __agents_usage_entries (namespace, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
_OF_SESSION = f"SELECT {COLUMNS} FROM __agents_usage_entries WHERE namespace = ? AND session_id = ?"
_OF_ROOT = f"SELECT {COLUMNS} FROM __agents_usage_entries WHERE namespace = ? AND root_session_id = ?"
_OF_STEPS = """
SELECT sessions.root_session_id, steps.run_id, steps.created_at, steps.used
FROM __agents_sessions sessions
CROSS JOIN __agents_segments segments
    ON segments.namespace = sessions.namespace AND segments.session_id = sessions.session_id
CROSS JOIN __agents_checkpoints steps
    ON steps.id BETWEEN segments.segment << 32 AND segments.segment << 32 | 4294967295 AND steps.used IS NOT NULL
WHERE sessions.namespace = ? AND sessions.session_id = ?
"""


class Spent(Record, forbid_unknown_fields=False):
    """The contents of an entry, apart from whose it is and when it was recorded."""

    n: int = 0
    source_type: SourceType
    source_name: str
    tokens: TokenCount | None = None
    amount: float = 0
    success: bool = True
    metadata: dict[str, JSON] = {}


class Used(Record):
    """A step's usage as its checkpoint stores it."""

    attempt: int = 1
    step: int
    user_id: str | None = None
    agent_type: str | None = None
    entries: list[Spent]


def insert_usage(connection: Connection, namespace: str, entries: Iterable[UsageEntry], now: int) -> int:
    """Store entries; one that is already stored is not counted again. Returns how many were new."""
    before = connection.raw.total_changes()
    connection.execute_many(_INSERT, [_columns(namespace, entry, now) for entry in entries])
    return connection.raw.total_changes() - before


def used_in_step(state: SessionState, commit: StepCommit) -> str | None:
    """A step's usage as text for its checkpoint; None if it needs rows instead.

    It needs rows if an entry belongs to anything but this step or has metadata or a time of its own. Each round of a
    step has its own range of numbers, so no entry occurs twice.
    """
    if not 0 < len(commit.usage) <= ENTRIES_PER_ROUND:
        return None
    run_id, attempt, step = commit.fence.run_id, commit.fence.attempt, commit.step
    session_id, root, agent_type, user_id = state.session_id, state.root_session_id, state.worked_by, state.user_id
    entries: list[Spent] = []
    for n, entry in enumerate(commit.usage, commit.round * ENTRIES_PER_ROUND):
        if (
            entry.n != n
            or entry.step != step
            or entry.run_id != run_id
            or entry.attempt != attempt
            or entry.session_id != session_id
            or entry.root_session_id != root
            or entry.agent_type != agent_type
            or entry.user_id != user_id
            or entry.metadata
            or entry.recorded_at
        ):
            return None
        entries.append(
            Spent(
                n=n,
                source_type=entry.source_type,
                source_name=entry.source_name,
                tokens=entry.tokens,
                amount=entry.amount,
                success=entry.success,
            )
        )
    return encode(Used(attempt=attempt, step=step, user_id=user_id, agent_type=agent_type, entries=entries)).decode()


def delete_session_usage(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Delete all usage of a session."""
    connection.execute(
        "DELETE FROM __agents_usage_entries WHERE namespace = ? AND session_id = ?", (namespace, session_id)
    )
    connection.execute(
        "UPDATE __agents_checkpoints SET used = NULL WHERE id IN (SELECT steps.id FROM __agents_segments segments"
        " CROSS JOIN __agents_checkpoints steps"
        " ON steps.id BETWEEN segments.segment << 32 AND segments.segment << 32 | 4294967295"
        " WHERE segments.namespace = ? AND segments.session_id = ? AND steps.used IS NOT NULL)",
        (namespace, session_id),
    )


def _columns(namespace: str, entry: UsageEntry, now: int) -> tuple[Value, ...]:
    stamped = entry if entry.recorded_at else msgspec.structs.replace(entry, recorded_at=now)
    return (
        namespace,
        stamped.session_id,
        stamped.root_session_id,
        stamped.run_id,
        stamped.attempt,
        stamped.step,
        stamped.n,
        stamped.source_type,
        stamped.source_name,
        stamped.user_id,
        stamped.agent_type,
        stamped.recorded_at,
        encode(stamped).decode(),
    )


def usage_of_session(connection: Connection, namespace: str, session_id: SessionId) -> list[UsageEntry]:
    """All usage of a session. The steps' JSON is decoded here, because SQLite needs far longer when there are many."""
    found = [entry_of(row) for row in connection.all(_OF_SESSION, (namespace, session_id))]
    recorded = {key_of(entry) for entry in found}
    steps = usage_of_steps(connection, namespace, session_id)
    found.extend(entry for entry in steps if not recorded or key_of(entry) not in recorded)
    return found


def usage_of_steps(connection: Connection, namespace: str, session_id: SessionId) -> Iterator[UsageEntry]:
    """The usage of a session's steps, from its checkpoints."""
    for root, run_id, recorded_at, text in connection.all(_OF_STEPS, (namespace, session_id)):
        used = decode(text, Used)
        whose = (session_id, root, run_id, used.attempt, used.step)
        for spent in used.entries:
            yield _entry(whose, used.user_id, used.agent_type, recorded_at, spent)


def key_of(entry: UsageEntry) -> tuple[RunId, int, int, int]:
    """The key that identifies an entry within its session."""
    return entry.run_id, entry.attempt, entry.step, entry.n


def usage_of_root(connection: Connection, namespace: str, root: SessionId) -> list[UsageEntry]:
    """The entries that name a root and are stored as rows, not in a step's checkpoint."""
    return [entry_of(row) for row in connection.all(_OF_ROOT, (namespace, root))]


def entry_of(row: Row) -> UsageEntry:
    """An entry, from its columns."""
    *whose, _, _, _, user_id, agent_type, recorded_at, body = row
    return _entry(whose, user_id, agent_type, recorded_at, decode(body, Spent))


def _entry(
    whose: Sequence[Any], user_id: str | None, agent_type: str | None, recorded_at: int, spent: Spent
) -> UsageEntry:
    session_id, root_session_id, run_id, attempt, step = whose
    return UsageEntry(
        session_id=session_id,
        root_session_id=root_session_id,
        run_id=run_id,
        attempt=attempt,
        step=step,
        n=spent.n,
        source_type=spent.source_type,
        source_name=spent.source_name,
        tokens=spent.tokens,
        amount=spent.amount,
        success=spent.success,
        agent_type=agent_type,
        user_id=user_id,
        metadata=spent.metadata,
        recorded_at=recorded_at,
    )
