"""The statements behind an overview, and how to read their rows; SQLite and Postgres share them."""

from collections.abc import Sequence
from typing import Any

from helix_agents.domain.entries import SESSION_SCOPES, ScopeUsage, SessionSummary, successor


def agent_counts(namespace: str) -> tuple[str, tuple[Any, ...]]:
    """The statement that counts conversations per agent, and its values."""
    text = (
        "SELECT agent_type, count(*), count(*) FILTER (WHERE running) FROM __agents_sessions WHERE namespace = ?"
        " GROUP BY agent_type"
    )
    return text, (namespace,)


def latest_sessions(namespace: str, limit: int) -> tuple[str, tuple[Any, ...]]:
    """The statement that finds the most recently active conversations, and its values."""
    columns = "session_id, agent_type, status, updated_at"
    text = (
        f"SELECT {columns}, (SELECT r.status FROM __agents_runs r WHERE r.namespace = s.namespace"
        f" AND r.run_id = s.run_id) FROM (SELECT namespace, run_id, {columns} FROM __agents_sessions"
        " WHERE namespace = ? ORDER BY updated_at DESC, session_id LIMIT ?) AS s ORDER BY updated_at DESC, session_id"
    )
    return text, (namespace, limit)


def scope_totals(namespace: str) -> tuple[str, tuple[Any, ...]]:
    """The statement that sums up what every scope holds, with all sessions as one, and its values."""
    after = successor(SESSION_SCOPES)
    text = (
        "SELECT CASE WHEN scope >= ? AND scope < ? THEN ? ELSE scope END, CAST(sum(keys) AS bigint),"
        " CAST(sum(bytes) AS bigint), max(revision) FROM __agents_entry_usage WHERE namespace = ? AND keys > 0"
        " GROUP BY 1"
    )
    return text, (SESSION_SCOPES, after, SESSION_SCOPES, namespace)


def session_summary(row: Sequence[Any]) -> SessionSummary:
    """The session in a row of `latest_sessions`."""
    session_id, agent, status, updated_at, run_status = row
    return SessionSummary(
        session_id=session_id, agent=agent, status=status, updated_at=updated_at, run_status=run_status
    )


def scope_usage(row: Sequence[Any]) -> ScopeUsage:
    """The scope in a row of `scope_totals`."""
    return ScopeUsage(scope=row[0], keys=row[1], bytes=row[2], revision=row[3])
