"""Pending calls in Postgres: one row per call, found by its root or by its owner."""

from collections.abc import Callable, Iterable, Sequence

from helix_agents.backends.filters import pending_conditions
from helix_agents.backends.postgres.connection import Connection, Row, Value, askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.paging import read_page
from helix_agents.backends.postgres.rows import SessionHead, children_of, find_run, find_session, lock_tree_of
from helix_agents.backends.session_rows import record_of
from helix_agents.domain.commits import is_detached
from helix_agents.domain.door import check_answer
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.pending import (
    AnswerAccepted,
    AnswerOutcome,
    PendingCall,
    PendingFilter,
    SubmitAnswer,
    accepted,
    answer,
    ask,
    expire,
    ready_since,
)
from helix_agents.domain.records import decode, encode

_NAMED = (
    "SELECT body FROM __agents_pending_calls"
    " WHERE namespace = ?1 AND (root_session_id = ?2 OR session_id = ?2) AND tool_call_id = ANY(?3)"
)
_SAVE = (
    "INSERT INTO __agents_pending_calls (namespace, root_session_id, tool_call_id, session_id, kind, tool_name,"
    " state, created_at, deadline, ready_at, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (namespace, root_session_id, tool_call_id) DO UPDATE SET session_id = excluded.session_id,"
    " kind = excluded.kind, tool_name = excluded.tool_name, state = excluded.state,"
    " created_at = excluded.created_at, deadline = excluded.deadline, ready_at = excluded.ready_at,"
    " body = excluded.body"
)
_DUE = "namespace = ? AND state = 'waiting' AND deadline IS NOT NULL AND deadline <= ?"


def call_of(row: Row) -> PendingCall:
    """A call's record, from its `body`."""
    return decode(row[0], PendingCall)


async def save_calls(connection: Connection, namespace: str, calls: Sequence[PendingCall]) -> None:
    """Store calls in their present form."""
    if calls:
        await connection.execute_many(_SAVE, [_columns(namespace, call) for call in calls])


def _columns(namespace: str, call: PendingCall) -> tuple[Value, ...]:
    return (
        namespace,
        call.root_session_id,
        call.tool_call_id,
        call.session_id,
        call.kind,
        call.tool_name,
        call.state,
        call.created_at,
        call.deadline,
        ready_since(call),
        encode(call).decode(),
    )


async def find_calls(
    connection: Connection, namespace: str, session_id: SessionId, call_ids: Sequence[ToolCallId], *, keep: bool = True
) -> dict[ToolCallId, PendingCall]:
    """Calls by id, looked up by their root or their owner; a writing transaction locks them unless `keep` is false."""
    lock = connection.lock if keep else ""
    rows = await connection.all(f"{_NAMED}{lock}", askable(namespace, session_id, call_ids))
    calls = sorted(map(call_of, rows), key=lambda call: call.root_session_id == session_id)
    return {call.tool_call_id: call for call in calls}


async def find_call(
    connection: Connection, namespace: str, session_id: SessionId, call_id: ToolCallId
) -> PendingCall | None:
    """One call, looked up by its root or its owner."""
    return (await find_calls(connection, namespace, session_id, (call_id,))).get(call_id)


async def calls_seen_from(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """For a root, the calls of its whole tree; for a child, the calls it owns."""
    column = "root_session_id" if row.root_session_id == row.session_id else "session_id"
    rows = await connection.all(
        f"SELECT body FROM __agents_pending_calls WHERE namespace = ? AND {column} = ?{connection.lock}",
        (row.namespace, row.session_id),
    )
    return [call_of(found) for found in rows]


async def calls_below(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """The calls of a session and of every session below it, oldest first."""
    if row.root_session_id == row.session_id:
        calls = await calls_seen_from(connection, row)
    else:
        owners = [row.session_id, *await children_of(connection, row.namespace, row.session_id)]
        found = await connection.all(
            f"SELECT body FROM __agents_pending_calls WHERE namespace = ? AND session_id = ANY(?){connection.lock}",
            (row.namespace, owners),
        )
        calls = list(map(call_of, found))
    return sorted(calls, key=lambda call: (call.created_at, call.tool_call_id))


async def driver_of(connection: Connection, namespace: str, session_id: SessionId, root: SessionId) -> SessionId:
    """The session whose run drives this one: the nearest detached companion, itself or above, or else the root."""
    member: SessionId | None = session_id
    seen = {root}
    while member is not None and member not in seen:
        seen.add(member)
        row = await find_session(connection, namespace, member, keep=False)
        if row is None:
            break
        run = await find_run(connection, namespace, row.run_id) if row.run_id is not None else None
        if is_detached(record_of(row), run):
            return member
        member = row.parent_session_id
    return root


async def driven_calls(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """The calls of a session and below it, except those of companions that are driven on their own."""
    root = row.root_session_id
    driver = await driver_of(connection, row.namespace, row.session_id, root)
    drivers: dict[SessionId, SessionId] = {}
    calls = await calls_below(connection, row)
    for owner in {call.session_id for call in calls}:
        drivers[owner] = await driver_of(connection, row.namespace, owner, root)
    return [call for call in calls if drivers[call.session_id] == driver]


async def own_calls(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """The calls a session itself made."""
    return [call for call in await calls_below(connection, row) if call.session_id == row.session_id]


async def ask_calls(connection: Connection, row: SessionHead, calls: Sequence[PendingCall]) -> None:
    """Make calls wait; a call that waits already is unchanged."""
    for root in {call.root_session_id for call in calls}:
        here = [call for call in calls if call.root_session_id == root]
        existing = await find_calls(connection, row.namespace, root, [call.tool_call_id for call in here])
        asked = (ask(existing.get(call.tool_call_id), call) for call in here)
        await save_calls(connection, row.namespace, [call for call in asked if call is not None])


async def change_calls(
    connection: Connection,
    namespace: str,
    calls: Iterable[PendingCall],
    change: Callable[[PendingCall], PendingCall | None],
) -> list[PendingCall]:
    """Store every call that the change applies to, and return them."""
    done = [new for new in map(change, calls) if new is not None]
    await save_calls(connection, namespace, done)
    return done


class PostgresPending(Facet):
    """Calls that wait for an answer."""

    async def submit_answer(self, submission: SubmitAnswer) -> AnswerOutcome:
        check_answer(submission)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> AnswerOutcome:
            await self._lock_tree_of(connection, submission)
            call = await find_call(connection, self._namespace, submission.session_id, submission.tool_call_id)
            stored, rejected = answer(call, submission, now)
            if stored is not None:
                await save_calls(connection, self._namespace, (stored,))
            if rejected is not None:
                return rejected
            assert stored is not None
            if submission.expires_at is not None:
                await connection.execute(
                    "UPDATE __agents_sessions SET expires_at = ? WHERE namespace = ? AND session_id = ?",
                    (submission.expires_at, self._namespace, stored.root_session_id),
                )
            return await self._accepted(connection, stored)

        return await self._db.write(work)

    async def get_pending_call(self, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
        rows = await self._db.all(_NAMED, (self._namespace, session_id, (tool_call_id,)))
        calls = sorted(map(call_of, rows), key=lambda call: call.root_session_id != session_id)
        return calls[0] if calls else None

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        check_page(offset, limit)
        conditions, values = pending_conditions(self._namespace, where or PendingFilter())
        return await read_page(
            self._db,
            columns="body",
            source=f"__agents_pending_calls p WHERE p.namespace = ?{conditions}",
            order="created_at DESC, tool_call_id DESC, root_session_id DESC",
            values=(self._namespace, *values),
            offset=offset,
            limit=limit,
            item=call_of,
        )

    async def find_expired_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        statement, values = self._due(session_id, limit, self._clock.now_ms())
        return tuple(map(call_of, await self._db.all(statement, values)))

    async def expire_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        now = self._clock.now_ms()
        statement, values = self._due(session_id, limit, now)

        async def work(connection: Connection) -> tuple[PendingCall, ...]:
            # A call locked by another transaction is being answered, given up or expired there.
            due = map(call_of, await connection.all(f"{statement} FOR UPDATE SKIP LOCKED", askable(*values)))
            return tuple(await change_calls(connection, self._namespace, due, lambda call: expire(call, now)))

        return await self._db.write(work)

    async def list_unresumed(
        self, grace_ms: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        rows = await self._db.all(
            "SELECT s.session_id FROM __agents_pending_calls p"
            " JOIN __agents_sessions s ON s.namespace = p.namespace AND s.session_id = p.root_session_id"
            " JOIN __agents_runs r ON r.namespace = s.namespace AND r.run_id = s.run_id"
            " WHERE p.namespace = ? AND p.ready_at IS NOT NULL AND p.ready_at <= ?"
            " AND s.status = 'active' AND r.status LIKE 'suspended%'"
            " GROUP BY s.session_id ORDER BY min(p.ready_at), s.session_id LIMIT ? OFFSET ?",
            (self._namespace, self._clock.now_ms() - grace_ms, limit, offset),
        )
        return tuple(row[0] for row in rows)

    async def _lock_tree_of(self, connection: Connection, submission: SubmitAnswer) -> None:
        """Lock the tree, so that the run that may wait for this answer cannot suspend without seeing it."""
        asked = askable(self._namespace, submission.session_id, (submission.tool_call_id,))
        found = await connection.one(_NAMED, asked)
        if found is not None:
            await lock_tree_of(connection, self._namespace, call_of(found).root_session_id)

    async def _accepted(self, connection: Connection, call: PendingCall) -> AnswerAccepted:
        driver = await driver_of(connection, self._namespace, call.session_id, call.root_session_id)
        driving = await find_session(connection, self._namespace, driver, keep=False)
        waiting = await connection.one(
            "SELECT count(*) FROM __agents_pending_calls"
            " WHERE namespace = ? AND root_session_id = ? AND state = 'waiting'",
            (self._namespace, call.root_session_id),
        )
        assert waiting is not None
        return accepted(call, running=driving is not None and driving.running, still_waiting=waiting[0])

    def _due(self, root: SessionId | None, limit: int, now: int) -> tuple[str, tuple[Value, ...]]:
        """The statement that finds overdue calls, and its values."""
        tree = "" if root is None else " AND root_session_id = ?"
        statement = (
            f"SELECT body FROM __agents_pending_calls WHERE {_DUE}{tree}"
            " ORDER BY deadline, tool_call_id, root_session_id LIMIT ?"
        )
        return statement, (self._namespace, now, *(() if root is None else (root,)), limit)
