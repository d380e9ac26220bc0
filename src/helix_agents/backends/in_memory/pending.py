"""Calls that wait for an answer, across all sessions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.rows import current_run, driver_of, is_running
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.pending import (
    AnswerOutcome,
    PendingCall,
    PendingFilter,
    SubmitAnswer,
    accepted,
    answer,
    ask,
    expire,
    is_overdue,
    matches,
    ready_since,
)
from helix_agents.domain.runs import SUSPENDED


def put_call(tx: Transaction, call: PendingCall) -> None:
    """Store a call's new row."""
    tx.put(tx.within(tx.tables.pending, call.root_session_id), call.tool_call_id, call)


def ask_for(tx: Transaction, calls: Iterable[PendingCall]) -> None:
    """Make calls wait; a call that waits already is unchanged."""
    for call in calls:
        existing = tx.tables.pending.get(call.root_session_id, {}).get(call.tool_call_id)
        row = ask(existing, call)
        if row is not None:
            put_call(tx, row)


def change_calls(
    tx: Transaction, calls: Iterable[PendingCall], change: Callable[[PendingCall], PendingCall | None]
) -> None:
    """Store what a change makes of each call; None leaves the call unchanged."""
    for call in tuple(calls):
        row = change(call)
        if row is not None:
            put_call(tx, row)


def find_call(tables: Tables, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
    """One call, looked up by its root or its owner."""
    row = tables.sessions.get(session_id)
    if row is None:
        return None
    call = tables.pending.get(row.record.root_session_id, {}).get(tool_call_id)
    if call is None or session_id not in (call.root_session_id, call.session_id):
        return None
    return call


def _all_calls(tables: Tables) -> Iterator[PendingCall]:
    for calls in tables.pending.values():
        yield from calls.values()


def _user(tables: Tables, call: PendingCall) -> str | None:
    row = tables.sessions.get(call.session_id)
    return None if row is None else row.record.user_id


def _overdue(tables: Tables, root: SessionId | None, now: int, limit: int) -> list[PendingCall]:
    calls = _all_calls(tables) if root is None else iter(tables.pending.get(root, {}).values())
    found = [call for call in calls if is_overdue(call, now)]
    found.sort(key=lambda call: (call.deadline or 0, call.tool_call_id, call.root_session_id))
    return found[:limit]


def _waits_for_a_resume(tables: Tables, root: SessionId) -> bool:
    row = tables.sessions.get(root)
    if row is None or row.record.status != "active" or row.record.root_session_id != root:
        return False
    run = current_run(tables, root)
    return run is not None and run.status in SUSPENDED


class InMemoryPending(Handle):
    """The facet `Pending`."""

    async def submit_answer(self, submission: SubmitAnswer) -> AnswerOutcome:
        door.check_answer(submission)
        submission = own(submission)
        async with self._writing("submit_answer") as tx:
            call = find_call(tx.tables, submission.session_id, submission.tool_call_id)
            row, rejected = answer(call, submission, tx.now)
            if row is not None:
                put_call(tx, row)
            if rejected is not None or row is None:
                outcome = rejected
            else:
                if submission.expires_at is not None:
                    root = tx.tables.sessions[row.root_session_id]
                    moved = msgspec.structs.replace(root.record, expires_at=submission.expires_at)
                    tx.put(tx.tables.sessions, row.root_session_id, replace(root, record=moved))
                tree = tx.tables.pending[row.root_session_id].values()
                outcome = accepted(
                    row,
                    running=is_running(tx.tables, driver_of(tx.tables, row.session_id)),
                    still_waiting=sum(other.state == "waiting" for other in tree),
                )
        assert outcome is not None
        return own(outcome)

    async def get_pending_call(self, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
        with self._reading() as tables:
            call = find_call(tables, session_id, tool_call_id)
        return None if call is None else own(call)

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        check_page(offset, limit)
        if where is not None:
            door.check_numbers(where)
        asked = where or PendingFilter()
        with self._reading() as tables:
            found = [call for call in _all_calls(tables) if matches(call, asked, _user(tables, call))]
        found.sort(key=lambda call: (call.created_at, call.tool_call_id, call.root_session_id), reverse=True)
        return page_of(found, offset, limit, own)

    async def find_expired_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        with self._reading() as tables:
            found = _overdue(tables, session_id, self._clock.now_ms(), limit)
        return tuple(own(call) for call in found)

    async def expire_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        async with self._writing("expire_pending") as tx:
            overdue = _overdue(tx.tables, session_id, tx.now, limit)
            expired = [row for call in overdue if (row := expire(call, tx.now)) is not None]
            for row in expired:
                put_call(tx, row)
        return tuple(own(row) for row in expired)

    async def list_unresumed(
        self, grace_ms: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        with self._reading() as tables:
            latest = self._clock.now_ms() - grace_ms
            oldest: dict[SessionId, int] = {}
            for root, calls in tables.pending.items():
                since = [at for call in calls.values() if (at := ready_since(call)) is not None and at <= latest]
                if since and _waits_for_a_resume(tables, root):
                    oldest[root] = min(since)
        return tuple(sorted(oldest, key=lambda root: (oldest[root], root))[offset : offset + limit])
