"""The state store on Redis: the sum of its facets."""

from typing import Any

from helix_agents.backends.redis.checkpoints import RedisCheckpoints
from helix_agents.backends.redis.commits import RedisCommits
from helix_agents.backends.redis.deliveries import RedisDeliveries
from helix_agents.backends.redis.effects import RedisEffects
from helix_agents.backends.redis.expiry import StateTTL, ttl_ms
from helix_agents.backends.redis.flags import RedisFlags
from helix_agents.backends.redis.keyspace import ServerClock
from helix_agents.backends.redis.messages import RedisMessages
from helix_agents.backends.redis.pending import RedisPending
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.queues import RedisQueues
from helix_agents.backends.redis.runs import RedisRuns
from helix_agents.backends.redis.schedules import RedisSchedules
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.staging import RedisStaging
from helix_agents.backends.redis.sub_sessions import RedisSubSessions
from helix_agents.domain.records import SCHEMA_VERSION
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import SessionStateStore, StoreLimits


class RedisStateStore(
    RedisCommits,
    RedisMessages,
    RedisDeliveries,
    RedisRuns,
    RedisCheckpoints,
    RedisSubSessions,
    RedisStaging,
    RedisFlags,
    RedisPending,
    RedisEffects,
    RedisQueues,
    RedisSchedules,
):
    """Sessions on a Redis or Valkey server, or on a cluster of them, that many processes use at once."""

    def __init__(
        self,
        server: RedisServer,
        *,
        namespace: str = "",
        limits: StoreLimits | None = None,
        clock: Clock | None = None,
        state_ttl: StateTTL = None,
    ) -> None:
        """Create a store on an open server.

        With `state_ttl`, a session expires that long after its last change, if it is at rest and alone: it does not run
        or wait, has no child or branch, and is neither. The server must then be opened with `evictable=True`. Without
        `state_ttl` nothing ever expires.
        """
        kept_for = ttl_ms(state_ttl)
        space = keyspace_on(server.use(), namespace)
        space.state_ttl_ms = kept_for or space.state_ttl_ms
        super().__init__(space, clock=clock or ServerClock(server), limits=limits or StoreLimits())

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "",
        limits: StoreLimits | None = None,
        clock: Clock | None = None,
        state_ttl: StateTTL = None,
        **of_server: Any,
    ) -> "RedisStateStore":
        """Open a store with its own connection to a server; `RedisServer.open` lists what can go wrong."""
        server = await RedisServer.open(url, evictable=ttl_ms(state_ttl) is not None, **of_server)
        return cls(server, namespace=namespace, limits=limits, clock=clock, state_ttl=state_ttl)

    @property
    def server(self) -> RedisServer:
        """The open server, for parts that share it."""
        return self._keyspace.server

    @property
    def namespace(self) -> str:
        """The tenant; no call can reach beyond it."""
        return self._keyspace.keys.namespace

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def migration_version(self) -> int:
        """The version of the records; keys have no tables to migrate."""
        return SCHEMA_VERSION

    async def vacuum(self) -> None:
        """Drop what the index remembers of things long gone; deleted text left the memory together with its keys."""
        await self._space.index.forget_gone()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._keyspace.server.close()


_: type[SessionStateStore] = RedisStateStore
