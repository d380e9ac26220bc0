"""Restoring entries in SQLite: rows are staged first, and then replace whole scopes in one transaction."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from helix_agents.backends.entry_columns import topic_of
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.entry_rows import (
    SQLiteRows,
    append_audit,
    make_head,
    save_head,
    save_usage,
    write_plan,
)
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.entries import Changed, Entry, EntryEvent, RestoreEntries, ScopeUsage, Transacted
from helix_agents.domain.entry_plan import Plan, plan_changes
from helix_agents.domain.entry_restore import restore_key
from helix_agents.domain.records import decode, encode

# A marker row tells a staged backup of nothing from nothing staged.
_BEGUN = ("", "", 0)


def stage(connection: Connection, namespace: str, restore_id: str, rows: Sequence[Entry]) -> None:
    """Stage rows for a restore."""
    connection.execute_many(
        "INSERT OR REPLACE INTO __agents_entry_staging (namespace, restore_id, scope, key, version, body)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [
            (namespace, restore_id, *_BEGUN, ""),
            *((namespace, restore_id, row.scope, row.key, row.version, encode(row).decode()) for row in rows),
        ],
    )


def discard(connection: Connection, namespace: str, restore_id: str | None) -> None:
    """Drop the staged rows."""
    connection.execute(
        "DELETE FROM __agents_entry_staging WHERE namespace = ? AND restore_id = coalesce(?, restore_id)",
        (namespace, restore_id),
    )


def restore(connection: Connection, namespace: str, request: RestoreEntries, now: int) -> Transacted:
    """Swap the staged rows in."""
    begun = connection.one(
        "SELECT 1 FROM __agents_entry_staging WHERE namespace = ? AND restore_id = ? LIMIT 1",
        (namespace, request.restore_id),
    )
    if begun is None:
        raise InvalidInput("Nothing is staged for this restore.", {"restore_id": request.restore_id})
    head = make_head(connection, namespace)
    revision, position = head.revision + 1, 0
    rows = SQLiteRows(connection, namespace)
    results: list[Changed] = []
    for scope in request.scopes:
        keys = bytes_ = changed = 0
        for key, staged in _keys(connection, namespace, request.restore_id, scope):
            plan = Plan(revision=revision, at=now, owner=request.owner)
            row = restore_key(plan, rows.find(scope, key), staged, request.keep_versions)
            plan.events = [_numbered(event, position) for event in plan.events]
            position += len(plan.events)
            changed += len(plan.events)
            write_plan(connection, namespace, plan)
            if row is not None and row.value is not None:
                keys, bytes_ = keys + 1, bytes_ + row.size + row.history_bytes
        save_usage(connection, namespace, ScopeUsage(scope=scope, keys=keys, bytes=bytes_, revision=revision))
        results.append(Changed(version=0, removed=changed))
    plan = plan_changes(request.changes, rows, revision=revision, now=now, owner=request.owner)
    write_plan(connection, namespace, plan)
    head = append_audit(connection, namespace, head, request.audit, revision)
    save_head(connection, namespace, head._replace(revision=revision, epoch=head.epoch + 1))
    discard(connection, namespace, request.restore_id)
    connection.ring(topic_of(namespace))
    return Transacted(revision=revision, at=now, results=tuple(results))


def _keys(connection: Connection, namespace: str, restore_id: str, scope: str) -> Iterator[tuple[str, list[Entry]]]:
    """Every staged key with its versions in order, then every existing key that was not staged."""
    living = connection.all("SELECT key FROM __agents_entries WHERE namespace = ? AND scope = ?", (namespace, scope))
    gone = {row[0] for row in living}
    staged = connection.each(
        "SELECT body FROM __agents_entry_staging WHERE namespace = ? AND restore_id = ? AND scope = ?"
        " ORDER BY key, version",
        (namespace, restore_id, scope),
    )
    for key, versions in groupby((decode(row[0], Entry) for row in staged), key=lambda entry: entry.key):
        gone.discard(key)
        yield key, list(versions)
    for key in sorted(gone):
        yield key, []


def _numbered(event: EntryEvent, by: int) -> EntryEvent:
    return msgspec.structs.replace(event, position=event.position + by)
