"""Sessions of callers without a run: an unguessable handle, bound to its agent, that ends when it is not used."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import SESSIONS, SUBSCRIPTIONS
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.values import parsed
from helix_agents.capabilities.watching import ending, subscription_of
from helix_agents.domain.capability_errors import SessionNotFound, VersionConflict
from helix_agents.domain.entries import Change, Changed, Clear, EntryTransaction, Put, Remove, Transacted, session_scope
from helix_agents.domain.records import JSON, encode
from helix_agents.ports.clock import IdSource
from helix_agents.ports.entries import EntryStore

# Makes changes as part of the call that requests them: with its line in the audit log, and its notice.
Commit = Callable[..., Awaitable[Transacted]]

# A session that is only read is kept alive by an occasional write, not by one for every read.
TOUCH_AFTER = 0.1


class MintedSession:
    """The state of a session that `session.create` created."""

    def __init__(self, store: EntryStore, caller: Caller, limits: Limits, commit: Commit) -> None:
        assert caller.session_id is not None
        self._store = store
        self._commit = commit
        self._caller = caller
        self._id = caller.session_id
        self._scope = session_scope(self._id)
        self._limits = limits

    async def check_alive(self) -> None:
        left, _ = await self._find()
        if left < self._limits.session_idle_ms * (1 - TOUCH_AFTER):
            await self._change()

    async def get(self, key: str) -> str | None:
        await self.check_alive()
        found = await self._store.find(self._scope, key)
        return found.value if found is not None else None

    async def set(self, key: str, value: str) -> str | None:
        limit, keys = self._limits.session_bytes, self._limits.keys
        put = Put(scope=self._scope, key=key, value=value, limit_bytes=limit, limit_keys=keys)
        return (await self._change(put)).previous

    async def delete(self, key: str) -> str | None:
        return (await self._change(Remove(scope=self._scope, key=key, forget=True))).previous

    async def keys(self, prefix: str) -> Sequence[str]:
        await self.check_alive()
        page = await self._store.list_entries(self._scope, prefix=prefix, limit=self._limits.keys)
        return [entry.key for entry in page.items]

    async def clear(self) -> int:
        return (await self._change(Clear(scope=self._scope, forget=True))).removed

    async def _change(self, *changes: Change) -> Changed:
        _, version = await self._find()
        until = self._store.now_ms() + self._limits.session_idle_ms
        row = encode({"agent": self._caller.agent, "expires_at": until}).decode()
        touch = Put(scope=SESSIONS, key=self._id, value=row, expected_version=version)
        # The session's row is written with every change, so a concurrent end that comes first wins.
        try:
            if changes:
                done = await self._commit(touch, *changes)
            else:
                done = await self._store.transact(EntryTransaction(changes=(touch,), owner=self._caller.agent))
        except VersionConflict as lost:
            if lost.context.get("key") != self._id:
                raise
            return await self._change(*changes)
        return done.results[len(changes)]

    async def _find(self) -> tuple[int, int]:
        """How long the session has left to live, and the version of its row."""
        found = await self._store.find(SESSIONS, self._id)
        row: dict[str, JSON] = parsed(found.value) if found is not None else {}
        left = row.get("expires_at", 0) - self._store.now_ms()
        if found is None or row.get("agent") != self._caller.agent or left <= 0:
            raise SessionNotFound("The session does not exist or has been terminated.", {"session_id": self._id})
        return left, found.version


async def create_session(
    store: EntryStore, ids: IdSource, agent: str, limits: Limits, commit: Commit
) -> tuple[str, int]:
    """A new handle and when it expires."""
    session_id = ids.new("handle")
    until = store.now_ms() + limits.session_idle_ms
    row = encode({"agent": agent, "expires_at": until}).decode()
    put = Put(scope=SESSIONS, key=session_id, value=row, expected_version=0)
    await commit(put)
    return session_id, until


async def end_session(store: EntryStore, agent: str, session_id: str, commit: Commit, *beside: Change) -> bool:
    """Destroy a session of an agent: its state, and its subscriptions that were not meant to outlive it; what they had
    to report stays in the agent's inbox. Changes `beside` it are made in the same transaction."""
    while True:
        found = await store.find(SESSIONS, session_id)
        if found is None or parsed(found.value).get("agent") != agent:
            return False
        try:
            await commit(*await _end(store, session_id), *beside)
        except VersionConflict:
            # Its messages are being read at this moment.
            continue
        return True


async def sweep_sessions(store: EntryStore) -> int:
    """End every session that was not used for too long; returns how many."""
    ended = 0
    async for entry in every_entry(store, SESSIONS):
        row: dict[str, JSON] = parsed(entry.value)
        if row["expires_at"] > store.now_ms():
            continue
        over = await _end(store, entry.key, entry.version)
        # A session that was used after this page was read is kept, and one that has already ended needs nothing.
        with suppress(VersionConflict):
            await store.transact(EntryTransaction(changes=(*over,), owner=row["agent"]))
            ended += 1
    return ended


async def _end(store: EntryStore, session_id: str, version: int | None = None) -> list[Change]:
    changes: list[Change] = [
        Remove(scope=SESSIONS, key=session_id, expected_version=version, forget=True),
        Clear(scope=session_scope(session_id), forget=True),
    ]
    async for entry in every_entry(store, SUBSCRIPTIONS):
        subscription = subscription_of(entry)
        if subscription.session_id == session_id and not subscription.durable:
            changes.append(await ending(store, entry))
    return changes
