"""Staged changes in Postgres."""

from collections.abc import Iterable
from typing import Any

import msgspec

from helix_agents.backends.postgres.checkpoints import commit_at
from helix_agents.backends.postgres.connection import Connection, askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import SessionHead, load_session, put
from helix_agents.backends.postgres.runs import current_run
from helix_agents.backends.session_rows import record_of
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed
from helix_agents.domain.door import check_checkpoint, check_staged
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId, StepId
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import Fence, check_fence
from helix_agents.domain.session_changes import changed
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.writes import WriteOp


def staged_rows(changes: Iterable[StagedChange], now: int) -> list[dict[str, Any]]:
    """Changes in the database's form: the fields it queries by, and the whole record as stored."""
    return [
        {
            "step_id": change.step_id,
            "tool_call_id": change.tool_call_id,
            "position": change.index,
            "body": msgspec.structs.replace(change, staged_at=now),
        }
        for change in changes
    ]


async def stage(connection: Connection, row: SessionHead, changes: Iterable[StagedChange], now: int) -> None:
    """Upsert changes by step and call."""
    columns = ("step_id", "tool_call_id", "position")
    await connection.execute_many(
        "INSERT INTO __agents_staging (namespace, session_id, staged_at, step_id, tool_call_id, position, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, session_id, step_id, tool_call_id)"
        " DO UPDATE SET position = excluded.position, staged_at = excluded.staged_at, body = excluded.body",
        [
            (row.namespace, row.session_id, now, *(each[name] for name in columns), encode(each["body"]).decode())
            for each in staged_rows(changes, now)
        ],
    )


async def read_staged(
    connection: Connection, namespace: str, session_id: SessionId, step_id: StepId
) -> list[StagedChange]:
    """The changes staged for a step, in call order."""
    rows = await connection.all(
        "SELECT body FROM __agents_staging WHERE namespace = ? AND session_id = ? AND step_id = ?"
        " ORDER BY position, tool_call_id",
        (namespace, session_id, step_id),
    )
    return [decode(row[0], StagedChange) for row in rows]


async def take_staged(connection: Connection, row: SessionHead, step_id: StepId) -> tuple[WriteOp, ...]:
    """The staged writes of a step in call order; removes their rows."""
    changes = await read_staged(connection, row.namespace, row.session_id, step_id)
    await drop_staged(connection, row, step_id)
    return tuple(op for change in changes for op in change.writes.ops)


async def drop_staged(connection: Connection, row: SessionHead, step_id: StepId | None) -> int:
    """Remove what is staged, for one step or for all; returns how many rows were removed."""
    return await connection.execute(
        "DELETE FROM __agents_staging WHERE namespace = ?1 AND session_id = ?2 AND (?3::text IS NULL OR step_id = ?3)",
        askable(row.namespace, row.session_id, step_id),
    )


class PostgresStaging(Facet):
    """Results kept between their effect and the step's commit."""

    async def stage_changes(
        self, session_id: SessionId, change: StagedChange, *, fence: Fence | None = None, synced: bool = True
    ) -> None:
        check_staged(change)
        self._check_staged(session_id, (change,))
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            row = await load_session(connection, self._namespace, session_id)
            if fence is not None:
                check_fence(session_id, await current_run(connection, row), fence)
            await stage(connection, row, (change,), now)

        await self._db.write(work, synced=synced)

    async def get_staged_changes(self, session_id: SessionId, step_id: StepId) -> tuple[StagedChange, ...]:
        found = await self._db.one(
            "SELECT (SELECT array_agg(g.body ORDER BY g.position, g.tool_call_id) FROM __agents_staging g"
            " WHERE g.namespace = ?1 AND g.session_id = ?2 AND g.step_id = ?3)"
            " FROM __agents_sessions s WHERE s.namespace = ?1 AND s.session_id = ?2",
            (self._namespace, session_id, step_id),
        )
        if found is None:
            raise SessionNotFoundError(session_id)
        return tuple(decode(body, StagedChange) for body in found[0] or ())

    async def has_staged_changes(self, session_id: SessionId, step_id: StepId | None = None) -> bool:
        row = await self._db.one(
            "SELECT EXISTS (SELECT 1 FROM __agents_staging g WHERE g.namespace = ?1 AND g.session_id = ?2"
            " AND (?3::text IS NULL OR g.step_id = ?3))"
            " FROM __agents_sessions s WHERE s.namespace = ?1 AND s.session_id = ?2",
            (self._namespace, session_id, step_id),
        )
        if row is None:
            raise SessionNotFoundError(session_id)
        return row[0]

    async def promote_staging(self, session_id: SessionId, meta: CheckpointMeta) -> Committed:
        check_checkpoint(meta)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> Committed:
            row = await load_session(connection, self._namespace, session_id)
            before = row.version
            put(row, changed(record_of(row), now))
            ops = await take_staged(connection, row, meta.step_id)
            if ops:
                await self._state_writes.log(connection, row, ops, version_before=before)
            return await commit_at(connection, row, meta, ops, now)

        return await self._db.write(work)

    async def discard_staging(self, session_id: SessionId, step_id: StepId | None = None) -> int:
        async def work(connection: Connection) -> int:
            row = await load_session(connection, self._namespace, session_id)
            return await drop_staged(connection, row, step_id)

        return await self._db.write(work)

    async def cleanup_orphaned_staging(self, older_than_ms: int) -> int:
        return await self._db.execute(
            "DELETE FROM __agents_staging g WHERE g.namespace = ?1 AND g.staged_at < ?2 AND NOT EXISTS ("
            "SELECT 1 FROM __agents_sessions s WHERE s.namespace = ?1 AND s.session_id = g.session_id AND (s.running"
            " OR s.suspension IS NOT NULL OR s.detail::json ->> 'suspended_step_id' IS NOT NULL))",
            (self._namespace, self._clock.now_ms() - older_than_ms),
        )
