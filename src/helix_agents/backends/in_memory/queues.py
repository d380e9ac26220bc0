"""Turns that wait until their session is free, and messages that wait for its run to take them in."""

from dataclasses import replace

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.transaction import Transaction
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
from helix_agents.domain.records import encode


def take_queued(tx: Transaction, session_id: SessionId, run_id: RunId, revision: int) -> None:
    """Take a turn out of the queue because its run starts.

    Raises:
        QueuedTurnGoneError: it no longer waits, or was changed.
    """
    turn = tx.tables.queued.get(session_id, {}).get(run_id)
    if turn is None or turn.revision != revision:
        raise QueuedTurnGoneError(session_id, run_id)
    _remove(tx, session_id, [run_id])


def take_steering(tx: Transaction, session_id: SessionId, run_id: RunId) -> tuple[UserMessage, ...]:
    """Take the messages that are meant for the run in progress, because it takes them in."""
    turns = [turn for turn in in_order(tx.tables.queued.get(session_id, {}).values()) if turn.steers]
    if turns:
        _remove(tx, session_id, [turn.run_id for turn in turns])
        taken = tx.within(tx.tables.taken, session_id)
        for turn in turns:
            tx.put(taken, turn.run_id, TakenTurn(session_id=session_id, run_id=turn.run_id, taken_by=run_id))
    return taken_in(turns)


def _remove(tx: Transaction, session_id: SessionId, gone: list[RunId]) -> None:
    # A new table instead of a changed one: putting rows back would change their order.
    left = {run_id: turn for run_id, turn in tx.tables.queued[session_id].items() if run_id not in gone}
    if left:
        tx.put(tx.tables.queued, session_id, left)
    else:
        tx.remove(tx.tables.queued, session_id)


def _check_fits(tx: Transaction, turn: QueuedTurn) -> None:
    for message in taken_in((turn,)):
        check_size(turn.session_id, "message", len(encode(message)), tx.limits.message_bytes)


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
                known = turn.run_id in tx.tables.runs or turn.run_id in tx.tables.taken.get(turn.session_id, {})
                if known or not (waiting or keeps_others_waiting(current)):
                    return None
                check_room(turn.session_id, len(waiting))
                _check_fits(tx, turn)
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
            return tuple(map(own, in_order(tables.queued.get(session_id, {}).values())))

    async def find_queued(self, session_id: SessionId, run_id: RunId) -> QueuedTurn | TakenTurn | None:
        with self._reading() as tables:
            session_row(tables, session_id)
            turn = tables.queued.get(session_id, {}).get(run_id)
            return tables.taken.get(session_id, {}).get(run_id) if turn is None else own(turn)

    async def change_queued(self, session_id: SessionId, run_id: RunId, change: QueueChange) -> QueuedTurn | None:
        door.check_queue_change(run_id, change)
        change = own(change)
        async with self._writing("change_queued") as tx:
            session_row(tx.tables, session_id)
            waiting = tx.tables.queued.get(session_id, {})
            if run_id not in waiting:
                return None
            stored = changed(waiting[run_id], change, waiting.values())
            _check_fits(tx, stored)
            tx.put(waiting, run_id, stored)
        return own(stored)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        async with self._writing("drop_queued") as tx:
            session_row(tx.tables, session_id)
            found = run_id in tx.tables.queued.get(session_id, {})
            if found:
                _remove(tx, session_id, [run_id])
        return found

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        with self._reading() as tables:
            return tuple(sorted(tables.queued)[offset : offset + limit])
