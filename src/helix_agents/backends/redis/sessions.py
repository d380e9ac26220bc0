"""Sessions as a whole: created, loaded, changed, listed, deleted."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, get_args

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.checkpoints import add_checkpoint
from helix_agents.backends.redis.creation import ClaimLostError, claim_place, create, home_of
from helix_agents.backends.redis.deletion import StreamsAsideError, delete_tree, leave_place
from helix_agents.backends.redis.expiry import forget_vanished
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.lineage import add_writes, bring_state, custom_state
from helix_agents.backends.redis.pending import bring_calls, every_call
from helix_agents.backends.redis.rows import (
    Session,
    SessionEntry,
    find_session,
    last_seen,
    load_session,
    read_session,
    save_session,
    session_of,
)
from helix_agents.backends.redis.stream_rows import delete_stream
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.commits import Committed
from helix_agents.domain.errors import StaleStateError, UnstorableValueError
from helix_agents.domain.ids import SessionId, StreamId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode
from helix_agents.domain.session_changes import changed, savable, saved, with_metadata, with_status
from helix_agents.domain.session_views import assembled, matches, summary
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

T = TypeVar("T")
LEFT_AT_ONCE = 200
STATUSES: tuple[SessionStatus, ...] = get_args(SessionStatus)


def check_version(session: Session, expected: int | None) -> None:
    """Accept a caller that expects the stored version, or none in particular.

    Raises:
        StaleStateError: the caller expects another version.
    """
    record = session.record
    if expected is not None and expected != record.version:
        raise StaleStateError(record.session_id, expected, record.version)


def committed(session: Session) -> Committed:
    """The answer to a commit that left the session in this state, with its checkpoint just written."""
    record = session.record
    return Committed(
        checkpoint_id=record.checkpoint_id or "",
        new_version=record.version,
        message_count=record.message_count,
        status=record.status,
    )


async def whole(tx: Transaction, known: Known[Session]) -> SessionState:
    """The session, including its custom state and the rows that other operations write."""
    record = known.value.record
    root, session_id = record.root_session_id, record.session_id
    state = await custom_state(tx, known)
    calls = [call for call in await every_call(tx, root) if root == session_id or call.session_id == session_id]
    return assembled(record, dict(state), calls, known.value.flag)


class RedisSessions(Facet):
    """The facet `Sessions`."""

    async def create_session(self, session_id: SessionId, options: CreateSession | None = None) -> SessionState:
        return await self._create("create_session", session_id, options or CreateSession())

    async def session_exists(self, session_id: SessionId) -> bool:
        async def work(tx: Transaction) -> bool:
            return await find_session(tx, session_id) is not None

        try:
            return await self._read("session_exists", session_id, work)
        except UnstorableValueError:
            return False

    async def find_session(self, session_id: SessionId) -> SessionSummary | None:
        async def work(tx: Transaction) -> SessionSummary | None:
            known = await find_session(tx, session_id)
            return summary(known.value.record) if known is not None else None

        try:
            return await self._read("find_session", session_id, work)
        except UnstorableValueError:
            return None

    async def delete_session(self, session_id: SessionId) -> None:
        with contextlib.suppress(UnstorableValueError):
            # An id that cannot be stored cannot exist, so there is nothing to delete.
            await self._delete(session_id)

    async def clone_session(self, source: BranchPoint, session_id: SessionId) -> SessionState:
        return await self._create("clone_session", session_id, CreateSession(branch=source))

    async def load_state(self, session_id: SessionId) -> SessionState:
        async def work(tx: Transaction) -> SessionState:
            seen = last_seen(tx, session_id)
            bring_calls(tx, tx.tag if seen is None else seen.record.root_session_id)
            if seen is not None:
                bring_state(tx, seen)
            return await whole(tx, await load_session(tx, session_id))

        return await self._read("load_state", session_id, work)

    async def save_state(
        self, session_id: SessionId, state: SessionState, *, expected_version: int | None = None
    ) -> Committed:
        door.check_saved(state)
        given = savable(state)

        async def work(tx: Transaction) -> Committed:
            known = await load_session(tx, session_id)
            session = known.value
            check_version(session, expected_version)
            ops = difference(await custom_state(tx, known), given.custom_state).ops
            session.record = saved(session.record, given, tx.now)
            await add_writes(tx, known, ops)
            add_checkpoint(tx, known, "save", has_writes=bool(ops))
            return committed(session)

        return await self._write("save_state", session_id, work)

    async def merge_custom_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        door.check_merge(writes)

        async def work(tx: Transaction) -> Merged:
            known = await load_session(tx, session_id)
            known.value.record = changed(known.value.record, tx.now)
            save_session(tx, known)
            await add_writes(tx, known, writes.ops)
            return Merged(new_version=known.value.record.version, warnings=merge_warnings(writes.ops))

        return await self._write("merge_custom_state", session_id, work)

    async def update_status(
        self,
        session_id: SessionId,
        status: SessionStatus,
        *,
        interrupt_context: InterruptContext | None = None,
        error: str | None = None,
        failure_reason: str | None = None,
    ) -> int:
        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            known.value.record = with_status(
                known.value.record,
                status,
                tx.now,
                interrupt_context=interrupt_context,
                error=error,
                failure_reason=failure_reason,
            )
            save_session(tx, known)
            return known.value.record.version

        return await self._write("update_status", session_id, work)

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
        async def work(tx: Transaction) -> StatusOutcome:
            known = await load_session(tx, session_id)
            status, version = known.value.record.status, known.value.record.version
            if status not in expected or expected_version not in (None, version):
                return StatusConflict(current_status=status, current_version=version)
            known.value.record = with_status(
                known.value.record,
                new,
                tx.now,
                interrupt_context=interrupt_context,
                error=error,
                failure_reason=failure_reason,
            )
            save_session(tx, known)
            return StatusChanged(new_version=known.value.record.version)

        return await self._write("compare_and_set_status", session_id, work)

    async def increment_step_count(self, session_id: SessionId) -> int:
        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            record = known.value.record
            known.value.record = changed(record, tx.now, step_count=record.step_count + 1)
            save_session(tx, known)
            return record.step_count + 1

        return await self._write("increment_step_count", session_id, work)

    async def increment_resume_count(self, session_id: SessionId) -> int:
        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            record = known.value.record
            known.value.record = changed(record, tx.now, resume_count=record.resume_count + 1)
            save_session(tx, known)
            return record.resume_count + 1

        return await self._write("increment_resume_count", session_id, work)

    async def patch_metadata(self, session_id: SessionId, patch: dict[str, str | None]) -> dict[str, str]:
        async def work(tx: Transaction) -> dict[str, str]:
            known = await load_session(tx, session_id)
            known.value.record = with_metadata(known.value.record, patch, tx.now)
            save_session(tx, known)
            return dict(known.value.record.metadata)

        return await self._write("patch_metadata", session_id, work)

    async def list_sessions(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        check_page(offset, limit)
        if where is not None:
            door.check_numbers(where)
        asked = where or SessionFilter()
        if self._space.state_ttl_ms is not None:
            await forget_vanished(self._space, self._clock)
        order, rest = _order_for(asked)
        # If the order alone answers the filter, Redis does the paging; otherwise the whole order has to be searched.
        at, most = (offset, limit) if rest == SessionFilter() else (0, 0)
        now = self._space.server.now_ms()
        found = await self._space.page(
            order, **_parts_for(order, asked), **_range_for(order, asked), offset=at, limit=most, vanished_by=now
        )
        entries = [decode(payload, SessionEntry) for _, payload in found.entries]
        total = found.total
        if total is None or not most:
            kept = [entry for entry in entries if entry.vanishes_at is None or entry.vanishes_at > now]
            fitting = [entry for entry in kept if matches(entry.session, asked)]
            fitting.sort(key=lambda entry: (entry.session.created_at, entry.session.session_id), reverse=True)
            total, entries = len(fitting), fitting[offset : offset + limit]
        items = await asyncio.gather(*map(self._summary, entries))
        still_there = tuple(item for item in items if item is not None)
        missing = [entry for entry, item in zip(entries, items, strict=True) if item is None]
        await self._space.doubt([("s", entry.tag, entry.session.session_id) for entry in missing])
        return Page(items=still_there, total=total, offset=offset, limit=limit)

    async def _delete(self, session_id: SessionId) -> None:
        space = self._space
        deleted: set[StreamId] = set()

        async def work(tx: Transaction) -> tuple[list[SessionId], str]:
            return await delete_tree(tx, space, session_id, deleted), tx.tag

        while True:
            try:
                gone, tag = await self._write("delete_session", session_id, work)
                break
            except StreamsAsideError as aside:
                for stream_id in aside.streams:
                    await delete_stream(space, stream_id, self._clock)
                deleted.update(aside.streams)
        away = [member for member in gone if member != tag]
        for first in range(0, len(away), LEFT_AT_ONCE):
            some = away[first : first + LEFT_AT_ONCE]
            await asyncio.gather(*(leave_place(space, member, tag, self._clock) for member in some))

    async def _summary(self, entry: SessionEntry) -> SessionSummary | None:
        """One line of a listing, from the session's present state."""
        session_id = entry.session.session_id
        slot = self._space.slot(entry.tag)
        ran = await self._space.run("summary", (), (read_session(slot, session_id),), 0)
        session = session_of(ran.replies[0], b"", session_id)
        return None if session is None else summary(session.record)

    async def _create(self, operation: str, session_id: SessionId, options: CreateSession) -> SessionState:
        door.check_create(session_id, options)

        async def work(tx: Transaction, claim: str | None) -> SessionState:
            return await whole(tx, await create(tx, session_id, options, claim))

        return await self._create_in_place(operation, session_id, options, None, work)

    async def _create_in_place(
        self,
        operation: str,
        session_id: SessionId,
        options: CreateSession,
        parent: SessionId | None,
        work: Callable[[Transaction, str | None], Awaitable[T]],
    ) -> T:
        """Run work that creates a session, in the slot it belongs to."""
        space = self._space
        tag = await home_of(space, session_id, options, parent)
        # In the slot of its own name a session needs no claim, unless another process holds one.
        claimed, claim = tag == session_id, None
        while True:
            if not claimed:
                claim = await claim_place(space, session_id, tag, self._clock)
            claimed = False

            async def work_under_claim(tx: Transaction, claim: str | None = claim) -> T:
                return await work(tx, claim)

            try:
                result = await self._write(operation, session_id, work_under_claim, tag=tag)
            except ClaimLostError:
                continue
            space.place(session_id, tag)
            return result


def _order_for(where: SessionFilter) -> tuple[str, SessionFilter]:
    """The smallest order that holds everything a filter can match, and what remains of the filter."""
    rest = msgspec.structs.replace(where, created_from=None, created_to=None)
    if where.parent_session_id is not None:
        return f"parent/{where.parent_session_id}", msgspec.structs.replace(rest, parent_session_id=None)
    if where.root_session_id is not None:
        return f"root/{where.root_session_id}", msgspec.structs.replace(rest, root_session_id=None)
    for key in MARKS:
        if (text := where.metadata.get(key)) is not None:
            others = {name: value for name, value in where.metadata.items() if name != key}
            return index.mark_order(key, text), msgspec.structs.replace(rest, metadata=others)
    if where.user_id is not None:
        return f"user/{where.user_id}", msgspec.structs.replace(rest, user_id=None, roots_only=False)
    if where.expires_before is not None:
        return index.EXPIRING, rest
    return index.SESSIONS, msgspec.structs.replace(rest, roots_only=False)


def _parts_for(order: str, where: SessionFilter) -> dict[str, tuple[str, ...]]:
    """The parts of the order that a filter covers, and the others; none if it covers all of it."""
    if order == index.EXPIRING and where.statuses:
        wanted = tuple(status for status in STATUSES if status in where.statuses)
        others = (status for status in STATUSES if status not in where.statuses)
        return {"parts": tuple(map(index.expiring_part, wanted)), "others": tuple(map(index.expiring_part, others))}
    if where.roots_only and order in (index.SESSIONS, f"user/{where.user_id}"):
        roots, below = index.parts_by_parent(where.user_id)
        return {"parts": (roots,), "others": (below,)}
    return {}


def _range_for(order: str, where: SessionFilter) -> dict[str, float]:
    if order == index.EXPIRING:
        return {"highest": where.expires_before or 0}
    bounds = {"lowest": where.created_from, "highest": where.created_to}
    return {name: bound for name, bound in bounds.items() if bound is not None}
