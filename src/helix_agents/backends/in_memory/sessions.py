"""Sessions as a whole: created, loaded, changed, listed, deleted."""

from collections.abc import Sequence
from dataclasses import replace

from helix_agents.backends.in_memory.creation import create
from helix_agents.backends.in_memory.deletion import delete_tree
from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.history import with_checkpoint, with_state
from helix_agents.backends.in_memory.rows import session_row
from helix_agents.backends.in_memory.tables import SessionRow, Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.commits import Committed
from helix_agents.domain.errors import StaleStateError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.session_changes import changed, savable, saved, with_metadata, with_status
from helix_agents.domain.session_views import assembled, matches, summary
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


def store(tx: Transaction, row: SessionRow) -> None:
    """Replace a session's stored row with its new one."""
    tx.put(tx.tables.sessions, row.record.session_id, row)


def check_version(row: SessionRow, expected: int | None) -> None:
    """Accept a caller that expects the stored version, or none in particular.

    Raises:
        StaleStateError: the caller expects another version.
    """
    if expected is not None and expected != row.record.version:
        raise StaleStateError(row.record.session_id, expected, row.record.version)


def committed(row: SessionRow) -> Committed:
    """The answer to a commit that left the session in this state, with its checkpoint just written."""
    return Committed(
        checkpoint_id=row.record.checkpoint_id or "",
        new_version=row.record.version,
        message_count=row.record.message_count,
        status=row.record.status,
    )


def whole(tables: Tables, session_id: SessionId) -> SessionState:
    """The session, including the rows that other operations write.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    row = session_row(tables, session_id)
    root = row.record.root_session_id
    calls = tables.pending.get(root, {}).values()
    mine = (call for call in calls if root == session_id or call.session_id == session_id)
    return assembled(row.record, row.custom_state, mine, tables.flags.get(session_id))


class InMemorySessions(Handle):
    """The facet `Sessions`."""

    async def create_session(self, session_id: SessionId, options: CreateSession | None = None) -> SessionState:
        return await self._create("create_session", session_id, options or CreateSession())

    async def session_exists(self, session_id: SessionId) -> bool:
        with self._reading() as tables:
            return session_id in tables.sessions

    async def find_session(self, session_id: SessionId) -> SessionSummary | None:
        with self._reading() as tables:
            row = tables.sessions.get(session_id)
        return own(summary(row.record)) if row is not None else None

    async def delete_session(self, session_id: SessionId) -> None:
        async with self._writing("delete_session") as tx:
            delete_tree(tx, self.memory, self.namespace, session_id)

    async def clone_session(self, source: BranchPoint, session_id: SessionId) -> SessionState:
        return await self._create("clone_session", session_id, CreateSession(branch=source))

    async def load_state(self, session_id: SessionId) -> SessionState:
        with self._reading() as tables:
            state = whole(tables, session_id)
        return own(state)

    async def save_state(
        self, session_id: SessionId, state: SessionState, *, expected_version: int | None = None
    ) -> Committed:
        door.check_saved(state)
        state = own(savable(state))
        async with self._writing("save_state") as tx:
            row = session_row(tx.tables, session_id)
            check_version(row, expected_version)
            ops = difference(row.custom_state, state.custom_state).ops
            row = replace(row, record=saved(row.record, state, tx.now))
            row = with_checkpoint(tx, with_state(tx, row, ops), "save", ops=ops)
            store(tx, row)
        return committed(row)

    async def merge_custom_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        door.check_merge(writes)
        writes = own(writes)
        async with self._writing("merge_custom_state") as tx:
            row = session_row(tx.tables, session_id)
            row = with_state(tx, replace(row, record=changed(row.record, tx.now)), writes.ops)
            store(tx, row)
        return Merged(new_version=row.record.version, warnings=merge_warnings(writes.ops))

    async def update_status(
        self,
        session_id: SessionId,
        status: SessionStatus,
        *,
        interrupt_context: InterruptContext | None = None,
        error: str | None = None,
        failure_reason: str | None = None,
    ) -> int:
        context = own(interrupt_context) if interrupt_context else None
        async with self._writing("update_status") as tx:
            row = session_row(tx.tables, session_id)
            record = with_status(
                row.record, status, tx.now, interrupt_context=context, error=error, failure_reason=failure_reason
            )
            store(tx, replace(row, record=record))
        return record.version

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
        context = own(interrupt_context) if interrupt_context else None
        async with self._writing("compare_and_set_status") as tx:
            row = session_row(tx.tables, session_id)
            status, version = row.record.status, row.record.version
            if status not in expected or expected_version not in (None, version):
                return StatusConflict(current_status=status, current_version=version)
            record = with_status(
                row.record, new, tx.now, interrupt_context=context, error=error, failure_reason=failure_reason
            )
            store(tx, replace(row, record=record))
        return StatusChanged(new_version=record.version)

    async def increment_step_count(self, session_id: SessionId) -> int:
        async with self._writing("increment_step_count") as tx:
            row = session_row(tx.tables, session_id)
            record = changed(row.record, tx.now, step_count=row.record.step_count + 1)
            store(tx, replace(row, record=record))
        return record.step_count

    async def increment_resume_count(self, session_id: SessionId) -> int:
        async with self._writing("increment_resume_count") as tx:
            row = session_row(tx.tables, session_id)
            record = changed(row.record, tx.now, resume_count=row.record.resume_count + 1)
            store(tx, replace(row, record=record))
        return record.resume_count

    async def patch_metadata(self, session_id: SessionId, patch: dict[str, str | None]) -> dict[str, str]:
        async with self._writing("patch_metadata") as tx:
            row = session_row(tx.tables, session_id)
            record = with_metadata(row.record, patch, tx.now)
            store(tx, replace(row, record=record))
        return dict(record.metadata)

    async def list_sessions(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        check_page(offset, limit)
        if where is not None:
            door.check_numbers(where)
        asked = where or SessionFilter()
        with self._reading() as tables:
            found = [row.record for row in tables.sessions.values() if matches(row.record, asked)]
        found.sort(key=lambda record: (record.created_at, record.session_id), reverse=True)
        return page_of(found, offset, limit, lambda record: own(summary(record)))

    async def _create(self, operation: str, session_id: SessionId, options: CreateSession) -> SessionState:
        door.check_create(session_id, options)
        options = own(options)
        async with self._writing(operation) as tx:
            store(tx, create(tx, session_id, options))
            state = whole(tx.tables, session_id)
        return own(state)
