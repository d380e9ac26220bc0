"""Sessions in Postgres: created, loaded, changed, listed, deleted."""

import contextlib
from collections.abc import Callable, Sequence

from helix_agents.backends.postgres.branches import open_branch
from helix_agents.backends.postgres.checkpoints import write_checkpoint
from helix_agents.backends.postgres.connection import Connection, Value
from helix_agents.backends.postgres.entry_writes import delete_session_entries
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.flags import flag_of
from helix_agents.backends.postgres.lineage import (
    load_custom_state,
    new_segment,
    rebuilt,
    release_segments,
    start_state,
)
from helix_agents.backends.postgres.paging import read_page
from helix_agents.backends.postgres.pending import calls_seen_from
from helix_agents.backends.postgres.rows import (
    SESSION_COLUMNS,
    SessionRow,
    find_session,
    insert_session,
    labels_of,
    load_session,
    lock_tree,
    new_row,
    put,
    save_session,
)
from helix_agents.backends.session_rows import checkpoint_name, record_of, summary_columns, summary_of
from helix_agents.domain.commits import Committed
from helix_agents.domain.door import check_create, check_merge, check_saved
from helix_agents.domain.errors import (
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StaleStateError,
    UnstorableValueError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode
from helix_agents.domain.session_changes import changed, created, saved, with_metadata, with_status
from helix_agents.domain.session_views import assembled
from helix_agents.domain.sessions import (
    BranchPoint,
    CreateSession,
    InterruptContext,
    SessionFilter,
    SessionState,
    SessionStatus,
    SessionSummary,
    StatusChanged,
    StatusConflict,
    StatusOutcome,
)
from helix_agents.domain.writes import Merged, StepWrites, difference, merge_warnings

# A session with everything a reader sees of it, in one statement and so as of one moment.
_WHOLE = f"""
WITH RECURSIVE s AS (
    SELECT * FROM __agents_sessions WHERE namespace = ?1 AND session_id = ?2
), chain AS (
    SELECT g.segment, g.parent, g.state_boundary AS low, s.state_count AS high
    FROM s JOIN __agents_segments g ON g.segment = s.segment
    UNION ALL
    SELECT g.segment, g.parent, g.state_boundary, least(c.low, c.high)
    FROM chain c JOIN __agents_segments g ON g.segment = c.parent WHERE c.low > 0
), newest AS (
    SELECT b.id & 4294967295 AS number, b.base FROM chain c JOIN __agents_state_log b
        ON b.id BETWEEN (c.segment << 32) + c.low + 1 AND (c.segment << 32) + c.high AND b.base IS NOT NULL
    ORDER BY 1 DESC LIMIT 1
)
SELECT {SESSION_COLUMNS}, (SELECT base FROM newest),
    (SELECT array_agg(l.writes ORDER BY l.id & 4294967295) FROM chain c JOIN __agents_state_log l
        ON l.id BETWEEN (c.segment << 32) + greatest(c.low, coalesce((SELECT number FROM newest), 0)) + 1
            AND (c.segment << 32) + c.high),
    CASE WHEN s.root_session_id = s.session_id THEN
        (SELECT array_agg(p.body) FROM __agents_pending_calls p WHERE p.namespace = ?1 AND p.root_session_id = ?2)
    ELSE
        (SELECT array_agg(p.body) FROM __agents_pending_calls p WHERE p.namespace = ?1 AND p.session_id = ?2)
    END,
    (SELECT f.body FROM __agents_interrupt_flags f WHERE f.namespace = ?1 AND f.session_id = ?2)
FROM s
"""


_SUMMARY = summary_columns("detail::json ->> 'held_by'")


class PostgresSessions(Facet):
    """Sessions as a whole."""

    async def create_session(self, session_id: SessionId, options: CreateSession | None = None) -> SessionState:
        given = options or CreateSession()
        check_create(session_id, given)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> SessionState:
            row = await self._insert_session(connection, session_id, given, now)
            return await self._assembled(connection, row)

        return await self._db.write(work)

    async def session_exists(self, session_id: SessionId) -> bool:
        try:
            await self._check_there(session_id)
        except (SessionNotFoundError, UnstorableValueError):
            return False
        return True

    async def find_session(self, session_id: SessionId) -> SessionSummary | None:
        try:
            row = await self._db.one(
                f"SELECT {_SUMMARY} FROM __agents_sessions WHERE namespace = ? AND session_id = ?",
                (self._namespace, session_id),
            )
        except UnstorableValueError:
            return None
        return summary_of(row) if row is not None else None

    async def delete_session(self, session_id: SessionId) -> None:
        async def work(connection: Connection) -> None:
            rows = await lock_tree(connection, self._namespace, session_id)
            if not rows:
                return
            ids = [row.session_id for row in rows]
            streams = [record_of(row).stream_id or row.session_id for row in rows]
            await connection.execute("SELECT __agents_delete_sessions(?, ?, ?)", (self._namespace, ids, streams))
            await release_segments(connection, self._namespace, ids)
            await delete_session_entries(connection, self._namespace, ids)

        with contextlib.suppress(UnstorableValueError):
            # An id that cannot be stored cannot exist, so there is nothing to delete.
            await self._db.write(work)

    async def clone_session(self, source: BranchPoint, session_id: SessionId) -> SessionState:
        return await self.create_session(session_id, CreateSession(branch=source))

    async def load_state(self, session_id: SessionId) -> SessionState:
        found = await self._db.one(_WHOLE, (self._namespace, session_id))
        if found is None:
            raise SessionNotFoundError(session_id)
        *columns, base, writes, calls, flag = found
        row = SessionRow(*columns)
        state = rebuilt([*([("", base)] if base is not None else ()), *((text, None) for text in writes or ())])
        not_lists = frozenset(key for key, value in state.items() if type(value) is not list)
        self._state_writes.remember(session_id, row.version, row.segment, not_lists)
        return assembled(record_of(row), state, (decode(body, PendingCall) for body in calls or ()), flag_of(flag))

    async def save_state(
        self, session_id: SessionId, state: SessionState, *, expected_version: int | None = None
    ) -> Committed:
        check_saved(state)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> Committed:
            row = await load_session(connection, self._namespace, session_id)
            if expected_version is not None and expected_version != row.version:
                raise StaleStateError(session_id, expected_version, row.version)
            before = row.version
            put(row, saved(record_of(row), state, now))
            writes = difference(await load_custom_state(connection, row.segment, row.state_count), state.custom_state)
            if writes:
                await self._state_writes.log(connection, row, writes.ops, version_before=before)
            await write_checkpoint(connection, row, source="save", now=now, has_writes=bool(writes))
            await save_session(connection, row)
            return Committed(
                checkpoint_id=checkpoint_name(row.checkpoint) or "",
                new_version=row.version,
                message_count=row.message_count,
                status=row.status,
            )

        return await self._db.write(work)

    async def merge_custom_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        check_merge(writes)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> Merged:
            row = await load_session(connection, self._namespace, session_id)
            before = row.version
            put(row, changed(record_of(row), now))
            if writes:
                await self._state_writes.log(connection, row, writes.ops, version_before=before)
            await save_session(connection, row)
            return Merged(new_version=row.version, warnings=merge_warnings(writes.ops))

        return await self._db.write(work)

    async def update_status(
        self,
        session_id: SessionId,
        status: SessionStatus,
        *,
        interrupt_context: InterruptContext | None = None,
        error: str | None = None,
        failure_reason: str | None = None,
    ) -> int:
        def change(record: SessionState, now: int) -> SessionState:
            return with_status(
                record,
                status,
                now,
                interrupt_context=interrupt_context,
                error=error,
                failure_reason=failure_reason,
            )

        return (await self._change(session_id, change)).version

    async def compare_and_set_status(
        self,
        session_id: SessionId,
        expected: Sequence[SessionStatus],
        new: SessionStatus,
        *,
        interrupt_context: InterruptContext | None = None,
        error: str | None = None,
        failure_reason: str | None = None,
        expected_version: int | None = None,
    ) -> StatusOutcome:
        now = self._clock.now_ms()

        async def work(connection: Connection) -> StatusOutcome:
            row = await load_session(connection, self._namespace, session_id)
            if row.status not in expected or expected_version not in (None, row.version):
                return StatusConflict(current_status=row.status, current_version=row.version)
            record = with_status(
                record_of(row),
                new,
                now,
                interrupt_context=interrupt_context,
                error=error,
                failure_reason=failure_reason,
            )
            put(row, record)
            await save_session(connection, row)
            return StatusChanged(new_version=row.version)

        return await self._db.write(work)

    async def increment_step_count(self, session_id: SessionId) -> int:
        def change(record: SessionState, now: int) -> SessionState:
            return changed(record, now, step_count=record.step_count + 1)

        return (await self._change(session_id, change)).step_count

    async def increment_resume_count(self, session_id: SessionId) -> int:
        def change(record: SessionState, now: int) -> SessionState:
            return changed(record, now, resume_count=record.resume_count + 1)

        return (await self._change(session_id, change)).resume_count

    async def patch_metadata(self, session_id: SessionId, patch: dict[str, str | None]) -> dict[str, str]:
        def change(record: SessionState, now: int) -> SessionState:
            return with_metadata(record, patch, now)

        return (await self._change(session_id, change)).metadata

    async def list_sessions(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        check_page(offset, limit)
        conditions, values = _conditions(where or SessionFilter())

        return await read_page(
            self._db,
            columns=_SUMMARY,
            source=f"__agents_sessions WHERE namespace = ?{conditions}",
            order="created_at DESC, session_id DESC",
            values=(self._namespace, *values),
            offset=offset,
            limit=limit,
            item=summary_of,
        )

    async def _change(self, session_id: SessionId, change: Callable[[SessionState, int], SessionState]) -> SessionState:
        """Replace the record with a changed one, in one commit."""
        now = self._clock.now_ms()

        async def work(connection: Connection) -> SessionState:
            row = await load_session(connection, self._namespace, session_id)
            before = row.version
            record = change(record_of(row), now)
            put(row, record)
            self._state_writes.keep(row, before, connection)
            await save_session(connection, row)
            return record

        return await self._db.write(work)

    async def _insert_session(
        self, connection: Connection, session_id: SessionId, options: CreateSession, now: int
    ) -> SessionRow:
        """Create a session, new or branched from another; the row is as stored.

        Raises:
            SessionAlreadyExistsError: the id is taken.
        """
        if options.branch is not None:
            if await find_session(connection, self._namespace, session_id, keep=False) is not None:
                raise SessionAlreadyExistsError(session_id)
            row = await open_branch(connection, self._namespace, session_id, options, now)
        else:
            self._state_writes.check_first(session_id, options.custom_state)
            parent = None
            if options.parent_session_id is not None:
                # Locked, so that a concurrent deletion of the parent either includes this child or is complete.
                parent = await find_session(connection, self._namespace, options.parent_session_id)
            record = created(session_id, options, now, parent=record_of(parent) if parent is not None else None)
            row = new_row(self._namespace, record, await new_segment(connection, self._namespace, session_id))
            await start_state(connection, row, options.custom_state)
        await insert_session(connection, row)
        return row

    async def _assembled(self, connection: Connection, row: SessionRow) -> SessionState:
        """A session created in this transaction, as a reader sees it; calls may already be pending at its root."""
        state = await load_custom_state(connection, row.segment, row.state_count)
        return assembled(record_of(row), state, await calls_seen_from(connection, row), None)


def _conditions(where: SessionFilter) -> tuple[str, list[Value]]:
    """The filter as SQL; every value is bound, and none becomes part of the statement's text."""
    conditions: list[str] = []
    values: list[Value] = []
    for column, value in (
        ("user_id =", where.user_id),
        ("agent_type =", where.agent_type),
        ("parent_session_id =", where.parent_session_id),
        ("root_session_id =", where.root_session_id),
        ("created_at >=", where.created_from),
        ("created_at <=", where.created_to),
        ("expires_at <", where.expires_before),
    ):
        if value is not None:
            conditions.append(f"{column} ?")
            values.append(value)
    if where.roots_only:
        conditions.append("parent_session_id IS NULL")
    if where.statuses:
        conditions.append("status = ANY(?)")
        values.append(where.statuses)
    if labels := labels_of(where.tags, where.metadata):
        conditions.append("labels @> ?")
        values.append(labels)
    return "".join(f" AND {condition}" for condition in conditions), values
