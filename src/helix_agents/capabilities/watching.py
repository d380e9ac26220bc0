"""Watching shared state: a durable cursor over the log of changes.

Changes are ordered by revision and reported in whole transactions; each is reported once per cursor, none is skipped,
and a reader that fell behind what is kept is told so (`resync_required`) instead of missing something silently. A
cursor moves when its reader says what it has dealt with, so after a crash it continues where it was.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import SESSIONS, SHARED, SUBSCRIPTIONS
from helix_agents.capabilities.values import shown_time
from helix_agents.domain.capability_errors import SubscriptionFailed, VersionConflict
from helix_agents.domain.entries import Change, Entry, EntryEvent, EntryTransaction, EventPage, Put, Remove
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.ports.entries import EntryStore

Wake: TypeAlias = Literal["idle", "always", "never"]

PAGE = 500
LOOK_AGAIN_SECONDS = 1.0


class Subscription(Record):
    """A cursor: everything up to `cursor` was reported, as of restore number `epoch`.

    `wake` says whether a change starts a turn of an idle session. It started `woken` turns in the hour after
    `woken_since`. If its session was ended, a subscription reports what there was `until` then, and is removed once
    that was read.
    """

    agent: str
    session_id: str | None = None
    prefix: str = ""
    include_own: bool = False
    durable: bool = False
    cursor: int = 0
    epoch: int = 0
    created_at: int = 0
    wake: Wake = "never"
    woken: int = 0
    woken_since: int = 0
    until: int | None = None


@dataclass(frozen=True, kw_only=True)
class SharedChange:
    """One change of a shared key. `operation` is `put`, `delete` or `restore`."""

    revision: int
    key: str
    operation: str
    version: int
    owner_agent: str
    updated_at: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ResyncRequired:
    """Changes are no longer known, or a restore replaced the state: read the keys, then continue after `revision`."""

    revision: int


@dataclass(frozen=True, kw_only=True)
class Bookmark:
    """Nothing matched, and everything up to here was examined."""

    revision: int


WatchEvent = SharedChange | ResyncRequired | Bookmark


async def subscribe(call: Call, *, prefix: str, include_own: bool, durable: bool, wake: Wake) -> tuple[str, int]:
    """Create a cursor that starts now; returns its id and revision.

    Raises:
        SubscriptionFailed: the agent has as many as it may.
    """
    subscription_id = call.ids.new("sub")
    if call.once is not None:
        # A repetition finds the subscription of the first attempt.
        subscription_id = f"sub_{encoded_name(call.once)}"
        known = await call.store.find(SUBSCRIPTIONS, subscription_id)
        if known is not None:
            return subscription_id, subscription_of(known).cursor
    mine = [each for each in await subscriptions_of(call.store, call.caller.agent) if each[1].until is None]
    if len(mine) >= call.limits.subscriptions:
        raise SubscriptionFailed(
            f"There are {len(mine)} subscriptions, and no more are allowed; end the sessions that have them.",
            {"subscriptions": len(mine), "limit": call.limits.subscriptions},
        )
    page = await call.store.list_events(0, limit=1)
    row = Subscription(
        agent=call.caller.agent,
        session_id=call.caller.session_id,
        prefix=prefix,
        include_own=include_own,
        durable=durable,
        cursor=page.head,
        epoch=page.epoch,
        created_at=call.store.now_ms(),
        # Only a run's session can be given another turn.
        wake=wake if call.caller.face == "agent" else "never",
    )
    call.once = None
    await call.commit(Put(scope=SUBSCRIPTIONS, key=subscription_id, value=encode(row).decode(), expected_version=0))
    return subscription_id, row.cursor


def encoded_name(text: str) -> str:
    """A fixed-length name made from any text."""
    return hashlib.sha256(text.encode()).hexdigest()[:25]


async def subscriptions_of(
    store: EntryStore, agent: str, session_id: str | None = None
) -> list[tuple[str, Subscription, int]]:
    """The subscriptions of an agent, or of one of its sessions, each with its id and the version of its row."""
    return [
        each
        async for each in _subscriptions(store)
        if each[1].agent == agent and (session_id is None or each[1].session_id == session_id)
    ]


async def _subscriptions(store: EntryStore) -> AsyncIterator[tuple[str, Subscription, int]]:
    async for entry in every_entry(store, SUBSCRIPTIONS):
        yield entry.key, subscription_of(entry), entry.version


async def end_subscriptions(store: EntryStore, is_over: Callable[[SessionId], Awaitable[bool]]) -> None:
    """Remove the subscriptions of runs' sessions that are gone, except those that were to outlive them, and those that
    have ended and have nothing left to report."""
    over: dict[str, bool] = {}
    async for subscription_id, subscription, version in _subscriptions(store):
        session_id = subscription.session_id
        if session_id is None or subscription.durable:
            continue
        if subscription.until is not None:
            events, after = await changes_after(store, subscription)
            if not events:
                await pass_over(store, subscription_id, subscription, after)
            continue
        if session_id not in over:
            # A session that a client was given ends in its own way, together with its subscriptions.
            is_clients = await store.find(SESSIONS, session_id) is not None
            over[session_id] = not is_clients and await is_over(session_id)
        if over[session_id]:
            gone = Remove(scope=SUBSCRIPTIONS, key=subscription_id, expected_version=version, forget=True)
            with suppress(VersionConflict):
                await store.transact(EntryTransaction(changes=(gone,), owner=subscription.agent))


async def ending(store: EntryStore, entry: Entry) -> Change:
    """The change that ends a subscription with its session: it is removed, or kept until what it had to report was
    read."""
    subscription = subscription_of(entry)
    events, after = await changes_after(store, subscription)
    if not events:
        return Remove(scope=SUBSCRIPTIONS, key=entry.key, expected_version=entry.version, forget=True)
    head = (await store.list_events(after.cursor, limit=1)).head
    return moved(entry.key, msgspec.structs.replace(subscription, until=head, wake="never"), entry.version)


def subscription_of(entry: Entry) -> Subscription:
    """A stored subscription."""
    return decode(entry.value or "", Subscription)


async def changes_after(store: EntryStore, subscription: Subscription) -> tuple[list[WatchEvent], Subscription]:
    """What there is to report, and the subscription once that was reported.

    Pages of changes that the agent made itself are skipped: they are not reported, and must not hide what follows.
    """
    while True:
        page = await store.list_events(subscription.cursor, limit=PAGE, scope=SHARED, prefix=subscription.prefix)
        last = page.head if subscription.until is None else min(page.head, subscription.until)
        if is_behind(page, subscription):
            caught_up = msgspec.structs.replace(subscription, cursor=page.head, epoch=page.epoch)
            # A reader that starts anew does so with a subscription that continues.
            return [ResyncRequired(revision=page.head)] if subscription.until is None else [], caught_up
        events: list[WatchEvent] = [
            _change(event)
            for event in page.events
            if event.revision <= last and (subscription.include_own or event.owner != subscription.agent)
        ]
        subscription = msgspec.structs.replace(subscription, cursor=min(page.reached, last), epoch=page.epoch)
        if events or page.reached >= last:
            return events, subscription


def is_behind(page: EventPage, subscription: Subscription) -> bool:
    """Whether something may have happened that can no longer be reported."""
    restored = subscription.epoch not in (0, page.epoch)
    return subscription.cursor < page.compacted or restored


def moved(subscription_id: str, to: Subscription, version: int | None = None) -> Change:
    """The change that moves a cursor."""
    return Put(scope=SUBSCRIPTIONS, key=subscription_id, value=encode(to).decode(), expected_version=version)


async def acknowledge(store: EntryStore, subscription_id: str, revision: int, epoch: int) -> None:
    """Move a cursor to a revision that was reported as of restore number `epoch`, unless it is there or further
    already."""
    while True:
        found = await store.find(SUBSCRIPTIONS, subscription_id)
        if found is None or subscription_of(found).cursor >= revision:
            return
        to = msgspec.structs.replace(subscription_of(found), cursor=revision, epoch=epoch)
        try:
            await store.transact(EntryTransaction(changes=(moved(subscription_id, to, found.version),), owner=to.agent))
        except VersionConflict:
            continue
        return


async def pass_over(store: EntryStore, subscription_id: str, before: Subscription, after: Subscription) -> None:
    """Spare the next reader a long stretch with nothing to report; a short one is not worth a write. A subscription
    that has ended is removed."""
    if before.until is not None:
        gone = Remove(scope=SUBSCRIPTIONS, key=subscription_id, forget=True)
        await store.transact(EntryTransaction(changes=(gone,), owner=before.agent))
    elif after.cursor - before.cursor >= PAGE:
        await acknowledge(store, subscription_id, after.cursor, after.epoch)


async def keep_up(store: EntryStore, revision: int) -> None:
    """Move cursors that have nothing to report past changes up to a revision, which are about to be forgotten: only a
    reader that may have missed something is told to start anew."""
    async for subscription_id, subscription, _ in _subscriptions(store):
        if subscription.cursor < revision:
            events, after = await changes_after(store, subscription)
            if not events:
                await acknowledge(store, subscription_id, after.cursor, after.epoch)


class Watch:
    """A live reader of one cursor, in any process: `async for event in watch`.

    Asking for the next event says that the one before was dealt with; the cursor in the store follows whole revisions.
    A reader that continues after a crash may get the last revision again, and recognises it by its number.
    """

    def __init__(self, store: EntryStore, subscription_id: str, *, bookmarks: bool = False) -> None:
        self._store = store
        self._id = subscription_id
        self._bookmarks = bookmarks
        self._open = True

    @property
    def subscription_id(self) -> str:
        """The id of the cursor, to continue with it later."""
        return self._id

    def stop(self) -> None:
        """End the iteration after the current event."""
        self._open = False

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        async with self._store.listen() as waiting:
            while self._open:
                found = await self._store.find(SUBSCRIPTIONS, self._id)
                if found is None:
                    return
                subscription = subscription_of(found)
                events, after = await changes_after(self._store, subscription)
                for last, event in _with_last(events):
                    yield event
                    if last and after.cursor != subscription.cursor:
                        await acknowledge(self._store, self._id, event.revision, after.epoch)
                    if not self._open:
                        return
                if subscription.until is not None and not events:
                    await pass_over(self._store, self._id, subscription, after)
                elif after.cursor != subscription.cursor:
                    await acknowledge(self._store, self._id, after.cursor, after.epoch)
                    if self._bookmarks and not events:
                        yield Bookmark(revision=after.cursor)
                elif not events:
                    await waiting.wait(LOOK_AGAIN_SECONDS)


def _with_last(events: Sequence[WatchEvent]) -> list[tuple[bool, WatchEvent]]:
    """Each event, and whether it is the last one of its revision."""
    return [
        (index + 1 == len(events) or events[index + 1].revision != event.revision, event)
        for index, event in enumerate(events)
    ]


def shown(event: WatchEvent, subscription_id: str) -> dict[str, JSON]:
    """An event as a message."""
    about: dict[str, JSON] = {"subscription_id": subscription_id, "revision": event.revision}
    match event:
        case SharedChange():
            return {
                "type": "state.shared.changed",
                **about,
                "key": event.key,
                "op": event.operation,
                "version": event.version,
                "owner_agent": event.owner_agent,
                "updated_at": event.updated_at,
                "size_bytes": event.size_bytes,
            }
        case ResyncRequired():
            return {"type": "resync_required", **about}
        case Bookmark():
            return {"type": "bookmark", **about}


def _change(event: EntryEvent) -> SharedChange:
    return SharedChange(
        revision=event.revision,
        key=event.key,
        operation=event.operation,
        version=event.version,
        owner_agent=event.owner,
        updated_at=shown_time(event.at),
        size_bytes=event.size,
    )
