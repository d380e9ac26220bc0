"""Locks in SQLite: one row per key, whose token only grows.

Rows of keys that are no longer in use are removed. The highest of their tokens is kept under a key that no lock can
have, so a later lock on one of those keys gets a higher token.
"""

import asyncio

from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.database import Database
from helix_agents.domain.errors import LockHeldError, LockLostError
from helix_agents.domain.ids import check_id
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS, Lock
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.system import RandomIds, SystemClock

# The doorbell wakes a waiter when a lock is released; expired leases ring no bell.
LOOK_AGAIN = 0.5
# A released lock counts as expired.
_OLD = "namespace = ? AND key <> '' AND expires_at < ?"


class SQLiteLockManager(Part[Database]):
    """Locks for all processes on one file."""

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
        self._clock = clock or SystemClock()
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
        async with self._db.bell.listen(self._topic(key)) as waiter:
            while (lock := await self._try(key, ttl_ms, holder)) is None:
                left = deadline - loop.time()
                if left <= 0:
                    raise LockHeldError(key)
                await waiter.wait(min(left, LOOK_AGAIN))
        return lock

    async def renew(self, lock: Lock, *, ttl_ms: int) -> Lock:
        now = self._clock.now_ms()

        def work(connection: Connection) -> Lock:
            self._check_held(connection, lock)
            connection.execute(
                "UPDATE __agents_locks SET expires_at = ? WHERE namespace = ? AND key = ?",
                (now + ttl_ms, self._namespace, lock.key),
            )
            return Lock(key=lock.key, token=lock.token, owner=lock.owner, expires_at=now + ttl_ms)

        return await self._db.write(work)

    async def release(self, lock: Lock) -> None:
        def work(connection: Connection) -> None:
            self._check_held(connection, lock)
            connection.execute(
                "UPDATE __agents_locks SET owner = NULL, expires_at = 0 WHERE namespace = ? AND key = ?",
                (self._namespace, lock.key),
            )
            connection.ring(self._topic(lock.key))

        await self._db.write(work)

    async def _try(self, key: str, ttl_ms: int, owner: str) -> Lock | None:
        now = self._clock.now_ms()

        def work(connection: Connection) -> Lock | None:
            # The row is kept while its lock is free, so that the next token is higher than any before.
            row = connection.one(
                "INSERT INTO __agents_locks AS held (namespace, key, token, owner, expires_at)"
                " VALUES (?1, ?2,"
                " 1 + coalesce((SELECT token FROM __agents_locks WHERE namespace = ?1 AND key = ''), 0), ?3, ?4)"
                " ON CONFLICT (namespace, key) DO UPDATE SET token = token + 1, owner = excluded.owner,"
                " expires_at = excluded.expires_at WHERE held.owner IS NULL OR held.expires_at <= ?5"
                " RETURNING token",
                (self._namespace, key, owner, now + ttl_ms, now),
            )
            return Lock(key=key, token=row[0], owner=owner, expires_at=now + ttl_ms) if row is not None else None

        return await self._db.write(work)

    async def _forget_old_ones(self) -> None:
        """Now and then, forget locks that nobody has held for a long time."""
        now = self._clock.now_ms()
        if now - self._looked_at < FORGOTTEN_AFTER_MS:
            return
        self._looked_at = now
        old = (self._namespace, now - FORGOTTEN_AFTER_MS)

        def work(connection: Connection) -> None:
            row = connection.one(f"SELECT max(token) FROM __agents_locks WHERE {_OLD}", old)
            if row is None or row[0] is None:
                return
            connection.execute(
                "INSERT INTO __agents_locks AS held (namespace, key, token, expires_at) VALUES (?, '', ?, 0)"
                " ON CONFLICT (namespace, key) DO UPDATE SET token = max(token, excluded.token)",
                (self._namespace, row[0]),
            )
            connection.execute(f"DELETE FROM __agents_locks WHERE {_OLD}", old)

        await self._db.write(work)

    def _check_held(self, connection: Connection, lock: Lock) -> None:
        row = connection.one(
            "SELECT token, owner FROM __agents_locks WHERE namespace = ? AND key = ?", (self._namespace, lock.key)
        )
        if row is None or row[0] != lock.token or row[1] is None:
            raise LockLostError(lock.key, lock.token)

    def _topic(self, key: str) -> str:
        return f"lock/{self._namespace}/{key}"
