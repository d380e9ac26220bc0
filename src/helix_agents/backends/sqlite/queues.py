"""Turns that wait until their session is free, and messages that wait for its run to take them in, in SQLite."""

import msgspec

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.lineage import append_messages
from helix_agents.backends.sqlite.rows import SessionHead, find_run, load_session
from helix_agents.backends.sqlite.runs import current_run
from helix_agents.domain.door import check_queue_change, check_queued
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
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
_FIND = "SELECT body FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? AND run_id = ?"
_INSERT = "INSERT INTO __agents_queued_turns (namespace, session_id, run_id, body) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE __agents_queued_turns SET body = ? WHERE namespace = ? AND session_id = ? AND run_id = ?"
_DROP = "DELETE FROM __agents_queued_turns WHERE namespace = ? AND session_id = ? AND run_id = ? RETURNING body"
_TAKEN_BY = "SELECT taken_by FROM __agents_taken_turns WHERE namespace = ? AND session_id = ? AND run_id = ?"
_TAKEN = "INSERT INTO __agents_taken_turns (namespace, session_id, run_id, taken_by) VALUES (?, ?, ?, ?)"


def take_queued(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId, revision: int) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits, or was changed.
    """
    dropped = _drop(connection, namespace, session_id, run_id)
    if dropped is None or dropped.revision != revision:
        raise QueuedTurnGoneError(session_id, run_id)


def take_steering(connection: Connection, row: SessionHead, run_id: RunId, now: int) -> None:
    """Add the messages that are meant for the run in progress to its transcript, and take them out of the queue."""
    place = (row.namespace, row.session_id)
    turns = [turn for turn in _waiting(connection, *place) if turn.steers]
    if not turns:
        return
    append_messages(connection, row, [encode(message).decode() for message in taken_in(turns)], now)
    for turn in turns:
        connection.execute(_TAKEN, (*place, turn.run_id, run_id))
        connection.one(_DROP, (*place, turn.run_id))
    connection.execute(
        "UPDATE __agents_sessions SET message_count = ?, steered = 0 WHERE key = ?", (row.message_count, row.key)
    )


def _waiting(connection: Connection, namespace: str, session_id: SessionId) -> tuple[QueuedTurn, ...]:
    rows = connection.all(_WAITING, (namespace, session_id))
    return in_order(decode(row[0], QueuedTurn) for row in rows)


def _drop(connection: Connection, namespace: str, session_id: SessionId, run_id: RunId) -> QueuedTurn | None:
    found = connection.one(_DROP, (namespace, session_id, run_id))
    if found is None:
        return None
    turn = decode(found[0], QueuedTurn)
    if turn.steers:
        _mark(connection, namespace, session_id)
    return turn


def _mark(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Note at the session whether messages wait for its run."""
    steered = any(turn.steers for turn in _waiting(connection, namespace, session_id))
    connection.execute(
        "UPDATE __agents_sessions SET steered = ? WHERE namespace = ? AND session_id = ?",
        (int(steered), namespace, session_id),
    )


class SQLiteQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        check_queued(turn)
        self._check_turn_fits(turn)
        now = self._clock.now_ms()
        place = (self._namespace, turn.session_id)

        def work(connection: Connection) -> QueuedTurn | None:
            session = load_session(connection, *place)
            waiting = _waiting(connection, *place)
            known = next((each for each in waiting if each.run_id == turn.run_id), None)
            if known is not None:
                return self._keep_turn(connection, known, sent_again(known, turn))
            if find_run(connection, self._namespace, turn.run_id) is not None:
                return None
            if connection.one(_TAKEN_BY, (*place, turn.run_id)) is not None:
                return None
            if not waiting and not keeps_others_waiting(current_run(connection, session)):
                return None
            check_room(turn.session_id, len(waiting))
            stored = msgspec.structs.replace(turn, queued_at=now)
            connection.execute(_INSERT, (*place, turn.run_id, encode(stored).decode()))
            if stored.steers:
                _mark(connection, *place)
            expires_at = kept_alive(session.expires_at, turn, now)
            if expires_at != session.expires_at:
                connection.execute(_KEEP_ALIVE, (expires_at, *place))
            return stored

        return await self._db.write(work)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        def work(connection: Connection) -> tuple[QueuedTurn, ...]:
            load_session(connection, self._namespace, session_id)
            return _waiting(connection, self._namespace, session_id)

        return await self._db.read_by_key(work)

    async def find_queued(self, session_id: SessionId, run_id: RunId) -> QueuedTurn | TakenTurn | None:
        place = (self._namespace, session_id)

        def work(connection: Connection) -> QueuedTurn | TakenTurn | None:
            load_session(connection, *place)
            body = connection.one(_FIND, (*place, run_id))
            if body is not None:
                return decode(body[0], QueuedTurn)
            taken = connection.one(_TAKEN_BY, (*place, run_id))
            return None if taken is None else TakenTurn(session_id=session_id, run_id=run_id, taken_by=taken[0])

        return await self._db.read_by_key(work)

    async def change_queued(self, session_id: SessionId, run_id: RunId, change: QueueChange) -> QueuedTurn | None:
        check_queue_change(run_id, change)
        place = (self._namespace, session_id)

        def work(connection: Connection) -> QueuedTurn | None:
            load_session(connection, *place)
            waiting = _waiting(connection, *place)
            known = next((each for each in waiting if each.run_id == run_id), None)
            if known is None:
                return None
            stored = changed(known, change, waiting)
            self._check_turn_fits(stored)
            return self._keep_turn(connection, known, stored)

        return await self._db.write(work)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        def work(connection: Connection) -> bool:
            load_session(connection, self._namespace, session_id)
            return _drop(connection, self._namespace, session_id, run_id) is not None

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

    def _check_turn_fits(self, turn: QueuedTurn) -> None:
        """Refuse messages that no run could take in."""
        self._encoded(turn.session_id, taken_in((turn,)))

    def _keep_turn(self, connection: Connection, known: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
        if turn != known:
            place = (self._namespace, turn.session_id)
            connection.execute(_UPDATE, (encode(turn).decode(), *place, turn.run_id))
            if turn.steers != known.steers:
                _mark(connection, *place)
        return turn
