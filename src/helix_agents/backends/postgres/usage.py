"""Usage in Postgres."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.filters import usage_conditions
from helix_agents.backends.part import Part
from helix_agents.backends.postgres.connection import Connection, Row, Value, askable
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.paging import read_page
from helix_agents.backends.postgres.rows import children_of, find_run
from helix_agents.backends.usage_sums import day_of, usage_by_day
from helix_agents.domain.door import check_numbers, check_usage
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.usage import UsageEntry, UsageFilter, UsageOfDay, UsageRollup, in_order, roll_up
from helix_agents.ports.clock import Clock

_COLUMNS = (
    "session_id",
    "root_session_id",
    "run_id",
    "attempt",
    "step",
    "n",
    "source_type",
    "source_name",
    "user_id",
    "agent_type",
    "recorded_at",
)
_NUMBERS = ("attempt", "step", "n", "recorded_at")
_KINDS = ["bigint" if name in _NUMBERS else "text" for name in (*_COLUMNS, "body")]


# An entry that is already stored is not counted again.
INSERT_USAGE = f"""
INSERT INTO __agents_usage (namespace, {", ".join(_COLUMNS)}, body)
SELECT ?1, e.* FROM unnest({", ".join(f"?{place}::{kind}[]" for place, kind in enumerate(_KINDS, 2))}) AS e
ON CONFLICT DO NOTHING
"""


# An entry without its metadata, which users fill and which comes after everything counted. It may hold a zero
# character, which the database's JSON cannot. No text before it can look like its name, because quotes in texts are
# escaped.
_METADATA = """',"metadata":'"""
_COUNTED = f"(CASE strpos(body, {_METADATA}) WHEN 0 THEN body ELSE split_part(body, {_METADATA}, 1) || '}}' END)::json"


def usage_rows(entries: Iterable[UsageEntry], now: int) -> str:
    """Entries as the SQL functions expect them: the fields they query by, and the whole record as stored."""
    return encode(
        [{name: getattr(entry, name) for name in _COLUMNS} | {"body": entry} for entry in _stamped(entries, now)]
    ).decode()


def usage_values(namespace: str, entries: Iterable[UsageEntry], now: int) -> tuple[Value, ...]:
    """The same in the form of `INSERT_USAGE`."""
    stamped = _stamped(entries, now)
    bodies = [encode(entry).decode() for entry in stamped]
    return (namespace, *([getattr(entry, name) for entry in stamped] for name in _COLUMNS), bodies)


def _stamped(entries: Iterable[UsageEntry], now: int) -> list[UsageEntry]:
    return [entry if entry.recorded_at else msgspec.structs.replace(entry, recorded_at=now) for entry in entries]


def entry_of(row: Row) -> UsageEntry:
    """An entry, from its `body`."""
    return decode(row[0], UsageEntry)


class PostgresUsageStore(Part[Database]):
    """The usage of sessions, in the same database as the sessions."""

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or database.clock

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        for entry in entries:
            check_usage(entry)
        return await self._db.execute(INSERT_USAGE, usage_values(self._namespace, entries, self._clock.now_ms()))

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        check_page(offset, limit)
        conditions, values = usage_conditions(await self._in_its_session(where or UsageFilter()))
        return await read_page(
            self._db,
            columns="body",
            source=f"__agents_usage WHERE namespace = ?{conditions}",
            order="recorded_at DESC, run_id DESC, attempt DESC, step DESC, n DESC",
            values=(self._namespace, *values),
            offset=offset,
            limit=limit,
            item=entry_of,
        )

    async def get_usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        asked = where or UsageFilter()
        check_numbers(asked)
        conditions, values = usage_conditions(await self._in_its_session(asked))
        statement = usage_by_day(lambda *path: f"({_COUNTED} #>> '{{{','.join(path)}}}')", conditions)
        return in_order(map(day_of, await self._db.all(statement, askable(self._namespace, *values))))

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        async def work(connection: Connection) -> UsageRollup:
            members = [session_id, *await children_of(connection, self._namespace, session_id)]
            # Even where the sessions are not stored here, every usage entry knows its root.
            rows = await connection.all(
                "SELECT body FROM __agents_usage"
                " WHERE namespace = ? AND (session_id = ANY(?) OR root_session_id = ?) ORDER BY key",
                (self._namespace, members, session_id),
            )
            return roll_up(map(entry_of, rows))

        return await self._db.read(work)

    async def delete_usage(self, session_id: SessionId) -> int:
        return await self._db.execute(
            "DELETE FROM __agents_usage WHERE namespace = ? AND session_id = ?", askable(self._namespace, session_id)
        )

    async def _in_its_session(self, where: UsageFilter) -> UsageFilter:
        """The filter with its run's session, if that is known, because entries are indexed by session."""
        run_id = where.run_id
        if run_id is None or where.session_id is not None:
            return where
        run = await self._db.read(lambda connection: find_run(connection, self._namespace, run_id))
        return msgspec.structs.replace(where, session_id=run.session_id) if run is not None else where
