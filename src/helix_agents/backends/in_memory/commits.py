"""The writes that frame a run: its start, its steps, and an end imposed from outside."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import msgspec

from helix_agents.backends.in_memory.checkpoints import version_at
from helix_agents.backends.in_memory.creation import create, place_of, results_missing_at
from helix_agents.backends.in_memory.entry_rows import (
    delete_session_entries,
    rewind_session_entries,
    write_session_entries,
)
from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.history import standing_at, with_messages, with_state
from helix_agents.backends.in_memory.pending import change_calls, put_call
from helix_agents.backends.in_memory.queues import take_queued, take_steering
from helix_agents.backends.in_memory.rows import current_run, driven_calls, session_row, tree, tree_calls
from helix_agents.backends.in_memory.runs import next_turn, put_run, settle_current_run
from helix_agents.backends.in_memory.sessions import store
from helix_agents.backends.in_memory.staging import discard, stage, staged_for
from helix_agents.backends.in_memory.step_commit import Step, commit_step
from helix_agents.backends.in_memory.streams import claim_stream
from helix_agents.backends.in_memory.sub_sessions import link_ref, update_ref
from helix_agents.backends.in_memory.tables import SessionRow
from helix_agents.backends.in_memory.transaction import Transaction
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
from helix_agents.domain.errors import RunAlreadyExistsError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import abandon
from helix_agents.domain.runs import RunRecord, check_fence
from helix_agents.domain.session_changes import savable, settled, started
from helix_agents.domain.sessions import BranchPoint, Holder, SessionState, StatusChanged, StatusOutcome
from helix_agents.domain.streams import StreamClaim, StreamPlace
from helix_agents.domain.transcript import only_held

ClaimStream: TypeAlias = Callable[[Transaction, StreamClaim, RunRecord], StreamPlace | None]


def _start(tx: Transaction, start: StartRun, claim: ClaimStream) -> RunStartCommitted:
    row = tx.tables.sessions.get(start.session_id)
    existing = tx.tables.runs.get(start.run_id)
    if check_repeated_start(start, existing, row.record.current_run_id if row else None):
        if start.run_id not in tx.tables.starts:
            raise RunAlreadyExistsError(start.run_id)
        return tx.tables.starts[start.run_id]
    if start.parent is not None:
        _link_parent(tx, start.parent)
    row = _expected_session(tx, start)
    if start.queued:
        take_queued(tx, start.session_id, start.run_id, start.queued_revision)
    settle_current_run(tx, start.session_id, start.replaced_status, start.replaced_reason)
    back_to: Holder | None = None
    if start.rewind_to is not None:
        to = version_at(tx.tables, start.session_id, start.rewind_to)
        rewind_session_entries(tx, start.session_id, to=to, mark=row.record.version + 1)
        row, back_to = _rewound(tx, row, start.rewind_to)
    for call in given_up(start, driven_calls(tx.tables, start.session_id)):
        put_call(tx, call)
    row = with_messages(tx, row, start.append_messages)
    if start.takes_messages:
        row = with_messages(tx, row, take_steering(tx, start.session_id, start.run_id))
    row = with_state(tx, row, start.writes.ops)
    record = started(row.record, start, row.record.message_count, tx.now, back_to=back_to)
    row = replace(row, record=record, remembered=None)
    if not has_open_step(row.record):
        discard(tx, start.session_id, staged_for(tx.tables, start.session_id, None))
    store(tx, row)
    tx.remove(tx.tables.flags, start.session_id)
    for update in start.ref_updates:
        update_ref(tx, start.session_id, update)
    run = started_run(start, next_turn(tx.tables, start.session_id), tx.now)
    put_run(tx, run)
    if start.entries:
        write_session_entries(tx, start.entries, owner=row.record.agent_type, mark=row.record.version)
    answer = RunStartCommitted(run=run, new_version=row.record.version, message_count=row.record.message_count)
    tx.put(tx.tables.starts, start.run_id, answer)
    if start.stream is None:
        return answer
    return msgspec.structs.replace(answer, stream=claim(tx, start.stream, run))


def _link_parent(tx: Transaction, parent: ParentLink) -> None:
    check_fence(parent.session_id, current_run(tx.tables, parent.session_id), parent.fence)
    link_ref(tx, parent.session_id, parent.ref)
    stage(tx, parent.session_id, parent.stage)


def _expected_session(tx: Transaction, start: StartRun) -> SessionRow:
    """The session this run starts in: created if the caller asks for it, otherwise as the caller last read it."""
    if start.create is not None:
        row = create(tx, start.session_id, start.create)
        store(tx, row)
        # Creating the session and starting its run are one commit and therefore one version, not two.
        return replace(row, record=msgspec.structs.replace(row.record, version=0))
    row = session_row(tx.tables, start.session_id)
    check_expectations(start, row.record, current_run(tx.tables, start.session_id))
    return row


def _rewound(tx: Transaction, row: SessionRow, checkpoint_id: CheckpointId) -> tuple[SessionRow, Holder]:
    """The session back at one of its checkpoints with nothing staged, and who has it there.

    Calls that were open at the checkpoint get results.
    """
    session_id = row.record.session_id
    point = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint_id)
    segment, messages, states, holder = place_of(tx.tables, row, point)
    results = results_missing_at(tx.tables, point, segment, messages)
    row = _with_held_results(tx, row)
    discard(tx, session_id, staged_for(tx.tables, session_id, None))
    # The ledger's records belong to the abandoned history, and its call ids may come again.
    tx.remove(tx.tables.effects, session_id)
    row = standing_at(tx, row, segment, messages=messages, states=states)
    return with_messages(tx, row, results), holder


def _with_held_results(tx: Transaction, row: SessionRow) -> SessionRow:
    """The session with the results that its open step holds, for a caller that resumes where it left off."""
    here = BranchPoint(from_session_id=row.record.session_id)
    return with_messages(tx, row, only_held(results_missing_at(tx.tables, here, row.segment, row.record.message_count)))


def _settle(tx: Transaction, session_id: SessionId, request: SettleSession) -> None:
    row = session_row(tx.tables, session_id)
    run = settled_run(current_run(tx.tables, session_id), request, tx.now)
    if run is not None:
        put_run(tx, run)
    tx.remove(tx.tables.flags, session_id)
    if request.destroy_entries:
        delete_session_entries(tx, session_id)
    row = replace(row, record=settled(row.record, request, tx.now))
    if session_id == request.session_id:
        row = with_state(tx, with_messages(tx, row, request.append_messages), request.writes.ops)
    store(tx, row)


class InMemoryCommits(Handle):
    """The facet `Commits`."""

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        door.check_start(start)
        start = own(start)
        async with self._writing("start_run") as tx:
            return _start(tx, start, partial(claim_stream, self.memory, self.namespace, self._clock))

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
        step = Step(
            session_id=session_id,
            state=own(savable(state, with_custom_state=commit is None)),
            messages=append_messages,
            meta=checkpoint_meta,
            expected_version=expected_version,
            commit=None if commit is None else own(commit),
        )
        async with self._writing("save_state_and_promote_staging") as tx:
            answer = commit_step(tx, self.memory, self.namespace, step)
        return own(answer)

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        door.check_settle(request)
        request = own(request)
        async with self._writing("settle_session") as tx:
            row = session_row(tx.tables, request.session_id)
            conflict = check_settle(request, row.record, current_run(tx.tables, request.session_id))
            if conflict is not None:
                return conflict
            change_calls(tx, tree_calls(tx.tables, request.session_id), abandon)
            _settle(tx, request.session_id, request)
            for below in tree(tx.tables, request.session_id)[1:]:
                if is_unsettled(tx.tables.sessions[below].record):
                    _settle(tx, below, request)
            return StatusChanged(new_version=row.record.version + 1)
