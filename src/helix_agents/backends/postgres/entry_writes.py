"""Writing entries in Postgres: a plan is stored in one statement, in a transaction that holds the namespace's head."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from helix_agents.backends.entry_columns import ENTRY, VERSION, Head, entry_of
from helix_agents.backends.postgres.connection import Connection, Value
from helix_agents.backends.postgres.entry_rows import KnownRows, lock_head
from helix_agents.domain.audit import AuditRow, entry_text, next_row
from helix_agents.domain.capability_errors import QuotaExceeded
from helix_agents.domain.entries import Change, session_scope
from helix_agents.domain.entry_plan import Plan, next_revision, plan_changes
from helix_agents.domain.entry_restore import rewound
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON, encode

T = TypeVar("T")

_ERASE = "SELECT __agents_delete_scopes(?, ?)"
WRITE = f"SELECT __agents_write_entries({', '.join('?' * 14)})"


async def telling_what_fills(connection: Connection, rows: KnownRows, decide: Callable[[], T]) -> T:
    """Decide; after a quota refusal, decide again with the largest keys known, so that the error names them."""
    try:
        return decide()
    except QuotaExceeded:
        if not await rows.look_at_largest(connection):
            raise
    return decide()


def values_of(
    namespace: str, head: Head, plan: Plan, audit: Sequence[dict[str, JSON]], *, commits: int | None = None
) -> tuple[Head, tuple[Value, ...]]:
    """The head after a plan with lines for the audit log, and the arguments of the function that stores both.

    Without `commits` the caller has locked the head. Otherwise nothing is stored unless the namespace still has exactly
    that many commits.
    """
    lines: list[AuditRow] = []
    for entry in audit:
        line = next_row(head.audit_seq, head.audit_hash, entry_text({**entry, "revision": plan.revision}))
        lines.append(line)
        head = head._replace(audit_seq=line.seq, audit_hash=line.hash)
    head = head._replace(revision=plan.revision)
    return head, (
        namespace,
        commits,
        head.revision,
        head.epoch,
        head.audit_seq,
        head.audit_hash,
        _rows(_named(plan.dropped)),
        _rows({"scope": scope, "key": key, "version": last} for (scope, key), last in plan.pruned.items()),
        _rows(plan.versions),
        _rows(_named(plan.forgotten)),
        _rows(plan.entries.values()),
        _rows(plan.usages.values()),
        _rows(plan.events),
        _rows(lines),
    )


async def write_plan(
    connection: Connection, namespace: str, head: Head, plan: Plan, audit: Sequence[dict[str, JSON]] = ()
) -> Head:
    """Store a plan under the lock; returns the new head."""
    if plan.erased:
        await connection.execute(_ERASE, (namespace, sorted(plan.erased)))
    head, values = values_of(namespace, head, plan, audit)
    await connection.execute(WRITE, values)
    return head


async def write_session_entries(
    connection: Connection,
    namespace: str,
    changes: Sequence[Change],
    audit: Sequence[dict[str, JSON]] = (),
    *,
    owner: str,
    mark: int,
    now: int,
) -> None:
    """Write a session's changes, and lines for the audit log, within the commit of its step.

    This comes last in its transaction: the holder of the head never waits for a session, so there can be no deadlock.
    """
    head = await lock_head(connection, namespace)
    await _write_changes(connection, namespace, head, changes, audit, owner=owner, mark=mark, now=now)


async def rewind_session_entries(
    connection: Connection, namespace: str, session_id: SessionId, *, to: int, mark: int, now: int
) -> None:
    """Restore a session's entries to the values of one of its earlier versions, as new versions."""
    scope = session_scope(session_id)
    head = await lock_head(connection, namespace)
    known = await connection.all(
        f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ?1 AND scope = ?2"
        f" UNION ALL SELECT {VERSION} FROM __agents_entry_versions WHERE namespace = ?1 AND scope = ?2",
        (namespace, scope),
    )
    changes = rewound(scope, map(entry_of, known), to)
    if changes:
        await _write_changes(connection, namespace, head, changes, owner="rewind", mark=mark, now=now)


async def delete_session_entries(connection: Connection, namespace: str, session_ids: Sequence[SessionId]) -> None:
    """Destroy all entries of some sessions."""
    scopes = [session_scope(session_id) for session_id in session_ids]
    await connection.execute(_ERASE, (namespace, scopes))


async def _write_changes(
    connection: Connection,
    namespace: str,
    head: Head,
    changes: Sequence[Change],
    audit: Sequence[dict[str, JSON]] = (),
    *,
    owner: str,
    mark: int,
    now: int,
) -> None:
    rows = await KnownRows.about(connection, namespace, changes)
    revision = next_revision(changes, head.revision)
    plan = await telling_what_fills(
        connection, rows, lambda: plan_changes(changes, rows, revision=revision, now=now, owner=owner, mark=mark)
    )
    await write_plan(connection, namespace, head, plan, audit)


def _named(places: Iterable[tuple[str, str]]) -> Iterable[dict[str, str]]:
    return ({"scope": scope, "key": key} for scope, key in sorted(places))


def _rows(rows: Iterable[Any]) -> str | None:
    """Rows as one JSON value; None if there are none."""
    every = list(rows)
    return encode(every).decode() if every else None
