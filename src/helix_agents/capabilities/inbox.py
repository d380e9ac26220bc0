"""The inbox of an agent: the changes that its subscriptions report."""

import re
from collections.abc import Sequence

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.watching import acknowledge, changes_after, pass_over, shown, subscriptions_of
from helix_agents.domain.records import JSON
from helix_agents.ports.entries import EntryStore

_TOLD = re.compile(r"([^@]+)@([0-9]{1,18})\.[0-9]+\.([0-9]{1,18})")
"""The id of a change: the subscription, the revision, its position there, and the restore number it belongs to."""


async def read_messages(call: Call, limit: int, done: Sequence[str]) -> tuple[list[dict[str, JSON]], int]:
    """The first messages after removing those that were dealt with, and how many are unread."""
    agent, store = call.caller.agent, call.store
    for message_id in done:
        await _remove(store, agent, message_id)
    messages: list[dict[str, JSON]] = []
    for subscription_id, subscription, _ in await subscriptions_of(store, agent):
        events, after = await changes_after(store, subscription)
        if not events:
            await pass_over(store, subscription_id, subscription, after)
        for position, event in enumerate(events):
            # The position tells changes of one revision apart; it is the revision that is acknowledged.
            name = f"{subscription_id}@{event.revision}.{position}.{after.epoch}"
            messages.append({"id": name, **shown(event, subscription_id)})
    return messages[:limit], len(messages)


async def _remove(store: EntryStore, agent: str, message_id: str) -> None:
    """Move the cursor that reported a change past it; an unknown id does nothing."""
    told = _TOLD.fullmatch(message_id)
    if told is None:
        return
    subscription_id, revision, epoch = told[1], int(told[2]), int(told[3])
    mine = {found for found, _, _ in await subscriptions_of(store, agent)}
    if subscription_id in mine and revision <= (await store.list_events(revision, limit=1)).head:
        await acknowledge(store, subscription_id, revision, epoch)
