"""Staged changes in SQLite."""

from collections.abc import Iterable

import msgspec

from helix_agents.backends.session_rows import put_record, record_of
from helix_agents.backends.sqlite.checkpoints import commit_at
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.rows import SessionHead, load_session
from helix_agents.backends.sqlite.runs import current_run
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed
from helix_agents.domain.door import check_checkpoint, check_staged
from helix_agents.domain.ids import SessionId, StepId
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import Fence, check_fence
from helix_agents.domain.session_changes import changed
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.writes import WriteOp


def stage(connection: Connection, row: SessionHead, changes: Iterable[StagedChange], now: int) -> None:
    """Upsert changes by step and call; the session's row counts what is staged."""
    for change in changes:
        body = encode(msgspec.structs.replace(change, staged_at=now)).decode()
        connection.execute(
            "INSERT INTO __agents_staging (namespace, session_id, step_id, tool_call_id, position, staged_at, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, session_id, step_id, tool_call_id)"
            " DO UPDATE SET position = excluded.position, staged_at = excluded.staged_at, body = excluded.body",
            (row.namespace, row.session_id, change.step_id, change.tool_call_id, change.index, now, body),
        )
    count_staged(connection, row)


def count_staged(connection: Connection, row: SessionHead) -> None:
    """Record on the session how many rows are staged, so that a commit without any need not look."""
    found = connection.one(
        "UPDATE __agents_sessions SET staged = (SELECT count(*) FROM __agents_staging"
        " WHERE namespace = ?1 AND session_id = ?2) WHERE key = ?3 RETURNING staged",
        (row.namespace, row.session_id, row.key),
    )
    row.staged = found[0] if found is not None else 0


def read_staged(connection: Connection, namespace: str, session_id: SessionId, step_id: StepId) -> list[StagedChange]:
    """The changes staged for a step, in call order."""
    rows = connection.all(
        "SELECT body FROM __agents_staging WHERE namespace = ? AND session_id = ? AND step_id = ?"
        " ORDER BY position, tool_call_id",
        (namespace, session_id, step_id),
    )
    return [decode(row[0], StagedChange) for row in rows]


def take_staged(connection: Connection, row: SessionHead, step_id: StepId) -> tuple[WriteOp, ...]:
    """The staged writes of a step in call order; removes their rows."""
    changes = read_staged(connection, row.namespace, row.session_id, step_id)
    drop_staged(connection, row, step_id)
    return tuple(op for change in changes for op in change.writes.ops)


def drop_staged(connection: Connection, row: SessionHead, step_id: StepId | None) -> int:
    """Remove what is staged, for one step or for all; returns how many rows were removed."""
    step = "" if step_id is None else " AND step_id = ?"
    connection.execute(
        f"DELETE FROM __agents_staging WHERE namespace = ? AND session_id = ?{step}",
        (row.namespace, row.session_id, *(() if step_id is None else (step_id,))),
    )
    gone = connection.changed()
    count_staged(connection, row)
    return gone


class SQLiteStaging(Facet):
    """Results kept between their effect and the step's commit."""

    async def stage_changes(
        self, session_id: SessionId, change: StagedChange, *, fence: Fence | None = None, synced: bool = True
    ) -> None:
        check_staged(change)
        self._check_staged(session_id, (change,))
        now = self._clock.now_ms()

        def work(connection: Connection) -> None:
            row = load_session(connection, self._namespace, session_id)
            if fence is not None:
                check_fence(session_id, current_run(connection, row), fence)
            stage(connection, row, (change,), now)

        await self._db.write(work, synced=synced)

    async def get_staged_changes(self, session_id: SessionId, step_id: StepId) -> tuple[StagedChange, ...]:
        def work(connection: Connection) -> tuple[StagedChange, ...]:
            load_session(connection, self._namespace, session_id)
            return tuple(read_staged(connection, self._namespace, session_id, step_id))

        return await self._db.read_by_key(work)

    async def has_staged_changes(self, session_id: SessionId, step_id: StepId | None = None) -> bool:
        def work(connection: Connection) -> bool:
            row = load_session(connection, self._namespace, session_id)
            if step_id is None:
                return row.staged > 0
            return bool(read_staged(connection, self._namespace, session_id, step_id))

        return await self._db.read_by_key(work)

    async def promote_staging(self, session_id: SessionId, meta: CheckpointMeta) -> Committed:
        check_checkpoint(meta)
        now = self._clock.now_ms()

        def work(connection: Connection) -> Committed:
            row = load_session(connection, self._namespace, session_id)
            before = row.version
            put_record(row, changed(record_of(row), now))
            ops = take_staged(connection, row, meta.step_id)
            if ops:
                self._state_writes.log(connection, row, ops, version_before=before)
            return commit_at(connection, row, meta, ops, now)

        return await self._db.write(work)

    async def discard_staging(self, session_id: SessionId, step_id: StepId | None = None) -> int:
        def work(connection: Connection) -> int:
            return drop_staged(connection, load_session(connection, self._namespace, session_id), step_id)

        return await self._db.write(work)

    async def cleanup_orphaned_staging(self, older_than_ms: int) -> int:
        oldest = self._clock.now_ms() - older_than_ms

        def work(connection: Connection) -> int:
            gone = connection.all(
                "DELETE FROM __agents_staging WHERE namespace = ?1 AND staged_at < ?2 AND NOT EXISTS ("
                "SELECT 1 FROM __agents_sessions s WHERE s.namespace = ?1"
                " AND s.session_id = __agents_staging.session_id AND (s.running = 1 OR s.suspension_context IS NOT NULL"
                " OR s.detail ->> 'suspended_step_id' IS NOT NULL)) RETURNING session_id",
                (self._namespace, oldest),
            )
            for session_id in {row[0] for row in gone}:
                count_staged(connection, load_session(connection, self._namespace, session_id))
            return len(gone)

        return await self._db.write(work)
