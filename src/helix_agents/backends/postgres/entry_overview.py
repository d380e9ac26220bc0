"""One consistent look at a namespace in Postgres: at all of it for a snapshot, or at current activity."""

from collections.abc import Sequence

from helix_agents.backends.entry_columns import ENTRY, entry_of
from helix_agents.backends.overview_rows import (
    agent_counts,
    latest_sessions,
    scope_totals,
    scope_usage,
    session_summary,
)
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.entry_rows import find_head
from helix_agents.backends.session_rows import recent_runs, run_summary, waiting_calls
from helix_agents.domain.entries import AgentSummary, Entry, Glance, Overview
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode


async def read_overview(
    connection: Connection, namespace: str, system: Sequence[str], shown: int, now: int
) -> Overview:
    """Everything in one read transaction."""
    head = await find_head(connection, namespace)
    agents = await connection.all(*agent_counts(namespace))
    sessions = await connection.all(*latest_sessions(namespace, shown))
    runs = await connection.all(
        "SELECT status, count(*) FROM __agents_runs WHERE namespace = ? GROUP BY status", (namespace,)
    )
    scopes = await connection.all(*scope_totals(namespace))
    usage = await connection.all(
        "SELECT source_type, count(*) FROM __agents_usage WHERE namespace = ? GROUP BY source_type", (namespace,)
    )
    return Overview(
        revision=head.revision if head is not None else 0,
        at=now,
        epoch=head.epoch if head is not None else 0,
        scopes=tuple(map(scope_usage, sorted(map(tuple, scopes)))),
        agents={row[0]: AgentSummary(sessions=row[1], running=row[2]) for row in sorted(map(tuple, agents))},
        sessions=tuple(map(session_summary, sessions)),
        runs={row[0]: row[1] for row in sorted(map(tuple, runs))},
        pending=await _pending(connection, namespace, None),
        usage={row[0]: row[1] for row in sorted(map(tuple, usage))},
        system=await _system(connection, namespace, system),
    )


async def read_glance(
    connection: Connection, namespace: str, system: Sequence[str], agent: str | None, runs_since: int | None
) -> Glance:
    """Current activity, in one read transaction."""
    head = await find_head(connection, namespace)
    runs = await connection.all(*recent_runs(namespace, agent, runs_since)) if runs_since is not None else ()
    return Glance(
        revision=head.revision if head is not None else 0,
        runs=tuple(map(run_summary, runs)),
        pending=await _pending(connection, namespace, agent),
        system=await _system(connection, namespace, system),
    )


async def _pending(connection: Connection, namespace: str, agent: str | None) -> tuple[PendingCall, ...]:
    return tuple(decode(row[0], PendingCall) for row in await connection.all(*waiting_calls(namespace, agent)))


async def _system(connection: Connection, namespace: str, system: Sequence[str]) -> dict[str, tuple[Entry, ...]]:
    entries = await connection.all(
        f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ANY(?) AND value IS NOT NULL"
        " ORDER BY scope, key",
        (namespace, list(system)),
    )
    found: dict[str, list[Entry]] = {scope: [] for scope in system}
    for entry in map(entry_of, entries):
        found[entry.scope].append(entry)
    return {scope: tuple(rows) for scope, rows in found.items()}
