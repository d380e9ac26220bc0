"""One consistent look at a namespace in SQLite: at all of it for a snapshot, or at current activity."""

from collections.abc import Sequence

from helix_agents.backends.entry_columns import ENTRY, entry_of
from helix_agents.backends.overview_rows import (
    agent_counts,
    latest_sessions,
    scope_totals,
    scope_usage,
    session_summary,
)
from helix_agents.backends.session_rows import recent_runs, run_summary, waiting_calls
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.entry_rows import find_head
from helix_agents.domain.entries import AgentSummary, Entry, Glance, Overview
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode


def read_overview(connection: Connection, namespace: str, system: Sequence[str], shown: int, now: int) -> Overview:
    """Everything in one read transaction."""
    head = find_head(connection, namespace)
    agents = connection.all(*agent_counts(namespace))
    sessions = connection.all(*latest_sessions(namespace, shown))
    runs = connection.all(
        "SELECT status, count(*) FROM __agents_runs WHERE namespace = ? GROUP BY status ORDER BY status", (namespace,)
    )
    scopes = connection.all(*scope_totals(namespace))
    usage = connection.all(
        "SELECT source_type, count(*) FROM __agents_usage WHERE namespace = ? GROUP BY source_type ORDER BY 1",
        (namespace,),
    )
    return Overview(
        revision=head.revision if head is not None else 0,
        at=now,
        epoch=head.epoch if head is not None else 0,
        scopes=tuple(map(scope_usage, sorted(map(tuple, scopes)))),
        agents={row[0]: AgentSummary(sessions=row[1], running=row[2]) for row in sorted(map(tuple, agents))},
        sessions=tuple(map(session_summary, sessions)),
        runs={row[0]: row[1] for row in runs},
        pending=_pending(connection, namespace, None),
        usage={row[0]: row[1] for row in usage},
        system=_system(connection, namespace, system),
    )


def read_glance(
    connection: Connection, namespace: str, system: Sequence[str], agent: str | None, runs_since: int | None
) -> Glance:
    """Current activity, in one read transaction."""
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
