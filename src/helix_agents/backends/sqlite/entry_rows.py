"""Rows of entries in SQLite: looking them up, and writing what a plan contains."""

from collections.abc import Sequence

from helix_agents.backends.entry_columns import ENTRY, EVENT, SUMMARY, VERSION, Head, entry_of, topic_of
from helix_agents.backends.sqlite.connection import Connection, Value
from helix_agents.domain.audit import entry_text, genesis, next_row
from helix_agents.domain.entries import Change, Entry, ScopeUsage, session_scope
from helix_agents.domain.entry_plan import Plan, next_revision, plan_changes
from helix_agents.domain.entry_restore import rewound
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON
from helix_agents.system import RandomIds

_ids = RandomIds()


def find_head(connection: Connection, namespace: str) -> Head | None:
    """The namespace's head; None before its first write."""
    row = connection.one(
        "SELECT store_id, revision, compacted, epoch, audit_seq, audit_hash FROM __agents_entry_heads"
        " WHERE namespace = ?",
        (namespace,),
    )
    return Head(*row) if row is not None else None


def make_head(connection: Connection, namespace: str) -> Head:
    """The namespace's head, created here if there is none yet."""
    head = find_head(connection, namespace)
    if head is None:
        store_id = _ids.new("store")
        head = Head(store_id, 0, 0, 1, 0, genesis(store_id))
        connection.execute(
            "INSERT INTO __agents_entry_heads (namespace, store_id, revision, compacted, epoch, audit_seq, audit_hash)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (namespace, *head),
        )
    return head


def save_head(connection: Connection, namespace: str, head: Head) -> None:
    """Move the namespace's head."""
    connection.execute(
        "UPDATE __agents_entry_heads SET revision = ?, compacted = ?, epoch = ?, audit_seq = ?, audit_hash = ?"
        " WHERE namespace = ?",
        (*head[1:], namespace),
    )


class SQLiteRows:
    """The lookups a plan makes, within one transaction."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    def find(self, scope: str, key: str) -> Entry | None:
        row = self._connection.one(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND key = ?",
            (self._namespace, scope, key),
        )
        return entry_of(row) if row is not None else None

    def usage(self, scope: str) -> ScopeUsage:
        row = self._connection.one(
            "SELECT keys, bytes, revision FROM __agents_entry_usage WHERE namespace = ? AND scope = ?",
            (self._namespace, scope),
        )
        keys, size, revision = row if row is not None else (0, 0, 0)
        return ScopeUsage(scope=scope, keys=keys, bytes=size, revision=revision)

    def older(self, scope: str, key: str, up_to: int) -> int:
        row = self._connection.one(
            "SELECT coalesce(sum(size), 0) FROM __agents_entry_versions"
            " WHERE namespace = ? AND scope = ? AND key = ? AND version <= ?",
            (self._namespace, scope, key, up_to),
        )
        assert row is not None
        return row[0]

    def living(self, scope: str) -> Sequence[Entry]:
        rows = self._connection.all(
            f"SELECT {SUMMARY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND lives ORDER BY key",
            (self._namespace, scope),
        )
        return [entry_of(row) for row in rows]

    def largest(self, scope: str, count: int) -> Sequence[Entry]:
        rows = self._connection.all(
            f"SELECT {SUMMARY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND lives"
            " ORDER BY size + history_bytes DESC, key LIMIT ?",
            (self._namespace, scope, count),
        )
        return [entry_of(row) for row in rows]


def write_plan(connection: Connection, namespace: str, plan: Plan) -> None:
    """Write the rows of a plan."""
    for scope in plan.erased:
        _erase(connection, namespace, scope)
    for scope, key in plan.dropped:
        connection.execute(
            "DELETE FROM __agents_entry_versions WHERE namespace = ? AND scope = ? AND key = ?",
            (namespace, scope, key),
        )
    for (scope, key), version in plan.pruned.items():
        connection.execute(
            "DELETE FROM __agents_entry_versions WHERE namespace = ? AND scope = ? AND key = ? AND version <= ?",
            (namespace, scope, key, version),
        )
    for each in plan.versions:
        connection.execute(
            "INSERT INTO __agents_entry_versions (namespace, scope, key, version, revision, size, created_at,"
            " updated_at, owner, mark, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, *_columns(each)),
        )
    for scope, key in plan.forgotten:
        connection.execute(
            "DELETE FROM __agents_entries WHERE namespace = ? AND scope = ? AND key = ?", (namespace, scope, key)
        )
    for each in plan.entries.values():
        *most, value = _columns(each)
        connection.execute(
            "INSERT OR REPLACE INTO __agents_entries (namespace, scope, key, version, revision, size, created_at,"
            " updated_at, owner, mark, history_bytes, lives, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, *most, each.history_bytes, int(value is not None), value),
        )
    for usage in plan.usages.values():
        save_usage(connection, namespace, usage)
    for event in plan.events:
        connection.execute(
            f"INSERT INTO __agents_entry_events (namespace, {EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                namespace,
                event.revision,
                event.position,
                event.scope,
                event.key,
                event.version,
                event.operation,
                event.owner,
                event.at,
                event.size,
            ),
        )


def save_usage(connection: Connection, namespace: str, usage: ScopeUsage) -> None:
    """Store what a scope holds."""
    connection.execute(
        "INSERT OR REPLACE INTO __agents_entry_usage (namespace, scope, keys, bytes, revision) VALUES (?, ?, ?, ?, ?)",
        (namespace, usage.scope, usage.keys, usage.bytes, usage.revision),
    )


def append_audit(
    connection: Connection, namespace: str, head: Head, entries: Sequence[dict[str, JSON]], revision: int
) -> Head:
    """Append entries to the chained audit log; returns the new head, which the caller has to save."""
    for entry in entries:
        row = next_row(head.audit_seq, head.audit_hash, entry_text({**entry, "revision": revision}))
        connection.execute(
            "INSERT INTO __agents_audit (namespace, seq, entry, previous, hash) VALUES (?, ?, ?, ?, ?)",
            (namespace, row.seq, row.entry, row.previous, row.hash),
        )
        head = head._replace(audit_seq=row.seq, audit_hash=row.hash)
    return head


def write_session_entries(
    connection: Connection,
    namespace: str,
    changes: Sequence[Change],
    audit: Sequence[dict[str, JSON]] = (),
    *,
    owner: str,
    mark: int,
    now: int,
) -> None:
    """Write a session's changes, and lines for the audit log, within the commit of its step."""
    head = make_head(connection, namespace)
    revision = next_revision(changes, head.revision)
    rows = SQLiteRows(connection, namespace)
    write_plan(
        connection,
        namespace,
        plan_changes(changes, rows, revision=revision, now=now, owner=owner, mark=mark),
    )
    head = append_audit(connection, namespace, head, audit, revision)
    save_head(connection, namespace, head._replace(revision=revision))
    connection.ring(topic_of(namespace))


def rewind_session_entries(
    connection: Connection, namespace: str, session_id: SessionId, *, to: int, mark: int, now: int
) -> None:
    """Restore a session's entries to the values of one of its earlier versions, as new versions."""
    scope = session_scope(session_id)
    known = connection.all(
        f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ?1 AND scope = ?2"
        f" UNION ALL SELECT {VERSION} FROM __agents_entry_versions WHERE namespace = ?1 AND scope = ?2",
        (namespace, scope),
    )
    changes = rewound(scope, map(entry_of, known), to)
    if changes:
        write_session_entries(connection, namespace, changes, owner="rewind", mark=mark, now=now)


def delete_session_entries(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Destroy all entries of a session."""
    _erase(connection, namespace, session_scope(session_id))


def _erase(connection: Connection, namespace: str, scope: str) -> None:
    for table in ("__agents_entries", "__agents_entry_versions", "__agents_entry_usage"):
        connection.execute(f"DELETE FROM {table} WHERE namespace = ? AND scope = ?", (namespace, scope))


def _columns(entry: Entry) -> tuple[Value, ...]:
    return (
        entry.scope,
        entry.key,
        entry.version,
        entry.revision,
        entry.size,
        entry.created_at,
        entry.updated_at,
        entry.owner,
        entry.mark,
        entry.value,
    )
