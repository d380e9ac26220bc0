"""Interrupt flags in Postgres: one row per session, aimed at one run."""

import asyncio

from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import SessionRow, load_session
from helix_agents.domain.door import check_stop
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.flags import raised
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import decode, encode
from helix_agents.domain.sessions import InterruptFlag, InterruptOutcome, InterruptSet, NothingRunning, StopKind

# A notification wakes a waiter at once. Looking this often, in seconds, covers the case that none came.
LOOK_AGAIN = 0.5
_AIMED = (
    "SELECT f.body FROM __agents_sessions s LEFT JOIN __agents_interrupt_flags f"
    " ON f.namespace = s.namespace AND f.session_id = s.session_id AND f.run_id = s.run_id"
    " WHERE s.namespace = ? AND s.session_id = ?"
)


def flag_of(body: str | None) -> InterruptFlag | None:
    """A flag's record."""
    return decode(body, InterruptFlag) if body is not None else None


async def drop_flag(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Remove the session's flag."""
    await connection.execute(
        "DELETE FROM __agents_interrupt_flags WHERE namespace = ? AND session_id = ?", (namespace, session_id)
    )


def flag_topic(namespace: str, session_id: SessionId) -> str:
    """The topic that rings when a session's flag was set."""
    return f"flag/{namespace}/{session_id}"


async def aimed_flag(connection: Connection, row: SessionRow) -> InterruptFlag | None:
    """The flag aimed at the session's current run."""
    found = await connection.one(
        "SELECT body FROM __agents_interrupt_flags WHERE namespace = ? AND session_id = ? AND run_id = ?",
        (row.namespace, row.session_id, row.run_id),
    )
    return flag_of(found[0]) if found is not None else None


class PostgresFlags(Facet):
    """Durable stop requests."""

    async def set_interrupt_flag(
        self,
        session_id: SessionId,
        reason: str | None = None,
        *,
        kind: StopKind = "interrupt",
        run_id: RunId | None = None,
    ) -> InterruptOutcome:
        check_stop(reason, kind)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> InterruptOutcome:
            row = await load_session(connection, self._namespace, session_id)
            if row.run_id is None or not row.running or run_id not in (None, row.run_id):
                return NothingRunning()
            flag = raised(await aimed_flag(connection, row), row.run_id, kind, reason, now)
            if flag is not None:
                await connection.execute(
                    "INSERT INTO __agents_interrupt_flags (namespace, session_id, run_id, kind, body)"
                    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (namespace, session_id) DO UPDATE SET"
                    " run_id = excluded.run_id, kind = excluded.kind, body = excluded.body",
                    (self._namespace, session_id, flag.run_id, flag.kind, encode(flag).decode()),
                )
            await connection.ring(flag_topic(self._namespace, session_id))
            return InterruptSet(run_id=row.run_id)

        return await self._db.write(work)

    async def check_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        async def work(connection: Connection) -> InterruptFlag | None:
            row = await load_session(connection, self._namespace, session_id)
            flag = await aimed_flag(connection, row)
            await drop_flag(connection, self._namespace, session_id)
            return flag

        if await self.find_interrupt_flag(session_id) is None:
            # Nearly always the case, because runs ask at every step. A flag aimed at an older run is removed by the
            # next start.
            return None
        return await self._db.write(work)

    async def find_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        row = await self._db.one(_AIMED, (self._namespace, session_id))
        if row is None:
            raise SessionNotFoundError(session_id)
        return flag_of(row[0])

    async def clear_interrupt_flag(self, session_id: SessionId) -> None:
        async def work(connection: Connection) -> None:
            await load_session(connection, self._namespace, session_id)
            await drop_flag(connection, self._namespace, session_id)

        await self._db.write(work)

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._db.listener.listen(flag_topic(self._namespace, session_id)) as waiter:
            while (flag := await self.find_interrupt_flag(session_id)) is None:
                left = deadline - loop.time()
                if left <= 0:
                    return None
                await waiter.wait(min(left, LOOK_AGAIN))
            return flag
