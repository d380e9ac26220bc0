"""Schedules in Postgres."""

from helix_agents.backends.postgres.connection import askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.domain.door import check_schedule
from helix_agents.domain.errors import ScheduleChangedError
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.schedules import Schedule, ScheduleId

_FIND = "SELECT body FROM __agents_schedules WHERE namespace = ? AND schedule_id = ?"
_INSERT = (
    "INSERT INTO __agents_schedules (namespace, schedule_id, revision, next_at, body) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
_REPLACE = (
    "UPDATE __agents_schedules SET revision = ?, next_at = ?, body = ?"
    " WHERE namespace = ? AND schedule_id = ? AND revision = ?"
)
_DELETE = "DELETE FROM __agents_schedules WHERE namespace = ? AND schedule_id = ? AND revision = coalesce(?, revision)"
_ALL = "FROM __agents_schedules WHERE namespace = ?"
# The index holds this very expression.
_OF_USER = f"{_ALL} AND (body::json ->> 'user_id') COLLATE \"C\" = ?"
_DUE = (
    "SELECT body FROM __agents_schedules WHERE namespace = ? AND next_at <= ? AND next_at IS NOT NULL"
    " ORDER BY next_at, schedule_id LIMIT ? OFFSET ?"
)


class PostgresSchedules(Facet):
    """The facet `Schedules`."""

    async def save_schedule(self, schedule: Schedule, *, replaces: str | None = None) -> Schedule:
        check_schedule(schedule)
        name = (self._namespace, schedule.schedule_id)
        change = (schedule.revision, schedule.next_at, encode(schedule).decode())
        if replaces is None:
            saved = await self._db.execute(_INSERT, (*name, *change))
        else:
            saved = await self._db.execute(_REPLACE, (*change, *name, replaces))
        if not saved:
            stored = await self.find_schedule(schedule.schedule_id)
            if stored is None or stored.revision != schedule.revision:
                raise ScheduleChangedError(schedule.schedule_id)
        return schedule

    async def find_schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        row = await self._db.one(_FIND, askable(self._namespace, schedule_id))
        return None if row is None else decode(row[0], Schedule)

    async def delete_schedule(self, schedule_id: ScheduleId, *, revision: str | None = None) -> bool:
        return bool(await self._db.execute(_DELETE, (*askable(self._namespace, schedule_id), revision)))

    async def list_schedules(
        self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Schedule]:
        check_page(offset, limit)
        source = _ALL if user_id is None else _OF_USER
        whose = (self._namespace,) if user_id is None else askable(self._namespace, user_id)
        page = f"SELECT body, count(*) OVER () {source} ORDER BY schedule_id LIMIT ? OFFSET ?"
        rows = await self._db.all(page, (*whose, limit, offset))
        # A page beyond the end has no row to carry the total.
        counted = rows[0][1] if rows else (await self._db.all(f"SELECT count(*) {source}", whose))[0][0]
        return Page(items=tuple(decode(row[0], Schedule) for row in rows), total=counted, offset=offset, limit=limit)

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        check_page(offset, limit)
        rows = await self._db.all(_DUE, (self._namespace, until, limit, offset))
        return tuple(decode(row[0], Schedule) for row in rows)
