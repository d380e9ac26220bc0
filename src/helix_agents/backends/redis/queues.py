"""Turns that wait until their session is free, and messages that wait for its run to take them in."""

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import names_of
from helix_agents.backends.redis.rows import Session, find_run, load_session, save_session
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.limits import check_size
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
from helix_agents.domain.records import Record, decode, encode


class QueuedRow(Record):
    """A waiting turn, and when it arrived, among those of its queue."""

    place: int
    turn: QueuedTurn


async def take_queued(tx: Transaction, known: Known[Session], run_id: RunId, revision: int) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits, or was changed.
    """
    there = _find(await _waiting(tx, known), run_id)
    if there is None or there.turn.revision != revision:
        raise QueuedTurnGoneError(known.value.record.session_id, run_id)
    _remove(tx, known, there.turn)


async def take_steering(tx: Transaction, known: Known[Session], run_id: RunId) -> tuple[UserMessage, ...]:
    """Take the messages that are meant for the run in progress, because it takes them in."""
    waiting = in_order(row.turn for row in await _waiting(tx, known))
    # The turn of a run that starts has left the queue in this transaction, which a read does not see.
    turns = [turn for turn in waiting if turn.steers and turn.run_id != run_id]
    for turn in turns:
        _remove(tx, known, turn)
        tx.do("HSET", tx.slot.taken(turn.session_id), turn.run_id, run_id)
    return taken_in(turns)


def _remove(tx: Transaction, known: Known[Session], turn: QueuedTurn) -> None:
    row = known.value.row
    tx.do("HDEL", tx.slot.queued(turn.session_id), turn.run_id)
    # An earlier version does not count those that steer.
    known.value.set(queued=row.queued - 1, steered=max(row.steered - turn.steers, 0))
    save_session(tx, known)


def _put(tx: Transaction, known: Known[Session], row: QueuedRow) -> None:
    tx.do("HSET", tx.slot.queued(row.turn.session_id), row.turn.run_id, encode(row))
    # The session's row guards the queue.
    save_session(tx, known)


async def _waiting(tx: Transaction, known: Known[Session]) -> list[QueuedRow]:
    """The turns that wait in a session, in the order in which they arrived."""
    if not known.value.row.queued:
        return []
    (rows,) = await tx.read(("HVALS", tx.slot.queued(known.value.record.session_id)))
    return sorted((decode(row, QueuedRow) for row in rows), key=lambda row: row.place)


def _find(waiting: list[QueuedRow], run_id: RunId) -> QueuedRow | None:
    return next((row for row in waiting if row.turn.run_id == run_id), None)


async def _taken_by(tx: Transaction, session_id: SessionId, run_id: RunId) -> RunId | None:
    (taken_by,) = await tx.read(("HGET", tx.slot.taken(session_id), run_id))
    return None if taken_by is None else taken_by.decode()


def _sent_again(tx: Transaction, known: Known[Session], there: QueuedRow, turn: QueuedTurn) -> QueuedTurn:
    stored = sent_again(there.turn, turn)
    if stored != there.turn:
        known.value.set(steered=known.value.row.steered + stored.steers - there.turn.steers)
        _put(tx, known, QueuedRow(place=there.place, turn=stored))
    return stored


def _check_fits(tx: Transaction, turn: QueuedTurn) -> None:
    for message in taken_in((turn,)):
        check_size(turn.session_id, "message", len(encode(message)), tx.limits.message_bytes)


class RedisQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        door.check_queued(turn)

        async def work(tx: Transaction) -> QueuedTurn | None:
            known = await load_session(tx, turn.session_id)
            waiting = await _waiting(tx, known)
            there = _find(waiting, turn.run_id)
            if there is not None:
                return _sent_again(tx, known, there, turn)
            if await find_run(tx, known, turn.run_id) is not None:
                return None
            if await _taken_by(tx, turn.session_id, turn.run_id) is not None:
                return None
            if not waiting and not keeps_others_waiting(known.value.run):
                return None
            check_room(turn.session_id, len(waiting))
            _check_fits(tx, turn)
            stored = msgspec.structs.replace(turn, queued_at=tx.now)
            record = known.value.record
            known.value.record = msgspec.structs.replace(record, expires_at=kept_alive(record.expires_at, turn, tx.now))
            known.value.set(queued=len(waiting) + 1, steered=known.value.row.steered + stored.steers)
            _put(tx, known, QueuedRow(place=waiting[-1].place + 1 if waiting else 0, turn=stored))
            return stored

        return await self._write("queue_turn", turn.session_id, work)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        async def work(tx: Transaction) -> tuple[QueuedTurn, ...]:
            return in_order(row.turn for row in await _waiting(tx, await load_session(tx, session_id)))

        return await self._read("list_queued", session_id, work)

    async def find_queued(self, session_id: SessionId, run_id: RunId) -> QueuedTurn | TakenTurn | None:
        async def work(tx: Transaction) -> QueuedTurn | TakenTurn | None:
            there = _find(await _waiting(tx, await load_session(tx, session_id)), run_id)
            if there is not None:
                return there.turn
            taken_by = await _taken_by(tx, session_id, run_id)
            return None if taken_by is None else TakenTurn(session_id=session_id, run_id=run_id, taken_by=taken_by)

        return await self._read("find_queued", session_id, work)

    async def change_queued(self, session_id: SessionId, run_id: RunId, change: QueueChange) -> QueuedTurn | None:
        door.check_queue_change(run_id, change)

        async def work(tx: Transaction) -> QueuedTurn | None:
            known = await load_session(tx, session_id)
            waiting = await _waiting(tx, known)
            there = _find(waiting, run_id)
            if there is None:
                return None
            stored = changed(there.turn, change, [row.turn for row in waiting])
            _check_fits(tx, stored)
            known.value.set(steered=known.value.row.steered + stored.steers - there.turn.steers)
            _put(tx, known, QueuedRow(place=there.place, turn=stored))
            return stored

        return await self._write("change_queued", session_id, work)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        async def work(tx: Transaction) -> bool:
            known = await load_session(tx, session_id)
            there = _find(await _waiting(tx, known), run_id)
            if there is not None:
                _remove(tx, known, there.turn)
            return there is not None

        return await self._write("drop_queued", session_id, work)

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        found = await self._space.find(index.QUEUED)
        return tuple(sorted(names_of(name)[0] for name, _ in found.entries)[offset : offset + limit])
