"""The step commit: messages, state, staging, checkpoint and everything else a step writes, in one script."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.redis.checkpoints import add_checkpoint
from helix_agents.backends.redis.effects import forget_effects
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import add_messages, add_writes, custom_state
from helix_agents.backends.redis.pending import ask_for, call_of, change_calls, driven_calls, load_calls, tree_calls
from helix_agents.backends.redis.queues import take_steering
from helix_agents.backends.redis.rows import Session, load_session, put_run, save_session
from helix_agents.backends.redis.sessions import check_version, committed
from helix_agents.backends.redis.staging import promote, stage
from helix_agents.backends.redis.stream_rows import StreamWork
from helix_agents.backends.redis.sub_sessions import Refs, some_went_on
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.backends.redis.usage_rows import add_usage
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import (
    Committed,
    RememberedCommit,
    StepCommit,
    awaited_children,
    check_step_commit,
    committed_run,
    status_after,
    stream_end_of,
)
from helix_agents.domain.flags import comes_first, is_taken
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import READY, PendingCall, consume, deliver_late_answer, drop
from helix_agents.domain.session_changes import saved, stepped
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamAppend
from helix_agents.domain.writes import WriteOp, difference, merge_warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The arguments of `save_state_and_promote_staging`."""

    session_id: SessionId
    state: SessionState
    messages: Sequence[Message]
    meta: CheckpointMeta
    expected_version: int | None
    commit: StepCommit | None


async def commit_step(tx: Transaction, space: Keyspace, step: Step) -> Committed:
    """Commit a step, or repeat the first answer if it was committed before.

    Raises:
        SupersededError: the commit's fence is not the current one; checked before anything else.
        StaleStateError: the caller expected another version.
    """
    known, commit = await load_session(tx, step.session_id), step.commit
    session = known.value
    if commit is not None:
        first_answer = check_step_commit(step.session_id, session.run, commit, session.memo)
        if first_answer is not None:
            return first_answer
    check_version(session, step.expected_version)
    meta = step.meta
    if commit is not None and commit.stream is not None:
        sequence = await _append_to_stream(tx, space, commit.stream)
        meta = msgspec.structs.replace(meta, stream_sequence=sequence)
    ops = await _with_step(tx, known, step, meta)
    answer = msgspec.structs.replace(
        committed(session), stream_sequence=meta.stream_sequence, warnings=merge_warnings(ops)
    )
    if commit is not None:
        answer = await _side_rows(tx, known, commit, meta, answer)
        session.memo = RememberedCommit(fence=commit.fence, step=commit.step, round=commit.round, answer=answer)
        answer = await _end_stream(tx, space, commit, answer)
    save_session(tx, known)
    return answer


async def _with_step(tx: Transaction, known: Known[Session], step: Step, meta: CheckpointMeta) -> tuple[WriteOp, ...]:
    """Write the step's messages and state, with its checkpoint; returns the state writes."""
    session, commit = known.value, step.commit
    staged = ()
    if commit is None:
        record = saved(session.record, step.state, tx.now)
        writes = difference(await custom_state(tx, known), step.state.custom_state).ops
    else:
        record = stepped(session.record, step.state, commit.metadata, tx.now)
        status = status_after(session.record.status, record.status)
        record = msgspec.structs.replace(record, step_count=meta.step_count, status=status)
        writes, staged = commit.writes.ops, commit.stage
        stage(tx, known, staged)
    if commit is None or commit.promote_staging:
        writes = (*await promote(tx, known, meta.step_id, staged), *writes)
    session.record = record
    add_messages(tx, known, step.messages)
    if commit is not None and commit.takes_messages and session.row.steered:
        add_messages(tx, known, await take_steering(tx, known, commit.fence.run_id))
    await add_writes(tx, known, writes)
    add_checkpoint(tx, known, "staging", has_writes=bool(writes), meta=meta)
    return writes


async def _side_rows(
    tx: Transaction, known: Known[Session], commit: StepCommit, meta: CheckpointMeta, answer: Committed
) -> Committed:
    """Write everything in the commit besides messages and state; the answer tells whether the run continues."""
    session = known.value
    session_id = session.record.session_id
    if commit.refs or commit.ref_updates:
        refs = await Refs.of(tx, known)
        refs.add(commit.refs)
        for update in commit.ref_updates:
            refs.update(update)
    forget_effects(tx, known, commit.forget_effects)
    stopped = comes_first(session.flag, commit)
    if is_taken(session.flag, commit):
        session.flag = None
    add_usage(tx, known, commit.usage)
    await _change_pending(tx, session, commit)
    if commit.suspend:
        calls = sorted(await tree_calls(tx, session_id), key=lambda call: (call.created_at, call.tool_call_id))
        again = (
            stopped
            or any(call.state in READY for call in await driven_calls(tx, session_id))
            or await some_went_on(tx, awaited_children(session.record))
        )
        answer = msgspec.structs.replace(answer, again=again, pending=tuple(calls))
    if session.run is not None and commit.run is not None:
        run = committed_run(session.run, commit.run, meta.step_count, again=answer.again, now=tx.now)
        put_run(tx, known, run)
    return answer


async def _change_pending(tx: Transaction, session: Session, commit: StepCommit) -> None:
    root = session.record.root_session_id
    if commit.pending:
        await ask_for(tx, commit.pending)
    if commit.consume:
        await change_calls(tx, await _calls(tx, root, commit.consume), lambda call: consume(call, tx.now))
    if commit.deliver_late_answers:
        await change_calls(tx, await _calls(tx, root, commit.deliver_late_answers), deliver_late_answer)
    if commit.drop_pending:
        calls = (await load_calls(tx, root)).value.values()
        await change_calls(tx, [call for call in calls if call.session_id == session.record.session_id], drop)


async def _calls(tx: Transaction, root: SessionId, ids: Sequence[ToolCallId]) -> list[PendingCall]:
    found = [await call_of(tx, root, name) for name in ids]
    return [call for call in found if call is not None]


async def _append_to_stream(tx: Transaction, space: Keyspace, append: StreamAppend) -> int:
    """Append the commit's chunks within the transaction; returns the stream's latest sequence after them."""
    work = await StreamWork.find(tx, space, append.stream_id)
    if work is None:
        raise rules.deleted(append)
    return await work.append(append)


async def _end_stream(tx: Transaction, space: Keyspace, commit: StepCommit, answer: Committed) -> Committed:
    """Bring the stream that took the commit's chunks to rest with the commit, unless the run continues."""
    end = stream_end_of(commit, again=answer.again)
    if end is None:
        return answer
    work = await StreamWork.find(tx, space, end[0].stream_id)
    assert work is not None, "it took the chunks a moment ago"
    await work.end_with_commit(*end, answer)
    return msgspec.structs.replace(answer, stream_ended=True)
