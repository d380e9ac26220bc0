"""Rows of entries in memory: looking them up, and writing what a plan contains."""

from collections.abc import Sequence
from dataclasses import replace

from helix_agents.backends.in_memory.tables import EntryHead, EntryTables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.audit import entry_text, genesis, next_row
from helix_agents.domain.entries import Change, Entry, ScopeUsage, session_scope
from helix_agents.domain.entry_plan import Plan, next_revision, plan_changes
from helix_agents.domain.entry_restore import rewound
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON

_HEAD = ""


def topic_of(namespace: str) -> str:
    """The topic that rings when something was committed."""
    return f"entries/{namespace}"


def head_of(tx: Transaction) -> EntryHead:
    """The namespace's head, created here if there is none yet."""
    heads = tx.tables.entries.heads
    if _HEAD not in heads:
        store_id = tx.ids.new("store")
        tx.put(heads, _HEAD, EntryHead(store_id=store_id, audit_hash=genesis(store_id)))
    return heads[_HEAD]


def find_head(tables: EntryTables) -> EntryHead:
    """The namespace's head, even before its first write."""
    return tables.heads.get(_HEAD) or EntryHead(store_id="", audit_hash="", epoch=0)


def move_head(tx: Transaction, **changes: int | str) -> None:
    """Move the namespace's head."""
    tx.put(tx.tables.entries.heads, _HEAD, replace(head_of(tx), **changes))


class MemoryRows:
    """The lookups a plan makes, under the lock."""

    def __init__(self, tables: EntryTables) -> None:
        self._tables = tables

    def find(self, scope: str, key: str) -> Entry | None:
        return self._tables.entries.get(scope, {}).get(key)

    def usage(self, scope: str) -> ScopeUsage:
        return self._tables.usage.get(scope) or ScopeUsage(scope=scope)

    def older(self, scope: str, key: str, up_to: int) -> int:
        versions = self._tables.versions.get((scope, key), {})
        return sum(each.size for version, each in versions.items() if version <= up_to)

    def living(self, scope: str) -> Sequence[Entry]:
        rows = self._tables.entries.get(scope, {})
        return [rows[key] for key in sorted(rows) if rows[key].value is not None]

    def largest(self, scope: str, count: int) -> Sequence[Entry]:
        return sorted(self.living(scope), key=lambda each: (-each.size - each.history_bytes, each.key))[:count]


def write_plan(tx: Transaction, plan: Plan) -> None:
    """Write the rows of a plan."""
    tables = tx.tables.entries
    for scope in plan.erased:
        _erase(tx, scope)
    for place in plan.dropped:
        tx.remove(tables.versions, place)
    for place, last in plan.pruned.items():
        versions = tables.versions.get(place, {})
        for version in [version for version in versions if version <= last]:
            tx.remove(versions, version)
    for each in plan.versions:
        tx.put(tx.within(tables.versions, (each.scope, each.key)), each.version, each)
    for scope, key in plan.forgotten:
        tx.remove(tables.entries.get(scope, {}), key)
    for (scope, key), entry in plan.entries.items():
        tx.put(tx.within(tables.entries, scope), key, entry)
    for scope, usage in plan.usages.items():
        tx.put(tables.usage, scope, usage)
    for event in plan.events:
        tx.put(tables.events, (event.revision, event.position), event)


def append_audit(tx: Transaction, entries: Sequence[dict[str, JSON]], revision: int) -> None:
    """Append entries to the chained audit log."""
    for entry in entries:
        head = head_of(tx)
        row = next_row(head.audit_seq, head.audit_hash, entry_text({**entry, "revision": revision}))
        tx.put(tx.tables.entries.audit, row.seq, row)
        move_head(tx, audit_seq=row.seq, audit_hash=row.hash)


def write_session_entries(
    tx: Transaction,
    changes: Sequence[Change],
    audit: Sequence[dict[str, JSON]] = (),
    *,
    owner: str,
    mark: int,
) -> None:
    """Write a session's changes, and lines for the audit log, within the commit of its step."""
    rows = MemoryRows(tx.tables.entries)
    revision = next_revision(changes, head_of(tx).revision)
    write_plan(tx, plan_changes(changes, rows, revision=revision, now=tx.now, owner=owner, mark=mark))
    append_audit(tx, audit, revision)
    move_head(tx, revision=revision)


def rewind_session_entries(tx: Transaction, session_id: SessionId, *, to: int, mark: int) -> None:
    """Restore a session's entries to the values of one of its earlier versions, as new versions."""
    scope, tables = session_scope(session_id), tx.tables.entries
    known = [
        entry
        for key, present in tables.entries.get(scope, {}).items()
        for entry in (present, *tables.versions.get((scope, key), {}).values())
    ]
    changes = rewound(scope, known, to)
    if changes:
        write_session_entries(tx, changes, owner="rewind", mark=mark)


def delete_session_entries(tx: Transaction, session_id: SessionId) -> None:
    """Destroy all entries of a session."""
    _erase(tx, session_scope(session_id))


def _erase(tx: Transaction, scope: str) -> None:
    tables = tx.tables.entries
    for key in tables.entries.get(scope, {}):
        tx.remove(tables.versions, (scope, key))
    tx.remove(tables.entries, scope)
    tx.remove(tables.usage, scope)
