"""Periodic work: idle sessions, notices, unfinished calls and restores, signatures, old rows."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_agents.capabilities.alerts import trim_alerts
from helix_agents.capabilities.approvals import expire_approvals, resume_approvals
from helix_agents.capabilities.auditing import sign_when_due
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.minted_sessions import sweep_sessions
from helix_agents.capabilities.notifying import deliver_notices
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.rates import is_over
from helix_agents.capabilities.restores import sweep_restores
from helix_agents.capabilities.scopes import ASKED, DECIDED, HOUSEKEEPING, JOURNAL, RATES
from helix_agents.capabilities.settings import HOUR_MS
from helix_agents.capabilities.watching import keep_up
from helix_agents.domain.entries import EntryTransaction, Put, Remove
from helix_agents.domain.entry_plan import ONCE
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_exception
from helix_agents.ports.entries import EntryStore
from helix_agents.system import jitter

FORGOTTEN_AT_ONCE = 1_000
FORGET_EVERY_MS = HOUR_MS
SWEEP_SECONDS = 15.0
EXECUTORS = "executors"
SAY_AGAIN_MS = HOUR_MS
GONE_AFTER_MS = 7 * 24 * HOUR_MS


async def sweep_state(gateway: Gateway) -> dict[str, JSON]:
    """One round; any number of processes may run it at the same time. Returns what was done."""
    return await _sweep(gateway) | await _let_go(gateway)


async def sweep_as_guest(gateway: Gateway) -> dict[str, JSON]:
    """One round of a process that may not know how much its store should keep: as long as executors look after that,
    what their limits would remove is left to them."""
    done = await _sweep(gateway)
    if await _is_looked_after(gateway.store):
        return {**done, "alerts_dropped": 0, "changes_kept_after": 0, "answers_forgotten": 0}
    return done | await _let_go(gateway)


async def look_after(store: EntryStore) -> None:
    """Record now and then that an executor is here that removes what is too old."""
    said = await store.find(HOUSEKEEPING, EXECUTORS)
    if said is None or abs(store.now_ms() - said.updated_at) >= SAY_AGAIN_MS:
        put = Put(scope=HOUSEKEEPING, key=EXECUTORS, value="true")
        await store.transact(EntryTransaction(changes=(put,), owner="housekeeping"))


async def _is_looked_after(store: EntryStore) -> bool:
    said = await store.find(HOUSEKEEPING, EXECUTORS)
    return said is not None and abs(store.now_ms() - said.updated_at) < GONE_AFTER_MS


async def _sweep(gateway: Gateway) -> dict[str, JSON]:
    """What is due, whatever limits a process was given. Notices for an address that it does not know are kept."""
    await gateway.flush()
    return {
        "sessions_ended": await sweep_sessions(gateway.store),
        "approvals_expired": await expire_approvals(gateway),
        "restores_given_up": await sweep_restores(gateway.store),
        "notices_delivered": await deliver_notices(gateway),
        "approvals_resumed": await resume_approvals(gateway),
        "audit_signed_up_to": await sign_when_due(gateway),
    }


async def _let_go(gateway: Gateway) -> dict[str, JSON]:
    """Remove what is too old, or too much, by the limits that a process was given."""
    limits, now = gateway.settings.limits, gateway.store.now_ms()
    return {
        "alerts_dropped": await trim_alerts(gateway),
        "changes_kept_after": await _forget_changes(gateway, now - limits.event_age_ms),
        "answers_forgotten": await _forget(gateway, now, limits.remembered_ms),
    }


@asynccontextmanager
async def sweeping(gateway: Gateway) -> AsyncGenerator[None]:
    """Sweep now and then, for as long as the block lasts: for a process that serves a store without an executor."""
    rounds = asyncio.create_task(_sweep_on(gateway))
    try:
        yield
    finally:
        rounds.cancel()
        await asyncio.wait((rounds,))


async def _sweep_on(gateway: Gateway) -> None:
    while True:
        try:
            await sweep_as_guest(gateway)
        except Exception as problem:
            # Catch everything: the next round may do better, and there may be no other process.
            log_exception("state.sweep_failed", problem)
        await asyncio.sleep(SWEEP_SECONDS * jitter())


async def _forget_changes(gateway: Gateway, before: int) -> int:
    """Remove announced changes that are too old or too many; returns the revision up to which."""
    store = gateway.store
    await keep_up(store, await store.revision_at(before))
    return await store.prune_events(before_ms=before, keep=gateway.settings.limits.events)


async def _forget(gateway: Gateway, now: int, after: int) -> int:
    """Remove remembered results and decided requests that are too old to be sent or looked up again. Counts of calls
    are kept as long as they count.

    There may be a million of them, of which a round has few to remove, so they are not scanned in every round.
    """
    last = gateway.forgot_at
    if last is not None and 0 <= now - last < min(FORGET_EVERY_MS, after):
        return 0
    gateway.forgot_at = now
    forgotten, before = 0, now - after
    for scope in (ONCE, JOURNAL, RATES, DECIDED, ASKED):
        entries = every_entry(gateway.store, scope, values=False)
        old = [entry.key async for entry in entries if entry.updated_at < before]
        if scope == RATES:
            old = [key for key in old if is_over(key, now)]
        for start in range(0, len(old), FORGOTTEN_AT_ONCE):
            keys = old[start : start + FORGOTTEN_AT_ONCE]
            changes = tuple(Remove(scope=scope, key=key, forget=True) for key in keys)
            await gateway.store.transact(EntryTransaction(changes=changes, owner="housekeeping"))
        forgotten += len(old)
    return forgotten
