"""One consistent look at a namespace in SQLite, for snapshots of the whole system."""

from collections.abc import Sequence

from helix_agents.backends.entry_columns import ENTRY, entry_of
from helix_agents.backends.session_rows import RECENT_RUNS, run_summary
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.entry_rows import find_head
from helix_agents.domain.entries import Overview, ScopeUsage, SessionSummary
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode


def read_overview(
    connection: Connection, namespace: str, system: Sequence[str], now: int, runs_since: int | None
) -> Overview:
    """Everything in one read transaction."""
    head = find_head(connection, namespace)
    sessions = connection.all(
        "SELECT s.session_id, s.agent_type, s.status, s.updated_at, r.status FROM __agents_sessions s"
        " LEFT JOIN __agents_runs r ON r.namespace = s.namespace AND r.run_id = s.run_id"
        " WHERE s.namespace = ? ORDER BY s.session_id",
        (namespace,),
    )
    runs = connection.all(
        "SELECT status, count(*) FROM __agents_runs WHERE namespace = ? GROUP BY status ORDER BY status", (namespace,)
    )
    recent = (
        tuple(map(run_summary, connection.all(RECENT_RUNS, (namespace, runs_since)))) if runs_since is not None else ()
    )
    pending = connection.all(
        "SELECT body FROM __agents_pending_calls WHERE namespace = ? AND state = 'waiting'"
        " ORDER BY created_at, tool_call_id",
        (namespace,),
    )
    scopes = connection.all(
        "SELECT scope, keys, bytes, revision FROM __agents_entry_usage WHERE namespace = ? AND keys > 0 ORDER BY scope",
        (namespace,),
    )
    usage = connection.all(
        "SELECT source_type, count(*) FROM __agents_usage WHERE namespace = ? GROUP BY source_type ORDER BY 1",
        (namespace,),
    )
    return Overview(
        revision=head.revision if head is not None else 0,
        at=now,
        epoch=head.epoch if head is not None else 0,
        scopes=tuple(ScopeUsage(scope=row[0], keys=row[1], bytes=row[2], revision=row[3]) for row in scopes),
        sessions=tuple(
            SessionSummary(session_id=row[0], agent=row[1], status=row[2], updated_at=row[3], run_status=row[4])
            for row in sessions
        ),
        runs={row[0]: row[1] for row in runs},
        recent=recent,
        pending=tuple(decode(row[0], PendingCall) for row in pending),
        usage={row[0]: row[1] for row in usage},
        system={
            scope: tuple(
                entry_of(row)
                for row in connection.all(
                    f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND lives ORDER BY key",
                    (namespace, scope),
                )
            )
            for scope in system
        },
    )
