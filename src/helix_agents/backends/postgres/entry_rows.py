"""Rows of entries in Postgres: a namespace's head, and the rows a plan needs, looked up before the plan is made."""

from collections.abc import Sequence
from typing import NamedTuple

from helix_agents.backends.entry_columns import ENTRY, SUMMARY, Head, entry_of
from helix_agents.backends.postgres.connection import Connection, Row, Value
from helix_agents.backends.postgres.database import Database
from helix_agents.domain.audit import genesis
from helix_agents.domain.entries import Change, Clear, Entry, EntryTransaction, Put, ScopeUsage
from helix_agents.domain.entry_plan import ONCE
from helix_agents.system import RandomIds

HEAD = "store_id, revision, compacted, epoch, audit_seq, audit_hash"

_ids = RandomIds()
# For each key: its row, the totals of its scope, and the older versions that may have to go. The limits make each
# lookup use the index, however many rows the server believes there are.
_LOOK = f"""
SELECT w.scope, w.key, e.*, u.*, o.*
FROM unnest(?2::text[], ?3::text[], ?4::bigint[]) AS w (scope, key, past)
LEFT JOIN LATERAL (
    SELECT {ENTRY} FROM __agents_entries WHERE namespace = ?1 AND scope = w.scope AND key = w.key LIMIT 1
) e ON true
LEFT JOIN LATERAL (
    SELECT u.keys, u.bytes, u.revision FROM __agents_entry_usage u WHERE u.namespace = ?1 AND u.scope = w.scope LIMIT 1
) u ON true
LEFT JOIN LATERAL (
    SELECT array_agg(v.version), array_agg(v.size) FROM __agents_entry_versions v
    WHERE v.namespace = ?1 AND v.scope = w.scope AND v.key = w.key AND v.version <= e.version + w.past
) o ON w.past IS NOT NULL
"""


_HEAD_WIDTH = HEAD.count(",") + 2
_AS_READ = f"""
SELECT h.commits, {", ".join(f"h.{name}" for name in HEAD.split(", "))}, k.*
FROM __agents_entry_heads h LEFT JOIN LATERAL ({_LOOK}) k ON true WHERE h.namespace = ?1
"""


async def find_head(connection: Connection, namespace: str) -> Head | None:
    """The namespace's head; None before its first write. A writing transaction locks it."""
    row = await connection.one(
        f"SELECT {HEAD} FROM __agents_entry_heads WHERE namespace = ?{connection.lock}", (namespace,)
    )
    return Head(*row) if row is not None else None


async def lock_head(connection: Connection, namespace: str) -> Head:
    """The namespace's head, created here if there is none yet, and locked against other writers until the commit.

    Call this before the first look at an entry. A statement sees what was committed before it began, and so everything
    that the previous holder of the lock wrote.
    """
    head = await find_head(connection, namespace)
    if head is None:
        store_id = _ids.new("store")
        await connection.execute(
            f"INSERT INTO __agents_entry_heads (namespace, {HEAD}) VALUES (?, ?, 0, 0, 1, 0, ?)"
            " ON CONFLICT (namespace) DO NOTHING",
            (namespace, store_id, genesis(store_id)),
        )
        head = await find_head(connection, namespace)
        assert head is not None
    return head


class KnownRows:
    """The rows a plan needs, looked up in advance, because making a plan never waits."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._entries: dict[tuple[str, str], Entry | None] = {}
        self._living: dict[str, list[Entry]] = {}
        self._usages: dict[str, ScopeUsage] = {}
        self._older: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._largest: dict[str, list[Entry]] = {}
        self._crowded: set[tuple[str, int]] = set()

    @classmethod
    async def about(
        cls, connection: Connection, namespace: str, changes: Sequence[Change], *, once: str | None = None
    ) -> "KnownRows":
        """Everything that a plan of these changes can look up, except the largest keys of a full scope."""
        rows = cls(namespace)
        wanted = _wanted(changes, once)
        if wanted:
            for found in await connection.all(_LOOK, (namespace, *_asked(wanted))):
                rows.put(found)
        if cleared := sorted({change.scope for change in changes if isinstance(change, Clear)}):
            await rows.look_at_scopes(connection, cleared)
        return rows

    async def look_at_scopes(self, connection: Connection, scopes: Sequence[str]) -> None:
        """Look up every key of some scopes."""
        self._living = {scope: [] for scope in scopes}
        found = await connection.all(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ANY(?) AND value IS NOT NULL",
            (self._namespace, scopes),
        )
        for entry in map(entry_of, found):
            self._living[entry.scope].append(entry)
            self._entries[entry.scope, entry.key] = entry

    async def look_at_largest(self, connection: Connection) -> bool:
        """Look up the largest keys that a plan asked for, for its error message; False if it asked for none."""
        crowded, self._crowded = self._crowded, set()
        for scope, count in crowded:
            found = await connection.all(
                f"SELECT {SUMMARY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND value IS NOT NULL"
                " ORDER BY size + history_bytes DESC, key LIMIT ?",
                (self._namespace, scope, count),
            )
            self._largest[scope] = [entry_of(row) for row in found]
        return bool(crowded)

    def put(self, row: Row) -> None:
        """Remember a row of `_LOOK`."""
        scope, key, *columns = row
        entry, (held, size, revision), (versions, sizes) = columns[:11], columns[11:14], columns[14:]
        self._usages[scope] = ScopeUsage(scope=scope, keys=held or 0, bytes=size or 0, revision=revision or 0)
        if key is not None:
            self._entries[scope, key] = entry_of(tuple(entry)) if entry[0] is not None else None
            self._older[scope, key] = list(zip(versions or (), sizes or (), strict=True))

    def find(self, scope: str, key: str) -> Entry | None:
        # A key that cannot be stored was queried under a substitute name, and nothing is stored under that name.
        return self._entries.get((scope, key))

    def usage(self, scope: str) -> ScopeUsage:
        return self._usages[scope]

    def older(self, scope: str, key: str, up_to: int) -> int:
        return sum(size for version, size in self._older.get((scope, key), ()) if version <= up_to)

    def living(self, scope: str) -> Sequence[Entry]:
        return self._living[scope]

    def largest(self, scope: str, count: int) -> Sequence[Entry]:
        if scope not in self._largest:
            self._crowded.add((scope, count))
        return self._largest.get(scope, ())


class AsRead(NamedTuple):
    """A namespace at one moment: its number of commits, its head, and some of its rows."""

    commits: int
    head: Head
    rows: KnownRows


async def read_unlocked(database: Database, namespace: str, request: EntryTransaction) -> AsRead | None:
    """The rows that a plan of the request needs, in one statement; None if one statement is not enough."""
    if any(isinstance(change, Clear) for change in request.changes):
        return None
    found = await database.all(_AS_READ, (namespace, *_asked(_wanted(request.changes, request.once))))
    if not found:
        return None
    rows = KnownRows(namespace)
    for row in found:
        if row[_HEAD_WIDTH] is not None:
            rows.put(tuple(row)[_HEAD_WIDTH:])
    commits, *head = tuple(found[0])[:_HEAD_WIDTH]
    return AsRead(commits, Head(*head), rows)


def _wanted(changes: Sequence[Change], once: str | None) -> dict[tuple[str, str | None], int | None]:
    """The keys a plan looks at. Each comes with an offset: versions up to the present one plus it may have to go.

    A scope to be cleared is listed without a key. No change advances a key's version by more than one.
    """
    count: dict[tuple[str, str | None], int] = {} if once is None else {(ONCE, once): 1}
    keeps: dict[tuple[str, str | None], int] = {}
    for change in changes:
        place = (change.scope, None if isinstance(change, Clear) else change.key)
        count[place] = count.get(place, 0) + 1
        if isinstance(change, Put) and change.keep_versions is not None and change.keep_versions > 1:
            keeps[place] = min(change.keep_versions, keeps.get(place, change.keep_versions))
    return {place: times - keeps[place] if place in keeps else None for place, times in count.items()}


def _asked(wanted: dict[tuple[str, str | None], int | None]) -> tuple[Value, Value, Value]:
    return [scope for scope, _ in wanted], [key for _, key in wanted], list(wanted.values())
