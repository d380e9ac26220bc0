"""Entries in SQLite: the store behind the state capabilities, in the same file as the sessions."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from helix_agents.backends.entry_columns import (
    ENTRY,
    EVENT,
    REVISION_AT,
    SUMMARY,
    VERSION,
    Head,
    entry_of,
    event_of,
    events_within,
    scopes_within,
    topic_of,
    within,
)
from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.connection import Connection, telling
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.entry_overview import read_glance, read_overview
from helix_agents.backends.sqlite.entry_restore import discard, restore, stage
from helix_agents.backends.sqlite.entry_rows import (
    SQLiteRows,
    append_audit,
    find_head,
    make_head,
    save_head,
    write_plan,
)
from helix_agents.backends.wakeups import Waiter
from helix_agents.domain.audit import AuditRow
from helix_agents.domain.entries import (
    Entry,
    EntryPage,
    EntryTransaction,
    EventPage,
    Glance,
    Overview,
    RestoreEntries,
    ScopeUsage,
    Transacted,
)
from helix_agents.domain.entry_plan import ONCE, first_answer, next_revision, plan_transaction
from helix_agents.ports.clock import Clock
from helix_agents.ports.entries import EntryDump, EntryStore
from helix_agents.system import SystemClock

DUMP_ROWS = 500


class SQLiteEntryStore(Part[Database]):
    """The entries of one namespace in one file, for all processes that use it."""

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or SystemClock()

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def home(self) -> Path | None:
        return self._database.path.with_name(f"{self._database.path.name}-state")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def store_id(self) -> str:
        head = await self._db.read_by_key(lambda connection: find_head(connection, self._namespace))
        if head is None:
            head = await self._db.write(lambda connection: make_head(connection, self._namespace))
        return head.store_id

    async def transact(self, request: EntryTransaction) -> Transacted:
        now = self._clock.now_ms()

        def work(connection: Connection) -> Transacted:
            rows = SQLiteRows(connection, self._namespace)
            if request.once is not None:
                answer = first_answer(request, rows.find(ONCE, request.once))
                if answer is not None:
                    return answer
            head = find_head(connection, self._namespace)
            revision = next_revision(request.changes, head.revision if head is not None else 0)
            # Every refusal happens before the first write, so the rest of a group of writes continues without this one.
            plan = plan_transaction(request, rows, revision=revision, now=now)
            head = head or make_head(connection, self._namespace)
            write_plan(connection, self._namespace, plan)
            if request.audit:
                head = append_audit(connection, self._namespace, head, request.audit, revision)
            save_head(connection, self._namespace, head._replace(revision=revision))
            connection.ring(topic_of(self._namespace))
            return plan.answer

        return await self._db.write(work)

    async def find(self, scope: str, key: str) -> Entry | None:
        row = await self._db.look_up(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND key = ? AND lives",
            (self._namespace, scope, key),
        )
        return entry_of(row) if row is not None else None

    async def find_version(self, scope: str, key: str, version: int) -> Entry | None:
        def work(connection: Connection) -> Entry | None:
            present = SQLiteRows(connection, self._namespace).find(scope, key)
            if present is None or present.value is None or present.version == version:
                return present if present is not None and present.value is not None else None
            row = connection.one(
                f"SELECT {VERSION} FROM __agents_entry_versions"
                " WHERE namespace = ? AND scope = ? AND key = ? AND version = ? AND value IS NOT NULL",
                (self._namespace, scope, key, version),
            )
            return entry_of(row) if row is not None else None

        return await self._db.read_by_key(work)

    async def list_versions(self, scope: str, key: str, *, limit: int | None = None) -> tuple[Entry, ...]:
        def work(connection: Connection) -> tuple[Entry, ...]:
            present = SQLiteRows(connection, self._namespace).find(scope, key)
            if present is None or present.value is None:
                return ()
            older = connection.all(
                f"SELECT {VERSION} FROM __agents_entry_versions"
                " WHERE namespace = ? AND scope = ? AND key = ? AND value IS NOT NULL ORDER BY version DESC LIMIT ?",
                (self._namespace, scope, key, -1 if limit is None else limit - 1),
            )
            return (present, *map(entry_of, older))

        return await self._db.read(work)

    async def list_entries(
        self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000, values: bool = False
    ) -> EntryPage:
        where, bound = within(self._namespace, scope, prefix)

        def work(connection: Connection) -> EntryPage:
            totals = connection.one(
                "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(history_bytes), 0) FROM __agents_entries"
                f" WHERE {where} AND lives",
                bound,
            )
            assert totals is not None
            more, start = ("", []) if after is None else (" AND key > ?", [after])
            rows = connection.all(
                f"SELECT {ENTRY if values else SUMMARY} FROM __agents_entries WHERE {where}{more} AND lives"
                " ORDER BY key LIMIT ?",
                (*bound, *start, limit + 1),
            )
            head = find_head(connection, self._namespace)
            return EntryPage(
                items=tuple(entry_of(row) for row in rows[:limit]),
                total=totals[0],
                total_bytes=totals[1],
                history_bytes=totals[2],
                revision=head.revision if head is not None else 0,
                has_more=len(rows) > limit,
            )

        return await self._db.read(work)

    async def usage(self, scope: str) -> ScopeUsage:
        return await self._db.read_by_key(lambda connection: SQLiteRows(connection, self._namespace).usage(scope))

    async def list_scopes(self, prefix: str = "") -> tuple[ScopeUsage, ...]:
        where, bound = scopes_within(self._namespace, prefix)

        def work(connection: Connection) -> tuple[ScopeUsage, ...]:
            rows = connection.all(
                f"SELECT scope, keys, bytes, revision FROM __agents_entry_usage WHERE {where} AND keys > 0"
                " ORDER BY scope",
                bound,
            )
            return tuple(ScopeUsage(scope=row[0], keys=row[1], bytes=row[2], revision=row[3]) for row in rows)

        return await self._db.read(work)

    async def list_events(
        self, after: int, *, limit: int = 1_000, scope: str | None = None, prefix: str = "", until: int | None = None
    ) -> EventPage:
        def work(connection: Connection) -> EventPage:
            head = find_head(connection, self._namespace)
            if head is None:
                return EventPage(events=(), reached=0, head=0)
            last = head.revision if until is None else min(until, head.revision)
            where, bound = events_within(self._namespace, scope, prefix)
            rows = connection.all(
                f"SELECT {EVENT} FROM __agents_entry_events WHERE {where} AND revision > ? AND revision <= ?"
                " ORDER BY revision, position LIMIT ?",
                (*bound, after, last, limit + 1),
            )
            reached = max(last, after)
            if len(rows) > limit:
                # A page never splits a transaction: the cut one moves to the next page, unless it alone fills this one.
                reached = rows[limit][0] - 1
                if reached < rows[0][0]:
                    reached = rows[0][0]
                    rows = connection.all(
                        f"SELECT {EVENT} FROM __agents_entry_events WHERE {where} AND revision = ? ORDER BY position",
                        (*bound, reached),
                    )
            events = tuple(event_of(row) for row in rows if row[0] <= reached)
            return EventPage(
                events=events, reached=reached, head=head.revision, compacted=head.compacted, epoch=head.epoch
            )

        return await self._db.read(work)

    async def revision_at(self, at_ms: int) -> int:
        def work(connection: Connection) -> int:
            row = connection.one(REVISION_AT, (self._namespace, at_ms, self._namespace))
            return row[0] if row is not None else 0

        return await self._db.read(work)

    async def prune_events(self, *, before_ms: int, keep: int) -> int:
        # The search scans much of the log and usually finds nothing due, so it runs as a read, without delaying
        # writers.
        head, up_to = await self._db.read(lambda connection: self._due(connection, before_ms, keep))
        if head is None or up_to <= head.compacted:
            return head.compacted if head is not None else 0

        def work(connection: Connection) -> int:
            head = find_head(connection, self._namespace)
            if head is None or up_to <= head.compacted:
                return head.compacted if head is not None else 0
            connection.execute(
                "DELETE FROM __agents_entry_events WHERE namespace = ? AND revision <= ?", (self._namespace, up_to)
            )
            save_head(connection, self._namespace, head._replace(compacted=up_to))
            return up_to

        return await self._db.write(work)

    def _due(self, connection: Connection, before_ms: int, keep: int) -> tuple[Head | None, int]:
        """The head, and the revision up to which events are too old or too many."""
        crowded = connection.one(
            "SELECT revision FROM __agents_entry_events WHERE namespace = ? ORDER BY revision DESC LIMIT 1 OFFSET ?",
            (self._namespace, keep),
        )
        # Start at the oldest event, because few old ones are left. The `+` keeps SQLite from going through all the
        # young ones.
        young = connection.one(
            "SELECT revision FROM __agents_entry_events WHERE namespace = ? AND +at >= ? ORDER BY revision LIMIT 1",
            (self._namespace, before_ms),
        )
        condition, bound = ("", ()) if young is None else (" AND revision < ?", (young[0],))
        old = connection.one(
            f"SELECT max(revision) FROM __agents_entry_events WHERE namespace = ?{condition}",
            (self._namespace, *bound),
        )
        up_to = max(crowded[0] if crowded is not None else 0, (old[0] if old is not None else 0) or 0)
        return find_head(connection, self._namespace), up_to

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Waiter]:
        async with self._db.bell.listen(topic_of(self._namespace)) as waiter:
            yield waiter

    async def overview(self, system: Sequence[str] = (), *, sessions: int = 1_000) -> Overview:
        now = self._clock.now_ms()
        return await self._db.read(lambda connection: read_overview(connection, self._namespace, system, sessions, now))

    async def glance(
        self, system: Sequence[str] = (), *, agent: str | None = None, runs_since: int | None = None
    ) -> Glance:
        return await self._db.read(
            lambda connection: read_glance(connection, self._namespace, system, agent, runs_since)
        )

    @asynccontextmanager
    async def dump(self, scopes: Sequence[str]) -> AsyncGenerator[EntryDump]:
        dump = await asyncio.to_thread(_SQLiteDump, self._db, self._namespace, tuple(scopes))
        try:
            yield dump
        finally:
            await asyncio.to_thread(dump.close)

    async def stage_restore(self, restore_id: str, rows: Sequence[Entry]) -> None:
        await self._db.write(lambda connection: stage(connection, self._namespace, restore_id, rows))

    async def restore(self, request: RestoreEntries) -> Transacted:
        now = self._clock.now_ms()
        return await self._db.write(lambda connection: restore(connection, self._namespace, request, now))

    async def discard_restore(self, restore_id: str | None) -> None:
        await self._db.write(lambda connection: discard(connection, self._namespace, restore_id))

    async def list_audit(self, after: int = 0, *, limit: int = 1_000) -> tuple[AuditRow, ...]:
        def work(connection: Connection) -> tuple[AuditRow, ...]:
            rows = connection.all(
                "SELECT seq, entry, previous, hash FROM __agents_audit WHERE namespace = ? AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (self._namespace, after, limit),
            )
            return tuple(AuditRow(seq=row[0], entry=row[1], previous=row[2], hash=row[3]) for row in rows)

        return await self._db.read(work)

    async def prune_audit(self, up_to: int) -> int:
        def work(connection: Connection) -> int:
            connection.execute("DELETE FROM __agents_audit WHERE namespace = ? AND seq <= ?", (self._namespace, up_to))
            return connection.changed()

        return await self._db.write(work)


class _SQLiteDump:
    """A dump on a connection of its own, whose single read transaction never sees later writes."""

    def __init__(self, database: Database, namespace: str, scopes: tuple[str, ...]) -> None:
        self._namespace = namespace
        self._scopes = scopes
        self._name = database.name
        self._reading = threading.Lock()
        with telling(self._name):
            self._connection = database.open_reader()
            self._connection.execute("BEGIN")
            head = find_head(self._connection, namespace)
        self.revision = head.revision if head is not None else 0

    def close(self) -> None:
        """Close the connection. A cancelled task may have left a thread reading from it."""
        self._connection.interrupt()
        with self._reading:
            self._connection.close()

    async def rows(self) -> AsyncIterator[Sequence[Entry]]:
        for scope in self._scopes:
            after = ""
            while batch := await asyncio.to_thread(self._next, scope, after):
                yield batch
                after = batch[-1].key

    def _next(self, scope: str, after: str) -> list[Entry]:
        with self._reading, telling(self._name):
            return self._batch(scope, after)

    def _batch(self, scope: str, after: str) -> list[Entry]:
        """Some keys, each with all its versions, the present one last."""
        present = self._connection.all(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND key > ? ORDER BY key LIMIT ?",
            (self._namespace, scope, after, DUMP_ROWS),
        )
        batch: list[Entry] = []
        weighs = 0
        for row in present:
            entry = entry_of(row)
            if entry.history_bytes:
                older = self._connection.all(
                    f"SELECT {VERSION} FROM __agents_entry_versions WHERE namespace = ? AND scope = ? AND key = ?"
                    " ORDER BY version",
                    (self._namespace, scope, entry.key),
                )
                batch.extend(map(entry_of, older))
            batch.append(entry)
            weighs += entry.size + entry.history_bytes
            if weighs > 4_000_000:
                break
        return batch


_: type[EntryStore] = SQLiteEntryStore
