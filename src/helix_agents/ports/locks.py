"""Locks with leases, for what users coordinate; the engine itself needs none."""

from typing import Protocol

from helix_agents.domain.locks import Lock


class LockManager(Protocol):
    """Grants locks with a lease on the store's clock and a fencing token that only grows."""

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        """Take the lock, waiting up to `timeout` seconds for it.

        Raises:
            LockHeldError: somebody else holds it and its lease is alive.
        """
        ...

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        """Prolong the lease.

        Raises:
            LockLostError: the lease ran out and somebody else took the lock, or it was released.
        """
        ...

    async def release(self, lock: Lock) -> None:
        """Give the lock back.

        Raises:
            LockLostError: it was not held any more.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections; idempotent."""
        ...
