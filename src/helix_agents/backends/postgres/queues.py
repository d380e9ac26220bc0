"""Turns that wait until their session is free, in Postgres."""

import msgspec

from helix_agents.backends.postgres.connection import Connection, askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import find_run, load_session, lock_tree_of
from helix_agents.backends.postgres.runs import current_run
from helix_agents.domain.door import check_queued
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, check_page
from helix_agents.domain.queued import QueuedTurn, check_room, keeps_others_waiting, kept_alive, sent_again
from helix_agents.domain.records import decode, encode

_KEEP_ALIVE = "UPDATE __agents_sessions SET expires_at = ? WHERE namespace = ? AND session_id = ?"
_DROP = "DELETE FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? AND run_id = ?"


async def take_queued(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits.
    """
    if not await connection.execute(_DROP, (namespace, session_id, run_id)):
        raise QueuedTurnGoneError(session_id, run_id)


class PostgresQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        check_queued(turn)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> QueuedTurn | None:
            # The lock makes turns take their keys one after another, so key order is commit order.
            await lock_tree_of(connection, self._namespace, turn.session_id)
            session = await load_session(connection, self._namespace, turn.session_id)
            rows = await connection.all(
                "SELECT run_id, body FROM __agents_queued_turns WHERE namespace = ? AND session_id = ?",
                (self._namespace, turn.session_id),
            )
            known = next((row[1] for row in rows if row[0] == turn.run_id), None)
            if known is not None:
                return await self._sent_again(connection, decode(known, QueuedTurn), turn)
            if await find_run(connection, self._namespace, turn.run_id) is not None:
                return None
            if not rows and not keeps_others_waiting(await current_run(connection, session)):
                return None
            check_room(turn.session_id, len(rows))
            stored = msgspec.structs.replace(turn, queued_at=now)
            await connection.execute(
                "INSERT INTO __agents_queued_turns (namespace, session_id, run_id, body) VALUES (?, ?, ?, ?)",
                (self._namespace, turn.session_id, turn.run_id, encode(stored).decode()),
            )
            expires_at = kept_alive(session.expires_at, turn, now)
            if expires_at != session.expires_at:
                await connection.execute(_KEEP_ALIVE, (expires_at, self._namespace, turn.session_id))
            return stored

        return await self._db.write(work)

    async def _sent_again(self, connection: Connection, known: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
        stored = sent_again(known, turn)
        if stored != known:
            await connection.execute(
                "UPDATE __agents_queued_turns SET body = ? WHERE namespace = ? AND session_id = ? AND run_id = ?",
                (encode(stored).decode(), self._namespace, turn.session_id, turn.run_id),
            )
        return stored

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        bodies = await self._bodies_of(session_id, "__agents_queued_turns")
        return tuple(decode(body, QueuedTurn) for body in bodies)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        if await self._db.execute(_DROP, askable(self._namespace, session_id, run_id)):
            return True
        await self._check_there(session_id)
        return False

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        rows = await self._db.all(
            "SELECT DISTINCT session_id FROM __agents_queued_turns WHERE namespace = ?"
            " ORDER BY session_id LIMIT ? OFFSET ?",
            (self._namespace, limit, offset),
        )
        return tuple(row[0] for row in rows)
