"""Delivers notices of calls that ran with notice: each at least once, to the log and to every webhook."""

import asyncio
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import OUTBOX
from helix_agents.capabilities.values import parsed
from helix_agents.domain.entries import EntryTransaction, Remove
from helix_agents.engine.log import log_event, log_exception

TIMEOUT_SECONDS = 10.0
PUT_OFF_MS = 60_000


async def deliver_notices(gateway: Gateway, *, limit: int = 500) -> int:
    """Deliver what waits, oldest first; returns how many were delivered everywhere.

    A notice is removed only after every address has accepted it, so after a crash in between some get it twice, under
    the same id. A notice that an address did not accept is put off for a minute, and does not hold up others. An
    unreachable address is left alone for the rest of the round. A process that knows no address leaves such notices to
    those that do.
    """
    delivered = tried = 0
    away: set[str] = set()
    now = gateway.store.now_ms()
    gateway.put_off = {key: until for key, until in gateway.put_off.items() if until > now}
    async for entry in every_entry(gateway.store, OUTBOX):
        notice = parsed(entry.value)
        not_for_us = notice.get("for_webhooks") and not gateway.settings.webhooks
        if not_for_us or entry.key in gateway.put_off:
            continue
        tried += 1
        if tried > limit:
            break
        log_event("state.notification", **{key: notice[key] for key in ("id", "capability", "agent", "at")})
        everywhere = True
        for address in gateway.settings.webhooks:
            everywhere &= address not in away and await _deliver(address, entry.value or "", notice["id"], away)
        if not everywhere:
            gateway.put_off[entry.key] = now + PUT_OFF_MS
            continue
        gone = Remove(scope=OUTBOX, key=entry.key, forget=True)
        await gateway.store.transact(EntryTransaction(changes=(gone,), owner="notices"))
        delivered += 1
    return delivered


async def _deliver(address: str, notice: str, notice_id: str, away: set[str]) -> bool:
    """Whether an address accepted a notice; an address that gave no proper answer is added to those that are away."""
    try:
        await asyncio.to_thread(_post, address, notice.encode(), notice_id)
    except (OSError, HTTPException, ValueError) as problem:
        log_exception("state.webhook_failed", problem, notice=notice_id)
        if not isinstance(problem, HTTPError):
            away.add(address)
        return False
    return True


def _post(address: str, body: bytes, notice_id: str) -> None:
    headers = {"content-type": "application/json", "idempotency-key": notice_id}
    request = urllib.request.Request(address, data=body, headers=headers, method="POST")
    # The status is the answer; the rest of it may never come.
    _opener.open(request, timeout=TIMEOUT_SECONDS).close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected notice would arrive as a request without its body: an address that has moved has not accepted it."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
