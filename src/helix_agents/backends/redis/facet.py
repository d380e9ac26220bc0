"""What every facet of the store shares: a namespace on a server, the clock and the limits."""

from typing import TypeVar

from helix_agents.backends.redis.keyspace import Keyspace, Work
from helix_agents.domain.errors import StoreClosedError
from helix_agents.domain.ids import SessionId
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits

T = TypeVar("T")


class Facet:
    """One facet of a store."""

    def __init__(self, space: Keyspace, *, clock: Clock, limits: StoreLimits) -> None:
        self._keyspace = space
        self._clock = clock
        self._limits = limits
        self._closed = False

    @property
    def _space(self) -> Keyspace:
        if self._closed:
            raise StoreClosedError(self._keyspace.server.name)
        return self._keyspace

    async def _read(self, what: str, session_id: SessionId, work: Work[T]) -> T:
        """Read from the slot of a session."""
        return await self._space.read(what, session_id, work, clock=self._clock)

    async def _write(self, what: str, session_id: SessionId, work: Work[T], *, tag: str | None = None) -> T:
        """Change the slot of a session."""
        return await self._space.write(what, session_id, work, clock=self._clock, limits=self._limits, tag=tag)
