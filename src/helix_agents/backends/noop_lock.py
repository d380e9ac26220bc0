"""The lock manager for callers that need no lock: every lock is granted at once."""

import itertools

import msgspec

from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import Lock
from helix_agents.ports.clock import Clock
from helix_agents.ports.locks import LockManager
from helix_agents.system import SystemClock


class NoOpLockManager:
    """Grants every lock and excludes nobody; its tokens only grow. For processes that have their keys to themselves."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tokens = itertools.count(1)

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        """Grant the lock, whether or not another caller holds it."""
        check_id(key, "lock key")
        return Lock(
            key=key,
            token=next(self._tokens),
            owner=owner if owner is not None else "nobody",
            expires_at=self._clock.now_ms() + ttl_ms,
        )

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        """Extend the lease, which is never lost."""
        return msgspec.structs.replace(lock, expires_at=self._clock.now_ms() + ttl_ms)

    async def release(self, lock: Lock) -> None:
        """Do nothing: no lock was held."""

    async def close(self) -> None:
        """Do nothing: nothing is open."""


_: type[LockManager] = NoOpLockManager
