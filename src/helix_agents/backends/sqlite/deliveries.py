"""What webhooks are owed, in SQLite."""

from collections.abc import Sequence

from helix_agents.backends.session_rows import RUN_COLUMNS, UNTOLD
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.rows import run_of
from helix_agents.domain.door import check_delivery
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.webhooks import ABANDONED_MS, Delivery, DeliveryId, DeliveryState

_LIST_UNTOLD = (
    f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ? AND {UNTOLD} ORDER BY ended_at, run_id LIMIT ?"
)
_TELL = (
    f"UPDATE __agents_runs SET told = status WHERE namespace = ? AND run_id = ? AND status = ? AND {UNTOLD}"
    " RETURNING run_id"
)
_ADD = (
    "INSERT OR IGNORE INTO __agents_deliveries"
    " (namespace, delivery_id, webhook, state, created_at, next_at, revision, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_REVISION = "SELECT revision FROM __agents_deliveries WHERE namespace = ? AND delivery_id = ?"
_SAVE = (
    "UPDATE __agents_deliveries SET state = ?, created_at = ?, next_at = ?, revision = ?, body = ?"
    " WHERE namespace = ? AND delivery_id = ?"
)
_FIND = "SELECT body FROM __agents_deliveries WHERE namespace = ? AND delivery_id = ?"
_DUE = (
    "SELECT body FROM __agents_deliveries WHERE namespace = ? AND webhook = ? AND state = 'owed' AND next_at <= ?"
    " ORDER BY next_at, delivery_id LIMIT ?"
)
# Two statements, each with an index: for both conditions at once, SQLite goes through all deliveries.
_FORGET = "DELETE FROM __agents_deliveries WHERE namespace = ? AND state <> 'owed' AND next_at <= ? RETURNING 1"
_ABANDON = (
    "DELETE FROM __agents_deliveries INDEXED BY __agents_deliveries_due"
    " WHERE namespace = ? AND state = 'owed' AND next_at <= ? RETURNING 1"
)


class SQLiteDeliveries(Facet):
    """The facet `Deliveries`."""

    async def list_untold(self, *, limit: int = DEFAULT_LIMIT) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        rows = await self._db.read(lambda connection: connection.all(_LIST_UNTOLD, (self._namespace, limit)))
        return tuple(map(run_of, rows))

    async def owe_deliveries(self, run: RunRecord, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            check_delivery(delivery)

        def work(connection: Connection) -> bool:
            if connection.one(_TELL, (self._namespace, run.run_id, run.status)) is None:
                return False
            for each in deliveries:
                row = (each.delivery_id, each.webhook, each.state, each.created_at, each.next_at, each.revision)
                connection.execute(_ADD, (self._namespace, *row, encode(each).decode()))
            return True

        return await self._db.write(work)

    async def save_delivery(self, delivery: Delivery, *, replaces: str) -> bool:
        check_delivery(delivery)
        name = (self._namespace, delivery.delivery_id)
        change = (delivery.state, delivery.created_at, delivery.next_at, delivery.revision, encode(delivery).decode())

        def work(connection: Connection) -> bool:
            found = connection.one(_REVISION, name)
            if found is None or found[0] not in (replaces, delivery.revision):
                return False
            if found[0] != delivery.revision:
                connection.execute(_SAVE, (*change, *name))
            return True

        return await self._db.write(work)

    async def find_delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        row = await self._db.read_by_key(lambda connection: connection.one(_FIND, (self._namespace, delivery_id)))
        return None if row is None else decode(row[0], Delivery)

    async def list_deliveries(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        check_page(offset, limit)
        among = f" AND state IN ({', '.join('?' * len(states))})" if states else ""

        def work(connection: Connection) -> Page[Delivery]:
            return read_page(
                connection,
                columns="body",
                source=f"__agents_deliveries WHERE namespace = ?{among}",
                order="created_at DESC, delivery_id DESC",
                values=(self._namespace, *states),
                offset=offset,
                limit=limit,
                item=lambda row: decode(row[0], Delivery),
            )

        return await self._db.read(work)

    async def list_due_deliveries(
        self, webhook: str, until: int, *, limit: int = DEFAULT_LIMIT
    ) -> tuple[Delivery, ...]:
        check_page(0, limit)
        rows = await self._db.read(lambda connection: connection.all(_DUE, (self._namespace, webhook, until, limit)))
        return tuple(decode(row[0], Delivery) for row in rows)

    async def forget_deliveries(self, until: int) -> int:
        def work(connection: Connection) -> int:
            over = connection.all(_FORGET, (self._namespace, until))
            return len(over) + len(connection.all(_ABANDON, (self._namespace, until - ABANDONED_MS)))

        return await self._db.write(work)
