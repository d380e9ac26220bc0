"""Turns that wait until their session is free, and messages that wait for its run to take them in, in Postgres."""

import msgspec

from helix_agents.backends.postgres.connection import Connection, askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import SessionHead, SessionRow, find_run, load_session, lock_tree_of
from helix_agents.backends.postgres.runs import current_run
from helix_agents.domain.door import check_queue_change, check_queued
from helix_agents.domain.errors import QueuedTurnGoneError, SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, check_page
from helix_agents.domain.queued import (
    QueueChange,
    QueuedTurn,
    TakenTurn,
    changed,
    check_room,
    in_order,
    keeps_others_waiting,
    kept_alive,
    sent_again,
    taken_in,
)
from helix_agents.domain.records import decode, encode

_WAITING = "SELECT body FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? ORDER BY key"
_KEEP_ALIVE = "UPDATE __agents_sessions SET expires_at = ? WHERE namespace = ? AND session_id = ?"
_INSERT = "INSERT INTO __agents_queued_turns (namespace, session_id, run_id, body) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE __agents_queued_turns SET body = ? WHERE namespace = ? AND session_id = ? AND run_id = ?"
_DROP = "DELETE FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? AND run_id = ? RETURNING body"
_FIND = """
SELECT q.body, t.taken_by FROM __agents_sessions s
LEFT JOIN __agents_queued_turns q ON q.namespace = s.namespace AND q.session_id = s.session_id AND q.run_id = ?1
LEFT JOIN __agents_taken_turns t ON t.namespace = s.namespace AND t.session_id = s.session_id AND t.run_id = ?1
WHERE s.namespace = ?2 AND s.session_id = ?3
"""
_TAKEN_BY = "SELECT taken_by FROM __agents_taken_turns WHERE namespace = ? AND session_id = ? AND run_id = ?"
_TAKE = """
WITH gone AS (
    DELETE FROM __agents_queued_turns WHERE namespace = ?1 AND session_id = ?2 AND run_id = ANY(?3::text[])
)
INSERT INTO __agents_taken_turns (namespace, session_id, run_id, taken_by)
    SELECT ?1, ?2, g.run_id, ?4 FROM unnest(?3::text[]) AS g (run_id)
"""
_MARK = "UPDATE __agents_sessions SET steered = ? WHERE namespace = ? AND session_id = ?"


async def take_queued(
    connection: Connection, namespace: str, session_id: SessionId, run_id: RunId, revision: int
) -> None:
    """Take a turn out of the queue because its run starts; the caller holds the session's lock.

    Raises:
        QueuedTurnGoneError: it no longer waits, or was changed.
    """
    dropped = await _drop(connection, namespace, session_id, run_id)
    if dropped is None or dropped.revision != revision:
        raise QueuedTurnGoneError(session_id, run_id)


async def take_steering(connection: Connection, row: SessionHead, run_id: RunId) -> tuple[UserMessage, ...]:
    """Take the messages that are meant for the run in progress out of the queue, because it takes them in; the caller
    holds the session's lock."""
    place = (row.namespace, row.session_id)
    turns = [turn for turn in await _waiting(connection, *place) if turn.steers]
    if turns:
        await connection.execute(_TAKE, (*place, [turn.run_id for turn in turns], run_id))
        await connection.execute(_MARK, (False, *place))
    return taken_in(turns)


async def _waiting(connection: Connection, namespace: str, session_id: SessionId) -> tuple[QueuedTurn, ...]:
    rows = await connection.all(_WAITING, (namespace, session_id))
    return in_order(decode(row[0], QueuedTurn) for row in rows)


async def _drop(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId) -> QueuedTurn | None:
    found = await connection.one(_DROP, (namespace, session_id, run_id))
    if found is None:
        return None
    turn = decode(found[0], QueuedTurn)
    if turn.steers:
        await _mark(connection, namespace, session_id)
    return turn


async def _mark(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Note at the session whether messages wait for its run."""
    steered = any(turn.steers for turn in await _waiting(connection, namespace, session_id))
    await connection.execute(_MARK, (steered, namespace, session_id))


class PostgresQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        check_queued(turn)
        self._check_turn_fits(turn)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> QueuedTurn | None:
            session = await self._lock_queue(connection, turn.session_id)
            waiting = await _waiting(connection, self._namespace, turn.session_id)
            known = next((each for each in waiting if each.run_id == turn.run_id), None)
            if known is not None:
                return await self._keep_turn(connection, known, sent_again(known, turn))
            if await find_run(connection, self._namespace, turn.run_id) is not None:
                return None
            if await connection.one(_TAKEN_BY, (self._namespace, turn.session_id, turn.run_id)):
                return None
            if not waiting and not keeps_others_waiting(await current_run(connection, session)):
                return None
            check_room(turn.session_id, len(waiting))
            stored = msgspec.structs.replace(turn, queued_at=now)
            await connection.execute(_INSERT, (self._namespace, turn.session_id, turn.run_id, encode(stored).decode()))
            if stored.steers:
                await _mark(connection, self._namespace, turn.session_id)
            expires_at = kept_alive(session.expires_at, turn, now)
            if expires_at != session.expires_at:
                await connection.execute(_KEEP_ALIVE, (expires_at, self._namespace, turn.session_id))
            return stored

        return await self._db.write(work)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        bodies = await self._bodies_of(session_id, "__agents_queued_turns")
        return in_order(decode(body, QueuedTurn) for body in bodies)

    async def find_queued(self, session_id: SessionId, run_id: RunId) -> QueuedTurn | TakenTurn | None:
        found = await self._db.one(_FIND, askable(run_id, self._namespace, session_id))
        if found is None:
            raise SessionNotFoundError(session_id)
        body, taken_by = found
        if body is not None:
            return decode(body, QueuedTurn)
        return None if taken_by is None else TakenTurn(session_id=session_id, run_id=run_id, taken_by=taken_by)

    async def change_queued(self, session_id: SessionId, run_id: RunId, change: QueueChange) -> QueuedTurn | None:
        check_queue_change(run_id, change)

        async def work(connection: Connection) -> QueuedTurn | None:
            await self._lock_queue(connection, session_id)
            waiting = await _waiting(connection, self._namespace, session_id)
            known = next((each for each in waiting if each.run_id == run_id), None)
            if known is None:
                return None
            stored = changed(known, change, waiting)
            self._check_turn_fits(stored)
            return await self._keep_turn(connection, known, stored)

        return await self._db.write(work)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        async def work(connection: Connection) -> bool:
            await self._lock_queue(connection, session_id)
            return await _drop(connection, self._namespace, session_id, run_id) is not None

        return await self._db.write(work)

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        rows = await self._db.all(
            "SELECT DISTINCT session_id FROM __agents_queued_turns WHERE namespace = ?"
            " ORDER BY session_id LIMIT ? OFFSET ?",
            (self._namespace, limit, offset),
        )
        return tuple(row[0] for row in rows)

    async def _lock_queue(self, connection: Connection, session_id: SessionId) -> SessionRow:
        """The session, with its queue closed to others. The lock also makes turns take their keys one after another,
        so key order is commit order."""
        await lock_tree_of(connection, self._namespace, session_id)
        return await load_session(connection, self._namespace, session_id)

    def _check_turn_fits(self, turn: QueuedTurn) -> None:
        """Refuse messages that no run could take in."""
        self._encoded(turn.session_id, taken_in((turn,)))

    async def _keep_turn(self, connection: Connection, known: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
        if turn != known:
            place = (self._namespace, turn.session_id)
            await connection.execute(_UPDATE, (encode(turn).decode(), *place, turn.run_id))
            if turn.steers != known.steers:
                await _mark(connection, *place)
        return turn
