"""Tells webhooks how runs ended and what waits: at least once each, in whichever process comes to it first."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from helix_agents.domain.errors import HelixError, StoreClosedError
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingCall, PendingFilter
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.webhooks import (
    DELAYS_MS,
    Delivery,
    DeliveryState,
    claimed,
    event_of,
    finished,
    message_of,
    owed,
    put_off,
)
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.requests.rewinding import REWOUND
from helix_agents.engine.services import Services
from helix_agents.runtimes.executor.webhook_posts import Answered, Posts, Unreachable
from helix_agents.runtimes.executor.webhooks import Webhook

AT_ONCE = 8
"""How many messages one process sends to a webhook at the same time."""

LAST_WORDS_SECONDS = 5.0
"""How long a process that leaves still tries to tell what it has not told yet."""

# A process that claimed a delivery may take this long beyond the receiver's time to record what came of it.
_LEASE_MARGIN_MS = 30_000
_FIRST_REST_SECONDS = 5.0
_LONGEST_REST_SECONDS = 60.0
_FORGET_EVERY_MS = 60_000
_ANY_TIME_MS = 2**53
# No delivery is put off for longer than this, beyond the receiver's time.
_FARTHEST_MS = 2 * DELAYS_MS[-1]
_GONE = 410
# Answers by which a service, or what stands before it, asks for fewer messages.
_TOO_MUCH = (429, 502, 503, 504)


class Told(NamedTuple):
    """What came of the deliveries that were due; `away` says that the webhook did not answer, or asks for a rest."""

    delivered: int = 0
    away: bool = False


class WebhookTeller:
    """Looks for runs that ended and makes deliveries of them, and carries the deliveries out.

    Any number of processes may do so. A delivery is claimed before it is tried, so two processes try it only if the
    first one died, or was cut off, between sending the message and recording it. Each webhook is served by a task of
    its own: one that is slow or dead holds up nothing else.
    """

    def __init__(self, services: Services, webhooks: Sequence[Webhook]) -> None:
        self._services = services
        self._webhooks = tuple(webhooks)
        self._posts = Posts() if webhooks else None
        self._ended = asyncio.Event()
        self._due = {webhook.name: asyncio.Event() for webhook in webhooks}
        self._away: set[str] = set()
        self._sending: set[asyncio.Task[bool | None]] = set()
        self._leaving = False
        self._forgot_at = 0

    def look(self) -> None:
        """Look at once, because a run ended here."""
        self._ended.set()

    def look_at_deliveries(self) -> None:
        """Look at once for deliveries that are due."""
        for event in self._due.values():
            event.set()

    async def run(self, interval_seconds: float) -> None:
        """Tell webhooks, forever; runs that ended in other processes are noticed once per interval."""
        if self._webhooks:
            await asyncio.gather(
                self._see_forever(interval_seconds),
                *(self._deliver_forever(webhook, interval_seconds) for webhook in self._webhooks),
            )

    async def tell_due(self, *, fresh: bool = False) -> int:
        """Do everything once that is due now; returns how many messages were delivered. With `fresh`, only what was
        not tried yet."""
        if not self._webhooks:
            return 0
        await self.see()
        told = await asyncio.gather(*(self._deliver_due(webhook, fresh=fresh) for webhook in self._webhooks))
        return sum(each.delivered for each in told)

    async def leave(self, grace_seconds: float) -> None:
        """Tell what was not told yet, for a moment, and wait for messages that are on their way. Whatever is left is
        for other processes, or for later."""
        if not self._webhooks or self._leaving:
            return
        self._leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(min(grace_seconds, LAST_WORDS_SECONDS)):
                try:
                    await self.tell_due(fresh=True)
                except Exception as problem:
                    log_exception("webhooks.failed", problem)
                if self._sending:
                    await asyncio.wait(self._sending)

    async def close(self) -> None:
        """Close all connections. A message that is still on its way counts as not sent, and is sent again."""
        sending = tuple(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        if self._posts is not None:
            await self._posts.close()

    # -- runs that ended

    async def _see_forever(self, interval_seconds: float) -> None:
        while True:
            self._ended.clear()
            try:
                await self.see()
            except StoreClosedError:
                return
            except Exception as problem:
                # Catch everything: nothing else here would tell what is owed.
                log_exception("webhooks.failed", problem)
            await _wait(self._ended, interval_seconds)

    async def see(self) -> int:
        """Make deliveries of all runs whose end has to be told; returns how many runs that were."""
        store, seen = self._services.store, 0
        while runs := await store.list_untold(limit=MAX_LIMIT):
            did = [await self._see_to(run) for run in runs]
            seen += sum(did)
            if not any(did):
                # Other processes work on the same runs, and an index may still have to hear about them.
                break
            self.look_at_deliveries()
        await self._forget(store.now_ms())
        return seen

    async def _see_to(self, run: RunRecord) -> bool:
        """Make deliveries of one run; False if another process did, or if it cannot be done now."""
        try:
            return await self._services.store.owe_deliveries(run, await self._owed(run))
        except HelixError as problem:
            if problem.retryable or isinstance(problem, StoreClosedError):
                raise
            # What is wrong with one run does not hold up the others.
            log_exception("webhooks.failed", problem, session_id=run.session_id, run_id=run.run_id)
            return False

    async def _forget(self, now: int) -> None:
        """Remove old records, once in a while."""
        if now - self._forgot_at >= _FORGET_EVERY_MS or now < self._forgot_at:
            self._forgot_at = now
            await self._services.store.forget_deliveries(now)

    async def _owed(self, run: RunRecord) -> list[Delivery]:
        """What webhooks have to be told about a run that ended."""
        event = event_of(run.status)
        session = await self._services.store.find_session(run.session_id)
        if event is None or session is None or run.completion_reason == REWOUND:
            return []
        if event == "calls.waiting":
            if not await self._waiting(run):
                return []
        elif session.parent_session_id is not None:
            return []
        now, ids = self._services.store.now_ms(), self._services.ids
        wanted = [webhook.name for webhook in self._webhooks if event in webhook.events]
        return [owed(run, event, name, now=now, revision=ids.new("revision")) for name in wanted]

    async def _waiting(self, run: RunRecord) -> list[PendingCall]:
        """The calls that this run left waiting, and that still wait. Those of earlier runs were told with them."""
        store, where = self._services.store, PendingFilter(session_id=run.session_id)
        calls = await whole_list(lambda offset: store.list_pending(where, offset=offset, limit=MAX_LIMIT))
        return sorted((call for call in calls if call.run_id == run.run_id), key=lambda call: call.created_at)

    # -- deliveries

    async def _deliver_forever(self, webhook: Webhook, interval_seconds: float) -> None:
        due, rest = self._due[webhook.name], _FIRST_REST_SECONDS
        while True:
            due.clear()
            wait = interval_seconds
            try:
                told = await self._deliver_due(webhook)
                if told.away:
                    # More tries now would only meet with the same; what is due stays due.
                    await asyncio.sleep(rest)
                    rest = min(rest * 2, _LONGEST_REST_SECONDS)
                    continue
                rest = _FIRST_REST_SECONDS
                wait = await self._until_next(webhook, interval_seconds)
            except StoreClosedError:
                return
            except Exception as problem:
                log_exception("webhooks.failed", problem, webhook=webhook.name)
            await _wait(due, wait)

    async def _until_next(self, webhook: Webhook, longest: float) -> float:
        store = self._services.store
        coming = await store.list_due_deliveries(webhook.name, _ANY_TIME_MS, limit=1)
        if not coming:
            return longest
        [first], now = coming, store.now_ms()
        if first.next_at > now + webhook.timeout_ms + _FARTHEST_MS:
            # It was put off while the clock was wrong.
            at_once = replace(first, next_at=now, revision=self._services.ids.new("revision"))
            await store.save_delivery(at_once, replaces=first.revision)
            return 0.0
        # What is due already was claimed by another process, or came this moment.
        return min(longest, max(0.2, (first.next_at - now) / 1000))

    async def _deliver_due(self, webhook: Webhook, *, fresh: bool = False) -> Told:
        """Try every delivery that is due, a few at a time, until none is left or the webhook is away."""
        delivered, tried = 0, set[str]()
        while True:
            store = self._services.store
            due = await store.list_due_deliveries(webhook.name, store.now_ms(), limit=MAX_LIMIT)
            new = [each for each in due if each.delivery_id not in tried and not (fresh and each.attempts)]
            if not new:
                return Told(delivered)
            # One message finds out whether a webhook is back: more would only occupy connections and threads.
            some = new[: 1 if webhook.name in self._away else AT_ONCE]
            tried.update(each.delivery_id for each in some)
            # A message that is on its way is waited for even if this task is cancelled, so that its end is recorded.
            trying = [asyncio.create_task(self._try(webhook, each)) for each in some]
            self._sending.update(trying)
            for task in trying:
                task.add_done_callback(self._sending.discard)
            answers = await asyncio.gather(*(asyncio.shield(task) for task in trying))
            delivered += sum(answer is True for answer in answers)
            if None in answers:
                self._away.add(webhook.name)
                return Told(delivered, away=True)
            self._away.discard(webhook.name)

    async def _try(self, webhook: Webhook, delivery: Delivery) -> bool | None:
        """Try one delivery; True if it was delivered, None if the webhook is away."""
        try:
            return await self._deliver(webhook, delivery)
        except StoreClosedError:
            return False
        except Exception as problem:
            log_exception("webhooks.failed", problem, webhook=webhook.name, delivery_id=delivery.delivery_id)
            return False

    async def _deliver(self, webhook: Webhook, delivery: Delivery) -> bool | None:
        store, ids = self._services.store, self._services.ids
        now, lease_ms = store.now_ms(), webhook.timeout_ms + _LEASE_MARGIN_MS
        held = claimed(delivery, now=now, lease_ms=lease_ms, revision=ids.new("revision"))
        if not await store.save_delivery(held, replaces=delivery.revision):
            # Another process has it.
            return False
        try:
            body = await self._message(held)
        except HelixError as problem:
            if problem.retryable or isinstance(problem, StoreClosedError):
                raise
            await self._failed(webhook, held, Unreachable(f"there is no message: {problem}"))
            return False
        if body is None:
            await self._finish(held, "dropped", "nothing waits for it any more")
            return False
        assert self._posts is not None
        answer = await self._posts.send(webhook, delivery.delivery_id, body)
        if isinstance(answer, Answered) and 200 <= answer.status < 300:
            await self._finish(held, "delivered", None)
            return True
        await self._failed(webhook, held, answer)
        return None if isinstance(answer, Unreachable) or answer.status in _TOO_MUCH else False

    async def _message(self, delivery: Delivery) -> bytes | None:
        """The message, made from the run as it is now; None if there is nothing left to tell."""
        store = self._services.store
        run, session = await store.get_run(delivery.run_id), await store.find_session(delivery.session_id)
        if run is None or session is None or event_of(run.status) != delivery.event:
            return None
        calls = await self._waiting(run) if delivery.event == "calls.waiting" else []
        if delivery.event == "calls.waiting" and not calls:
            return None
        return encode(message_of(delivery.event, run, session, calls))

    async def _failed(self, webhook: Webhook, held: Delivery, answer: Answered | Unreachable) -> None:
        now, wait_ms, is_final = self._services.store.now_ms(), 0, False
        match answer:
            case Answered(status=status, retry_after_ms=wait_ms):
                redirects = 300 <= status < 400
                reason = f"it answered {status}" + (", and redirects are not followed" if redirects else "")
                is_final = status == _GONE
            case Unreachable(reason=reason):
                pass
        if is_final or now - held.created_at >= webhook.give_up_ms:
            await self._finish(held, "given_up", reason)
            return
        revision, jitter = self._services.ids.new("revision"), self._services.jitter()
        later = put_off(held, now=now, revision=revision, error=reason, at_least_ms=wait_ms, jitter=jitter)
        log_event("webhook.failed", logging.WARNING, **_about(held), reason=reason)
        await self._services.store.save_delivery(later, replaces=held.revision)

    async def _finish(self, held: Delivery, state: DeliveryState, error: str | None) -> None:
        store = self._services.store
        revision = self._services.ids.new("revision")
        over = finished(held, state, now=store.now_ms(), revision=revision, error=error)
        if not await store.save_delivery(over, replaces=held.revision):
            return
        if state == "given_up":
            log_event("webhook.given_up", logging.ERROR, **_about(held), reason=error)
        else:
            log_event(f"webhook.{state}", **_about(held))


def _about(delivery: Delivery) -> dict[str, Any]:
    return {
        "webhook": delivery.webhook,
        "delivery_id": delivery.delivery_id,
        "event_type": delivery.event,
        "session_id": delivery.session_id,
        "run_id": delivery.run_id,
        "attempts": delivery.attempts,
    }


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
