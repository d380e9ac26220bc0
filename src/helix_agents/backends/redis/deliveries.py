"""What webhooks are owed, in Redis. All deliveries of a namespace are in one slot, each with a revision of its own."""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from helix_agents.backends.redis import index
from helix_agents.backends.redis.keys import Slot
from helix_agents.backends.redis.rows import RunEntry, find_run, find_session, put_run
from helix_agents.backends.redis.runs import RedisRuns
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.paging import DEFAULT_LIMIT, MAX_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.webhooks import ABANDONED_MS, Delivery, DeliveryId, DeliveryState, is_untold

TAG = "deliveries/"
"""The slot of all deliveries."""


class DeliveryKeys:
    """The keys of the deliveries: each has its own, and is listed by time, under its webhook or among those that are
    over."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.all = slot.key("wa")
        self.over = slot.key("wo")

    def one(self, delivery_id: DeliveryId) -> str:
        return self._slot.key(f"wd/{delivery_id}")

    def due(self, webhook: str) -> str:
        return self._slot.key(f"wt/{webhook}")


class RedisDeliveries(RedisRuns):
    """The facet `Deliveries`."""

    async def list_untold(self, *, limit: int = DEFAULT_LIMIT) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        found = await self._space.find(index.UNTOLD, limit=limit)
        entries = [decode(payload, RunEntry) for _, payload in found.entries]
        runs = await asyncio.gather(*(self._run_of(entry) for entry in entries))
        untold = [run is not None and is_untold(run) for run in runs]
        told = [entry for entry, is_so in zip(entries, untold, strict=True) if not is_so]
        await self._space.doubt([("r", entry.tag, entry.run.session_id, entry.run.run_id) for entry in told])
        return tuple(run for run in runs if run is not None and is_untold(run))

    async def owe_deliveries(self, run: RunRecord, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            door.check_delivery(delivery)
        stored = await self.get_run(run.run_id)
        if stored is None or stored.status != run.status or not is_untold(stored):
            return False
        # The run is in another slot. A process that dies here leaves it untold, and the next one finds these rows; rows
        # of deliveries that are over stay long enough for that.
        for delivery in deliveries:
            await self._add(delivery)

        async def work(tx: Transaction) -> bool:
            known = await find_session(tx, run.session_id)
            row = None if known is None else await find_run(tx, known, run.run_id)
            if known is None or row is None or row.run.status != run.status or not is_untold(row.run):
                return False
            put_run(tx, known, replace(row.run, told=row.run.status), row=row)
            return True

        return await self._write("owe_deliveries", run.session_id, work)

    async def _add(self, delivery: Delivery) -> None:
        async def work(tx: Transaction) -> None:
            keys = DeliveryKeys(tx.slot)
            known = await _load(tx, keys, delivery.delivery_id)
            if known.value is None:
                tx.do("ZADD", keys.all, delivery.created_at, delivery.delivery_id)
                _put(tx, keys, known, delivery)

        await self._write("owe_deliveries", delivery.delivery_id, work, tag=TAG)

    async def save_delivery(self, delivery: Delivery, *, replaces: str) -> bool:
        door.check_delivery(delivery)

        async def work(tx: Transaction) -> bool:
            keys = DeliveryKeys(tx.slot)
            known = await _load(tx, keys, delivery.delivery_id)
            if known.value is None or known.value.revision not in (replaces, delivery.revision):
                return False
            if known.value.revision != delivery.revision:
                if known.value.created_at != delivery.created_at:
                    tx.do("ZADD", keys.all, delivery.created_at, delivery.delivery_id)
                _put(tx, keys, known, delivery)
            return True

        return await self._write("save_delivery", delivery.delivery_id, work, tag=TAG)

    async def find_delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        row = ("HGET", self._delivery_keys.one(delivery_id), "row")
        ran = await self._space.run("find_delivery", (), (row,), 0)
        return _delivery(ran.replies[0])

    async def list_deliveries(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        check_page(offset, limit)
        if not states:
            count = ("ZCARD", self._delivery_keys.all)
            page = ("ZREVRANGE", self._delivery_keys.all, offset, offset + limit - 1)
            total, names = (await self._space.run("list_deliveries", (), (count, page), 0)).replies
            return Page(items=tuple(await self._read_rows(names)), total=total, offset=offset, limit=limit)
        every = ("ZREVRANGE", self._delivery_keys.all, 0, -1)
        names = (await self._space.run("list_deliveries", (), (every,), 0)).replies[0]
        found = [each for each in await self._read_rows(names) if not states or each.state in states]
        return Page(items=tuple(found[offset : offset + limit]), total=len(found), offset=offset, limit=limit)

    async def list_due_deliveries(
        self, webhook: str, until: int, *, limit: int = DEFAULT_LIMIT
    ) -> tuple[Delivery, ...]:
        check_page(0, limit)
        due = ("ZRANGEBYSCORE", self._delivery_keys.due(webhook), "-inf", until, "LIMIT", 0, limit)
        names = (await self._space.run("list_due_deliveries", (), (due,), 0)).replies[0]
        # One of them may have changed between the two reads.
        return tuple(each for each in await self._read_rows(names) if not each.is_over and each.next_at <= until)

    async def forget_deliveries(self, until: int) -> int:
        forgotten = 0
        over = ("ZRANGEBYSCORE", self._delivery_keys.over, "-inf", until, "LIMIT", 0, MAX_LIMIT)
        while names := (await self._space.run("forget_deliveries", (), (over,), 0)).replies[0]:
            for name in names:
                forgotten += await self._forget(name.decode(), until)
        old = ("ZRANGEBYSCORE", self._delivery_keys.all, "-inf", until - ABANDONED_MS)
        for each in await self._read_rows((await self._space.run("forget_deliveries", (), (old,), 0)).replies[0]):
            forgotten += each.is_forgotten(until) and await self._forget(each.delivery_id, until)
        return forgotten

    async def _forget(self, delivery_id: DeliveryId, until: int) -> bool:
        async def work(tx: Transaction) -> bool:
            keys = DeliveryKeys(tx.slot)
            known = await _load(tx, keys, delivery_id)
            stored = known.value
            if stored is not None and not stored.is_forgotten(until):
                return False
            tx.change(known)
            tx.do("DEL", known.key)
            tx.do("ZREM", keys.all, delivery_id)
            tx.do("ZREM", keys.over, delivery_id)
            if stored is not None:
                tx.do("ZREM", keys.due(stored.webhook), delivery_id)
            known.value = None
            return stored is not None

        return await self._write("forget_deliveries", delivery_id, work, tag=TAG)

    async def _read_rows(self, names: Iterable[bytes]) -> list[Delivery]:
        reads = tuple(("HGET", self._delivery_keys.one(name.decode()), "row") for name in names)
        rows: list[bytes | None] = []
        for first in range(0, len(reads), MAX_LIMIT):
            rows += (await self._space.run("deliveries", (), reads[first : first + MAX_LIMIT], 0)).replies
        return [each for each in map(_delivery, rows) if each is not None]

    @property
    def _delivery_keys(self) -> DeliveryKeys:
        return DeliveryKeys(self._space.slot(TAG))


async def _load(tx: Transaction, keys: DeliveryKeys, delivery_id: DeliveryId) -> Known[Delivery | None]:
    key = keys.one(delivery_id)
    return await tx.load(key, (("HGET", key, "row"),), lambda replies: _delivery(replies[0]))


def _put(tx: Transaction, keys: DeliveryKeys, known: Known[Delivery | None], delivery: Delivery) -> None:
    tx.change(known)
    tx.do("HSET", known.key, "row", encode(delivery))
    here, there = keys.due(delivery.webhook), keys.over
    if delivery.is_over:
        here, there = there, here
    tx.do("ZREM", there, delivery.delivery_id)
    tx.do("ZADD", here, delivery.next_at, delivery.delivery_id)
    known.value = delivery


def _delivery(row: bytes | None) -> Delivery | None:
    return None if row is None else decode(row, Delivery)
