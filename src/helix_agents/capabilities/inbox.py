"""The inbox of an agent: messages that were left for it, and what its subscriptions have to tell."""

import re
from collections.abc import Sequence

import msgspec

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.scopes import inbox_scope
from helix_agents.capabilities.values import parsed, shown_time
from helix_agents.capabilities.watching import acknowledge, changes_after, pass_over, shown, subscriptions_of
from helix_agents.domain.entries import EntryTransaction, Put, Remove
from helix_agents.domain.records import JSON
from helix_agents.ports.clock import IdSource
from helix_agents.ports.entries import EntryStore

_TOLD = re.compile(r"([^@]+)@([0-9]{1,18})\.[0-9]+\.([0-9]{1,18})")
"""The id of a change: the subscription, the revision, its place there, and the restore number it was told as of."""


async def leave_message(
    store: EntryStore, ids: IdSource, agent: str, message: dict[str, JSON], *, sender: str, most: int
) -> str:
    """Leave a message in an agent's inbox; answers its id.

    Raises:
        QuotaExceeded: the inbox is full.
    """
    now = store.now_ms()
    message_id = f"{now:013d}-{ids.new('message')}"
    row = {"type": "message", "from": sender, "created_at": shown_time(now), **message}
    put = Put(scope=inbox_scope(agent), key=message_id, value=msgspec.json.encode(row).decode(), limit_keys=most)
    await store.transact(EntryTransaction(changes=(put,), owner=sender))
    return message_id


async def read_messages(call: Call, limit: int, done: Sequence[str]) -> tuple[list[dict[str, JSON]], int]:
    """Messages after removing those that were dealt with, and how many wait."""
    agent, store = call.caller.agent, call.store
    for message_id in done:
        await _remove(store, agent, message_id)
    page = await store.list_entries(inbox_scope(agent), limit=limit, values=True)
    messages: list[dict[str, JSON]] = [{"id": entry.key, **parsed(entry.value)} for entry in page.items]
    unread = page.total
    for subscription_id, subscription, _ in await subscriptions_of(store, agent):
        events, after = await changes_after(store, subscription)
        if not events:
            await pass_over(store, subscription_id, subscription, after)
        unread += len(events)
        for position, event in enumerate(events):
            # The position tells changes of one revision apart; what is acknowledged is the revision.
            name = f"{subscription_id}@{event.revision}.{position}.{after.epoch}"
            messages.append({"id": name, **shown(event, subscription_id)})
    return messages[:limit], unread


async def _remove(store: EntryStore, agent: str, message_id: str) -> None:
    """Take a message out of the inbox, or move the cursor that told of a change; an id nobody gave does nothing."""
    told = _TOLD.fullmatch(message_id)
    if told is None:
        gone = Remove(scope=inbox_scope(agent), key=message_id, forget=True)
        if await store.find(gone.scope, gone.key) is not None:
            await store.transact(EntryTransaction(changes=(gone,), owner=agent))
        return
    subscription_id, revision, epoch = told[1], int(told[2]), int(told[3])
    mine = {found for found, _, _ in await subscriptions_of(store, agent)}
    if subscription_id in mine and revision <= (await store.list_events(revision, limit=1)).head:
        await acknowledge(store, subscription_id, revision, epoch)
