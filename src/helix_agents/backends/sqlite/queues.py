"""Turns that wait until their session is free, in SQLite."""

import msgspec

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.rows import find_run, load_session
from helix_agents.backends.sqlite.runs import current_run
from helix_agents.domain.door import check_queued
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, check_page
from helix_agents.domain.queued import QueuedTurn, check_room, keeps_others_waiting, kept_alive, sent_again
from helix_agents.domain.records import decode, encode

_WAITING = "SELECT body FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? ORDER BY key"
_KEEP_ALIVE = "UPDATE __agents_sessions SET expires_at = ? WHERE namespace = ? AND session_id = ?"
_DROP = "DELETE FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? AND run_id = ? RETURNING key"


def take_queued(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits.
    """
    if connection.one(_DROP, (namespace, session_id, run_id)) is None:
        raise QueuedTurnGoneError(session_id, run_id)


class SQLiteQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        check_queued(turn)
        now = self._clock.now_ms()

        def work(connection: Connection) -> QueuedTurn | None:
            session = load_session(connection, self._namespace, turn.session_id)
            waiting = self._waiting(connection, turn.session_id)
            known = next((each for each in waiting if each.run_id == turn.run_id), None)
            if known is not None:
                return self._sent_again(connection, known, turn)
            if find_run(connection, self._namespace, turn.run_id) is not None:
                return None
            if not waiting and not keeps_others_waiting(current_run(connection, session)):
                return None
            check_room(turn.session_id, len(waiting))
            stored = msgspec.structs.replace(turn, queued_at=now)
            connection.execute(
                "INSERT INTO __agents_queued_turns (namespace, session_id, run_id, body) VALUES (?, ?, ?, ?)",
                (self._namespace, turn.session_id, turn.run_id, encode(stored).decode()),
            )
            expires_at = kept_alive(session.expires_at, turn, now)
            if expires_at != session.expires_at:
                connection.execute(_KEEP_ALIVE, (expires_at, self._namespace, turn.session_id))
            return stored

        return await self._db.write(work)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        def work(connection: Connection) -> tuple[QueuedTurn, ...]:
            load_session(connection, self._namespace, session_id)
            return self._waiting(connection, session_id)

        return await self._db.read_by_key(work)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        def work(connection: Connection) -> bool:
            load_session(connection, self._namespace, session_id)
            return connection.one(_DROP, (self._namespace, session_id, run_id)) is not None

        return await self._db.write(work)

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)

        def work(connection: Connection) -> tuple[SessionId, ...]:
            rows = connection.all(
                "SELECT DISTINCT session_id FROM __agents_queued_turns WHERE namespace = ?"
                " ORDER BY session_id LIMIT ? OFFSET ?",
                (self._namespace, limit, offset),
            )
            return tuple(row[0] for row in rows)

        return await self._db.read(work)

    def _sent_again(self, connection: Connection, known: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
        stored = sent_again(known, turn)
        if stored != known:
            connection.execute(
                "UPDATE __agents_queued_turns SET body = ? WHERE namespace = ? AND session_id = ? AND run_id = ?",
                (encode(stored).decode(), self._namespace, turn.session_id, turn.run_id),
            )
        return stored

    def _waiting(self, connection: Connection, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        rows = connection.all(_WAITING, (self._namespace, session_id))
        return tuple(decode(row[0], QueuedTurn) for row in rows)
