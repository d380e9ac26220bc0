"""A backend: one URL opens a state store, streams, locks and usage that belong together."""

from collections.abc import Awaitable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Protocol, TypeAlias

from helix_agents.domain.errors import InvalidStoreUrlError, UnknownBackendError
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.locks import LockManager
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore

ENTRY_POINTS = "helix_agents.backends"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The parts that one URL opened. A backend without `entries` cannot hold state capabilities, and one without
    `memories` cannot hold what agents remember."""

    url: str
    state: SessionStateStore
    streams: StreamManager
    locks: LockManager
    usage: UsageStore
    entries: EntryStore | None = None
    memories: MemoryStore | None = None

    async def close(self) -> None:
        """Close all parts; idempotent."""
        for part in (self.streams, self.locks, self.usage, self.entries, self.memories, self.state):
            if part is not None:
                await part.close()

    async def __aenter__(self) -> "Backend":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


Migrate: TypeAlias = Literal["auto", "check"]
"""Whether opening a store brings its schema up to date, or refuses an outdated one and creates nothing."""


class OpenBackend(Protocol):
    """What a backend's entry point provides under its URL scheme."""

    def __call__(
        self, url: str, *, namespace: str = "", migrate: Migrate = "auto", **options: Any
    ) -> Awaitable[Backend]: ...


async def open_backend(url: str, *, namespace: str = "", migrate: Migrate = "auto", **options: Any) -> Backend:
    """Open the backend that a URL names, such as `sqlite:///helix.db` or `memory://`.

    Raises:
        InvalidStoreUrlError: the URL cannot be read.
        UnknownBackendError: no installed backend has this scheme; third-party backends register theirs by an entry
            point.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(url).__name__
        raise InvalidStoreUrlError(str(url), f"it is of type {kind}; it has to be text, such as sqlite:///helix.db")
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidStoreUrlError(url, "it has no ://; write it like sqlite:///helix.db or memory://")
    opener: OpenBackend = _installed(scheme).load()
    return await opener(url, namespace=namespace, migrate=migrate, **options)


# The lookup reads a file of everything that is installed. A miss is looked up again, as it may be installed later.
@cache
def _installed(scheme: str) -> EntryPoint:
    found = entry_points(group=ENTRY_POINTS, name=scheme)
    if not found:
        known = tuple(sorted(entry_points(group=ENTRY_POINTS).names))
        # Others write `postgresql+driver://`; here there is one driver for each scheme.
        [meant] = get_close_matches(scheme.partition("+")[0].lower(), known, n=1) or [None]
        raise UnknownBackendError(scheme, known, meant)
    return next(iter(found))
