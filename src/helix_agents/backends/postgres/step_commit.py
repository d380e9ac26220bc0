"""The engine's step commit in Postgres: one statement, whose cost does not depend on the session's history.

A plain step is one call of `__agents_commit_step`, which either does everything or reports that it did nothing. A step
that waits for an answer, or that meets something unexpected, is examined under a lock first: there the domain makes the
decisions, and the same function stores the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from helix_agents.backends.postgres.checkpoints import read_checkpoint
from helix_agents.backends.postgres.connection import Connection, Row, Value, is_unreadable
from helix_agents.backends.postgres.entry_writes import write_session_entries
from helix_agents.backends.postgres.flags import aimed_flag
from helix_agents.backends.postgres.lineage import load_custom_state, materialise, outweighs
from helix_agents.backends.postgres.pending import (
    ask_calls,
    calls_below,
    change_calls,
    driven_calls,
    find_calls,
    own_calls,
)
from helix_agents.backends.postgres.queues import take_steering
from helix_agents.backends.postgres.rows import SessionHead, SessionRow, labels_of, load_session, lock_tree_of
from helix_agents.backends.postgres.runs import current_run
from helix_agents.backends.postgres.staging import stage, staged_rows, take_staged
from helix_agents.backends.postgres.state_writes import StateWrites, not_lists_after
from helix_agents.backends.postgres.stream_rows import append_chunks, append_values, encoded, end_with_commit
from helix_agents.backends.postgres.sub_sessions import add_refs, ref_rows, some_went_on, update_ref
from helix_agents.backends.postgres.usage import INSERT_USAGE, usage_rows, usage_values
from helix_agents.backends.session_rows import (
    CommitExtra,
    checkpoint_name,
    encode_metadata,
    encode_suspension,
    first_answer,
    record_of,
    was_committed,
)
from helix_agents.backends.stream_rules import last_of
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, StepCommit, awaited_children, stream_end_of
from helix_agents.domain.errors import ModeIsWriteOnceError, StaleStateError
from helix_agents.domain.flags import comes_first, is_taken
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.pending import OPEN, READY, PendingCall, consume, deliver_late_answer, drop
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.session_changes import patched
from helix_agents.domain.sessions import SessionDetail, SessionState
from helix_agents.domain.streams import StreamAppend, StreamEnd
from helix_agents.domain.writes import Append, StepWrites, WriteOp, apply_writes, merge_warnings

_ARGUMENTS = 36
COMMIT = f"SELECT * FROM __agents_commit_step({', '.join('?' * _ARGUMENTS)})"
_COMMIT_LAST = f"SELECT * FROM __agents_commit_last_step({', '.join('?' * (_ARGUMENTS + 12))})"
_NO_CHUNKS: tuple[Value, ...] = (None,) * 12


@dataclass(frozen=True, kw_only=True)
class Step:
    """An incoming step, with everything encoded once for all tries."""

    namespace: str
    state: SessionState
    bodies: Sequence[str]
    meta: CheckpointMeta
    commit: StepCommit
    expected_version: int | None
    now: int

    @property
    def session_id(self) -> str:
        return self.state.session_id

    @property
    def waits_for_somebody(self) -> bool:
        """Whether it deals with pending calls, which others answer and which may be anywhere in the tree."""
        commit = self.commit
        return bool(
            commit.pending or commit.consume or commit.deliver_late_answers or commit.drop_pending or commit.suspend
        )

    def values(
        self,
        *,
        writes: str | None,
        known: tuple[int, int] | None = None,
        limit: int | None = None,
        promote: bool = False,
        sequence: int | None = None,
        usage: str | None = None,
        more: dict[str, Any] | None = None,
        chunks: tuple[Value, ...] = _NO_CHUNKS,
    ) -> tuple[Value, ...]:
        """The arguments of the function that stores it."""
        state, meta, commit = self.state, self.meta, self.commit
        return (
            self.namespace,
            state.session_id,
            commit.fence.run_id,
            commit.fence.attempt,
            commit.step,
            commit.round,
            self.expected_version,
            *(known or (None, None)),
            limit,
            self.now,
            state.status,
            state.agent_type,
            state.mode,
            encode_suspension(state.suspension_context),
            encode(SessionDetail.of(state)).decode(),
            meta.step_id,
            meta.step_count,
            meta.stream_sequence if sequence is None else sequence,
            self.bodies,
            writes,
            promote,
            usage,
            encode(more).decode() if more else None,
            *chunks,
        )

    @property
    def usage(self) -> str | None:
        """Its usage as the function expects it."""
        return usage_rows(self.commit.usage, self.now) if self.commit.usage else None

    def answer(
        self, row: Row, ops: Sequence[WriteOp], extra: CommitExtra | None = None, *, stream_ended: bool
    ) -> Committed:
        """The caller's answer, made from the function's."""
        version, segment, messages, sequence, status = tuple(row)[:5]
        return Committed(
            checkpoint_id=checkpoint_name(segment << 32 | version) or "",
            new_version=version,
            message_count=messages,
            stream_sequence=sequence,
            warnings=merge_warnings(ops),
            again=extra.again if extra is not None else False,
            pending=extra.pending if extra is not None else (),
            status=status,
            stream_ended=stream_ended,
        )


class PlainStep:
    """A step that needs only one statement, as far as its sender can know."""

    def __init__(self, step: Step, state_writes: StateWrites) -> None:
        self._step = step
        self._state_writes = state_writes
        ops = self._ops = step.commit.writes.ops
        self._known = state_writes.found(step.session_id)
        appends = Append in map(type, ops)
        self.is_plain = not (
            step.waits_for_somebody
            or step.commit.ref_updates
            or step.commit.entries
            or step.commit.audit
            or step.commit.metadata
            or step.commit.take_stop
            or (appends and self._known is None)
        )
        self._not_lists: frozenset[str] | None = None
        if self.is_plain and self._known is not None:
            try:
                self._not_lists = not_lists_after(step.session_id, self._known[2], ops)
            except Exception:
                # Either the append is wrong or our knowledge is outdated; the locked path finds out.
                self.is_plain = False
        self._checked = appends
        self._end = stream_end_of(step.commit, again=False)
        self.statement = COMMIT if self._end is None else _COMMIT_LAST

    def values(self) -> tuple[Value, ...]:
        """The arguments of the single statement."""
        return self._step_values() if self._end is None else (*self._step_values(), *self._end_values(*self._end))

    def _end_values(self, append: StreamAppend, end: StreamEnd) -> tuple[Value, ...]:
        rest, blank = end.rest, Committed(checkpoint_id="", new_version=0, warnings=merge_warnings(self._ops))
        _, _, _, _, *last = append_values(last_of(append, end, blank, self._step.now))
        return (rest.status, rest.end_status, encoded(rest.output), encoded(rest.error), *last)

    def _step_values(self) -> tuple[Value, ...]:
        step, commit = self._step, self._step.commit
        more: dict[str, Any] = {"take": True} if commit.takes_messages else {}
        if commit.stage:
            more["stage"] = staged_rows(commit.stage, step.now)
        if commit.refs:
            more["refs"] = ref_rows(commit.refs, step.now)
        if commit.forget_effects:
            more["forget"] = commit.forget_effects
        if commit.run is not None:
            more["run"] = _run_update(commit.run)
        return step.values(
            writes=encode(commit.writes).decode() if commit.writes.ops else None,
            known=self._known[:2] if self._checked and self._known is not None else None,
            limit=self._state_writes.limit,
            promote=commit.promote_staging,
            usage=step.usage,
            more=more,
            chunks=append_values(commit.stream) if commit.stream is not None else _NO_CHUNKS,
        )

    def answer(self, row: Row) -> Committed:
        """The caller's answer; also remembers what is now known about the state."""
        version, segment = row[0], row[1]
        if self._not_lists is not None and self._known is not None and self._known[:2] == (version - 1, segment):
            self._state_writes.remember(self._step.session_id, version, segment, self._not_lists)
        return self._step.answer(row, self._ops, stream_ended=self._end is not None)


async def commit_carefully(connection: Connection, step: Step, state_writes: StateWrites) -> Committed:
    """Commit a step under its session's lock, with every decision made by the domain.

    Raises:
        SupersededError: another run or attempt holds the fence, or this one already made a later commit.
        StaleStateError: the caller expected another version.
    """
    if step.waits_for_somebody:
        await lock_tree_of(connection, step.namespace, step.session_id)
    row = await load_session(connection, step.namespace, step.session_id)
    remembered = await _check(connection, step, row)
    if remembered is not None:
        return remembered
    if row.steered and step.commit.takes_messages:
        taken = await take_steering(connection, row, step.commit.fence.run_id)
        step = replace(step, bodies=[*step.bodies, *(encode(message).decode() for message in taken)])
    commit, before = step.commit, row.version
    # Children's rows are locked before the stream's row, as in their own steps.
    went_on = commit.suspend and await some_went_on(connection, step.namespace, awaited_children(step.state))
    row.version += 1
    ops = (*await _staged_writes(connection, step, row), *commit.writes.ops)
    text = await _checked_writes(connection, row, ops, state_writes, before)
    sequence = None
    if commit.stream is not None:
        sequence = await append_chunks(connection, step.namespace, commit.stream, step.now)
    flag = await aimed_flag(connection, row) if commit.take_stop or commit.suspend else None
    extra = await _side_rows(connection, step, row, goes_on=went_on or comes_first(flag, commit))
    more = _more_of(commit, extra, takes_stop=is_taken(flag, commit))
    stored = await _store(connection, step, text, sequence, more)
    if text is not None:
        await _materialise_if_large(connection, row, stored, state_writes)
    await _beside_the_state(connection, step, row)
    return await _answered(connection, step, stored, ops, extra)


async def _staged_writes(connection: Connection, step: Step, row: SessionHead) -> tuple[WriteOp, ...]:
    """Stage what the commit brings for later; then take what was staged for this step, if it is to be promoted."""
    if step.commit.stage:
        await stage(connection, row, step.commit.stage, step.now)
    return await take_staged(connection, row, step.meta.step_id) if step.commit.promote_staging else ()


def _more_of(commit: StepCommit, extra: CommitExtra, *, takes_stop: bool) -> dict[str, Any]:
    """The function's optional input, as far as it was decided here; only some commits have any."""
    more: dict[str, Any] = {}
    if commit.forget_effects:
        more["forget"] = commit.forget_effects
    if takes_stop:
        more["take_stop"] = True
    if commit.suspend:
        more["extra"] = extra
    if commit.run is not None:
        more["run"] = _run_update(commit.run, goes_on=extra.again)
    return more


async def _beside_the_state(connection: Connection, step: Step, row: SessionRow) -> None:
    """Write what the function does not handle: metadata, and entries with their audit."""
    commit = step.commit
    if commit.metadata:
        await _patch_metadata(connection, row, commit.metadata)
    if commit.entries or commit.audit:
        await write_session_entries(
            connection,
            step.namespace,
            commit.entries,
            commit.audit,
            owner=step.state.worked_by,
            mark=row.version,
            now=step.now,
        )


async def _answered(
    connection: Connection, step: Step, stored: Row, ops: Sequence[WriteOp], extra: CommitExtra
) -> Committed:
    """The answer; if the run ends, its stream ends with it."""
    end = stream_end_of(step.commit, again=extra.again)
    answer = step.answer(stored, ops, extra, stream_ended=end is not None)
    if end is not None:
        await end_with_commit(connection, step.namespace, *end, answer, step.now)
    return answer


async def _store(
    connection: Connection, step: Step, writes: str | None, sequence: int | None, more: dict[str, Any]
) -> Row:
    """Have the function store the step; what it cannot read is stored separately."""
    usage, apart = step.usage, _taken_apart(more)
    has_readable_usage = usage is None or not is_unreadable(usage)
    values = step.values(writes=writes, sequence=sequence, usage=usage if has_readable_usage else None, more=more)
    stored = await connection.one(COMMIT, values)
    assert stored is not None, "the fence was checked under the lock"
    if not has_readable_usage:
        await connection.execute(INSERT_USAGE, usage_values(step.namespace, step.commit.usage, step.now))
    for table, column, text in apart:
        await connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE namespace = ? AND session_id = ? AND run_id = ?",
            (text, step.namespace, step.session_id, step.commit.fence.run_id),
        )
    return stored


def _taken_apart(more: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Remove the texts that no SQL function can read; returns the table, column and text of each."""
    run: dict[str, JSON] = more.get("run", {})
    texts = [("__agents_runs", run, name, name) for name in ("completion_reason", "output", "error")]
    apart: list[tuple[str, str, str]] = []
    for table, given, name, column in [*texts, ("__agents_sessions", more, "extra", "commit_extra")]:
        if name in given and is_unreadable(text := encode(given[name]).decode()):
            del given[name]
            apart.append((table, column, text))
    return apart


async def _patch_metadata(connection: Connection, row: SessionRow, patch: dict[str, str | None]) -> None:
    record = record_of(row)
    metadata = patched(record.metadata, patch)
    await connection.execute(
        "UPDATE __agents_sessions SET metadata = ?, labels = ? WHERE namespace = ? AND session_id = ?",
        (encode_metadata(metadata), labels_of(record.tags, metadata), row.namespace, row.session_id),
    )


async def _check(connection: Connection, step: Step, row: SessionRow) -> Committed | None:
    """The first answer, if this very commit was made before; None if it is new and may be made."""
    if was_committed(row, await current_run(connection, row), step.commit):
        return await _remembered(connection, row)
    if step.expected_version not in (None, row.version):
        raise StaleStateError(row.session_id, step.expected_version or 0, row.version)
    if row.mode is not None and row.mode != step.state.mode:
        raise ModeIsWriteOnceError(row.session_id, str(row.mode), str(step.state.mode))
    return None


async def _checked_writes(
    connection: Connection, row: SessionRow, ops: tuple[WriteOp, ...], state_writes: StateWrites, before: int
) -> str | None:
    """The writes to log, if any, after checking that appends meet lists and the state does not get too large."""
    if not ops:
        state_writes.keep(row, before, connection)
        return None
    await state_writes.check(connection, row, ops, version_before=before)
    text = encode(StepWrites(ops=ops)).decode()
    if state_writes.may_exceed(row.state_base_bytes + row.state_since_bytes + len(text.encode())):
        state = apply_writes(await load_custom_state(connection, row.segment, row.state_count), ops)
        state_writes.check_size(row.session_id, state, ops)
    return text


async def _materialise_if_large(
    connection: Connection, row: SessionRow, stored: Row, state_writes: StateWrites
) -> None:
    """Keep a copy of a state that outgrew its last one, or whose upper bound can no longer prove it small enough."""
    row.state_count, row.state_base_bytes, row.state_since_bytes = tuple(stored)[5:8]
    if has_outgrown(stored) or state_writes.may_exceed(row.state_base_bytes + row.state_since_bytes):
        await materialise(connection, row, await load_custom_state(connection, row.segment, row.state_count))
        await connection.execute(
            "UPDATE __agents_sessions SET state_base_bytes = ?, state_since_bytes = 0"
            " WHERE namespace = ? AND session_id = ?",
            (row.state_base_bytes, row.namespace, row.session_id),
        )


async def _side_rows(connection: Connection, step: Step, row: SessionRow, *, goes_on: bool) -> CommitExtra:
    """Write the commit's changes to calls and references; most steps have none."""
    commit, now, namespace = step.commit, step.now, step.namespace
    if commit.refs:
        await add_refs(connection, namespace, row.session_id, commit.refs, now)
    for update in commit.ref_updates:
        await update_ref(connection, namespace, row.session_id, update, now)
    if commit.pending:
        await ask_calls(connection, row, commit.pending)
    if commit.consume:
        named = await _named(connection, row, commit.consume)
        await change_calls(connection, namespace, named, lambda call: consume(call, now))
    if commit.deliver_late_answers:
        named = await _named(connection, row, commit.deliver_late_answers)
        await change_calls(connection, namespace, named, deliver_late_answer)
    if commit.drop_pending:
        await change_calls(connection, namespace, await own_calls(connection, row), drop)
    if not commit.suspend:
        return CommitExtra()
    waiting = tuple(call for call in await calls_below(connection, row) if call.state in OPEN)
    again = goes_on or any(call.state in READY for call in await driven_calls(connection, row))
    return CommitExtra(again=again, pending=waiting)


async def _named(connection: Connection, row: SessionRow, call_ids: tuple[ToolCallId, ...]) -> list[PendingCall]:
    """The calls with these ids that the tree knows."""
    found = await find_calls(connection, row.namespace, row.root_session_id, call_ids)
    return [found[call_id] for call_id in call_ids if call_id in found]


def _run_update(update: RunUpdate, *, goes_on: bool = False) -> dict[str, JSON]:
    """The fields of the run that the commit changes; for a run that continues, only its step count."""
    said = RunUpdate(step_count=update.step_count) if goes_on else update
    return {name: value for name, value in msgspec.structs.asdict(said).items() if value is not None}


async def _remembered(connection: Connection, row: SessionRow) -> Committed:
    assert row.commit_checkpoint is not None
    checkpoint = await read_checkpoint(connection, row.commit_checkpoint)
    assert checkpoint is not None
    return first_answer(checkpoint, row.commit_extra)


def has_outgrown(row: Row) -> bool:
    """Whether the state should be materialised after this commit."""
    return outweighs(row[6], row[7])
