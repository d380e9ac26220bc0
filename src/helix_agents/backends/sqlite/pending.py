"""Pending calls in SQLite: one row per call, found by its root or by its owner."""

from collections.abc import Callable, Iterable, Iterator

from helix_agents.backends.filters import pending_conditions
from helix_agents.backends.session_rows import record_of
from helix_agents.backends.sqlite.connection import Connection, Row
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.rows import SessionHead, children_of, find_run, find_session
from helix_agents.domain.commits import is_detached
from helix_agents.domain.door import check_answer
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.pending import (
    READY,
    AnswerAccepted,
    AnswerOutcome,
    PendingCall,
    PendingFilter,
    SubmitAnswer,
    accepted,
    answer,
    ask,
    expire,
)
from helix_agents.domain.records import decode, encode

_DUE = "namespace = ? AND state = 'waiting' AND deadline IS NOT NULL AND deadline <= ?"


def call_of(row: Row) -> PendingCall:
    """A call's record, from its `body`."""
    return decode(row[0], PendingCall)


def save_call(connection: Connection, namespace: str, call: PendingCall) -> None:
    """Store a call in its present form."""
    ready_at = None
    if call.state in READY:
        ready_at = call.answered_at if call.state == "answered" else call.expired_at
    connection.execute(
        "INSERT INTO __agents_pending_calls (namespace, root_session_id, tool_call_id, session_id, kind, tool_name,"
        " state, created_at, deadline, ready_at, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, root_session_id, tool_call_id) DO UPDATE SET session_id = excluded.session_id,"
        " kind = excluded.kind, tool_name = excluded.tool_name, state = excluded.state,"
        " created_at = excluded.created_at, deadline = excluded.deadline, ready_at = excluded.ready_at,"
        " body = excluded.body",
        (
            namespace,
            call.root_session_id,
            call.tool_call_id,
            call.session_id,
            call.kind,
            call.tool_name,
            call.state,
            call.created_at,
            call.deadline,
            ready_at,
            encode(call).decode(),
        ),
    )


def find_call(connection: Connection, namespace: str, session_id: SessionId, call_id: ToolCallId) -> PendingCall | None:
    """The call, looked up by its root or its owner."""
    row = connection.one(
        "SELECT body FROM __agents_pending_calls WHERE namespace = ? AND root_session_id = ? AND tool_call_id = ?",
        (namespace, session_id, call_id),
    ) or connection.one(
        "SELECT body FROM __agents_pending_calls WHERE namespace = ? AND session_id = ? AND tool_call_id = ?",
        (namespace, session_id, call_id),
    )
    return call_of(row) if row is not None else None


def calls_seen_from(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """For a root, the calls of its whole tree; for a child, the calls it owns."""
    column = "root_session_id" if row.root_session_id == row.session_id else "session_id"
    rows = connection.all(
        f"SELECT body FROM __agents_pending_calls WHERE namespace = ? AND {column} = ?", (row.namespace, row.session_id)
    )
    return [call_of(found) for found in rows]


def calls_below(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """The calls of a session and of every session below it, oldest first."""
    if row.root_session_id == row.session_id:
        calls = calls_seen_from(connection, row)
    else:
        calls = [
            call_of(found)
            for owner in (row.session_id, *children_of(connection, row.namespace, row.session_id))
            for found in connection.all(
                "SELECT body FROM __agents_pending_calls WHERE namespace = ? AND session_id = ?", (row.namespace, owner)
            )
        ]
    return sorted(calls, key=lambda call: (call.created_at, call.tool_call_id))


def driver_of(connection: Connection, namespace: str, session_id: SessionId, root: SessionId) -> SessionId:
    """The session whose run drives this one: the nearest detached companion, itself or above, or else the root."""
    member: SessionId | None = session_id
    seen = {root}
    while member is not None and member not in seen:
        seen.add(member)
        row = find_session(connection, namespace, member)
        if row is None:
            break
        run = find_run(connection, namespace, row.run_id) if row.run_id is not None else None
        if is_detached(record_of(row), run):
            return member
        member = row.parent_session_id
    return root


def driven_calls(connection: Connection, row: SessionHead) -> Iterator[PendingCall]:
    """The calls of a session and below it, except those of companions that are driven on their own."""
    root = row.root_session_id
    driver = driver_of(connection, row.namespace, row.session_id, root)
    for call in calls_below(connection, row):
        if driver_of(connection, row.namespace, call.session_id, root) == driver:
            yield call


def own_calls(connection: Connection, row: SessionHead) -> list[PendingCall]:
    """The calls a session itself made."""
    return [call for call in calls_below(connection, row) if call.session_id == row.session_id]


def ask_calls(connection: Connection, namespace: str, calls: Iterable[PendingCall]) -> None:
    """Make calls wait; a call that waits already is unchanged."""
    for call in calls:
        existing = find_call(connection, namespace, call.root_session_id, call.tool_call_id)
        asked = ask(existing, call)
        if asked is not None:
            save_call(connection, namespace, asked)


def change_calls(
    connection: Connection,
    namespace: str,
    calls: Iterable[PendingCall],
    change: Callable[[PendingCall], PendingCall | None],
) -> list[PendingCall]:
    """Store every call that the change applies to, and return them."""
    done: list[PendingCall] = []
    for call in calls:
        new = change(call)
        if new is not None:
            save_call(connection, namespace, new)
            done.append(new)
    return done


class SQLitePending(Facet):
    """Calls that wait for an answer."""

    async def submit_answer(self, submission: SubmitAnswer) -> AnswerOutcome:
        check_answer(submission)
        now = self._clock.now_ms()

        def work(connection: Connection) -> AnswerOutcome:
            call = find_call(connection, self._namespace, submission.session_id, submission.tool_call_id)
            stored, rejected = answer(call, submission, now)
            if stored is not None:
                save_call(connection, self._namespace, stored)
            if rejected is not None:
                return rejected
            assert stored is not None
            if submission.expires_at is not None:
                connection.execute(
                    "UPDATE __agents_sessions SET expires_at = ? WHERE namespace = ? AND session_id = ?",
                    (submission.expires_at, self._namespace, stored.root_session_id),
                )
            return self._accepted(connection, stored)

        return await self._db.write(work)

    async def get_pending_call(self, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
        def work(connection: Connection) -> PendingCall | None:
            return find_call(connection, self._namespace, session_id, tool_call_id)

        return await self._db.read_by_key(work)

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        check_page(offset, limit)
        conditions, values = pending_conditions(self._namespace, where or PendingFilter())

        def work(connection: Connection) -> Page[PendingCall]:
            return read_page(
                connection,
                columns="body",
                source=f"__agents_pending_calls p WHERE p.namespace = ?{conditions}",
                order="created_at DESC, tool_call_id DESC, root_session_id DESC",
                values=(self._namespace, *values),
                offset=offset,
                limit=limit,
                item=call_of,
            )

        return await self._db.read(work)

    async def find_expired_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        now = self._clock.now_ms()

        def work(connection: Connection) -> tuple[PendingCall, ...]:
            return tuple(self._due(connection, session_id, limit, now))

        return await self._db.read(work)

    async def expire_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        check_page(0, limit)
        now = self._clock.now_ms()

        def work(connection: Connection) -> tuple[PendingCall, ...]:
            due = self._due(connection, session_id, limit, now)
            return tuple(change_calls(connection, self._namespace, due, lambda call: expire(call, now)))

        return await self._db.write(work)

    async def list_unresumed(
        self, grace_ms: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[SessionId, ...]:
        check_page(offset, limit)
        latest = self._clock.now_ms() - grace_ms

        def work(connection: Connection) -> tuple[SessionId, ...]:
            rows = connection.all(
                "SELECT s.session_id FROM __agents_pending_calls p"
                " JOIN __agents_sessions s ON s.namespace = p.namespace AND s.session_id = p.root_session_id"
                " JOIN __agents_runs r ON r.namespace = s.namespace AND r.run_id = s.run_id"
                " WHERE p.namespace = ? AND p.ready_at IS NOT NULL AND p.ready_at <= ?"
                " AND s.status = 'active' AND r.status LIKE 'suspended%'"
                " GROUP BY s.session_id ORDER BY min(p.ready_at), s.session_id LIMIT ? OFFSET ?",
                (self._namespace, latest, limit, offset),
            )
            return tuple(row[0] for row in rows)

        return await self._db.read(work)

    def _accepted(self, connection: Connection, call: PendingCall) -> AnswerAccepted:
        driver = driver_of(connection, self._namespace, call.session_id, call.root_session_id)
        driving = find_session(connection, self._namespace, driver)
        waiting = connection.one(
            "SELECT count(*) FROM __agents_pending_calls"
            " WHERE namespace = ? AND root_session_id = ? AND state = 'waiting'",
            (self._namespace, call.root_session_id),
        )
        assert waiting is not None
        return accepted(call, running=driving is not None and bool(driving.running), still_waiting=waiting[0])

    def _due(self, connection: Connection, root: SessionId | None, limit: int, now: int) -> list[PendingCall]:
        tree = "" if root is None else " AND root_session_id = ?"
        rows = connection.all(
            f"SELECT body FROM __agents_pending_calls WHERE {_DUE}{tree}"
            " ORDER BY deadline, tool_call_id, root_session_id LIMIT ?",
            (self._namespace, now, *(() if root is None else (root,)), limit),
        )
        return [call_of(row) for row in rows]
