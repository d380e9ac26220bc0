"""Checkpoints: points to return to, stored as counts and writes, never as copies."""

from dataclasses import replace

from helix_agents.backends.in_memory.handle import Handle, own, own_json, page_of
from helix_agents.backends.in_memory.history import with_checkpoint
from helix_agents.backends.in_memory.lineage import state_at
from helix_agents.backends.in_memory.rows import session_row
from helix_agents.backends.in_memory.tables import CheckpointRow, Tables
from helix_agents.domain import door
from helix_agents.domain.checkpoints import BEGINNING, Checkpoint, CheckpointMeta
from helix_agents.domain.errors import CheckpointNotFoundError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import JSON
from helix_agents.domain.session_changes import changed


def version_at(tables: Tables, session_id: SessionId, checkpoint_id: CheckpointId) -> int:
    """The session version that a checkpoint marks; raises like `checkpoint_row`."""
    return 0 if checkpoint_id == BEGINNING else checkpoint_row(tables, session_id, checkpoint_id).checkpoint.version


def checkpoint_row(tables: Tables, session_id: SessionId, checkpoint_id: CheckpointId) -> CheckpointRow:
    """A checkpoint of this session.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    row = tables.checkpoints.get(session_id, {}).get(checkpoint_id)
    if row is None:
        raise CheckpointNotFoundError(session_id, checkpoint_id)
    return row


class InMemoryCheckpoints(Handle):
    """The facet `Checkpoints`."""

    async def create_checkpoint(self, session_id: SessionId, meta: CheckpointMeta) -> Checkpoint:
        door.check_checkpoint(meta)
        async with self._writing("create_checkpoint") as tx:
            row = session_row(tx.tables, session_id)
            row = with_checkpoint(tx, replace(row, record=changed(row.record, tx.now)), "save", meta=meta)
            tx.put(tx.tables.sessions, session_id, row)
            return tx.tables.checkpoints[session_id][str(row.record.checkpoint_id)].checkpoint

    async def get_latest_checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        with self._reading() as tables:
            row = tables.sessions.get(session_id)
            pointer = None if row is None else row.record.checkpoint_id
            found = None if pointer is None else checkpoint_row(tables, session_id, pointer).checkpoint
        return None if found is None else own(found)

    async def get_checkpoint(self, session_id: SessionId, checkpoint_id: CheckpointId) -> Checkpoint | None:
        with self._reading() as tables:
            found = tables.checkpoints.get(session_id, {}).get(checkpoint_id)
        return None if found is None else own(found.checkpoint)

    async def list_checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        check_page(offset, limit)
        with self._reading() as tables:
            session_row(tables, session_id)
            rows = list(reversed(tables.checkpoints.get(session_id, {}).values()))
        return page_of(rows, offset, limit, lambda row: own(row.checkpoint))

    async def load_checkpoint_state(self, session_id: SessionId, checkpoint_id: CheckpointId) -> dict[str, JSON]:
        with self._reading() as tables:
            session_row(tables, session_id)
            found = checkpoint_row(tables, session_id, checkpoint_id)
            state = state_at(found.segment, found.state_count)
        return own_json(state)
