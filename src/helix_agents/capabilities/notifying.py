"""Delivers notices of calls that ran with notice: each at least once, to the log and to every webhook."""

import asyncio
import urllib.request

from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.scopes import OUTBOX
from helix_agents.capabilities.values import parsed
from helix_agents.domain.entries import EntryTransaction, Remove
from helix_agents.engine.log import log_event, log_exception

TIMEOUT_SECONDS = 10.0


async def deliver_notices(gateway: Gateway, *, limit: int = 500) -> int:
    """Deliver what waits, oldest first; answers how many were delivered everywhere.

    A notice goes only after every address took it, so a crash in between means that some hear it twice, under the same
    id. One that an address refuses stays for the next time, and does not hold up the others.
    """
    delivered = 0
    page = await gateway.store.list_entries(OUTBOX, limit=limit, values=True)
    for entry in page.items:
        notice = parsed(entry.value)
        log_event("state.notification", **{key: notice[key] for key in ("id", "capability", "agent", "at")})
        try:
            for address in gateway.settings.webhooks:
                await asyncio.to_thread(_post, address, (entry.value or "").encode(), notice["id"])
        except OSError as problem:
            log_exception("state.webhook_failed", problem, notice=notice["id"])
            continue
        gone = Remove(scope=OUTBOX, key=entry.key, forget=True)
        await gateway.store.transact(EntryTransaction(changes=(gone,), owner="notices"))
        delivered += 1
    return delivered


def _post(address: str, body: bytes, notice_id: str) -> None:
    headers = {"content-type": "application/json", "idempotency-key": notice_id}
    request = urllib.request.Request(address, data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read()
