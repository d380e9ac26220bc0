"""The state store on Redis: the sum of its facets."""

from typing import Any

from helix_agents.backends.redis.checkpoints import RedisCheckpoints
from helix_agents.backends.redis.commits import RedisCommits
from helix_agents.backends.redis.effects import RedisEffects
from helix_agents.backends.redis.expiry import StateTTL, ttl_ms
from helix_agents.backends.redis.flags import RedisFlags
from helix_agents.backends.redis.keyspace import ServerClock
from helix_agents.backends.redis.messages import RedisMessages
from helix_agents.backends.redis.pending import RedisPending
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.queues import RedisQueues
from helix_agents.backends.redis.runs import RedisRuns
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.staging import RedisStaging
from helix_agents.backends.redis.sub_sessions import RedisSubSessions
from helix_agents.domain.records import SCHEMA_VERSION
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import SessionStateStore, StoreLimits


class RedisStateStore(
    RedisCommits,
    RedisMessages,
    RedisRuns,
    RedisCheckpoints,
    RedisSubSessions,
    RedisStaging,
    RedisFlags,
    RedisPending,
    RedisEffects,
    RedisQueues,
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
        """`state_ttl` lets sessions expire that long after their last change, if they are at rest and alone: none that
        runs or waits, none with a child or a branch, none that is one. Without it nothing ever expires. The server
        has to be opened as `evictable=True` then."""
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
        """Open a store of its own on a server; see `RedisServer.open` for what can be wrong with one."""
        server = await RedisServer.open(url, evictable=ttl_ms(state_ttl) is not None, **of_server)
        return cls(server, namespace=namespace, limits=limits, clock=clock, state_ttl=state_ttl)

    @property
    def server(self) -> RedisServer:
        """The open server, for parts that share it."""
        return self._keyspace.server

    @property
    def namespace(self) -> str:
        """The tenant that no call can step out of."""
        return self._keyspace.keys.namespace

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def migration_version(self) -> int:
        """The version of the records: keys have no tables to migrate."""
        return SCHEMA_VERSION

    async def vacuum(self) -> None:
        """Let go of what the index remembers of things long gone; deleted text left memory with its keys."""
        await self._space.index.forget_gone()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._keyspace.server.close()


_: type[SessionStateStore] = RedisStateStore
