"""Results kept between their effect and the step's commit."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.checkpoints import add_checkpoint
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import names_of
from helix_agents.backends.redis.keys import LINE
from helix_agents.backends.redis.lineage import add_writes
from helix_agents.backends.redis.rows import Session, find_session, load_session, read_staged, save_session
from helix_agents.backends.redis.sessions import committed
from helix_agents.backends.redis.transaction import Known, Transaction
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


def stage(tx: Transaction, known: Known[Session], changes: Iterable[StagedChange]) -> None:
    """Upsert changes by step and call.

    Raises:
        StateSizeExceededError: a change is larger than the store accepts.
    """
    session_id = known.value.record.session_id
    for change in changes:
        check_size(session_id, "stage", len(encode(change)), tx.limits.staged_write_bytes)
        stamped = msgspec.structs.replace(change, staged_at=tx.now)
        tx.do("HSET", tx.slot.staging(session_id), _field(change), encode(stamped))
        known.value.set(staged=True, stages=True)
        save_session(tx, known)


def _field(change: StagedChange) -> str:
    return f"{change.step_id}{LINE}{change.tool_call_id}"


async def staged_for(
    tx: Transaction, known: Known[Session], step_id: StepId | None, besides: Sequence[StagedChange] = ()
) -> list[StagedChange]:
    """The changes staged for one step, or for any, in call order; `besides` is staged by this transaction."""
    rows = await _all_staged(tx, known, besides)
    found = [row for row in rows if step_id is None or row.step_id == step_id]
    return sorted(found, key=lambda row: (row.index, row.tool_call_id))


async def _all_staged(
    tx: Transaction, known: Known[Session], besides: Sequence[StagedChange]
) -> Collection[StagedChange]:
    rows = {_field(change): change for change in await read_staged(tx, known)}
    rows.update((_field(change), change) for change in besides)
    return rows.values()


def discard(tx: Transaction, known: Known[Session], changes: Sequence[StagedChange]) -> None:
    """Remove staged changes."""
    if changes:
        key = tx.slot.staging(known.value.record.session_id)
        tx.do_with_all("HDEL", key, [_field(change) for change in changes])
        save_session(tx, known)


async def promote(
    tx: Transaction, known: Known[Session], step_id: StepId, besides: Sequence[StagedChange] = ()
) -> tuple[WriteOp, ...]:
    """The state writes staged for a step, in call order; afterwards they are no longer staged."""
    if not known.value.row.staged:
        return ()
    everything = await staged_for(tx, known, None, besides)
    changes = [change for change in everything if change.step_id == step_id]
    discard(tx, known, changes)
    known.value.set(staged=len(changes) < len(everything))
    return tuple(op for change in changes for op in change.writes.ops)


class RedisStaging(Facet):
    """The facet `Staging`."""

    async def stage_changes(
        self, session_id: SessionId, change: StagedChange, *, fence: Fence | None = None, synced: bool = True
    ) -> None:
        door.check_staged(change)

        async def work(tx: Transaction) -> None:
            known = await load_session(tx, session_id)
            if fence is not None:
                check_fence(session_id, known.value.run, fence)
            stage(tx, known, (change,))

        await self._write("stage_changes", session_id, work)

    async def get_staged_changes(self, session_id: SessionId, step_id: StepId) -> tuple[StagedChange, ...]:
        async def work(tx: Transaction) -> tuple[StagedChange, ...]:
            return tuple(await staged_for(tx, await load_session(tx, session_id), step_id))

        return await self._read("get_staged_changes", session_id, work)

    async def has_staged_changes(self, session_id: SessionId, step_id: StepId | None = None) -> bool:
        async def work(tx: Transaction) -> bool:
            return bool(await staged_for(tx, await load_session(tx, session_id), step_id))

        return await self._read("has_staged_changes", session_id, work)

    async def promote_staging(self, session_id: SessionId, meta: CheckpointMeta) -> Committed:
        door.check_checkpoint(meta)

        async def work(tx: Transaction) -> Committed:
            known = await load_session(tx, session_id)
            ops = await promote(tx, known, meta.step_id)
            known.value.record = changed(known.value.record, tx.now)
            await add_writes(tx, known, ops)
            add_checkpoint(tx, known, "staging", has_writes=bool(ops), meta=meta)
            return msgspec.structs.replace(
                committed(known.value), stream_sequence=meta.stream_sequence, warnings=merge_warnings(ops)
            )

        return await self._write("promote_staging", session_id, work)

    async def discard_staging(self, session_id: SessionId, step_id: StepId | None = None) -> int:
        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            changes = await staged_for(tx, known, step_id)
            discard(tx, known, changes)
            return len(changes)

        return await self._write("discard_staging", session_id, work)

    async def cleanup_orphaned_staging(self, older_than_ms: int) -> int:
        found = await self._space.find(index.STAGED)
        return sum([await self._clean_up(names_of(name)[0], older_than_ms) for name, _ in found.entries])

    async def _clean_up(self, session_id: SessionId, older_than_ms: int) -> int:
        async def work(tx: Transaction) -> int:
            known = await find_session(tx, session_id)
            if known is None or (known.value.run is not None and known.value.run.status == "running"):
                return 0
            if has_open_step(known.value.record):
                return 0
            changes = await staged_for(tx, known, None)
            old = [row for row in changes if row.staged_at < tx.now - older_than_ms]
            discard(tx, known, old)
            if len(old) == len(changes):
                known.value.set(staged=False, stages=False)
                save_session(tx, known)
            return len(old)

        return await self._write("cleanup_orphaned_staging", session_id, work)
