"""Turns that wait until their session is free."""

from dataclasses import replace

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.errors import QueuedTurnGoneError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, check_page
from helix_agents.domain.queued import QueuedTurn, check_room, keeps_others_waiting, kept_alive, sent_again


def take_queued(tx: Transaction, session_id: SessionId, run_id: RunId) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits.
    """
    if run_id not in tx.tables.queued.get(session_id, {}):
        raise QueuedTurnGoneError(session_id, run_id)
    _remove(tx, session_id, run_id)


def _remove(tx: Transaction, session_id: SessionId, run_id: RunId) -> None:
    waiting = tx.tables.queued[session_id]
    tx.remove(waiting, run_id)
    if not waiting:
        tx.remove(tx.tables.queued, session_id)


class InMemoryQueues(Handle):
    """The facet `Queues`."""

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        door.check_queued(turn)
        turn = own(turn)
        async with self._writing("queue_turn") as tx:
            current = current_run(tx.tables, turn.session_id)
            waiting = tx.tables.queued.get(turn.session_id, {})
            stored = waiting.get(turn.run_id)
            if stored is None:
                if turn.run_id in tx.tables.runs or not (waiting or keeps_others_waiting(current)):
                    return None
                check_room(turn.session_id, len(waiting))
                stored = msgspec.structs.replace(turn, queued_at=tx.now)
                row = session_row(tx.tables, turn.session_id)
                expires_at = kept_alive(row.record.expires_at, turn, tx.now)
                record = msgspec.structs.replace(row.record, expires_at=expires_at)
                tx.put(tx.tables.sessions, turn.session_id, replace(row, record=record))
            else:
                stored = sent_again(stored, turn)
            tx.put(tx.within(tx.tables.queued, turn.session_id), turn.run_id, stored)
        return own(stored)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        with self._reading() as tables:
            session_row(tables, session_id)
            return tuple(own(turn) for turn in tables.queued.get(session_id, {}).values())

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        async with self._writing("drop_queued") as tx:
            session_row(tx.tables, session_id)
            found = run_id in tx.tables.queued.get(session_id, {})
            if found:
                _remove(tx, session_id, run_id)
        return found

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        with self._reading() as tables:
            return tuple(sorted(tables.queued)[offset : offset + limit])
