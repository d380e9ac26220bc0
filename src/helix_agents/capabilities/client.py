"""The capabilities in Python: typed, bound to one agent, on any store.

async with open_state("sqlite:///helix.db", agent="writer") as state:
    await state.persistent.set("config.threshold", 3)
    async with state.shared.update("counter") as counter:
        counter.value = (counter.value or 0) + 1
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from helix_agents.capabilities.calls import Caller, Face
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.settings import StateSettings
from helix_agents.capabilities.watching import Watch
from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.errors import UnsupportedBackendError
from helix_agents.domain.ids import check_id
from helix_agents.domain.records import JSON
from helix_agents.ports.backend import open_backend
from helix_agents.ports.entries import EntryStore
from helix_agents.system import jitter

MOST_TRIES = 1_000
FIRST_WAIT_SECONDS = 0.001
LONGEST_WAIT_SECONDS = 0.05


@dataclass
class Updating:
    """A shared value that is being changed: set `value`, and leaving the block writes it."""

    value: Any
    version: int


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A value and what is known about it."""

    value: JSON
    version: int
    found: bool


class _Part:
    def __init__(self, state: "StateClient") -> None:
        self._state = state


class SessionPart(_Part):
    """`state.session.*`."""

    async def get(self, key: str) -> JSON:
        """The value under a key; None if there is none."""
        return (await self._state.call("state.session.get", key=key))["value"]

    async def set(self, key: str, value: JSON) -> JSON:
        """Store a value; returns the previous one."""
        return (await self._state.call("state.session.set", key=key, value=value))["previous_value"]

    async def delete(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        return (await self._state.call("state.session.delete", key=key))["deleted"]

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys, sorted."""
        return (await self._state.call("state.session.list", prefix=prefix))["keys"]

    async def clear(self) -> int:
        """Remove everything; returns how many keys there were."""
        return (await self._state.call("state.session.clear"))["removed_count"]


class PersistentPart(_Part):
    """`state.persistent.*`."""

    async def get(self, key: str, *, version: int | None = None) -> Stored:
        """A key's latest version, or an earlier one that is still kept."""
        found = await self._state.call("state.persistent.get", key=key, **_given(version=version))
        return Stored(value=found["value"], version=found["version"], found=found["found"])

    async def set(self, key: str, value: JSON, *, expected_version: int | None = None) -> int:
        """Store a new version; returns its number."""
        given = _given(expected_version=expected_version)
        return (await self._state.call("state.persistent.set", key=key, value=value, **given))["version"]

    async def delete(self, key: str) -> bool:
        """Remove a key with its history; returns whether it existed."""
        return (await self._state.call("state.persistent.delete", key=key))["deleted"]

    async def list(self, prefix: str = "", *, limit: int | None = None, cursor: str | None = None) -> dict[str, JSON]:
        """Keys and their sizes; `cursor` continues where the last page ended."""
        page = _given(limit=limit, cursor=cursor)
        return await self._state.call("state.persistent.list", prefix=prefix, **page)

    async def query(self, prefix: str, *, limit: int | None = None, cursor: str | None = None) -> dict[str, JSON]:
        """Keys with their values; `cursor` continues where the last page ended."""
        page = _given(limit=limit, cursor=cursor)
        return await self._state.call("state.persistent.query", prefix=prefix, **page)

    async def history(self, key: str, *, limit: int | None = None) -> dict[str, JSON]:
        """The kept versions, newest first."""
        return await self._state.call("state.persistent.history", key=key, **_given(limit=limit))


class SharedPart(_Part):
    """`state.shared.*`."""

    async def get(self, key: str) -> Stored:
        """A value, and the version to write it back with; version 0 if there is none."""
        found = await self._state.call("state.shared.get", key=key)
        return Stored(value=found["value"], version=found["version"], found=found["found"])

    async def set(self, key: str, value: JSON, *, expected_version: int) -> int:
        """Write on the version that was read; returns the new one."""
        given: dict[str, Any] = {"key": key, "value": value, "expected_version": expected_version}
        return (await self._state.call("state.shared.set", **given))["version"]

    async def delete(self, key: str, *, expected_version: int | None = None) -> bool:
        """Remove a key; returns whether it existed."""
        given = _given(expected_version=expected_version)
        return (await self._state.call("state.shared.delete", key=key, **given))["deleted"]

    async def list(self, prefix: str = "", *, limit: int | None = None, cursor: str | None = None) -> dict[str, JSON]:
        """Keys, their sizes and who wrote them; `cursor` continues where the last page ended."""
        page = _given(limit=limit, cursor=cursor)
        return await self._state.call("state.shared.list", prefix=prefix, **page)

    @asynccontextmanager
    async def update(self, key: str) -> AsyncGenerator[Updating]:
        """Read, change and write back in one block: `async with shared.update("counter") as counter`.

        Raises:
            VersionConflict: it was changed meanwhile; run the block again. `apply` does that for you.
        """
        found = await self.get(key)
        updating = Updating(value=found.value, version=found.version)
        yield updating
        await self.set(key, updating.value, expected_version=found.version)

    async def apply(self, key: str, change: Callable[[Any], JSON], *, tries: int = MOST_TRIES) -> JSON:
        """Write `change(value)` back, again with the newer value whenever another write was first; returns what was
        written.

        Raises:
            VersionConflict: another write was first every time.
        """
        wait = FIRST_WAIT_SECONDS
        for attempt in range(tries):
            found = await self.get(key)
            value = change(found.value)
            try:
                await self.set(key, value, expected_version=found.version)
            except VersionConflict:
                if attempt + 1 == tries:
                    raise
                # Wait for a random part of the interval, so that those who met do not meet again.
                await asyncio.sleep(wait * (jitter() - 1) * 4)
                wait = min(wait * 2, LONGEST_WAIT_SECONDS)
            else:
                return value
        raise AssertionError("unreachable")

    async def watch(self, prefix: str = "", *, include_own: bool = False, durable: bool = True) -> Watch:
        """Watch changes from now on: `async for event in await shared.watch("config.")`."""
        given = {"prefix": prefix, "include_own": include_own, "durable": durable}
        subscription = (await self._state.call("state.shared.watch", **given))["subscription_id"]
        return Watch(self._state.gateway.store, subscription)

    def resume_watch(self, subscription_id: str) -> Watch:
        """Continue with an existing cursor where it is."""
        return Watch(self._state.gateway.store, subscription_id)


class StateClient:
    """The capabilities of one agent. All calls pass the same checks as an agent's calls."""

    def __init__(self, gateway: Gateway, *, agent: str, session_id: str | None = None, face: Face = "python") -> None:
        self.gateway = gateway
        if session_id is not None:
            check_id(session_id)
        self.caller = Caller(agent=check_id(agent, "agent name"), session_id=session_id, face=face)
        self.session = SessionPart(self)
        self.persistent = PersistentPart(self)
        self.shared = SharedPart(self)

    async def call(self, name: str, /, **inputs: Any) -> dict[str, JSON]:
        """Call a capability by its name; the result has every declared output.

        Raises:
            CapabilityError: it could not be done; the error says what to do about it.
        """
        return await self.gateway.call(self.caller, name, inputs)

    async def with_session(self) -> "StateClient":
        """The same client with its own session."""
        made = await self.call("session.create")
        return self.in_session(str(made["session_id"]))

    def in_session(self, session_id: str) -> "StateClient":
        """The same client in a session that was created before.

        Raises:
            InvalidIdError: no session can have this id.
        """
        return StateClient(self.gateway, agent=self.caller.agent, session_id=session_id, face=self.caller.face)


@asynccontextmanager
async def open_state(
    url: str,
    *,
    agent: str,
    namespace: str = "",
    settings: StateSettings | None = None,
    face: Face = "python",
    **options: Any,
) -> AsyncGenerator[StateClient]:
    """A client on the store that a URL names: `async with open_state("sqlite:///helix.db", agent="writer") as state`.

    Args:
        url: The store; use an executor's store if its agents should see the same state.
        agent: Whose state it is.
        namespace: The tenant within the store.
        settings: Limits, policy, folders and the vault.
        face: `"operator"` for a person, who needs no approval for what a program or an agent would have to ask for.
        options: Further options of the backend.

    Raises:
        UnsupportedBackendError: the backend cannot hold the state capabilities, such as `redis://`.
        InvalidIdError: no agent can have this name.
    """
    async with await open_backend(url, namespace=namespace, **options) as backend:
        gateway = Gateway(entries_for(backend.entries, url), settings)
        try:
            yield StateClient(gateway, agent=agent, face=face)
        finally:
            await gateway.close()


def entries_for(entries: EntryStore | None, url: str) -> EntryStore:
    """The store of entries, which a backend may lack."""
    if entries is None:
        raise UnsupportedBackendError(url.partition("://")[0], "the state capabilities")
    return entries


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
