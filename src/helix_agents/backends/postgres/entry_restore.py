"""Restoring entries in Postgres: rows are staged first, and then replace whole scopes in one transaction."""

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from helix_agents.backends.entry_columns import ENTRY, Head, entry_of
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.entry_rows import KnownRows, lock_head
from helix_agents.backends.postgres.entry_writes import telling_what_fills, write_plan
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.entries import Changed, Entry, EntryEvent, RestoreEntries, ScopeUsage, Transacted
from helix_agents.domain.entry_plan import Plan, plan_changes
from helix_agents.domain.entry_restore import restore_key
from helix_agents.domain.records import decode, encode

# A marker row tells a staged backup of nothing from nothing staged.
_BEGUN = ("", "", 0)
BATCH_KEYS = 500
BATCH_BYTES = 4_000_000


async def stage(connection: Connection, namespace: str, restore_id: str, rows: Sequence[Entry]) -> None:
    """Stage rows for a restore."""
    await connection.execute_many(
        "INSERT INTO __agents_entry_staging (namespace, restore_id, scope, key, version, body)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, restore_id, scope, key, version) DO UPDATE SET body = excluded.body",
        [
            (namespace, restore_id, *_BEGUN, ""),
            *((namespace, restore_id, row.scope, row.key, row.version, encode(row).decode()) for row in rows),
        ],
    )


async def discard(connection: Connection, namespace: str, restore_id: str | None) -> None:
    """Drop the staged rows."""
    await connection.execute(
        "DELETE FROM __agents_entry_staging WHERE namespace = ? AND restore_id = coalesce(?::text, restore_id)",
        (namespace, restore_id),
    )


async def restore(connection: Connection, namespace: str, request: RestoreEntries, now: int) -> Transacted:
    """Swap the staged rows in."""
    # The lock comes first, so that the second of two restores with the same id finds nothing staged.
    head = await lock_head(connection, namespace)
    begun = await connection.one(
        "SELECT 1 FROM __agents_entry_staging WHERE namespace = ? AND restore_id = ? LIMIT 1",
        (namespace, request.restore_id),
    )
    if begun is None:
        raise InvalidInput("Nothing is staged for this restore.", {"restore_id": request.restore_id})
    revision = head.revision + 1
    head = head._replace(epoch=head.epoch + 1)
    told = 0
    results: list[Changed] = []
    for scope in request.scopes:
        head, changed = await _restore_scope(connection, namespace, head, request, scope, (revision, told, now))
        told += changed
        results.append(Changed(version=0, removed=changed))
    rows = await KnownRows.about(connection, namespace, request.changes)
    plan = await telling_what_fills(
        connection, rows, lambda: plan_changes(request.changes, rows, revision=revision, now=now, owner=request.owner)
    )
    plan.events = [_numbered(event, told) for event in plan.events]
    await write_plan(connection, namespace, head, plan, request.audit)
    await discard(connection, namespace, request.restore_id)
    return Transacted(revision=revision, at=now, results=tuple(results))


async def _restore_scope(
    connection: Connection,
    namespace: str,
    head: Head,
    request: RestoreEntries,
    scope: str,
    at: tuple[int, int, int],
) -> tuple[Head, int]:
    """Replace one scope; returns how many keys changed. `at` is revision, number of earlier events, and time."""
    revision, told, now = at
    keys = size = changed = 0
    async for batch in _batches(connection, namespace, request.restore_id, scope):
        plan = Plan(revision=revision, at=now, owner=request.owner)
        for current, staged in batch:
            row = restore_key(plan, current, staged, request.keep_versions)
            if row is not None and row.value is not None:
                keys, size = keys + 1, size + row.size + row.history_bytes
        plan.events = [_numbered(event, told + changed) for event in plan.events]
        changed += len(plan.events)
        head = await write_plan(connection, namespace, head, plan)
    plan = Plan(revision=revision, at=now, owner=request.owner)
    plan.usages[scope] = ScopeUsage(scope=scope, keys=keys, bytes=size, revision=revision)
    return await write_plan(connection, namespace, head, plan), changed


async def _batches(
    connection: Connection, namespace: str, restore_id: str, scope: str
) -> AsyncIterator[list[tuple[Entry | None, list[Entry]]]]:
    """Every existing or staged key, in order: its present row, and its staged versions, oldest first."""
    weights = await connection.all(
        "SELECT key, sum(weight)::bigint FROM ("
        " SELECT key, octet_length(body) AS weight FROM __agents_entry_staging"
        " WHERE namespace = ?1 AND restore_id = ?2 AND scope = ?3"
        " UNION ALL SELECT key, size FROM __agents_entries WHERE namespace = ?1 AND scope = ?3"
        ") AS each GROUP BY key ORDER BY key",
        (namespace, restore_id, scope),
    )
    for keys in _grouped([(row[0], row[1]) for row in weights]):
        present = await connection.all(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND key = ANY(?)",
            (namespace, scope, keys),
        )
        found = await connection.all(
            "SELECT body FROM __agents_entry_staging"
            " WHERE namespace = ? AND restore_id = ? AND scope = ? AND key = ANY(?) ORDER BY key, version",
            (namespace, restore_id, scope, keys),
        )
        current = {row[1]: entry_of(row) for row in present}
        staged: dict[str, list[Entry]] = {key: [] for key in keys}
        for row in found:
            entry = decode(row[0], Entry)
            staged[entry.key].append(entry)
        yield [(current.get(key), staged[key]) for key in keys]


def _grouped(weights: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Keys in groups that fit into memory, whatever the total."""
    group: list[str] = []
    weighs = 0
    for key, weight in weights:
        if group and (len(group) == BATCH_KEYS or weighs + weight > BATCH_BYTES):
            yield group
            group, weighs = [], 0
        group.append(key)
        weighs += weight
    if group:
        yield group


def _numbered(event: EntryEvent, by: int) -> EntryEvent:
    return msgspec.structs.replace(event, position=event.position + by)
