"""Sessions in SQLite: created, loaded, changed, listed, deleted."""

import contextlib
from collections.abc import Callable, Sequence

from helix_agents.backends.session_rows import checkpoint_name, put_record, record_of, summary_columns, summary_of
from helix_agents.backends.sqlite.branches import open_branch
from helix_agents.backends.sqlite.checkpoints import write_checkpoint
from helix_agents.backends.sqlite.connection import Connection, Value
from helix_agents.backends.sqlite.entry_rows import delete_session_entries
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.flags import read_flag
from helix_agents.backends.sqlite.lineage import load_custom_state, new_segment, release_segments, start_state
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.pending import calls_seen_from
from helix_agents.backends.sqlite.rows import (
    SessionRow,
    children_of,
    find_session,
    insert_session,
    load_session,
    new_row,
    save_session,
)
from helix_agents.backends.sqlite.stream_rows import delete_stream_rows
from helix_agents.domain.commits import Committed
from helix_agents.domain.door import check_create, check_merge, check_saved
from helix_agents.domain.errors import SessionAlreadyExistsError, StaleStateError, UnstorableValueError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import encode
from helix_agents.domain.session_changes import changed, created, saved, with_metadata, with_status
from helix_agents.domain.session_views import assembled
from helix_agents.domain.sessions import (
    MARKS,
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

_OWNED_TABLES = (
    "__agents_runs",
    "__agents_staging",
    "__agents_sub_session_refs",
    "__agents_interrupt_flags",
    "__agents_pending_calls",
    "__agents_effects",
    "__agents_queued_turns",
    "__agents_taken_turns",
    "__agents_usage_entries",
)


def check_new(connection: Connection, namespace: str, session_id: SessionId) -> None:
    """Refuse an id that is taken.

    Raises:
        SessionAlreadyExistsError: the id is taken.
    """
    if connection.one(
        "SELECT 1 FROM __agents_sessions WHERE namespace = ? AND session_id = ?", (namespace, session_id)
    ):
        raise SessionAlreadyExistsError(session_id)


_SUMMARY = summary_columns("detail ->> 'held_by'")


class SQLiteSessions(Facet):
    """Sessions as a whole."""

    async def create_session(self, session_id: SessionId, options: CreateSession | None = None) -> SessionState:
        given = options or CreateSession()
        check_create(session_id, given)
        now = self._clock.now_ms()

        def work(connection: Connection) -> SessionState:
            row = self._insert_session(connection, session_id, given, now)
            return self._assembled(connection, row)

        return await self._db.write(work)

    async def session_exists(self, session_id: SessionId) -> bool:
        def work(connection: Connection) -> bool:
            return find_session(connection, self._namespace, session_id) is not None

        try:
            return await self._db.read_by_key(work)
        except UnstorableValueError:
            return False

    async def find_session(self, session_id: SessionId) -> SessionSummary | None:
        try:
            row = await self._db.look_up(
                f"SELECT {_SUMMARY} FROM __agents_sessions WHERE namespace = ? AND session_id = ?",
                (self._namespace, session_id),
            )
        except UnstorableValueError:
            return None
        return summary_of(row) if row is not None else None

    async def delete_session(self, session_id: SessionId) -> None:
        def work(connection: Connection) -> None:
            tree = [session_id, *children_of(connection, self._namespace, session_id)]
            for gone in reversed(tree):
                row = find_session(connection, self._namespace, gone)
                if row is not None:
                    self._delete_row(connection, row)

        with contextlib.suppress(UnstorableValueError):
            # An id that cannot be stored cannot exist, so there is nothing to delete.
            await self._db.write(work)

    async def clone_session(self, source: BranchPoint, session_id: SessionId) -> SessionState:
        return await self.create_session(session_id, CreateSession(branch=source))

    async def load_state(self, session_id: SessionId) -> SessionState:
        def work(connection: Connection) -> SessionState:
            return self._assembled(connection, load_session(connection, self._namespace, session_id))

        return await self._db.read_by_key(work)

    async def save_state(
        self, session_id: SessionId, state: SessionState, *, expected_version: int | None = None
    ) -> Committed:
        check_saved(state)
        now = self._clock.now_ms()

        def work(connection: Connection) -> Committed:
            row = load_session(connection, self._namespace, session_id)
            if expected_version is not None and expected_version != row.version:
                raise StaleStateError(session_id, expected_version, row.version)
            before = row.version
            put_record(row, saved(record_of(row), state, now))
            writes = difference(load_custom_state(connection, row.segment, row.state_count), state.custom_state)
            if writes:
                self._state_writes.log(connection, row, writes.ops, version_before=before)
            write_checkpoint(connection, row, source="save", now=now, has_writes=bool(writes))
            save_session(connection, row)
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

        def work(connection: Connection) -> Merged:
            row = load_session(connection, self._namespace, session_id)
            before = row.version
            put_record(row, changed(record_of(row), now))
            if writes:
                self._state_writes.log(connection, row, writes.ops, version_before=before)
            save_session(connection, row)
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

        def work(connection: Connection) -> StatusOutcome:
            row = load_session(connection, self._namespace, session_id)
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
            put_record(row, record)
            save_session(connection, row)
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
        asked = where or SessionFilter()
        conditions, values = _conditions(asked)
        # Left to itself, SQLite prefers to scan all sessions in the requested order.
        by = " INDEXED BY __agents_sessions_expiring" if asked.expires_before is not None else ""

        def work(connection: Connection) -> Page[SessionSummary]:
            return read_page(
                connection,
                columns=_SUMMARY,
                source=f"__agents_sessions{by} WHERE namespace = ?{conditions}",
                order="created_at DESC, session_id DESC",
                values=(self._namespace, *values),
                offset=offset,
                limit=limit,
                item=summary_of,
            )

        return await self._db.read(work)

    async def _change(self, session_id: SessionId, change: Callable[[SessionState, int], SessionState]) -> SessionState:
        """Replace the record with a changed one, in one commit."""
        now = self._clock.now_ms()

        def work(connection: Connection) -> SessionState:
            row = load_session(connection, self._namespace, session_id)
            before = row.version
            record = change(record_of(row), now)
            put_record(row, record)
            self._state_writes.keep(row, before)
            save_session(connection, row)
            return record

        return await self._db.write(work)

    def _insert_session(
        self, connection: Connection, session_id: SessionId, options: CreateSession, now: int
    ) -> SessionRow:
        """Create a session, new or branched from another; the row is as stored."""
        check_new(connection, self._namespace, session_id)
        if options.branch is not None:
            row = open_branch(connection, self._namespace, session_id, options, now)
        else:
            self._state_writes.check_first(session_id, options.custom_state)
            parent = (
                find_session(connection, self._namespace, options.parent_session_id)
                if options.parent_session_id is not None
                else None
            )
            record = created(session_id, options, now, parent=record_of(parent) if parent is not None else None)
            row = new_row(self._namespace, record, new_segment(connection, self._namespace, session_id))
            start_state(connection, row, options.custom_state)
        insert_session(connection, row)
        row.key = connection.raw.last_insert_rowid()
        return row

    def _assembled(self, connection: Connection, row: SessionRow) -> SessionState:
        """The session as a reader sees it."""
        return assembled(
            record_of(row),
            load_custom_state(connection, row.segment, row.state_count),
            calls_seen_from(connection, row),
            read_flag(connection, self._namespace, row.session_id),
        )

    def _delete_row(self, connection: Connection, row: SessionRow) -> None:
        stream_id = record_of(row).stream_id or row.session_id
        delete_stream_rows(connection, self._namespace, stream_id)
        for table in _OWNED_TABLES:
            connection.execute(
                f"DELETE FROM {table} WHERE namespace = ? AND session_id = ?", (self._namespace, row.session_id)
            )
        delete_session_entries(connection, self._namespace, row.session_id)
        connection.execute("DELETE FROM __agents_sessions WHERE key = ?", (row.key,))
        release_segments(connection, self._namespace, row.session_id)


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
        conditions.append(f"status IN ({', '.join('?' * len(where.statuses))})")
        values.extend(where.statuses)
    # One condition for all of them, because an expression with a thousand parts is too deep for SQLite.
    if where.tags:
        conditions.append(
            "NOT EXISTS (SELECT 1 FROM json_each(?) AS asked WHERE NOT EXISTS"
            " (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = asked.value))"
        )
        values.append(encode(where.tags).decode())
    for key in MARKS:
        if key in where.metadata:
            # Written exactly as in the index, or SQLite would not use it.
            conditions.append(f"json_extract(metadata, '$.\"{key}\"') = ?")
            values.append(where.metadata[key])
    if others := {key: text for key, text in where.metadata.items() if key not in MARKS}:
        conditions.append(
            "NOT EXISTS (SELECT 1 FROM json_each(?) AS asked WHERE NOT EXISTS"
            " (SELECT 1 FROM json_each(metadata) AS entry WHERE entry.key = asked.key AND entry.value = asked.value))"
        )
        values.append(encode(others).decode())
    return "".join(f" AND {condition}" for condition in conditions), values
