"""What webhooks are owed, in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.runs import put_run
from helix_agents.domain import door
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.webhooks import Delivery, DeliveryId, DeliveryState, is_untold


class InMemoryDeliveries(Handle):
    """The facet `Deliveries`."""

    async def list_untold(self, *, limit: int = DEFAULT_LIMIT) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        with self._reading() as tables:
            found = [run for run in tables.runs.values() if is_untold(run)]
            return tuple(own(run) for run in sorted(found, key=lambda run: (run.ended_at, run.run_id))[:limit])

    async def owe_deliveries(self, run: RunRecord, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            door.check_delivery(delivery)
        async with self._writing("owe_deliveries") as tx:
            stored = tx.tables.runs.get(run.run_id)
            if stored is None or stored.status != run.status or not is_untold(stored):
                return False
            put_run(tx, replace(stored, told=stored.status))
            for delivery in deliveries:
                if delivery.delivery_id not in tx.tables.deliveries:
                    tx.put(tx.tables.deliveries, delivery.delivery_id, own(delivery))
        return True

    async def save_delivery(self, delivery: Delivery, *, replaces: str) -> bool:
        door.check_delivery(delivery)
        async with self._writing("save_delivery") as tx:
            stored = tx.tables.deliveries.get(delivery.delivery_id)
            if stored is None or stored.revision not in (replaces, delivery.revision):
                return False
            if stored.revision != delivery.revision:
                tx.put(tx.tables.deliveries, delivery.delivery_id, own(delivery))
        return True

    async def find_delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        with self._reading() as tables:
            stored = tables.deliveries.get(delivery_id)
            return None if stored is None else own(stored)

    async def list_deliveries(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        check_page(offset, limit)
        with self._reading() as tables:
            found = [each for each in tables.deliveries.values() if not states or each.state in states]
            found.sort(key=lambda each: (each.created_at, each.delivery_id), reverse=True)
            return page_of(found, offset, limit, own)

    async def list_due_deliveries(
        self, webhook: str, until: int, *, limit: int = DEFAULT_LIMIT
    ) -> tuple[Delivery, ...]:
        check_page(0, limit)
        with self._reading() as tables:
            due = [
                each
                for each in tables.deliveries.values()
                if each.webhook == webhook and not each.is_over and each.next_at <= until
            ]
            due.sort(key=lambda each: (each.next_at, each.delivery_id))
            return tuple(own(each) for each in due[:limit])

    async def forget_deliveries(self, until: int) -> int:
        async with self._writing("forget_deliveries") as tx:
            gone = [each for each in tx.tables.deliveries.values() if each.is_forgotten(until)]
            for each in gone:
                tx.remove(tx.tables.deliveries, each.delivery_id)
        return len(gone)
