"""Usage in SQLite."""

from collections.abc import Sequence

import msgspec

from helix_agents.backends.filters import usage_conditions
from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.rows import children_of, find_run
from helix_agents.backends.sqlite.usage_rows import (
    COLUMNS,
    delete_session_usage,
    entry_of,
    insert_usage,
    key_of,
    usage_of_root,
    usage_of_session,
    usage_of_steps,
)
from helix_agents.backends.usage_sums import day_of, usage_by_day
from helix_agents.domain.door import check_numbers, check_usage
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.usage import (
    UsageEntry,
    UsageFilter,
    UsageOfDay,
    UsageRollup,
    by_day,
    in_order,
    matches,
    roll_up,
)
from helix_agents.ports.clock import Clock
from helix_agents.system import SystemClock


def _order(entry: UsageEntry) -> tuple[int, tuple[RunId, int, int, int]]:
    return entry.recorded_at, key_of(entry)


class SQLiteUsageStore(Part[Database]):
    """The usage of sessions, in the same file as the sessions."""

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or SystemClock()

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        for entry in entries:
            check_usage(entry)
        now = self._clock.now_ms()

        def work(connection: Connection) -> int:
            known = {
                (session_id, *key_of(used))
                for session_id in {entry.session_id for entry in entries}
                for used in usage_of_steps(connection, self._namespace, session_id)
            }
            new = [entry for entry in entries if (entry.session_id, *key_of(entry)) not in known]
            return insert_usage(connection, self._namespace, new, now)

        return await self._db.write(work)

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        check_page(offset, limit)
        if where is not None:
            check_numbers(where)

        def work(connection: Connection) -> Page[UsageEntry]:
            asked = self._of_its_session(connection, where or UsageFilter())
            if asked.session_id is not None:
                entries = usage_of_session(connection, self._namespace, asked.session_id)
                found = sorted((entry for entry in entries if matches(entry, asked)), key=_order, reverse=True)
                items = tuple(found[offset : offset + limit])
                return Page(items=items, total=len(found), offset=offset, limit=limit)
            conditions, values = usage_conditions(asked)
            return read_page(
                connection,
                columns=COLUMNS,
                source=f"__agents_usage WHERE namespace = ?{conditions}",
                order="recorded_at DESC, run_id DESC, attempt DESC, step DESC, n DESC",
                values=(self._namespace, *values),
                offset=offset,
                limit=limit,
                item=entry_of,
            )

        return await self._db.read(work)

    async def get_usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        check_numbers(where or UsageFilter())

        def work(connection: Connection) -> tuple[UsageOfDay, ...]:
            asked = self._of_its_session(connection, where or UsageFilter())
            if asked.session_id is not None:
                entries = usage_of_session(connection, self._namespace, asked.session_id)
                return by_day(entry for entry in entries if matches(entry, asked))
            conditions, values = usage_conditions(asked)
            statement = usage_by_day(lambda *path: f"(body -> '$.{'.'.join(path)}')", conditions)
            return in_order(map(day_of, connection.all(statement, (self._namespace, *values))))

        return await self._db.read(work)

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        def work(connection: Connection) -> UsageRollup:
            members = (session_id, *children_of(connection, self._namespace, session_id))
            found = [entry for each in members for entry in usage_of_session(connection, self._namespace, each)]
            # Even where the sessions are not stored here, every usage entry knows its root.
            below = usage_of_root(connection, self._namespace, session_id)
            known = set(members)
            return roll_up((*found, *(entry for entry in below if entry.session_id not in known)))

        return await self._db.read(work)

    async def delete_usage(self, session_id: SessionId) -> int:
        def work(connection: Connection) -> int:
            found = usage_of_session(connection, self._namespace, session_id)
            delete_session_usage(connection, self._namespace, session_id)
            return len(found)

        return await self._db.write(work)

    def _of_its_session(self, connection: Connection, where: UsageFilter) -> UsageFilter:
        """The filter with the session that a run implies, because entries are indexed by session."""
        if where.run_id is None or where.session_id is not None:
            return where
        run = find_run(connection, self._namespace, where.run_id)
        return where if run is None else msgspec.structs.replace(where, session_id=run.session_id)
