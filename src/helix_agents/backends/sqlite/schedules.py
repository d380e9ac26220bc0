"""Schedules in SQLite."""

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.domain.door import check_schedule
from helix_agents.domain.errors import ScheduleChangedError
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.schedules import Schedule, ScheduleId

_FIND = "SELECT body FROM __agents_schedules WHERE namespace = ? AND schedule_id = ?"
_REVISION = "SELECT revision FROM __agents_schedules WHERE namespace = ? AND schedule_id = ?"
_SAVE = (
    "INSERT OR REPLACE INTO __agents_schedules (namespace, schedule_id, revision, next_at, body) VALUES (?, ?, ?, ?, ?)"
)
_DELETE = (
    "DELETE FROM __agents_schedules WHERE namespace = ? AND schedule_id = ? AND revision = coalesce(?, revision)"
    " RETURNING schedule_id"
)
_ALL = "FROM __agents_schedules WHERE namespace = ?"
# The index holds this very expression. Left to itself, SQLite goes through all schedules in the requested order.
_OF_USER = (
    "FROM __agents_schedules INDEXED BY __agents_schedules_by_user"
    " WHERE namespace = ? AND json_extract(body, '$.user_id') = ?"
)
_DUE = (
    "SELECT body FROM __agents_schedules WHERE namespace = ? AND next_at <= ? AND next_at IS NOT NULL"
    " ORDER BY next_at, schedule_id LIMIT ? OFFSET ?"
)


class SQLiteSchedules(Facet):
    """The facet `Schedules`."""

    async def save_schedule(self, schedule: Schedule, *, replaces: str | None = None) -> Schedule:
        check_schedule(schedule)
        name = (self._namespace, schedule.schedule_id)
        row = (*name, schedule.revision, schedule.next_at, encode(schedule).decode())

        def work(connection: Connection) -> None:
            found = connection.one(_REVISION, name)
            stored = None if found is None else found[0]
            if stored == schedule.revision:
                return
            if stored != replaces:
                raise ScheduleChangedError(schedule.schedule_id)
            connection.execute(_SAVE, row)

        await self._db.write(work)
        return schedule

    async def find_schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        row = await self._db.read_by_key(lambda connection: connection.one(_FIND, (self._namespace, schedule_id)))
        return None if row is None else decode(row[0], Schedule)

    async def delete_schedule(self, schedule_id: ScheduleId, *, revision: str | None = None) -> bool:
        named = (self._namespace, schedule_id, revision)
        return await self._db.write(lambda connection: connection.one(_DELETE, named)) is not None

    async def list_schedules(
        self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Schedule]:
        check_page(offset, limit)
        source = _ALL if user_id is None else _OF_USER
        whose = (self._namespace,) if user_id is None else (self._namespace, user_id)

        def work(connection: Connection) -> Page[Schedule]:
            [total] = connection.all(f"SELECT count(*) {source}", whose)
            rows = connection.all(
                f"SELECT body {source} ORDER BY schedule_id LIMIT ? OFFSET ?", (*whose, limit, offset)
            )
            return Page(
                items=tuple(decode(row[0], Schedule) for row in rows), total=total[0], offset=offset, limit=limit
            )

        return await self._db.read(work)

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        check_page(offset, limit)
        rows = await self._db.read(lambda connection: connection.all(_DUE, (self._namespace, until, limit, offset)))
        return tuple(decode(row[0], Schedule) for row in rows)
