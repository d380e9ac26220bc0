"""Locks with leases, shared by all users of the same memory."""

import asyncio

import msgspec

from helix_agents.backends.in_memory.handle import Handle
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.door import check_numbers
from helix_agents.domain.errors import LockHeldError, LockLostError
from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS, Lock
from helix_agents.ports.locks import LockManager

LOOK_AGAIN = 0.05
"""A release wakes the waiters; an expired lease is noticed within this many seconds."""


class InMemoryLockManager(Handle):
    """Locks on the memory's keys. All keys draw tokens from one counter, so a key can be forgotten."""

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        check_id(key, "lock key")
        owner = check_id(owner, "owner") if owner is not None else self._ids.new("owner")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        with self.memory.wakeups.listen(self._topic(key)) as waiter:
            while True:
                lock = await self._try(key, ttl_ms, owner)
                if lock is not None:
                    return lock
                left = deadline - loop.time()
                if left <= 0:
                    raise LockHeldError(key)
                await waiter.wait(min(left, LOOK_AGAIN))

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        async with self._writing("renew") as tx:
            self._check_held(tx.tables.locks.get(lock.key), lock)
            renewed = msgspec.structs.replace(lock, expires_at=tx.now + ttl_ms)
            check_numbers(renewed)
            tx.put(tx.tables.locks, lock.key, renewed)
        return renewed

    async def release(self, lock: Lock) -> None:
        async with self._writing("release") as tx:
            self._check_held(tx.tables.locks.get(lock.key), lock)
            tx.remove(tx.tables.locks, lock.key)
            tx.afterwards(lambda: self.memory.wakeups.ring((self._topic(lock.key),)))

    async def _try(self, key: str, ttl_ms: int, owner: str) -> Lock | None:
        async with self._writing("acquire") as tx:
            held = tx.tables.locks.get(key)
            if held is not None and held.expires_at > tx.now:
                return None
            lock = Lock(key=key, token=next(tx.tables.tokens), owner=owner, expires_at=tx.now + ttl_ms)
            check_numbers(lock)
            self._forget_old_ones(tx)
            tx.put(tx.tables.locks, key, lock)
        return lock

    def _forget_old_ones(self, tx: Transaction) -> None:
        """Now and then, forget locks that nobody has held for a long time."""
        if tx.now >= tx.tables.locks_looked_at + FORGOTTEN_AFTER_MS:
            tx.tables.locks_looked_at = tx.now
            for key, held in tuple(tx.tables.locks.items()):
                if held.expires_at < tx.now - FORGOTTEN_AFTER_MS:
                    tx.remove(tx.tables.locks, key)

    def _check_held(self, held: Lock | None, lock: Lock) -> None:
        if held is None or held.token != lock.token:
            raise LockLostError(lock.key, lock.token)

    def _topic(self, key: str) -> str:
        return f"lock/{self.namespace}/{key}"


_: type[LockManager] = InMemoryLockManager
