"""The writes that frame a run: its start, its steps, and an end imposed from outside."""

from collections.abc import Sequence

import msgspec

from helix_agents.backends.redis.creation import bring_claim, create, place_of, results_missing_at
from helix_agents.backends.redis.index import entry_id
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import add_messages, add_writes, session_line, stand_at
from helix_agents.backends.redis.pending import change_calls, driven_calls, put_call, tree_calls
from helix_agents.backends.redis.queues import take_queued, take_steering
from helix_agents.backends.redis.rows import (
    RunEntry,
    Session,
    bring_run,
    find_run,
    find_session,
    find_sessions,
    load_session,
    put_run,
    save_session,
    tree,
)
from helix_agents.backends.redis.runs import begin_run, settle_current_run
from helix_agents.backends.redis.sessions import RedisSessions
from helix_agents.backends.redis.staging import discard, stage, staged_for
from helix_agents.backends.redis.step_commit import Step, commit_step
from helix_agents.backends.redis.stream_rows import append_chunks, bring_stream, claim_stream
from helix_agents.backends.redis.sub_sessions import Refs
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import (
    Committed,
    ParentLink,
    RunStartCommitted,
    SettleSession,
    StartRun,
    StepCommit,
    check_expectations,
    check_repeated_start,
    check_settle,
    given_up,
    has_open_step,
    is_unsettled,
    settled_run,
    started_run,
)
from helix_agents.domain.errors import RunAlreadyExistsError, UnsupportedBackendError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import abandon
from helix_agents.domain.runs import check_fence
from helix_agents.domain.session_changes import savable, settled, started
from helix_agents.domain.sessions import BranchPoint, Holder, SessionState, StatusChanged, StatusOutcome
from helix_agents.domain.streams import StreamAppend
from helix_agents.domain.transcript import only_held


async def _start(tx: Transaction, space: Keyspace, start: StartRun, claim: str | None) -> RunStartCommitted:
    if start.create is not None:
        bring_claim(tx, start.session_id, claim)
    if _claims_stream(start):
        bring_stream(tx, start.session_id)
    first_answer = await _first_answer(tx, start)
    if first_answer is not None:
        return first_answer
    if start.parent is not None:
        await _link_parent(tx, start.parent)
    if start.create is not None:
        known = await create(tx, start.session_id, start.create, claim)
        # Creating the session and starting its run are one commit and therefore one version, not two.
        known.value.record = msgspec.structs.replace(known.value.record, version=0)
    else:
        known = await load_session(tx, start.session_id)
        check_expectations(start, known.value.record, known.value.run)
    session = known.value
    if start.queued:
        await take_queued(tx, known, start.run_id, start.queued_revision)
    settle_current_run(tx, known, start.replaced_status, start.replaced_reason)
    back_to: Holder | None = None
    if start.rewind_to is not None:
        back_to = await _rewind(tx, known, start.rewind_to)
    if start.abandon_pending or start.rewind_to is not None or start.drop_unanswered:
        for call in given_up(start, await driven_calls(tx, start.session_id)):
            await put_call(tx, call)
    add_messages(tx, known, start.append_messages)
    if start.takes_messages and session.row.steered:
        add_messages(tx, known, await take_steering(tx, known, start.run_id))
    await add_writes(tx, known, start.writes.ops)
    session.record = started(session.record, start, session.record.message_count, tx.now, back_to=back_to)
    if session.row.staged and not has_open_step(session.record):
        discard(tx, known, await staged_for(tx, known, None))
        session.set(staged=False)
    if start.ref_updates:
        refs = await Refs.of(tx, known)
        for update in start.ref_updates:
            refs.update(update)
    run = started_run(start, session.row.turn + 1, tx.now)
    version, count = session.record.version, session.record.message_count
    begin_run(tx, known, run, (version, count))
    place = None
    if start.stream is not None and _claims_stream(start):
        place = await claim_stream(tx, space, start.stream, run)
    return RunStartCommitted(run=run, new_version=version, message_count=count, stream=place)


def _claims_stream(start: StartRun) -> bool:
    """Whether a start makes its run the stream's writer.

    A stream with another name may be in another slot, which this script cannot reach.
    """
    return start.stream is not None and start.stream.stream_id == start.session_id


async def _first_answer(tx: Transaction, start: StartRun) -> RunStartCommitted | None:
    """The answer that this very start got before, if it was already made."""
    bring_run(tx, start.session_id, start.run_id)
    known = await find_session(tx, start.session_id)
    if known is None:
        return None
    row = await find_run(tx, known, start.run_id)
    current = known.value.record.current_run_id
    if row is None or not check_repeated_start(start, row.run, current):
        return None
    if row.start_version is None:
        raise RunAlreadyExistsError(start.run_id)
    return RunStartCommitted(run=row.first, new_version=row.start_version, message_count=row.start_messages)


async def _link_parent(tx: Transaction, link: ParentLink) -> None:
    parent = await load_session(tx, link.session_id)
    check_fence(link.session_id, parent.value.run, link.fence)
    (await Refs.of(tx, parent)).link(link.ref)
    stage(tx, parent, link.stage)


async def _rewind(tx: Transaction, known: Known[Session], checkpoint_id: CheckpointId) -> Holder:
    """Put the session back at one of its checkpoints, with nothing staged, and answer calls that were open there.

    Returns who has the session there.
    """
    session = known.value
    point = BranchPoint(from_session_id=session.record.session_id, checkpoint_id=checkpoint_id)
    there, messages, state, holder = await place_of(tx, session, point)
    results = await results_missing_at(tx, known, point, there, messages)
    # A later return to this point finds the results that the open step held.
    here, count = BranchPoint(from_session_id=session.record.session_id), session.record.message_count
    add_messages(tx, known, only_held(await results_missing_at(tx, known, here, session_line(session), count)))
    discard(tx, known, await staged_for(tx, known, None))
    session.set(staged=False)
    # The ledger's records belong to the abandoned history, and its call ids may come again.
    tx.do("DEL", tx.slot.effects(session.record.session_id))
    await stand_at(tx, known, there, messages=messages, state=state)
    add_messages(tx, known, results)
    return holder


async def _settle(tx: Transaction, known: Known[Session], request: SettleSession) -> None:
    session = known.value
    run = settled_run(session.run, request, tx.now)
    if run is not None:
        put_run(tx, known, run)
    session.flag = None
    session.record = settled(session.record, request, tx.now)
    if session.record.session_id == request.session_id:
        add_messages(tx, known, request.append_messages)
        await add_writes(tx, known, request.writes.ops)
    save_session(tx, known)


def _check_without_entries(given: Sequence[object]) -> None:
    """Refuse entries: those of another store cannot be part of a commit here, and must not be lost silently."""
    if given:
        raise UnsupportedBackendError("redis", "the state capabilities")


class RedisCommits(RedisSessions):
    """The facet `Commits`."""

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        door.check_start(start)
        _check_without_entries(start.entries)
        await self._check_unique(start)

        async def work(tx: Transaction, claim: str | None = None) -> RunStartCommitted:
            return await _start(tx, self._space, start, claim)

        if start.create is None:
            return await self._write("start_run", start.session_id, work)
        # A start that was already made is answered where the session is, wherever it would be created now.
        there = await self._read("start_run", start.session_id, lambda tx: _first_answer(tx, start))
        if there is not None:
            return there
        above = start.parent.session_id if start.parent is not None else None
        return await self._create_in_place("start_run", start.session_id, start.create, above, work)

    async def save_state_and_promote_staging(
        self,
        session_id: SessionId,
        state: SessionState,
        append_messages: Sequence[Message],
        checkpoint_meta: CheckpointMeta,
        *,
        expected_version: int | None = None,
        commit: StepCommit | None = None,
    ) -> Committed:
        door.check_step(state, checkpoint_meta, commit)
        if commit is not None:
            _check_without_entries(commit.entries or commit.audit)
        space = self._space
        if commit is not None and commit.stream is not None and await self._lies_elsewhere(session_id, commit.stream):
            # No script reaches two slots, so the chunks are stored first, as if the stream had a backend of its own.
            sequence = await append_chunks(space, commit.stream, self._clock)
            checkpoint_meta = msgspec.structs.replace(checkpoint_meta, stream_sequence=sequence)
            commit = msgspec.structs.replace(commit, stream=None)
        step = Step(
            session_id=session_id,
            state=savable(state, with_custom_state=commit is None),
            messages=append_messages,
            meta=checkpoint_meta,
            expected_version=expected_version,
            commit=commit,
        )
        return await self._write("commit", session_id, lambda tx: commit_step(tx, space, step))

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        door.check_settle(request)

        async def work(tx: Transaction) -> StatusOutcome:
            known = await load_session(tx, request.session_id)
            conflict = check_settle(request, known.value.record, known.value.run)
            if conflict is not None:
                return conflict
            await change_calls(tx, await tree_calls(tx, request.session_id), abandon)
            await _settle(tx, known, request)
            for member in (await find_sessions(tx, await tree(tx, request.session_id)))[1:]:
                if is_unsettled(member.value.record):
                    await _settle(tx, member, request)
            return StatusChanged(new_version=known.value.record.version)

        return await self._write("settle_session", request.session_id, work)

    async def _lies_elsewhere(self, session_id: SessionId, append: StreamAppend) -> bool:
        """Whether a stream is in another slot than the session that appends to it."""
        if append.stream_id == session_id:
            return False
        space = self._space
        return await space.locate(append.stream_id) != await space.locate(session_id)

    async def _check_unique(self, start: StartRun) -> None:
        """Refuse a run id that belongs to another session."""
        entry = await self._space.entry(entry_id("r", start.run_id), RunEntry)
        if entry is not None and entry.run.session_id != start.session_id:
            raise RunAlreadyExistsError(start.run_id)
