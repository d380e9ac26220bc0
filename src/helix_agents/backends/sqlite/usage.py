"""Usage in SQLite."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.filters import usage_conditions
from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.rows import children_of, find_run, find_session
from helix_agents.domain.door import check_usage
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.usage import UsageEntry, UsageFilter, UsageRollup, roll_up
from helix_agents.ports.clock import Clock
from helix_agents.system import SystemClock

_INSERT = (
    "INSERT INTO __agents_usage (namespace, session_id, root_session_id, run_id, attempt, step, n, source_type,"
    " source_name, user_id, agent_type, recorded_at, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)


def insert_usage(connection: Connection, namespace: str, entries: Iterable[UsageEntry], now: int) -> int:
    """Store entries; one that is there already counts nothing. Says how many were new."""
    before = connection.raw.total_changes()
    connection.execute_many(_INSERT, [_columns(namespace, entry, now) for entry in entries])
    return connection.raw.total_changes() - before


def _columns(namespace: str, entry: UsageEntry, now: int) -> tuple[Value, ...]:
    stamped = entry if entry.recorded_at else msgspec.structs.replace(entry, recorded_at=now)
    return (
        namespace,
        stamped.session_id,
        stamped.root_session_id,
        stamped.run_id,
        stamped.attempt,
        stamped.step,
        stamped.n,
        stamped.source_type,
        stamped.source_name,
        stamped.user_id,
        stamped.agent_type,
        stamped.recorded_at,
        encode(stamped).decode(),
    )


def entry_of(row: Row) -> UsageEntry:
    """An entry, from its `body`."""
    return decode(row[0], UsageEntry)


class SQLiteUsageStore(Part[Database]):
    """What sessions used, in the same file as the sessions."""

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or SystemClock()

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        for entry in entries:
            check_usage(entry)
        now = self._clock.now_ms()
        return await self._db.write(lambda connection: insert_usage(connection, self._namespace, entries, now))

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        check_page(offset, limit)

        def work(connection: Connection) -> Page[UsageEntry]:
            conditions, values = usage_conditions(self._in_its_tree(connection, where or UsageFilter()))
            return read_page(
                connection,
                columns="body",
                source=f"__agents_usage WHERE namespace = ?{conditions}",
                order="recorded_at DESC, run_id DESC, attempt DESC, step DESC, n DESC",
                values=(self._namespace, *values),
                offset=offset,
                limit=limit,
                item=entry_of,
            )

        return await self._db.read(work)

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        def work(connection: Connection) -> UsageRollup:
            root = self._root_of(connection, session_id) or session_id
            rows = connection.all(
                "SELECT body FROM __agents_usage WHERE namespace = ? AND root_session_id = ?", (self._namespace, root)
            )
            entries = [entry_of(row) for row in rows]
            if root == session_id:
                return roll_up(entries)
            below = {session_id, *children_of(connection, self._namespace, session_id)}
            return roll_up(entry for entry in entries if entry.session_id in below)

        return await self._db.read(work)

    async def delete_usage(self, session_id: SessionId) -> int:
        def work(connection: Connection) -> int:
            where = self._in_its_tree(connection, UsageFilter(session_id=session_id))
            conditions, values = usage_conditions(where)
            connection.execute(
                f"DELETE FROM __agents_usage WHERE namespace = ?{conditions}", (self._namespace, *values)
            )
            return connection.changed()

        return await self._db.write(work)

    def _in_its_tree(self, connection: Connection, where: UsageFilter) -> UsageFilter:
        """The filter with the root it implies, where that is known: entries are found by it."""
        session_id = where.session_id
        if session_id is None and where.run_id is not None:
            run = find_run(connection, self._namespace, where.run_id)
            session_id = run.session_id if run is not None else None
        if where.root_session_id is not None or session_id is None:
            return where
        return msgspec.structs.replace(where, root_session_id=self._root_of(connection, session_id))

    def _root_of(self, connection: Connection, session_id: SessionId) -> SessionId | None:
        session = find_session(connection, self._namespace, session_id)
        return session.root_session_id if session is not None else None
