"""Turns that wait until their session is free."""

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import names_of
from helix_agents.backends.redis.rows import Session, find_run, load_session, save_session
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, check_page
from helix_agents.domain.queued import QueuedTurn, check_room, keeps_others_waiting, kept_alive, sent_again
from helix_agents.domain.records import Record, decode, encode


class QueuedRow(Record):
    """A waiting turn, and its place in the queue."""

    place: int
    turn: QueuedTurn


async def take_queued(tx: Transaction, known: Known[Session], run_id: RunId) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits.
    """
    if not await _remove(tx, known, run_id):
        raise QueuedTurnGoneError(known.value.record.session_id, run_id)


async def _remove(tx: Transaction, known: Known[Session], run_id: RunId) -> bool:
    session = known.value
    if not session.row.queued:
        return False
    key = tx.slot.queued(session.record.session_id)
    (found,) = await tx.read(("HEXISTS", key, run_id))
    if found:
        tx.do("HDEL", key, run_id)
        session.set(queued=session.row.queued - 1)
        save_session(tx, known)
    return bool(found)


async def _waiting(tx: Transaction, known: Known[Session]) -> list[QueuedRow]:
    """The turns that wait in a session, in order."""
    if not known.value.row.queued:
        return []
    (rows,) = await tx.read(("HVALS", tx.slot.queued(known.value.record.session_id)))
    return sorted((decode(row, QueuedRow) for row in rows), key=lambda row: row.place)


def _sent_again(tx: Transaction, known: Known[Session], there: QueuedRow, turn: QueuedTurn) -> QueuedTurn:
    stored = sent_again(there.turn, turn)
    if stored != there.turn:
        tx.do("HSET", tx.slot.queued(turn.session_id), turn.run_id, encode(QueuedRow(place=there.place, turn=stored)))
        # The session's row guards the queue.
        save_session(tx, known)
    return stored


class RedisQueues(Facet):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        door.check_queued(turn)

        async def work(tx: Transaction) -> QueuedTurn | None:
            known = await load_session(tx, turn.session_id)
            waiting = await _waiting(tx, known)
            there = next((row for row in waiting if row.turn.run_id == turn.run_id), None)
            if there is not None:
                return _sent_again(tx, known, there, turn)
            if await find_run(tx, known, turn.run_id) is not None:
                return None
            if not waiting and not keeps_others_waiting(known.value.run):
                return None
            check_room(turn.session_id, len(waiting))
            stored = msgspec.structs.replace(turn, queued_at=tx.now)
            row = QueuedRow(place=waiting[-1].place + 1 if waiting else 0, turn=stored)
            tx.do("HSET", tx.slot.queued(turn.session_id), turn.run_id, encode(row))
            known.value.set(queued=len(waiting) + 1)
            record = known.value.record
            known.value.record = msgspec.structs.replace(record, expires_at=kept_alive(record.expires_at, turn, tx.now))
            save_session(tx, known)
            return stored

        return await self._write("queue_turn", turn.session_id, work)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        async def work(tx: Transaction) -> tuple[QueuedTurn, ...]:
            return tuple(row.turn for row in await _waiting(tx, await load_session(tx, session_id)))

        return await self._read("list_queued", session_id, work)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        async def work(tx: Transaction) -> bool:
            return await _remove(tx, await load_session(tx, session_id), run_id)

        return await self._write("drop_queued", session_id, work)

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        found = await self._space.find(index.QUEUED)
        return tuple(sorted(names_of(name)[0] for name, _ in found.entries)[offset : offset + limit])
