"""Locks with leases, shared by all users of the same server.

Keys that are no longer in use expire. Tokens grow with the server's clock, so a later lock on such a key gets a higher
token, even from a server that lost its data. On a server that may evict keys with an expiry, a held lock has none and
is kept until its key is used again.
"""

import asyncio
from typing import Any

import msgspec

from helix_agents.backends.redis.keyspace import ServerClock
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain.door import check_numbers
from helix_agents.domain.errors import LockHeldError, LockLostError, StoreClosedError
from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS, Lock
from helix_agents.domain.records import Record, decode, encode
from helix_agents.ports.clock import Clock
from helix_agents.ports.locks import LockManager

LOOK_AGAIN_SECONDS = 0.25
"""A release wakes the waiters; an expired lease is noticed within this many seconds."""

LONGEST_KEPT_MS = 10**15
"""Far beyond any lease, and no more than Redis can add to its clock."""


class _LockRow(Record):
    """The last token given out, and the lock that is held, if any."""

    token: int = 0
    held: Lock | None = None


class RedisLockManager:
    """Locks on Redis. The tokens of a key only grow, across all releases."""

    def __init__(self, server: RedisServer, *, namespace: str = "", clock: Clock | None = None) -> None:
        self._keyspace = keyspace_on(server.use(), namespace)
        self._clock = clock or ServerClock(server)
        self._closed = False

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        check_id(key, "lock key")
        owner = check_id(owner, "owner") if owner is not None else self._keyspace.ids.new("owner")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        lock = await self._try(key, ttl_ms, owner)
        if lock is None and timeout > 0:
            async with self._keyspace.server.bell.listen(self._channel(key)) as waiter:
                lock = await self._try(key, ttl_ms, owner)
                while lock is None and (left := deadline - loop.time()) > 0:
                    await waiter.wait(min(left, LOOK_AGAIN_SECONDS))
                    lock = await self._try(key, ttl_ms, owner)
        if lock is None:
            raise LockHeldError(key)
        return lock

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        async def work(tx: Transaction) -> Lock:
            known = await self._held(tx, lock)
            renewed = msgspec.structs.replace(lock, expires_at=tx.now + ttl_ms)
            check_numbers(renewed)
            self._put(tx, known, msgspec.structs.replace(known.value, held=renewed))
            return renewed

        return await self._write("renew", lock.key, work)

    async def release(self, lock: Lock) -> None:
        async def work(tx: Transaction) -> None:
            known = await self._held(tx, lock)
            self._put(tx, known, msgspec.structs.replace(known.value, held=None))
            tx.do("PUBLISH", None, self._channel(lock.key), "")

        await self._write("release", lock.key, work)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._keyspace.server.close()

    async def _try(self, key: str, ttl_ms: int, owner: str) -> Lock | None:
        async def work(tx: Transaction) -> Lock | None:
            known = await _load(tx, key)
            held = known.value.held
            if held is not None and held.expires_at > tx.now:
                return None
            token = max(known.value.token + 1, self._keyspace.server.now_ms())
            lock = Lock(key=key, token=token, owner=owner, expires_at=tx.now + ttl_ms)
            check_numbers(lock)
            self._put(tx, known, _LockRow(token=token, held=lock))
            return lock

        return await self._write("acquire", key, work)

    def _put(self, tx: Transaction, known: Known[_LockRow], row: _LockRow) -> None:
        known.value = row
        tx.change(known)
        tx.do("HSET", known.key, "lock", encode(row))
        if row.held is not None and self._keyspace.server.may_evict:
            tx.do("PERSIST", known.key)
            return
        lease = row.held.expires_at - tx.now if row.held is not None else 0
        tx.do("PEXPIRE", known.key, min(max(lease, 0) + FORGOTTEN_AFTER_MS, LONGEST_KEPT_MS))

    async def _held(self, tx: Transaction, lock: Lock) -> Known[_LockRow]:
        known = await _load(tx, lock.key)
        held = known.value.held
        if held is None or held.token != lock.token:
            raise LockLostError(lock.key, lock.token)
        return known

    async def _write(self, what: str, key: str, work: Any) -> Any:
        if self._closed:
            raise StoreClosedError(self._keyspace.server.name)
        # A lock has a slot of its own, which it shares with no session.
        return await self._keyspace.write(what, key, work, clock=self._clock, tag=f"lock/{key}")

    def _channel(self, key: str) -> str:
        return self._keyspace.keys.channel(f"lock/{key}")


async def _load(tx: Transaction, key: str) -> Known[_LockRow]:
    name = tx.slot.key("lock", key)
    return await tx.load(
        name,
        (("HGET", name, "lock"),),
        lambda replies: _LockRow() if replies[0] is None else decode(replies[0], _LockRow),
    )


_: type[LockManager] = RedisLockManager
