"""The session of a run: what a call changes is part of its step's commit, and is taken back by a rewind."""

from collections.abc import Sequence

from helix_agents.agent.context import EntryLink
from helix_agents.capabilities.settings import Limits
from helix_agents.domain.capability_errors import QuotaExceeded, SessionNotFound
from helix_agents.domain.entries import Change, Clear, Entry, Put, Remove, ScopeUsage, session_scope, weight
from helix_agents.domain.ids import SessionId
from helix_agents.ports.entries import EntryStore


class RunSession:
    """The state of the session that a run belongs to, as its last commit left it.

    Calls of one step do not see each other's changes, because none is done before the others; the room that they take
    together is counted all the same.
    """

    def __init__(self, store: EntryStore, session_id: SessionId, link: EntryLink, limits: Limits) -> None:
        self._store = store
        self._id = session_id
        self._scope = session_scope(session_id)
        self._link = link
        self._limits = limits

    async def check_alive(self) -> None:
        if not await self._link.session_exists():
            raise SessionNotFound("The session does not exist or has been terminated.", {"session_id": self._id})

    async def get(self, key: str) -> str | None:
        found = await self._find(key)
        return found.value if found is not None else None

    async def set(self, key: str, value: str) -> str | None:
        found = await self._find(key)
        change = Put(scope=self._scope, key=key, value=value, keep_versions=None)
        await self._check_room(change)
        self._link.change(change)
        return found.value if found is not None else None

    async def delete(self, key: str) -> str | None:
        found = await self._find(key)
        self._link.change(Remove(scope=self._scope, key=key, keep_versions=None))
        return found.value if found is not None else None

    async def keys(self, prefix: str) -> Sequence[str]:
        await self.check_alive()
        page = await self._store.list_entries(self._scope, prefix=prefix, limit=self._limits.keys)
        return [entry.key for entry in page.items]

    async def clear(self) -> int:
        await self.check_alive()
        self._link.change(Clear(scope=self._scope, keep_versions=None))
        return (await self._store.usage(self._scope)).keys

    async def _find(self, key: str) -> Entry | None:
        await self.check_alive()
        return await self._store.find(self._scope, key)

    async def _check_room(self, change: Put) -> None:
        """Reject a write that does not fit beside what the step's other calls write."""
        usage = await self._store.usage(self._scope)
        before = await self._after(usage, self._link.step_changes())
        after = await self._after(usage, (*self._link.step_changes(), change))
        over_bytes = after.bytes > self._limits.session_bytes and after.bytes > before.bytes
        over_keys = after.keys > self._limits.keys and after.keys > before.keys
        if not (over_bytes or over_keys):
            return
        page = await self._store.list_entries(self._scope, limit=self._limits.keys)
        largest = sorted(page.items, key=lambda entry: (-entry.size, entry.key))[:5]
        needed = after.bytes - before.bytes
        if over_bytes:
            sentence = (
                f"{change.key!r} needs {needed} bytes more; {before.bytes} of {self._limits.session_bytes} are used."
            )
        else:
            sentence = f"There are {before.keys} keys, and no more than {self._limits.keys} are allowed."
        raise QuotaExceeded(
            sentence,
            {
                "used": before.bytes,
                "limit": self._limits.session_bytes,
                "needed": needed,
                "keys": before.keys,
                "limit_keys": self._limits.keys,
                "largest_keys": [{"key": entry.key, "bytes": entry.size} for entry in largest],
            },
        )

    async def _after(self, usage: ScopeUsage, changes: Sequence[Change]) -> ScopeUsage:
        sizes: dict[str, int] = {}
        keys, used, cleared = usage.keys, usage.bytes, False
        for change in changes:
            if isinstance(change, Clear):
                sizes, keys, used, cleared = {}, 0, 0, True
                continue
            if change.key not in sizes:
                found = None if cleared else await self._store.find(self._scope, change.key)
                sizes[change.key] = found.size if found is not None else 0
            size = weight(change.key, change.value) if isinstance(change, Put) else 0
            # The size of a key and its value is never zero.
            keys += bool(size) - bool(sizes[change.key])
            used += size - sizes[change.key]
            sizes[change.key] = size
        return ScopeUsage(scope=self._scope, keys=keys, bytes=used, revision=usage.revision)
