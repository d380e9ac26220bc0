"""Locks with leases, for your own code to use; the engine itself needs none."""

from typing import Protocol

from helix_agents.domain.locks import Lock


class LockManager(Protocol):
    """Grants locks with a lease on the store's clock and a fencing token that only grows."""

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        """Take the lock, waiting up to `timeout` seconds for it.

        Raises:
            LockHeldError: another owner holds it and its lease is alive.
        """
        ...

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        """Extend the lease.

        Raises:
            LockLostError: the lease expired and another owner took the lock, or it was released.
        """
        ...

    async def release(self, lock: Lock) -> None:
        """Release the lock.

        Raises:
            LockLostError: it was no longer held.
        """
        ...

    async def close(self) -> None:
        """Release files and connections; idempotent."""
        ...
