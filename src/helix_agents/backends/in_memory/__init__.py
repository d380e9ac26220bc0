"""The reference backend: all data in the memory of one process, with a database's guarantees except durability."""

import threading

from helix_agents.backends.in_memory.entries import InMemoryEntryStore
from helix_agents.backends.in_memory.handle import NO_LIMITS
from helix_agents.backends.in_memory.locks import InMemoryLockManager
from helix_agents.backends.in_memory.memories import InMemoryMemoryStore
from helix_agents.backends.in_memory.memory import Memory
from helix_agents.backends.in_memory.store import InMemoryStateStore
from helix_agents.backends.in_memory.streams import InMemoryStreamManager
from helix_agents.backends.in_memory.usage import InMemoryUsageStore
from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.ports.backend import Backend, Migrate
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.state_store import StoreLimits
from helix_agents.ports.streams import FlushPolicy, StreamLimits
from helix_agents.system import SystemClock

__all__ = [
    "InMemoryEntryStore",
    "InMemoryLockManager",
    "InMemoryMemoryStore",
    "InMemoryStateStore",
    "InMemoryStreamManager",
    "InMemoryUsageStore",
    "Memory",
    "open_backend",
]

_SCHEME = "memory://"
_named: dict[str, Memory] = {}
_naming = threading.Lock()


async def open_backend(
    url: str,
    *,
    namespace: str = "",
    migrate: Migrate = "auto",
    limits: StoreLimits = NO_LIMITS,
    stream_limits: StreamLimits | None = None,
    flush: FlushPolicy | None = None,
    clock: Clock | None = None,
    seam: Seam | None = None,
) -> Backend:
    """Open a memory: `memory://` creates a private one, `memory://name` opens the one this process knows by that name.

    A named memory lives as long as the process, even when all its users have closed it. It never needs migration.

    Raises:
        InvalidStoreUrlError: the URL is not of this kind.
    """
    if not url.startswith(_SCHEME):
        raise InvalidStoreUrlError(url, "it is not memory:// or memory://name")
    memory = _memory(url.removeprefix(_SCHEME))
    clock = clock or SystemClock()
    return Backend(
        url=url,
        state=InMemoryStateStore(memory, namespace=namespace, limits=limits, clock=clock, seam=seam),
        streams=InMemoryStreamManager(
            memory, namespace=namespace, limits=stream_limits, flush=flush, clock=clock, seam=seam
        ),
        locks=InMemoryLockManager(memory, namespace=namespace, clock=clock, seam=seam),
        usage=InMemoryUsageStore(memory, namespace=namespace, clock=clock, seam=seam),
        entries=InMemoryEntryStore(memory, namespace=namespace, clock=clock, seam=seam),
        memories=InMemoryMemoryStore(memory, namespace=namespace, clock=clock, seam=seam),
    )


def _memory(name: str) -> Memory:
    if not name:
        return Memory()
    with _naming:
        return _named.setdefault(name, Memory())
