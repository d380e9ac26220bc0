"""Checkpoints: points to return to, stored as counts and places, never as copies."""

from collections.abc import AsyncGenerator, Sequence

import msgspec

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.lineage import line_of, state_at, writes_made
from helix_agents.backends.redis.rows import Session, StatePlace, find_session, load_session, save_session
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.checkpoints import Checkpoint, CheckpointMeta
from helix_agents.domain.errors import CheckpointNotFoundError, SessionCorruptError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.session_changes import changed, pointed_at
from helix_agents.domain.sessions import CheckpointSource
from helix_agents.domain.writes import StepWrites

READ_AT_ONCE = 100


class CheckpointRow(Record):
    """A checkpoint and the place in its session's history that it marks. Its writes are only in the log."""

    checkpoint: Checkpoint
    segment: str
    state: StatePlace
    has_writes: bool = False


def add_checkpoint(
    tx: Transaction,
    known: Known[Session],
    source: CheckpointSource,
    *,
    has_writes: bool = False,
    meta: CheckpointMeta | None = None,
) -> Checkpoint:
    """Write a checkpoint of the session's present state, and move its pointer there."""
    session = known.value
    record, row = session.record, session.row
    checkpoint = Checkpoint(
        checkpoint_id=f"{row.name}.{row.checkpoints}",
        session_id=record.session_id,
        run_id=record.current_run_id,
        step_id=meta.step_id if meta else None,
        step_count=meta.step_count if meta else record.step_count,
        status=record.status,
        message_count=record.message_count,
        stream_sequence=meta.stream_sequence if meta else 0,
        source=source,
        version=record.version,
        created_at=tx.now,
    )
    body = encode(CheckpointRow(checkpoint=checkpoint, segment=row.segment, state=row.state, has_writes=has_writes))
    tx.push(tx.slot.checkpoints(record.session_id), [body], after=row.checkpoints)
    session.set(checkpoints=row.checkpoints + 1, record=pointed_at(record, checkpoint))
    save_session(tx, known)
    return checkpoint


def _number(session: Session, checkpoint_id: CheckpointId) -> int | None:
    """The position of a checkpoint among its session's; None if the id is not one of this session's."""
    name, _, number = checkpoint_id.rpartition(".")
    if name != session.row.name or not number.isdecimal() or not number.isascii():
        return None
    return int(number) if int(number) < session.row.checkpoints else None


async def checkpoint_row(tx: Transaction, session: Session, checkpoint_id: CheckpointId) -> CheckpointRow:
    """A checkpoint of this session.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    number = _number(session, checkpoint_id)
    if number is None:
        raise CheckpointNotFoundError(session.record.session_id, checkpoint_id)
    (row,) = await _rows(tx, session, number, number)
    return row


async def _rows(tx: Transaction, session: Session, first: int, last: int) -> list[CheckpointRow]:
    """The checkpoints from one position to another, oldest first."""
    if last < first:
        return []
    (found,) = await tx.read(("LRANGE", tx.slot.checkpoints(session.record.session_id), first, last))
    if len(found) != last - first + 1:
        raise SessionCorruptError("session", f"checkpoints of {session.record.session_id!r} are missing from Redis")
    return [decode(row, CheckpointRow) for row in found]


async def checkpoints_of(tx: Transaction, session: Session) -> AsyncGenerator[CheckpointRow]:
    """The session's checkpoints, the newest first."""
    last = session.row.checkpoints - 1
    while last >= 0:
        first = max(0, last - READ_AT_ONCE + 1)
        for row in reversed(await _rows(tx, session, first, last)):
            yield row
        last = first - 1


async def _whole(tx: Transaction, rows: Sequence[CheckpointRow]) -> list[Checkpoint]:
    """Checkpoints with their writes."""
    made = [(row.segment, row.state.count) for row in rows if row.has_writes]
    writes = iter(await writes_made(tx, made))
    return [
        msgspec.structs.replace(row.checkpoint, writes=StepWrites(ops=next(writes)))
        if row.has_writes
        else row.checkpoint
        for row in rows
    ]


class RedisCheckpoints(Facet):
    """The facet `Checkpoints`."""

    async def create_checkpoint(self, session_id: SessionId, meta: CheckpointMeta) -> Checkpoint:
        door.check_checkpoint(meta)

        async def work(tx: Transaction) -> Checkpoint:
            known = await load_session(tx, session_id)
            known.value.record = changed(known.value.record, tx.now)
            return add_checkpoint(tx, known, "save", meta=meta)

        return await self._write("create_checkpoint", session_id, work)

    async def get_latest_checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        async def work(tx: Transaction) -> Checkpoint | None:
            known = await find_session(tx, session_id)
            pointer = None if known is None else known.value.record.checkpoint_id
            if known is None or pointer is None:
                return None
            return (await _whole(tx, [await checkpoint_row(tx, known.value, pointer)]))[0]

        return await self._read("get_latest_checkpoint", session_id, work)

    async def get_checkpoint(self, session_id: SessionId, checkpoint_id: CheckpointId) -> Checkpoint | None:
        async def work(tx: Transaction) -> Checkpoint | None:
            known = await find_session(tx, session_id)
            if known is None or _number(known.value, checkpoint_id) is None:
                return None
            return (await _whole(tx, [await checkpoint_row(tx, known.value, checkpoint_id)]))[0]

        return await self._read("get_checkpoint", session_id, work)

    async def list_checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        check_page(offset, limit)

        async def work(tx: Transaction) -> Page[Checkpoint]:
            session = (await load_session(tx, session_id)).value
            total = session.row.checkpoints
            last = total - 1 - offset
            rows = await _rows(tx, session, max(0, last - limit + 1), last)
            return Page(items=tuple(await _whole(tx, rows[::-1])), total=total, offset=offset, limit=limit)

        return await self._read("list_checkpoints", session_id, work)

    async def load_checkpoint_state(self, session_id: SessionId, checkpoint_id: CheckpointId) -> dict[str, JSON]:
        async def work(tx: Transaction) -> dict[str, JSON]:
            session = (await load_session(tx, session_id)).value
            row = await checkpoint_row(tx, session, checkpoint_id)
            return await state_at(tx, line_of(row.segment), row.state)

        return await self._read("load_checkpoint_state", session_id, work)
