"""Which sessions a change of shared state wakes, and what they are told."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from helix_agents.agent.tools import Wakeup
from helix_agents.capabilities.settings import HOUR_MS, Limits
from helix_agents.capabilities.watching import (
    Subscription,
    WatchEvent,
    changes_after,
    moved,
    pass_over,
    shown,
    subscriptions_of,
)
from helix_agents.domain.entries import Change
from helix_agents.ports.entries import EntryStore


def sentence_of(events: Sequence[WatchEvent], subscription_id: str) -> str:
    """Changes in the form an agent reads them."""
    told = [shown(event, subscription_id) for event in events]
    return f"Shared state that you watch has changed: {msgspec.json.encode(told).decode()}"


async def wakeups_of(store: EntryStore, agent: str, limits: Limits) -> list[Wakeup]:
    """One for each session of the agent that watches keys that have changed. The cursors move in the same commit that
    tells the session; if several processes try, the versions of their rows let one through.
    """
    now = store.now_ms()
    watching: dict[str, list[tuple[str, Subscription, int]]] = defaultdict(list)
    for each in await subscriptions_of(store, agent):
        subscription = each[1]
        if subscription.session_id is not None and _may_wake(subscription, limits, now):
            watching[subscription.session_id].append(each)
    found: list[Wakeup] = []
    for session_id, subscriptions in watching.items():
        wakeup = await _wakeup(store, session_id, subscriptions, now)
        if wakeup is not None:
            found.append(wakeup)
    return found


async def _wakeup(
    store: EntryStore, session_id: str, subscriptions: Sequence[tuple[str, Subscription, int]], now: int
) -> Wakeup | None:
    texts: list[str] = []
    changes: list[Change] = []
    gives_up = False
    for subscription_id, subscription, version in subscriptions:
        events, after = await changes_after(store, subscription)
        if not events:
            await pass_over(store, subscription_id, subscription, after)
            continue
        texts.append(sentence_of(events, subscription_id))
        changes.append(moved(subscription_id, _counted(after, now), version))
        gives_up |= subscription.wake == "always"
    if not texts:
        return None
    return Wakeup(session_id=session_id, texts=tuple(texts), changes=tuple(changes), gives_up_waiting=gives_up)


def _may_wake(subscription: Subscription, limits: Limits, now: int) -> bool:
    """Two agents that react to each other's changes would keep each other busy forever; what they miss is told
    later."""
    if subscription.wake == "never" or limits.wakes_per_hour < 1:
        return False
    return subscription.woken < limits.wakes_per_hour or _hour_is_over(subscription, now)


def _hour_is_over(subscription: Subscription, now: int) -> bool:
    """Also for an hour that started before the clock was set back: it might otherwise take years to be over."""
    return not 0 <= now - subscription.woken_since < HOUR_MS


def _counted(subscription: Subscription, now: int) -> Subscription:
    if _hour_is_over(subscription, now):
        return msgspec.structs.replace(subscription, woken=1, woken_since=now)
    return msgspec.structs.replace(subscription, woken=subscription.woken + 1)
