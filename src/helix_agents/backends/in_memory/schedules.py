"""Schedules in memory."""

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.domain import door
from helix_agents.domain.errors import ScheduleChangedError
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.schedules import Schedule, ScheduleId


class InMemorySchedules(Handle):
    """The facet `Schedules`."""

    async def save_schedule(self, schedule: Schedule, *, replaces: str | None = None) -> Schedule:
        door.check_schedule(schedule)
        schedule = own(schedule)
        async with self._writing("save_schedule") as tx:
            stored = tx.tables.schedules.get(schedule.schedule_id)
            found = None if stored is None else stored.revision
            if found not in (schedule.revision, replaces):
                raise ScheduleChangedError(schedule.schedule_id)
            if found != schedule.revision:
                tx.put(tx.tables.schedules, schedule.schedule_id, schedule)
        return own(schedule)

    async def find_schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        with self._reading() as tables:
            stored = tables.schedules.get(schedule_id)
            return None if stored is None else own(stored)

    async def delete_schedule(self, schedule_id: ScheduleId, *, revision: str | None = None) -> bool:
        async with self._writing("delete_schedule") as tx:
            stored = tx.tables.schedules.get(schedule_id)
            if stored is None or revision not in (None, stored.revision):
                return False
            tx.remove(tx.tables.schedules, schedule_id)
        return True

    async def list_schedules(
        self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Schedule]:
        check_page(offset, limit)
        with self._reading() as tables:
            found = [tables.schedules[name] for name in sorted(tables.schedules)]
            return page_of([each for each in found if user_id in (None, each.user_id)], offset, limit, own)

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        check_page(offset, limit)
        with self._reading() as tables:
            times = [
                (each.next_at, name)
                for name, each in tables.schedules.items()
                if each.next_at is not None and each.next_at <= until
            ]
            return tuple(own(tables.schedules[name]) for _, name in sorted(times)[offset : offset + limit])
