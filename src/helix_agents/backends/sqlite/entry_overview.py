"""One consistent look at a namespace in SQLite: at all of it for a snapshot, or at what goes on."""

from collections.abc import Sequence

from helix_agents.backends.entry_columns import ENTRY, entry_of
from helix_agents.backends.session_rows import recent_runs, run_summary, waiting_calls
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.entry_rows import find_head
from helix_agents.domain.entries import Entry, Glance, Overview, ScopeUsage, SessionSummary
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode


def read_overview(connection: Connection, namespace: str, system: Sequence[str], now: int) -> Overview:
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
        pending=_pending(connection, namespace, None),
        usage={row[0]: row[1] for row in usage},
        system=_system(connection, namespace, system),
    )


def read_glance(
    connection: Connection, namespace: str, system: Sequence[str], agent: str | None, runs_since: int | None
) -> Glance:
    """What goes on, in one read transaction."""
    head = find_head(connection, namespace)
    runs = connection.all(*recent_runs(namespace, agent, runs_since)) if runs_since is not None else ()
    return Glance(
        revision=head.revision if head is not None else 0,
        runs=tuple(map(run_summary, runs)),
        pending=_pending(connection, namespace, agent),
        system=_system(connection, namespace, system),
    )


def _pending(connection: Connection, namespace: str, agent: str | None) -> tuple[PendingCall, ...]:
    return tuple(decode(row[0], PendingCall) for row in connection.all(*waiting_calls(namespace, agent)))


def _system(connection: Connection, namespace: str, system: Sequence[str]) -> dict[str, tuple[Entry, ...]]:
    select = f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND lives ORDER BY key"
    return {scope: tuple(map(entry_of, connection.all(select, (namespace, scope)))) for scope in system}
