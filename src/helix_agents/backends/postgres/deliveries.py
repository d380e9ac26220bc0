"""What webhooks are owed, in Postgres."""

from collections.abc import Sequence

import msgspec

from helix_agents.backends.postgres.connection import askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import run_of
from helix_agents.backends.session_rows import RUN_COLUMNS, UNTOLD
from helix_agents.domain.door import check_delivery
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.webhooks import ABANDONED_MS, Delivery, DeliveryId, DeliveryState

_LIST_UNTOLD = (
    f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ? AND {UNTOLD} ORDER BY ended_at, run_id LIMIT ?"
)
_OWE = f"""
WITH seen AS (
    UPDATE __agents_runs SET told = status WHERE namespace = ?1 AND run_id = ?2 AND status = ?3 AND {UNTOLD} RETURNING 1
), added AS (
    INSERT INTO __agents_deliveries (namespace, delivery_id, webhook, state, created_at, next_at, revision, body)
    SELECT ?1, d.delivery_id, d.webhook, d.state, d.created_at, d.next_at, d.revision, d.body
    FROM json_to_recordset(?4::json) AS d (delivery_id text, webhook text, state text, created_at bigint,
        next_at bigint, revision text, body text)
    WHERE EXISTS (SELECT 1 FROM seen)
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM seen
"""
_SAVE = (
    "UPDATE __agents_deliveries SET state = ?, created_at = ?, next_at = ?, revision = ?, body = ?"
    " WHERE namespace = ? AND delivery_id = ? AND revision = ?"
)
_FIND = "SELECT body FROM __agents_deliveries WHERE namespace = ? AND delivery_id = ?"
_AMONG = "FROM __agents_deliveries WHERE namespace = ? AND (cardinality(?::text[]) = 0 OR state = ANY(?::text[]))"
_PAGE = f"SELECT body, count(*) OVER () {_AMONG} ORDER BY created_at DESC, delivery_id DESC LIMIT ? OFFSET ?"
_COUNT = f"SELECT count(*) {_AMONG}"
_DUE = (
    "SELECT body FROM __agents_deliveries WHERE namespace = ? AND webhook = ? AND state = 'owed' AND next_at <= ?"
    " ORDER BY next_at, delivery_id LIMIT ?"
)
_FORGET = (
    "DELETE FROM __agents_deliveries WHERE namespace = ?1 AND state <> 'owed' AND next_at <= ?2"
    " OR namespace = ?1 AND state = 'owed' AND next_at <= ?3"
)


class PostgresDeliveries(Facet):
    """The facet `Deliveries`."""

    async def list_untold(self, *, limit: int = DEFAULT_LIMIT) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        return tuple(map(run_of, await self._db.all(_LIST_UNTOLD, (self._namespace, limit))))

    async def owe_deliveries(self, run: RunRecord, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            check_delivery(delivery)
        rows = [msgspec.structs.asdict(each) | {"body": encode(each).decode()} for each in deliveries]
        [counted] = await self._db.all(_OWE, (*askable(self._namespace, run.run_id), run.status, encode(rows).decode()))
        return bool(counted[0])

    async def save_delivery(self, delivery: Delivery, *, replaces: str) -> bool:
        check_delivery(delivery)
        change = (delivery.state, delivery.created_at, delivery.next_at, delivery.revision, encode(delivery).decode())
        if await self._db.execute(_SAVE, (*change, self._namespace, delivery.delivery_id, replaces)):
            return True
        stored = await self.find_delivery(delivery.delivery_id)
        return stored is not None and stored.revision == delivery.revision

    async def find_delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        row = await self._db.one(_FIND, askable(self._namespace, delivery_id))
        return None if row is None else decode(row[0], Delivery)

    async def list_deliveries(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        check_page(offset, limit)
        among = (self._namespace, list(states), list(states))
        rows = await self._db.all(_PAGE, (*among, limit, offset))
        # A page beyond the end has no row to carry the total.
        counted = rows[0][1] if rows else (await self._db.all(_COUNT, among))[0][0]
        return Page(items=tuple(decode(row[0], Delivery) for row in rows), total=counted, offset=offset, limit=limit)

    async def list_due_deliveries(
        self, webhook: str, until: int, *, limit: int = DEFAULT_LIMIT
    ) -> tuple[Delivery, ...]:
        check_page(0, limit)
        rows = await self._db.all(_DUE, (*askable(self._namespace, webhook), until, limit))
        return tuple(decode(row[0], Delivery) for row in rows)

    async def forget_deliveries(self, until: int) -> int:
        return await self._db.execute(_FORGET, (self._namespace, until, until - ABANDONED_MS))
