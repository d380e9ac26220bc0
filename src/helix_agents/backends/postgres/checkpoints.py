"""Checkpoints in Postgres: counts, and a pointer to the writes in the state log."""

from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.lineage import Segment, load_custom_state, load_segment, read_messages
from helix_agents.backends.postgres.paging import read_page
from helix_agents.backends.postgres.rows import SessionHead, SessionRow, find_session, load_session, put, save_session
from helix_agents.backends.session_rows import (
    CHECKPOINT_COLUMNS,
    checkpoint_name,
    checkpoint_number,
    checkpoint_of,
    record_of,
)
from helix_agents.domain.checkpoints import Checkpoint, CheckpointMeta, Cut
from helix_agents.domain.commits import Committed
from helix_agents.domain.door import check_checkpoint
from helix_agents.domain.errors import CheckpointNotFoundError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.queued import follows_a_step
from helix_agents.domain.records import JSON, decode
from helix_agents.domain.session_changes import BEGAN, changed, holder_at
from helix_agents.domain.sessions import CheckpointSource, Holder
from helix_agents.domain.writes import StepWrites, WriteOp, merge_warnings

_LOW = 0xFFFFFFFF


async def write_checkpoint(
    connection: Connection,
    row: SessionHead,
    *,
    source: CheckpointSource,
    now: int,
    has_writes: bool,
    step_id: str | None = None,
    step_count: int | None = None,
    stream_sequence: int = 0,
) -> None:
    """Write a checkpoint of the session's row and move the row's pointer to it."""
    number = row.segment << 32 | row.version
    await connection.execute(
        "INSERT INTO __agents_checkpoints (id, session_id, run_id, step_id, step_count, status, message_count,"
        " state_count, has_writes, stream_sequence, source, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            number,
            row.session_id,
            row.run_id,
            step_id,
            row.step_count if step_count is None else step_count,
            row.status,
            row.message_count,
            row.state_count,
            has_writes,
            stream_sequence,
            source,
            now,
        ),
    )
    row.checkpoint = number
    row.checkpointed_at = now
    row.checkpoint_source = source


async def commit_at(
    connection: Connection, row: SessionRow, meta: CheckpointMeta, ops: tuple[WriteOp, ...], now: int
) -> Committed:
    """Finish a commit of source `staging`: its checkpoint, the session's row, and the answer."""
    await write_checkpoint(
        connection,
        row,
        source="staging",
        now=now,
        has_writes=bool(ops),
        step_id=meta.step_id,
        step_count=meta.step_count,
        stream_sequence=meta.stream_sequence,
    )
    await save_session(connection, row)
    return Committed(
        checkpoint_id=checkpoint_name(row.checkpoint) or "",
        new_version=row.version,
        message_count=row.message_count,
        stream_sequence=meta.stream_sequence,
        warnings=merge_warnings(ops),
        status=row.status,
    )


async def read_checkpoint(connection: Connection, number: int) -> Checkpoint | None:
    """The checkpoint in a row, or None."""
    row = await connection.one(f"SELECT {CHECKPOINT_COLUMNS} FROM __agents_checkpoints c WHERE c.id = ?", (number,))
    return checkpoint_of(row) if row is not None else None


async def own_checkpoint(
    connection: Connection, namespace: str, session_id: SessionId, checkpoint_id: CheckpointId
) -> tuple[int, int, int]:
    """Segment, message count and state count of one of this session's own checkpoints.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    number = checkpoint_number(checkpoint_id)
    row = await connection.one(
        "SELECT s.segment, c.message_count, c.state_count FROM __agents_checkpoints c"
        " JOIN __agents_segments s ON s.segment = (c.id >> 32)"
        " WHERE c.id = ? AND s.namespace = ? AND s.session_id = ? AND s.owned",
        (number, namespace, session_id),
    )
    if row is None:
        raise CheckpointNotFoundError(session_id, checkpoint_id)
    return row[0], row[1], row[2]


async def created_at(connection: Connection, checkpoint_id: CheckpointId) -> int:
    """When an existing checkpoint was written."""
    number = checkpoint_number(checkpoint_id)
    row = await connection.one("SELECT created_at FROM __agents_checkpoints WHERE id = ?", (number,))
    assert row is not None
    return row[0]


async def state_count_at(connection: Connection, row: SessionRow, message_count: int) -> tuple[int, Holder]:
    """How many state writes belong to a session's first `message_count` messages, and who has it there."""
    while follows_a_step(
        each.message for each in await read_messages(connection, row.segment, message_count + 1, message_count + 1)
    ):
        message_count += 1
    cut, at = Cut(message_count, row.state_count), row.segment
    while True:
        found = await connection.one(
            "SELECT state_count, id FROM __agents_checkpoints WHERE id BETWEEN ? AND ? AND message_count <= ?"
            " AND state_count <= ? ORDER BY id DESC LIMIT 1",
            (at << 32, at << 32 | _LOW, *cut.within),
        )
        here = await load_segment(connection, at)
        whose = row
        if here.owned and here.session_id != row.session_id:
            whose = await find_session(connection, row.namespace, here.session_id, keep=False) or row
        if found is not None:
            return found[0], holder_at(record_of(whose), found[1] & _LOW)
        count = cut.without_checkpoint(
            owned=here.owned,
            made_with=await _made_with(connection, here),
            messages=here.message_boundary,
            states=here.state_boundary,
        )
        if count is not None:
            return count, holder_at(record_of(whose), BEGAN)
        assert here.parent is not None
        at = here.parent


async def _made_with(connection: Connection, here: Segment) -> int | None:
    """How many state writes the session of a segment was created with, if it starts in that segment."""
    above = await load_segment(connection, here.parent) if here.parent is not None else None
    if above is not None and above.owned and above.session_id == here.session_id:
        return None
    if here.state_boundary:
        return here.state_boundary
    # A session's initial state is the first entry in its log, and no step wrote it.
    first = await connection.one("SELECT writes FROM __agents_state_log WHERE id = ?", (here.segment << 32 | 1,))
    return int(first is not None and not decode(first[0], StepWrites))


class PostgresCheckpoints(Facet):
    """The checkpoints of a session."""

    async def create_checkpoint(self, session_id: SessionId, meta: CheckpointMeta) -> Checkpoint:
        check_checkpoint(meta)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> Checkpoint:
            row = await load_session(connection, self._namespace, session_id)
            put(row, changed(record_of(row), now))
            await write_checkpoint(
                connection,
                row,
                source="save",
                now=now,
                has_writes=False,
                step_id=meta.step_id,
                step_count=meta.step_count,
                stream_sequence=meta.stream_sequence,
            )
            await save_session(connection, row)
            assert row.checkpoint is not None
            checkpoint = await read_checkpoint(connection, row.checkpoint)
            assert checkpoint is not None
            return checkpoint

        return await self._db.write(work)

    async def get_latest_checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        async def work(connection: Connection) -> Checkpoint | None:
            row = await find_session(connection, self._namespace, session_id)
            if row is None or row.checkpoint is None:
                return None
            return await read_checkpoint(connection, row.checkpoint)

        return await self._db.read(work)

    async def get_checkpoint(self, session_id: SessionId, checkpoint_id: CheckpointId) -> Checkpoint | None:
        async def work(connection: Connection) -> Checkpoint | None:
            try:
                await own_checkpoint(connection, self._namespace, session_id, checkpoint_id)
            except CheckpointNotFoundError:
                return None
            number = checkpoint_number(checkpoint_id)
            return await read_checkpoint(connection, number) if number is not None else None

        return await self._db.read(work)

    async def list_checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        check_page(offset, limit)

        await self._check_there(session_id)
        return await read_page(
            self._db,
            columns=CHECKPOINT_COLUMNS,
            source="__agents_segments s JOIN __agents_checkpoints c"
            " ON c.id BETWEEN (s.segment << 32) AND ((s.segment << 32) | 4294967295)"
            " WHERE s.namespace = ? AND s.session_id = ? AND s.owned",
            order="(c.id & 4294967295) DESC",
            values=(self._namespace, session_id),
            offset=offset,
            limit=limit,
            item=checkpoint_of,
        )

    async def load_checkpoint_state(self, session_id: SessionId, checkpoint_id: CheckpointId) -> dict[str, JSON]:
        async def work(connection: Connection) -> dict[str, JSON]:
            await load_session(connection, self._namespace, session_id)
            segment, _, count = await own_checkpoint(connection, self._namespace, session_id, checkpoint_id)
            return await load_custom_state(connection, segment, count)

        return await self._db.read(work)
