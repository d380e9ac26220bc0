"""Entries in Postgres: the store behind the state capabilities, in the same database as the sessions."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from helix_agents.backends.entry_columns import (
    ENTRY,
    EVENT,
    REVISION_AT,
    SUMMARY,
    VERSION,
    entry_of,
    event_of,
    events_within,
    scopes_within,
    topic_of,
    within,
)
from helix_agents.backends.part import Part
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.entry_dump import PostgresDump
from helix_agents.backends.postgres.entry_overview import read_glance, read_overview
from helix_agents.backends.postgres.entry_restore import discard, restore, stage
from helix_agents.backends.postgres.entry_rows import KnownRows, find_head, lock_head, read_unlocked
from helix_agents.backends.postgres.entry_waiting import PostgresWaiting
from helix_agents.backends.postgres.entry_writes import WRITE, telling_what_fills, values_of, write_plan
from helix_agents.domain.audit import AuditRow
from helix_agents.domain.capability_errors import QuotaExceeded
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
from helix_agents.domain.entry_plan import ONCE, Plan, first_answer, next_revision, plan_transaction
from helix_agents.ports.clock import Clock
from helix_agents.ports.entries import EntryDump, EntryStore, Waiting

# How often a write tries without a lock. One that was overtaken this many times waits for its turn.
UNLOCKED_TRIES = 3

# The revision up to which events are gone, and the one up to which they are too many or too old. The search for old
# ones starts at the oldest, because few of them are left and the log is in time order.
_DUE = """
SELECT compacted, coalesce(greatest(
    (SELECT revision FROM __agents_entry_events WHERE namespace = ?1 ORDER BY revision DESC LIMIT 1 OFFSET ?2),
    (SELECT max(revision) FROM __agents_entry_events WHERE namespace = ?1 AND revision < coalesce(
        (SELECT revision FROM __agents_entry_events WHERE namespace = ?1 AND at >= ?3 ORDER BY revision LIMIT 1),
        9223372036854775807))
), 0)
FROM __agents_entry_heads WHERE namespace = ?1
"""


class PostgresEntryStore(Part[Database]):
    """The entries of one namespace in one database, for all processes that use it.

    A database has no folder beside it, so files need an explicit one.
    """

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or database.clock

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def home(self) -> Path | None:
        return None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def store_id(self) -> str:
        found = await self._db.one("SELECT store_id FROM __agents_entry_heads WHERE namespace = ?", (self._namespace,))
        if found is not None:
            return found[0]
        return (await self._db.write(lambda connection: lock_head(connection, self._namespace))).store_id

    async def transact(self, request: EntryTransaction) -> Transacted:
        now = self._clock.now_ms()
        for _ in range(UNLOCKED_TRIES):
            answer = await self._transact_as_read(request, now)
            if answer is not None:
                return answer
        return await self._db.write(lambda connection: self._transact_locked(connection, request, now))

    async def _transact_as_read(self, request: EntryTransaction, now: int) -> Transacted | None:
        """Read in one statement, decide, and store in another if nothing was written between them; else None."""
        read = await read_unlocked(self._db, self._namespace, request)
        if read is None:
            return None
        try:
            answer, plan = _decided(request, read.rows, read.head.revision, now)
        except QuotaExceeded:
            # Only the locked path looks up what fills the scope, for the error message.
            return None
        if plan is None:
            return answer
        _, values = values_of(self._namespace, read.head, plan, request.audit, commits=read.commits)
        stored = await self._db.call_once(WRITE, values)
        return answer if stored is not None and stored[0] else None

    async def _transact_locked(self, connection: Connection, request: EntryTransaction, now: int) -> Transacted:
        head = await lock_head(connection, self._namespace)
        rows = await KnownRows.about(connection, self._namespace, request.changes, once=request.once)
        answer, plan = await telling_what_fills(connection, rows, lambda: _decided(request, rows, head.revision, now))
        if plan is not None:
            await write_plan(connection, self._namespace, head, plan, request.audit)
        return answer

    async def find(self, scope: str, key: str) -> Entry | None:
        row = await self._db.one(
            f"SELECT {ENTRY} FROM __agents_entries WHERE namespace = ? AND scope = ? AND key = ? AND value IS NOT NULL",
            (self._namespace, scope, key),
        )
        return entry_of(row) if row is not None else None

    async def find_version(self, scope: str, key: str, version: int) -> Entry | None:
        # Older versions of a key that no longer exists are not visible.
        row = await self._db.one(
            f"WITH present AS (SELECT {ENTRY} FROM __agents_entries"
            " WHERE namespace = ?1 AND scope = ?2 AND key = ?3 AND value IS NOT NULL)"
            f" SELECT {ENTRY} FROM present WHERE version = ?4"
            f" UNION ALL SELECT {VERSION} FROM __agents_entry_versions WHERE namespace = ?1 AND scope = ?2"
            " AND key = ?3 AND version = ?4 AND value IS NOT NULL AND EXISTS (SELECT 1 FROM present)",
            (self._namespace, scope, key, version),
        )
        return entry_of(row) if row is not None else None

    async def list_versions(self, scope: str, key: str, *, limit: int | None = None) -> tuple[Entry, ...]:
        rows = await self._db.all(
            f"WITH present AS (SELECT {ENTRY} FROM __agents_entries"
            " WHERE namespace = ?1 AND scope = ?2 AND key = ?3 AND value IS NOT NULL)"
            f" SELECT * FROM present UNION ALL (SELECT {VERSION} FROM __agents_entry_versions WHERE namespace = ?1"
            " AND scope = ?2 AND key = ?3 AND value IS NOT NULL AND EXISTS (SELECT 1 FROM present)"
            " ORDER BY version DESC LIMIT ?4::bigint)",
            (self._namespace, scope, key, limit),
        )
        return tuple(sorted(map(entry_of, rows), key=lambda entry: entry.version, reverse=True))[:limit]

    async def list_entries(
        self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000, values: bool = False
    ) -> EntryPage:
        where, bound = within(self._namespace, scope, prefix)

        async def work(connection: Connection) -> EntryPage:
            totals = await connection.one(
                "SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(sum(history_bytes), 0)::bigint"
                f" FROM __agents_entries WHERE {where} AND value IS NOT NULL",
                bound,
            )
            assert totals is not None
            more, start = ("", []) if after is None else (" AND key > ?", [after])
            rows = await connection.all(
                f"SELECT {ENTRY if values else SUMMARY} FROM __agents_entries"
                f" WHERE {where}{more} AND value IS NOT NULL ORDER BY key LIMIT ?",
                (*bound, *start, limit + 1),
            )
            head = await find_head(connection, self._namespace)
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
        row = await self._db.one(
            "SELECT keys, bytes, revision FROM __agents_entry_usage WHERE namespace = ? AND scope = ?",
            (self._namespace, scope),
        )
        keys, size, revision = row if row is not None else (0, 0, 0)
        return ScopeUsage(scope=scope, keys=keys, bytes=size, revision=revision)

    async def list_scopes(self, prefix: str = "") -> tuple[ScopeUsage, ...]:
        where, bound = scopes_within(self._namespace, prefix)
        rows = await self._db.all(
            f"SELECT scope, keys, bytes, revision FROM __agents_entry_usage WHERE {where} AND keys > 0 ORDER BY scope",
            bound,
        )
        return tuple(ScopeUsage(scope=row[0], keys=row[1], bytes=row[2], revision=row[3]) for row in rows)

    async def list_events(
        self, after: int, *, limit: int = 1_000, scope: str | None = None, prefix: str = "", until: int | None = None
    ) -> EventPage:
        async def work(connection: Connection) -> EventPage:
            head = await find_head(connection, self._namespace)
            if head is None:
                return EventPage(events=(), reached=0, head=0)
            last = head.revision if until is None else min(until, head.revision)
            where, bound = events_within(self._namespace, scope, prefix)
            rows = await connection.all(
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
                    rows = await connection.all(
                        f"SELECT {EVENT} FROM __agents_entry_events WHERE {where} AND revision = ? ORDER BY position",
                        (*bound, reached),
                    )
            events = tuple(event_of(row) for row in rows if row[0] <= reached)
            return EventPage(
                events=events, reached=reached, head=head.revision, compacted=head.compacted, epoch=head.epoch
            )

        return await self._db.read(work)

    async def revision_at(self, at_ms: int) -> int:
        row = await self._db.one(REVISION_AT, (self._namespace, at_ms, self._namespace))
        return row[0] if row is not None else 0

    async def prune_events(self, *, before_ms: int, keep: int) -> int:
        # The search scans much of the log and usually finds nothing due, so it runs as a read, without delaying
        # writers.
        compacted, up_to = await self._db.one(_DUE, (self._namespace, keep, before_ms)) or (0, 0)
        if up_to <= compacted:
            return compacted

        async def work(connection: Connection) -> int:
            head = await find_head(connection, self._namespace)
            if head is None or up_to <= head.compacted:
                return head.compacted if head is not None else 0
            await connection.execute(
                "DELETE FROM __agents_entry_events WHERE namespace = ? AND revision <= ?", (self._namespace, up_to)
            )
            await connection.execute(
                "UPDATE __agents_entry_heads SET compacted = ? WHERE namespace = ?", (up_to, self._namespace)
            )
            return up_to

        return await self._db.write(work)

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Waiting]:
        async with self._db.listener.listen(topic_of(self._namespace)) as waiter:
            yield await PostgresWaiting.begin(self._db, self._namespace, waiter)

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
        async with self._db.view() as view:
            yield await PostgresDump.begin(view, self._namespace, scopes)

    async def stage_restore(self, restore_id: str, rows: Sequence[Entry]) -> None:
        await self._db.write(lambda connection: stage(connection, self._namespace, restore_id, rows))

    async def restore(self, request: RestoreEntries) -> Transacted:
        now = self._clock.now_ms()
        return await self._db.write(lambda connection: restore(connection, self._namespace, request, now))

    async def discard_restore(self, restore_id: str | None) -> None:
        await self._db.write(lambda connection: discard(connection, self._namespace, restore_id))

    async def list_audit(self, after: int = 0, *, limit: int = 1_000) -> tuple[AuditRow, ...]:
        rows = await self._db.all(
            "SELECT seq, entry, previous, hash FROM __agents_audit WHERE namespace = ? AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (self._namespace, after, limit),
        )
        return tuple(AuditRow(seq=row[0], entry=row[1], previous=row[2], hash=row[3]) for row in rows)

    async def prune_audit(self, up_to: int) -> int:
        return await self._db.write(
            lambda connection: connection.execute(
                "DELETE FROM __agents_audit WHERE namespace = ? AND seq <= ?", (self._namespace, up_to)
            )
        )


def _decided(request: EntryTransaction, rows: KnownRows, revision: int, now: int) -> tuple[Transacted, Plan | None]:
    """The answer, and the plan to store for it; no plan if the request was made before."""
    if request.once is not None:
        answer = first_answer(request, rows.find(ONCE, request.once))
        if answer is not None:
            return answer, None
    plan = plan_transaction(request, rows, revision=next_revision(request.changes, revision), now=now)
    return plan.answer, plan


_: type[EntryStore] = PostgresEntryStore
