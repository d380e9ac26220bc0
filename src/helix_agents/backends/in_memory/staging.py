"""Results kept between their effect and the step's commit."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.history import with_checkpoint, with_state
from helix_agents.backends.in_memory.rows import current_run, is_running, session_row
from helix_agents.backends.in_memory.sessions import committed
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, has_open_step
from helix_agents.domain.ids import SessionId, StepId
from helix_agents.domain.limits import check_size
from helix_agents.domain.records import encode
from helix_agents.domain.runs import Fence, check_fence
from helix_agents.domain.session_changes import changed
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.writes import WriteOp, merge_warnings


def stage(tx: Transaction, session_id: SessionId, changes: Iterable[StagedChange]) -> None:
    """Upsert changes by step and call.

    Raises:
        StateSizeExceededError: a change is larger than the store accepts.
    """
    for change in changes:
        check_size(session_id, "stage", len(encode(change)), tx.limits.staged_write_bytes)
        stamped = msgspec.structs.replace(change, staged_at=tx.now)
        tx.put(tx.within(tx.tables.staged, session_id), (change.step_id, change.tool_call_id), stamped)


def staged_for(tables: Tables, session_id: SessionId, step_id: StepId | None) -> list[StagedChange]:
    """The changes staged for one step, or for any, in call order."""
    rows = tables.staged.get(session_id, {}).values()
    found = [row for row in rows if step_id is None or row.step_id == step_id]
    return sorted(found, key=lambda row: (row.index, row.tool_call_id))


def discard(tx: Transaction, session_id: SessionId, changes: Iterable[StagedChange]) -> None:
    """Remove staged changes."""
    rows = tx.tables.staged.get(session_id, {})
    for change in changes:
        tx.remove(rows, (change.step_id, change.tool_call_id))


def promote(tx: Transaction, session_id: SessionId, step_id: StepId) -> tuple[WriteOp, ...]:
    """The state writes staged for a step, in call order; afterwards they are no longer staged."""
    changes = staged_for(tx.tables, session_id, step_id)
    discard(tx, session_id, changes)
    return tuple(op for change in changes for op in change.writes.ops)


def _waits_in_a_step(tables: Tables, session_id: SessionId) -> bool:
    row = tables.sessions.get(session_id)
    return row is not None and has_open_step(row.record)


class InMemoryStaging(Handle):
    """The facet `Staging`."""

    async def stage_changes(
        self, session_id: SessionId, change: StagedChange, *, fence: Fence | None = None, synced: bool = True
    ) -> None:
        door.check_staged(change)
        change = own(change)
        async with self._writing("stage_changes") as tx:
            run = current_run(tx.tables, session_id)
            if fence is not None:
                check_fence(session_id, run, fence)
            stage(tx, session_id, (change,))

    async def get_staged_changes(self, session_id: SessionId, step_id: StepId) -> tuple[StagedChange, ...]:
        with self._reading() as tables:
            session_row(tables, session_id)
            changes = staged_for(tables, session_id, step_id)
        return tuple(own(change) for change in changes)

    async def has_staged_changes(self, session_id: SessionId, step_id: StepId | None = None) -> bool:
        with self._reading() as tables:
            session_row(tables, session_id)
            return bool(staged_for(tables, session_id, step_id))

    async def promote_staging(self, session_id: SessionId, meta: CheckpointMeta) -> Committed:
        door.check_checkpoint(meta)
        async with self._writing("promote_staging") as tx:
            row = session_row(tx.tables, session_id)
            ops = promote(tx, session_id, meta.step_id)
            row = with_state(tx, replace(row, record=changed(row.record, tx.now)), ops)
            row = with_checkpoint(tx, row, "staging", ops=ops, meta=meta)
            tx.put(tx.tables.sessions, session_id, row)
        return msgspec.structs.replace(
            committed(row), stream_sequence=meta.stream_sequence, warnings=merge_warnings(ops)
        )

    async def discard_staging(self, session_id: SessionId, step_id: StepId | None = None) -> int:
        async with self._writing("discard_staging") as tx:
            session_row(tx.tables, session_id)
            changes = staged_for(tx.tables, session_id, step_id)
            discard(tx, session_id, changes)
        return len(changes)

    async def cleanup_orphaned_staging(self, older_than_ms: int) -> int:
        async with self._writing("cleanup_orphaned_staging") as tx:
            count = 0
            for session_id, rows in tx.tables.staged.items():
                if is_running(tx.tables, session_id) or _waits_in_a_step(tx.tables, session_id):
                    continue
                old = [row for row in rows.values() if row.staged_at < tx.now - older_than_ms]
                discard(tx, session_id, old)
                count += len(old)
        return count
