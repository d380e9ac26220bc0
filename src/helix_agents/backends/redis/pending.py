"""Calls that wait for an answer, across all sessions."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import Entry, entry_id, names_of
from helix_agents.backends.redis.rows import (
    SessionEntry,
    driver_of,
    find_session,
    load_session,
    save_session,
    tree,
)
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.pending import (
    OPEN,
    AnswerOutcome,
    PendingCall,
    PendingFilter,
    PendingState,
    SubmitAnswer,
    accepted,
    answer,
    ask,
    expire,
    is_overdue,
    matches,
    ready_since,
)
from helix_agents.domain.records import Record, decode, encode
from helix_agents.domain.runs import SUSPENDED

Calls = dict[ToolCallId, PendingCall]

ALL_STATES: tuple[PendingState, ...] = ("waiting", "answered", "expired", "consumed", "dropped")


class CallEntry(Record):
    """A call in the index: what listings filter by, and where it is. Its input and answer stay with its tree."""

    tag: str
    call: PendingCall


def call_entry(tag: str, call: PendingCall) -> Entry:
    """The index entry of a call."""
    told = PendingCall(
        tool_call_id=call.tool_call_id,
        kind=call.kind,
        session_id=call.session_id,
        root_session_id=call.root_session_id,
        run_id=call.run_id,
        step_id=call.step_id,
        tool_name=call.tool_name,
        created_at=call.created_at,
        deadline=call.deadline,
        state=call.state,
        answered_at=call.answered_at,
        expired_at=call.expired_at,
    )
    orders: list[tuple[str, float]] = [(f"calls/{call.state}", call.created_at)]
    if call.state == "waiting" and call.deadline is not None:
        orders.append((index.DEADLINES, call.deadline))
    if (since := ready_since(call)) is not None:
        orders.append((index.READY, since))
    name = entry_id("c", call.tool_call_id, call.root_session_id)
    return Entry(name, encode(CallEntry(tag=tag, call=told)), tuple(orders))


async def load_calls(tx: Transaction, root: SessionId) -> Known[Calls]:
    """The open calls of a root's tree."""
    key = tx.slot.pending(root)

    def of(replies: list[Any]) -> Calls:
        flat: list[bytes] = replies[0]
        rows = {flat[n].decode(): flat[n + 1] for n in range(0, len(flat), 2)}
        rows.pop("#", None)
        return {call_id: decode(row, PendingCall) for call_id, row in rows.items()}

    return await tx.load(key, (("HGETALL", key),), of)


def bring_calls(tx: Transaction, root: SessionId) -> None:
    """Have the next answer include the calls of a root's tree."""
    key = tx.slot.pending(root)
    tx.bring(("HGETALL", key), of=key)
    tx.bring(("HVALS", tx.slot.ended_calls(root)))


async def every_call(tx: Transaction, root: SessionId) -> list[PendingCall]:
    """The calls of a root's tree, including ended ones."""
    calls = await load_calls(tx, root)
    if not calls.revision:
        return []
    (ended,) = await tx.read(("HVALS", tx.slot.ended_calls(root)))
    return [*calls.value.values(), *(decode(row, PendingCall) for row in ended)]


async def call_of(tx: Transaction, root: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
    """One call of a root's tree, open or ended."""
    calls = await load_calls(tx, root)
    if tool_call_id in calls.value or not calls.revision:
        return calls.value.get(tool_call_id)
    (row,) = await tx.read(("HGET", tx.slot.ended_calls(root), tool_call_id))
    return decode(row, PendingCall) if row is not None else None


async def put_call(tx: Transaction, call: PendingCall) -> None:
    """Store a call's new row."""
    root = call.root_session_id
    calls = await load_calls(tx, root)
    ended = tx.slot.ended_calls(root)
    tx.change(calls)
    if call.state in OPEN:
        calls.value[call.tool_call_id] = call
        tx.do("HSET", calls.key, call.tool_call_id, encode(call))
        tx.do("HDEL", ended, call.tool_call_id)
    else:
        calls.value.pop(call.tool_call_id, None)
        tx.do("HDEL", calls.key, call.tool_call_id)
        tx.do("HSET", ended, call.tool_call_id, encode(call))
    tx.index(calls.key, call_entry(tx.tag, call), ("c", tx.tag, root, call.tool_call_id))


async def ask_for(tx: Transaction, calls: Iterable[PendingCall]) -> None:
    """Make calls wait; a call that waits already is unchanged."""
    for call in calls:
        row = ask(await call_of(tx, call.root_session_id, call.tool_call_id), call)
        if row is not None:
            await put_call(tx, row)


async def change_calls(
    tx: Transaction, calls: Iterable[PendingCall], change: Callable[[PendingCall], PendingCall | None]
) -> None:
    """Store what a change makes of each call; None leaves the call unchanged."""
    for call in tuple(calls):
        row = change(call)
        if row is not None:
            await put_call(tx, row)


async def find_call(tx: Transaction, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
    """One call, looked up by its root or its owner."""
    known = await find_session(tx, session_id)
    if known is None:
        return None
    call = await call_of(tx, known.value.record.root_session_id, tool_call_id)
    if call is None or session_id not in (call.root_session_id, call.session_id):
        return None
    return call


async def tree_calls(tx: Transaction, session_id: SessionId) -> list[PendingCall]:
    """The open calls that the session and the sessions below it own."""
    root = (await load_session(tx, session_id)).value.record.root_session_id
    calls = list((await load_calls(tx, root)).value.values())
    if root == session_id or not calls:
        return calls
    members = set(await tree(tx, session_id))
    return [call for call in calls if call.session_id in members]


async def driven_calls(tx: Transaction, session_id: SessionId) -> list[PendingCall]:
    """The tree's open calls, except those of companions that are driven on their own."""
    calls = await tree_calls(tx, session_id)
    if not calls:
        return []
    driver = await driver_of(tx, session_id)
    return [call for call in calls if await driver_of(tx, call.session_id) == driver]


async def _in_tree(tx: Transaction, session_id: SessionId, open_only: bool) -> list[PendingCall]:
    """The calls of the tree that a session belongs to."""
    session = await find_session(tx, session_id)
    root = session.value.record.root_session_id if session is not None else session_id
    return list((await load_calls(tx, root)).value.values()) if open_only else await every_call(tx, root)


def _page_order(call: PendingCall) -> tuple[int, str, str]:
    return (call.created_at, call.tool_call_id, call.root_session_id)


class RedisPending(Facet):
    """The facet `Pending`."""

    async def submit_answer(self, submission: SubmitAnswer) -> AnswerOutcome:
        door.check_answer(submission)

        async def work(tx: Transaction) -> AnswerOutcome:
            call = await find_call(tx, submission.session_id, submission.tool_call_id)
            row, rejected = answer(call, submission, tx.now)
            if row is not None:
                await put_call(tx, row)
            if rejected is not None:
                return rejected
            assert row is not None
            root = await find_session(tx, row.root_session_id)
            if submission.expires_at is not None and root is not None:
                root.value.record = msgspec.structs.replace(root.value.record, expires_at=submission.expires_at)
                save_session(tx, root)
            driver = await find_session(tx, await driver_of(tx, row.session_id))
            run = None if driver is None else driver.value.run
            calls = (await load_calls(tx, row.root_session_id)).value.values()
            return accepted(
                row,
                running=run is not None and run.status == "running",
                still_waiting=sum(other.state == "waiting" for other in calls),
            )

        return await self._write("submit_answer", submission.session_id, work)

    async def get_pending_call(self, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
        return await self._read("get_pending_call", session_id, lambda tx: find_call(tx, session_id, tool_call_id))

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        check_page(offset, limit)
        if where is not None:
            door.check_numbers(where)
        asked = where or PendingFilter()
        if len(asked.states) == 1 and asked == PendingFilter(states=asked.states):
            page = await self._space.page(f"calls/{asked.states[0]}", offset=offset, limit=limit)
            items = await self._calls_of([decode(payload, CallEntry) for _, payload in page.entries])
            return Page(items=tuple(items), total=page.total or 0, offset=offset, limit=limit)
        fitting: list[PendingCall]
        if asked.root_session_id is not None or asked.session_id is not None or asked.user_id is not None:
            fitting = await self._fitting(asked, await self._near(asked))
            items = fitting[offset : offset + limit]
        else:
            found = await self._space.find(*(f"calls/{state}" for state in asked.states or ALL_STATES))
            told = [decode(payload, CallEntry) for _, payload in found.entries]
            entries = {_page_order(entry.call): entry for entry in told}
            fitting = await self._fitting(asked, [entry.call for entry in told])
            items = await self._calls_of([entries[_page_order(call)] for call in fitting[offset : offset + limit]])
        return Page(items=tuple(items), total=len(fitting), offset=offset, limit=limit)

    async def find_expired_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        return tuple(await self._overdue(session_id, limit))

    async def expire_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        overdue = await self._overdue(session_id, limit)
        by_root: dict[SessionId, list[ToolCallId]] = {}
        for call in overdue:
            by_root.setdefault(call.root_session_id, []).append(call.tool_call_id)
        expired = [row for root, ids in by_root.items() for row in await self._expire(root, ids)]
        return tuple(sorted(expired, key=lambda call: (call.deadline or 0, call.tool_call_id, call.root_session_id)))

    async def list_unresumed(
        self, grace_ms: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        found = await self._space.find(index.READY, highest=self._clock.now_ms() - grace_ms)
        oldest: dict[SessionId, int] = {}
        for _, payload in found.entries:
            call = decode(payload, CallEntry).call
            oldest.setdefault(call.root_session_id, ready_since(call) or 0)
        roots = await self._space.find(besides=[entry_id("s", root) for root in oldest])
        waiting = {
            names_of(name)[0] for name, payload in roots.entries if _waits_for_a_resume(decode(payload, SessionEntry))
        }
        return tuple(sorted(waiting, key=lambda root: (oldest[root], root))[offset : offset + limit])

    async def _overdue(self, root: SessionId | None, limit: int) -> list[PendingCall]:
        now = self._clock.now_ms()
        if root is None:
            found = await self._space.find(index.DEADLINES, highest=now, limit=limit)
            return await self._calls_of([decode(payload, CallEntry) for _, payload in found.entries])

        async def work(tx: Transaction) -> list[PendingCall]:
            calls = (await load_calls(tx, root)).value.values()
            return [call for call in calls if is_overdue(call, now)]

        overdue = await self._read("overdue", root, work)
        overdue.sort(key=lambda call: (call.deadline or 0, call.tool_call_id))
        return overdue[:limit]

    async def _expire(self, root: SessionId, ids: Sequence[ToolCallId]) -> list[PendingCall]:
        async def work(tx: Transaction) -> list[PendingCall]:
            calls = (await load_calls(tx, root)).value
            expired = [row for name in ids if name in calls and (row := expire(calls[name], tx.now)) is not None]
            for row in expired:
                await put_call(tx, row)
            return expired

        return await self._write("expire_pending", root, work)

    async def _near(self, asked: PendingFilter) -> list[PendingCall]:
        """The calls of the trees that a filter covers: one tree, or those of a user."""
        open_only = bool(asked.states) and OPEN.issuperset(asked.states)
        whose = asked.root_session_id or asked.session_id
        roots = await self._roots_of(asked.user_id or "", open_only) if whose is None else {whose}

        async def read(session_id: SessionId) -> list[PendingCall]:
            return await self._read("list_pending", session_id, lambda tx: _in_tree(tx, session_id, open_only))

        return [call for calls in await asyncio.gather(*map(read, sorted(roots))) for call in calls]

    async def _roots_of(self, user_id: str, open_only: bool) -> set[SessionId]:
        """The roots of a user's sessions; for open calls, only of those whose run is going or suspended."""
        found = await self._space.find(f"user/{user_id}")
        entries = [decode(payload, SessionEntry) for _, payload in found.entries]
        return {
            entry.session.root_session_id
            for entry in entries
            if not open_only or entry.run_status == "running" or entry.run_status in SUSPENDED
        }

    async def _fitting(self, asked: PendingFilter, calls: Sequence[PendingCall]) -> list[PendingCall]:
        """The calls that match, newest first."""
        users: dict[SessionId, str | None] = {}
        if asked.user_id is not None:
            users = await self._users(dict.fromkeys(call.session_id for call in calls))
        fitting = [call for call in calls if matches(call, asked, users.get(call.session_id))]
        return sorted(fitting, key=_page_order, reverse=True)

    async def _users(self, sessions: Iterable[SessionId]) -> dict[SessionId, str | None]:
        found = await self._space.find(besides=[entry_id("s", session) for session in sessions])
        return {names_of(name)[0]: decode(payload, SessionEntry).session.user_id for name, payload in found.entries}

    async def _calls_of(self, entries: Sequence[CallEntry]) -> list[PendingCall]:
        """The calls themselves, in the order of their entries."""
        wanted: dict[tuple[str, SessionId], list[ToolCallId]] = {}
        for entry in entries:
            wanted.setdefault((entry.tag, entry.call.root_session_id), []).append(entry.call.tool_call_id)
        found: dict[tuple[SessionId, ToolCallId], PendingCall] = {}

        async def read(tag: str, root: SessionId, ids: list[ToolCallId]) -> None:
            slot = self._space.slot(tag)
            reads = (("HMGET", slot.pending(root), *ids), ("HMGET", slot.ended_calls(root), *ids))
            open_rows, ended_rows = (await self._space.run("calls", (), reads, 0)).replies
            for name, one, two in zip(ids, open_rows, ended_rows, strict=True):
                if (row := one or two) is not None:
                    found[root, name] = decode(row, PendingCall)

        await asyncio.gather(*(read(tag, root, ids) for (tag, root), ids in wanted.items()))
        keys = [(entry.call.root_session_id, entry.call.tool_call_id) for entry in entries]
        missing = [(entry.tag, *key) for entry, key in zip(entries, keys, strict=True) if key not in found]
        await self._space.doubt([("c", *names) for names in missing])
        return [found[key] for key in keys if key in found]


def _waits_for_a_resume(entry: SessionEntry) -> bool:
    session = entry.session
    is_root = session.root_session_id == session.session_id
    return session.status == "active" and is_root and entry.run_status in SUSPENDED
