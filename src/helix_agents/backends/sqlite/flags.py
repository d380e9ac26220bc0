"""Interrupt flags in SQLite: one row per session, aimed at one run."""

import asyncio

from helix_agents.backends.sqlite.connection import Connection, Row
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.rows import SessionRow, load_session
from helix_agents.domain.door import check_stop
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.flags import raised
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.sessions import InterruptFlag, InterruptOutcome, InterruptSet, NothingRunning, StopKind

# The doorbell wakes a waiter at once. Looking this often, in seconds, covers the case that it could not ring.
LOOK_AGAIN = 0.5
_AIMED = (
    "SELECT f.run_id, f.kind, f.reason, f.set_at FROM __agents_sessions s LEFT JOIN __agents_interrupt_flags f"
    " ON f.namespace = s.namespace AND f.session_id = s.session_id AND f.run_id = s.run_id"
    " WHERE s.namespace = ? AND s.session_id = ?"
)


def read_flag(connection: Connection, namespace: str, session_id: SessionId) -> InterruptFlag | None:
    """The session's flag, whichever run it is aimed at."""
    row = connection.one(
        "SELECT run_id, kind, reason, set_at FROM __agents_interrupt_flags WHERE namespace = ? AND session_id = ?",
        (namespace, session_id),
    )
    return flag_of(row) if row is not None else None


def flag_of(row: Row) -> InterruptFlag:
    """A flag's record."""
    return InterruptFlag(run_id=row[0], kind=row[1], reason=row[2], set_at=row[3])


def drop_flag(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId | None = None) -> None:
    """Remove the session's flag, or only one aimed at this run."""
    aimed = "" if run_id is None else " AND run_id = ?"
    connection.execute(
        f"DELETE FROM __agents_interrupt_flags WHERE namespace = ? AND session_id = ?{aimed}",
        (namespace, session_id, *(() if run_id is None else (run_id,))),
    )


def flag_topic(namespace: str, session_id: SessionId) -> str:
    """The doorbell's topic for a session whose flag was set."""
    return f"flag/{namespace}/{session_id}"


def _aimed_flag(connection: Connection, row: SessionRow) -> InterruptFlag | None:
    flag = read_flag(connection, row.namespace, row.session_id)
    return flag if flag is not None and flag.run_id == row.run_id else None


class SQLiteFlags(Facet):
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

        def work(connection: Connection) -> InterruptOutcome:
            row = load_session(connection, self._namespace, session_id)
            if row.run_id is None or not row.running or run_id not in (None, row.run_id):
                return NothingRunning()
            flag = raised(read_flag(connection, self._namespace, session_id), row.run_id, kind, reason, now)
            if flag is not None:
                connection.execute(
                    "INSERT INTO __agents_interrupt_flags (namespace, session_id, run_id, kind, reason, set_at)"
                    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, session_id) DO UPDATE SET"
                    " run_id = excluded.run_id, kind = excluded.kind, reason = excluded.reason,"
                    " set_at = excluded.set_at",
                    (self._namespace, session_id, flag.run_id, flag.kind, flag.reason, flag.set_at),
                )
            connection.ring(flag_topic(self._namespace, session_id))
            return InterruptSet(run_id=row.run_id)

        return await self._db.write(work)

    async def check_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        def work(connection: Connection) -> InterruptFlag | None:
            flag = _aimed_flag(connection, load_session(connection, self._namespace, session_id))
            drop_flag(connection, self._namespace, session_id)
            return flag

        return await self._db.write(work)

    async def find_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        def work(connection: Connection) -> InterruptFlag | None:
            return _aimed_flag(connection, load_session(connection, self._namespace, session_id))

        return await self._db.read_by_key(work)

    async def clear_interrupt_flag(self, session_id: SessionId) -> None:
        def work(connection: Connection) -> None:
            load_session(connection, self._namespace, session_id)
            drop_flag(connection, self._namespace, session_id)

        await self._db.write(work)

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._db.bell.listen(flag_topic(self._namespace, session_id)) as waiter:
            while True:
                row = await self._db.look_up(_AIMED, (self._namespace, session_id))
                if row is None:
                    raise SessionNotFoundError(session_id)
                if row[0] is not None:
                    return flag_of(row)
                left = deadline - loop.time()
                if left <= 0:
                    return None
                await waiter.wait(min(left, LOOK_AGAIN))
