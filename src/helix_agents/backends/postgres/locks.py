"""Locks in Postgres: one row per key, whose token only grows.

Rows of keys that are no longer in use are removed. The highest of their tokens is kept under a key that no lock can
have, so a later lock on one of those keys gets a higher token.
"""

import asyncio

from helix_agents.backends.part import Part
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.database import Database
from helix_agents.domain.errors import LockHeldError, LockLostError
from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS, Lock
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.system import RandomIds

# A notification wakes a waiter when a lock is released; expired leases cause none.
LOOK_AGAIN = 0.5
# A released lock counts as expired.
FORGET = """
WITH gone AS (
    DELETE FROM __agents_locks WHERE namespace = ?1 AND key <> '' AND expires_at < ?2 RETURNING token
)
INSERT INTO __agents_locks AS held (namespace, key, token, expires_at)
SELECT ?1, '', max(token), 0 FROM gone HAVING count(*) > 0
ON CONFLICT (namespace, key) DO UPDATE SET token = greatest(held.token, excluded.token)
"""


class PostgresLockManager(Part[Database]):
    """Locks for all processes on one database."""

    def __init__(
        self,
        database: Database,
        *,
        namespace: str = "",
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or database.clock
        self._ids = ids or RandomIds()
        self._looked_at = 0

    async def acquire(self, key: str, *, ttl_ms: int, owner: str | None = None, timeout: float = 0) -> Lock:
        check_id(key, "lock key")
        holder = check_id(owner, "owner") if owner is not None else self._ids.new("lock")
        await self._forget_old_ones()
        lock = await self._try(key, ttl_ms, holder)
        if lock is not None:
            return lock
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._db.listener.listen(self._topic(key)) as waiter:
            while (lock := await self._try(key, ttl_ms, holder)) is None:
                left = deadline - loop.time()
                if left <= 0:
                    raise LockHeldError(key)
                await waiter.wait(min(left, LOOK_AGAIN))
        return lock

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        expires_at = self._clock.now_ms() + ttl_ms
        held = await self._db.execute(
            "UPDATE __agents_locks SET expires_at = ?"
            " WHERE namespace = ? AND key = ? AND token = ? AND owner IS NOT NULL",
            (expires_at, self._namespace, lock.key, lock.token),
        )
        if not held:
            raise LockLostError(lock.key, lock.token)
        return Lock(key=lock.key, token=lock.token, owner=lock.owner, expires_at=expires_at)

    async def release(self, lock: Lock) -> None:
        async def work(connection: Connection) -> None:
            held = await connection.execute(
                "UPDATE __agents_locks SET owner = NULL, expires_at = 0"
                " WHERE namespace = ? AND key = ? AND token = ? AND owner IS NOT NULL",
                (self._namespace, lock.key, lock.token),
            )
            if not held:
                raise LockLostError(lock.key, lock.token)
            await connection.ring(self._topic(lock.key))

        await self._db.write(work)

    async def _try(self, key: str, ttl_ms: int, owner: str) -> Lock | None:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> Lock | None:
            # The row is kept while its lock is free, so that the next token is higher than any before.
            row = await connection.one(
                "INSERT INTO __agents_locks AS held (namespace, key, token, owner, expires_at)"
                " VALUES (?1, ?2, 1, ?3, ?4)"
                " ON CONFLICT (namespace, key) DO UPDATE SET token = held.token + 1, owner = excluded.owner,"
                " expires_at = excluded.expires_at WHERE held.owner IS NULL OR held.expires_at <= ?5"
                " RETURNING token, xmax = 0",
                (self._namespace, key, owner, now + ttl_ms, now),
            )
            if row is None:
                return None
            # A separate statement sees the token kept for a row that was removed while the previous statement waited
            # for it.
            token = await self._above_forgotten(connection, key) if row[1] else row[0]
            return Lock(key=key, token=token, owner=owner, expires_at=now + ttl_ms)

        return await self._db.write(work)

    async def _above_forgotten(self, connection: Connection, key: str) -> int:
        row = await connection.one(
            "UPDATE __agents_locks SET token = greatest(token, 1 + coalesce("
            "(SELECT token FROM __agents_locks WHERE namespace = ?1 AND key = ''), 0))"
            " WHERE namespace = ?1 AND key = ?2 RETURNING token",
            (self._namespace, key),
        )
        assert row is not None
        return row[0]

    async def _forget_old_ones(self) -> None:
        """Now and then, forget locks that nobody has held for a long time."""
        now = self._clock.now_ms()
        if now - self._looked_at >= FORGOTTEN_AFTER_MS:
            self._looked_at = now
            await self._db.execute(FORGET, (self._namespace, now - FORGOTTEN_AFTER_MS))

    def _topic(self, key: str) -> str:
        return f"lock/{self._namespace}/{key}"
