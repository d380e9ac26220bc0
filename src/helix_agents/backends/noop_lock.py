"""The lock manager of those who need none: every lock is granted at once."""

import itertools

import msgspec

from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import Lock
from helix_agents.ports.clock import Clock
from helix_agents.ports.locks import LockManager
from helix_agents.system import SystemClock


class NoOpLockManager:
    """Grants everything and keeps nobody out; its tokens only grow. For those who are alone with their keys."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tokens = itertools.count(1)

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        """Grant the lock, whoever else was granted it."""
        check_id(key, "lock key")
        return Lock(
            key=key,
            token=next(self._tokens),
            owner=owner if owner is not None else "nobody",
            expires_at=self._clock.now_ms() + ttl_ms,
        )

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        """Prolong the lease; it is never lost."""
        return msgspec.structs.replace(lock, expires_at=self._clock.now_ms() + ttl_ms)

    async def release(self, lock: Lock) -> None:
        """Nothing was held."""

    async def close(self) -> None:
        """Nothing is open."""


_: type[LockManager] = NoOpLockManager
