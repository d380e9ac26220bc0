"""Schedules in Redis. All schedules of a namespace are in one slot, where they are found by id and by time."""

from collections.abc import Iterable

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.keys import Slot
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.errors import ScheduleChangedError
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.schedules import Schedule, ScheduleId

TAG = "schedules/"
"""The slot of all schedules."""


class ScheduleKeys:
    """The keys of the schedules. The revision of `head` guards all of them."""

    def __init__(self, slot: Slot) -> None:
        self.head = slot.key("zh")
        self.rows = slot.key("zr")
        self.times = slot.key("zt")


class RedisSchedules(Facet):
    """The facet `Schedules`."""

    async def save_schedule(self, schedule: Schedule, *, replaces: str | None = None) -> Schedule:
        door.check_schedule(schedule)

        async def work(tx: Transaction) -> Schedule:
            keys = ScheduleKeys(tx.slot)
            head = await _load_head(tx, keys)
            stored = _schedule((await tx.read(("HGET", keys.rows, schedule.schedule_id)))[0])
            found = None if stored is None else stored.revision
            if found == schedule.revision:
                return schedule
            if found != replaces:
                raise ScheduleChangedError(schedule.schedule_id)
            tx.change(head)
            tx.do("HSET", keys.rows, schedule.schedule_id, encode(schedule))
            if schedule.next_at is None:
                tx.do("ZREM", keys.times, schedule.schedule_id)
            else:
                tx.do("ZADD", keys.times, schedule.next_at, schedule.schedule_id)
            return schedule

        return await self._write("save_schedule", schedule.schedule_id, work, tag=TAG)

    async def find_schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        ran = await self._space.run("find_schedule", (), (("HGET", self._keys.rows, schedule_id),), 0)
        return _schedule(ran.replies[0])

    async def delete_schedule(self, schedule_id: ScheduleId, *, revision: str | None = None) -> bool:
        async def work(tx: Transaction) -> bool:
            keys = ScheduleKeys(tx.slot)
            head = await _load_head(tx, keys)
            stored = _schedule((await tx.read(("HGET", keys.rows, schedule_id)))[0])
            if stored is None or revision not in (None, stored.revision):
                return False
            tx.change(head)
            tx.do("HDEL", keys.rows, schedule_id)
            tx.do("ZREM", keys.times, schedule_id)
            return True

        return await self._write("delete_schedule", schedule_id, work, tag=TAG)

    async def list_schedules(
        self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Schedule]:
        check_page(offset, limit)
        ran = await self._space.run("list_schedules", (), (("HVALS", self._keys.rows),), 0)
        whose = (each for each in _schedules(ran.replies[0]) if user_id in (None, each.user_id))
        found = sorted(whose, key=lambda schedule: schedule.schedule_id)
        return Page(items=tuple(found[offset : offset + limit]), total=len(found), offset=offset, limit=limit)

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        check_page(offset, limit)
        due = ("ZRANGEBYSCORE", self._keys.times, "-inf", until, "LIMIT", offset, limit)
        names = (await self._space.run("list_due_schedules", (), (due,), 0)).replies[0]
        if not names:
            return ()
        ran = await self._space.run("list_due_schedules", (), (("HMGET", self._keys.rows, *names),), 0)
        # One of them may have changed between the two reads.
        found = [each for each in _schedules(ran.replies[0]) if each.next_at is not None and each.next_at <= until]
        return tuple(sorted(found, key=lambda schedule: (schedule.next_at, schedule.schedule_id)))

    @property
    def _keys(self) -> ScheduleKeys:
        return ScheduleKeys(self._space.slot(TAG))


async def _load_head(tx: Transaction, keys: ScheduleKeys) -> Known[None]:
    return await tx.load(keys.head, (), lambda _: None)


def _schedule(row: bytes | None) -> Schedule | None:
    return None if row is None else decode(row, Schedule)


def _schedules(rows: Iterable[bytes | None]) -> Iterable[Schedule]:
    return (decode(row, Schedule) for row in rows if row is not None)
