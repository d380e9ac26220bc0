"""Waiting for commits of any process: woken by a notification, but certain only by looking."""

import asyncio

from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.entry_rows import lock_head
from helix_agents.backends.wakeups import Waiter

# A lost notification costs this much time and nothing else.
LOOK_AGAIN = 0.5
# Writers notify only while a process waits. The mark is in the row they lock: a write after the mark sees it, and a
# write before it is counted in the answer.
_WATCH = (
    "UPDATE __agents_entry_heads SET watched_until = clock_timestamp() + interval '1 hour'"
    " WHERE namespace = ? RETURNING commits"
)
_LOOK = (
    "SELECT commits, watched_until < clock_timestamp() + interval '30 minutes' FROM __agents_entry_heads"
    " WHERE namespace = ?"
)


class PostgresWaiting:
    """A listener on one namespace."""

    def __init__(self, database: Database, namespace: str, waiter: Waiter, commits: int) -> None:
        self._db = database
        self._namespace = namespace
        self._waiter = waiter
        self._commits = commits

    @classmethod
    async def begin(cls, database: Database, namespace: str, waiter: Waiter) -> "PostgresWaiting":
        """Make writers notify from here on, and remember the namespace's number of commits."""
        watched = await database.call(_WATCH, (namespace,))
        if watched is None:
            await database.write(lambda connection: lock_head(connection, namespace))
            watched = await database.call(_WATCH, (namespace,))
        assert watched is not None
        return cls(database, namespace, waiter, watched[0])

    async def wait(self, timeout: float) -> bool:
        """Return as soon as something was committed since the last wait; False if nothing was for `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not await self._has_moved():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await self._waiter.wait(min(left, LOOK_AGAIN))
        return True

    async def _has_moved(self) -> bool:
        found = await self._db.one(_LOOK, (self._namespace,))
        commits, mark_is_old = found if found is not None else (self._commits, False)
        if mark_is_old:
            await self._db.call(_WATCH, (self._namespace,))
        moved, self._commits = commits != self._commits, commits
        return moved
