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
_DELETE = "DELETE FROM __agents_schedules WHERE namespace = ? AND schedule_id = ?"
_PAGE = (
    "SELECT body, count(*) OVER () FROM __agents_schedules WHERE namespace = ? ORDER BY schedule_id LIMIT ? OFFSET ?"
)
_COUNT = "SELECT count(*) FROM __agents_schedules WHERE namespace = ?"
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

    async def delete_schedule(self, schedule_id: ScheduleId) -> bool:
        return bool(await self._db.execute(_DELETE, askable(self._namespace, schedule_id)))

    async def list_schedules(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[Schedule]:
        check_page(offset, limit)
        rows = await self._db.all(_PAGE, (self._namespace, limit, offset))
        # A page beyond the end has no row to carry the total.
        counted = rows[0][1] if rows else (await self._db.all(_COUNT, (self._namespace,)))[0][0]
        return Page(items=tuple(decode(row[0], Schedule) for row in rows), total=counted, offset=offset, limit=limit)

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        check_page(offset, limit)
        rows = await self._db.all(_DUE, (self._namespace, until, limit, offset))
        return tuple(decode(row[0], Schedule) for row in rows)
