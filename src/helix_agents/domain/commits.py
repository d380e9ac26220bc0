"""The writes that must be atomic, each as one request: starting a run, committing a step, settling a session."""

from collections.abc import Iterable

import msgspec

from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import CheckpointCreated, StepCommitted, StreamChunk
from helix_agents.domain.entries import Change
from helix_agents.domain.errors import (
    RunAlreadyExistsError,
    RunConflictError,
    StaleStateError,
    SupersededError,
)
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import PendingCall, abandon, drop
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import Fence, RunRecord, RunStatus, RunUpdate, check_same_attempt, described, updated
from helix_agents.domain.sessions import (
    CreateSession,
    InterruptContext,
    SessionState,
    SessionStatus,
    StatusConflict,
    SuspensionContext,
)
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.streams import StreamAppend, StreamClaim, StreamEnd, StreamPlace
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, MergeWarning, StepWrites


class StepCommit(Record):
    """What one step makes durable besides its state and messages.

    The fence is checked first. `step` and `round` identify the commit within its run: if the same attempt sends the
    same commit again, it gets the first result; an older commit is superseded.

    With `suspend`, the run's new status is conditional. Everything is stored, but the run continues (`Committed.again`)
    if the run was asked to stop, if an answered call that no run consumed is in this session or below it (not counting
    companions that are driven on their own), or if a child that the session waits for no longer waits.

    With `takes_messages`, the messages that wait to steer the run follow those of the step, in the same commit: they
    leave the queue, and the store remembers that this run took them in. `Committed.message_count` includes them.

    `take_stop` consumes the stop request, but not an abort if the run ends as interrupted: the run has not seen that
    one.

    A record whose status is `active` leaves an operator's `paused` in place; the result says which it is. User, tags,
    metadata and expiry of the given record are ignored: others may have changed them since the run read them.
    `metadata` are the keys that this step sets, or removes with None; all others are unchanged.

    `writes` are the step's state writes; a commit with writes leaves the rest of the custom state alone and ignores the
    `custom_state` of the given record. `entries` are changes in the session's own scope, which a rewind to an earlier
    checkpoint takes back; `audit` are lines for the audit log.

    `stream` are chunks that are part of the commit. With `stream_end`, their stream comes to rest in it too, unless the
    run continues; a store that cannot do that leaves it to the caller (`Committed.stream_ended`).
    """

    fence: Fence
    step: int
    round: int = 0
    writes: StepWrites = NO_WRITES
    stage: tuple[StagedChange, ...] = ()
    promote_staging: bool = True
    pending: tuple[PendingCall, ...] = ()
    consume: tuple[ToolCallId, ...] = ()
    deliver_late_answers: tuple[ToolCallId, ...] = ()
    drop_pending: bool = False
    refs: tuple[SubSessionRef, ...] = ()
    ref_updates: tuple[SubSessionRefUpdate, ...] = ()
    forget_effects: tuple[ToolCallId, ...] = ()
    run: RunUpdate | None = None
    suspend: bool = False
    takes_messages: bool = False
    take_stop: bool = False
    usage: tuple[UsageEntry, ...] = ()
    entries: tuple[Change, ...] = ()
    audit: tuple[dict[str, JSON], ...] = ()
    metadata: dict[str, str | None] = {}
    stream: StreamAppend | None = None
    stream_end: StreamEnd | None = None


class Committed(Record):
    """The step is durable. `status` is the session's status afterwards: a pause that arrived meanwhile is kept.

    `stream_ended` says that the stream came to rest with it; a repeated result does not know.
    """

    checkpoint_id: CheckpointId
    new_version: int
    message_count: int = 0
    stream_sequence: int = 0
    warnings: tuple[MergeWarning, ...] = ()
    again: bool = False
    pending: tuple[PendingCall, ...] = ()
    status: SessionStatus = "active"
    stream_ended: bool = False


def stream_end_of(commit: StepCommit, *, again: bool) -> tuple[StreamAppend, StreamEnd] | None:
    """The end of a stream that is part of a commit, and the chunks before it; None if the run continues."""
    if again or commit.stream is None or commit.stream_end is None:
        return None
    return commit.stream, commit.stream_end


def told_of(committed: Committed, markers: Iterable[StreamChunk]) -> tuple[StreamChunk, ...]:
    """Markers filled in with what only the commit itself could know."""
    return tuple(_marked(committed, marker) for marker in markers)


def _marked(committed: Committed, marker: StreamChunk) -> StreamChunk:
    match marker:
        case StepCommitted():
            return msgspec.structs.replace(
                marker,
                checkpoint_id=committed.checkpoint_id,
                message_count=committed.message_count,
                warnings=committed.warnings,
            )
        case CheckpointCreated():
            return msgspec.structs.replace(marker, checkpoint_id=committed.checkpoint_id)
        case _:
            return marker


class ParentLink(Record):
    """What a child's start writes at its parent, in the same transaction and under the parent's fence.

    A reference that exists already is kept, and takes over the new one's status and call.
    """

    session_id: SessionId
    fence: Fence
    ref: SubSessionRef
    stage: tuple[StagedChange, ...] = ()


class StartRun(Record):
    """Start a run; refused if the session or its current run changed since the caller read them.

    `create` creates the session in the same transaction and expects that it does not exist. If the run that this one
    replaces is still running, it is settled as `replaced_status` with `replaced_reason`. Afterwards, no older fence can
    write anything.

    `keep_suspension` lets the run continue what is open, as described by `suspension_context` if one is given. If
    nothing is open, whatever is staged belongs to steps that no run continues, and is dropped. `abandon_pending` gives
    up every open call in the session's tree, `drop_unanswered` only the unanswered ones; calls of companions that are
    driven on their own are kept. `entries` are changes of the capabilities' rows, made with the start or not at all:
    what a session was woken for is told and marked as told at once. The same holds for `ref_updates`, changes to
    references of the session.

    With `stream`, the run becomes the writer of its stream in the same transaction, and the stream is active; a store
    that cannot do that leaves it to the run's driver (`RunStartCommitted.stream`).

    `budget` is what the caller gave for the turn. What the turn spends is counted from zero, unless the turn keeps its
    steps.

    With `queued`, the run waited in the session's queue: it leaves the queue with its start, and is refused if it is no
    longer there, or was changed since its caller read it (`queued_revision`). `queued_at` is since when it waited.

    With `takes_messages`, the messages that wait to steer the session's run follow those of the start, as with a step
    (`StepCommit.takes_messages`).

    With `tell`, webhooks are told how the run ends.
    """

    session_id: SessionId
    run_id: RunId
    create: CreateSession | None = None
    expected_version: int | None = None
    expected_run: Fence | None = None
    agent_version: int | None = None
    append_messages: tuple[Message, ...] = ()
    writes: StepWrites = NO_WRITES
    rewind_to: CheckpointId | None = None
    keep_step_count: bool = False
    keep_suspension: bool = False
    suspension_context: SuspensionContext | None = None
    abandon_pending: bool = False
    drop_unanswered: bool = False
    expires_at: int | None = None
    previous_run_id: RunId | None = None
    parent_run_id: RunId | None = None
    parent: ParentLink | None = None
    start_sequence: int = 0
    owner: str | None = None
    workflow_id: str | None = None
    call_hooks: bool = False
    count_resume: bool = False
    replaced_status: RunStatus = "failed"
    replaced_reason: str = "superseded"
    entries: tuple[Change, ...] = ()
    ref_updates: tuple[SubSessionRefUpdate, ...] = ()
    stream: StreamClaim | None = None
    queued: bool = False
    queued_at: int | None = None
    queued_revision: int = 0
    takes_messages: bool = False
    budget: Budget | None = None
    tell: bool = False


class RunStartCommitted(Record):
    """The run is current, and its fence may write. If it also became its stream's writer, `stream` says where it
    starts; a repeated result does not know."""

    run: RunRecord
    new_version: int
    message_count: int
    stream: StreamPlace | None = None


class SettleSession(Record):
    """End what a session does from outside its run: expiry, an operator, an interrupt of a session that waits.

    One commit: status by compare-and-set, error and reason, messages, state writes, the current run's end, waiting
    calls dropped; and, except for messages and writes, the same for every session below it. With `expired_by`, only if
    the session still expires at that time or before, because an answer to a call moves the expiry. `destroy_entries`
    says that the session ends for good, with what it kept in its own scope.
    """

    session_id: SessionId
    expected: tuple[SessionStatus, ...]
    status: SessionStatus
    expected_version: int | None = None
    expected_run: Fence | None = None
    expired_by: int | None = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_context: InterruptContext | None = None
    append_messages: tuple[Message, ...] = ()
    writes: StepWrites = NO_WRITES
    run_status: RunStatus = "failed"
    completion_reason: str | None = None
    output: JSON = None
    destroy_entries: bool = False


def status_after(stored: SessionStatus, given: SessionStatus) -> SessionStatus:
    """The status after a run's step: a run that merely continues does not undo an operator's pause."""
    return "paused" if stored == "paused" and given == "active" else given


class RememberedCommit(Record):
    """The last step commit of a session, and its result, for a caller that did not get it."""

    fence: Fence
    step: int
    round: int
    answer: Committed


def check_step_commit(
    session_id: SessionId, current: RunRecord | None, commit: StepCommit, remembered: RememberedCommit | None
) -> Committed | None:
    """The first result, if this commit was made before; None if it is new and may write.

    Raises:
        SupersededError: another run or attempt is current, the run ended, or a later commit was made.
    """
    run = check_same_attempt(session_id, current, commit.fence)
    place = (commit.step, commit.round)
    last = None if remembered is None else (remembered.step, remembered.round)
    if remembered is not None and remembered.fence == commit.fence and place == last:
        return remembered.answer
    if run.status != "running":
        reason = f"the run is {run.status}"
    elif remembered is not None and remembered.fence.run_id == run.run_id and last is not None and place <= last:
        reason = f"step {remembered.step} round {remembered.round} is committed already"
    else:
        return None
    raise SupersededError(session_id, run.run_id, run.attempt, reason)


def committed_run(run: RunRecord, update: RunUpdate, step_count: int, *, again: bool, now: int) -> RunRecord:
    """The run after a step commit that changes it; with `again` the run continues regardless."""
    count = step_count if update.step_count is None else update.step_count
    given = RunUpdate() if again else update
    return updated(run, msgspec.structs.replace(given, step_count=count), now)


def check_repeated_start(start: StartRun, existing: RunRecord | None, current_run_id: RunId | None) -> bool:
    """Whether the same caller made this start before and gets the first result; `existing` has its run id.

    Raises:
        RunAlreadyExistsError: the run id belongs to another session.
        RunConflictError: the start was made before, and the session has moved on to another run or attempt.
    """
    if existing is None:
        return False
    if existing.session_id != start.session_id:
        raise RunAlreadyExistsError(start.run_id)
    first = Fence(run_id=start.run_id)
    if existing.fence != first or current_run_id != start.run_id:
        found = existing.fence if current_run_id == start.run_id else None
        raise RunConflictError(
            start.session_id, described(first), described(found) if found else f"run {current_run_id!r}"
        )
    return True


def check_expectations(start: StartRun, session: SessionState, current: RunRecord | None) -> None:
    """Check that the caller of a start read the session and its current run as they are.

    Raises:
        StaleStateError: the session changed.
        RunConflictError: another run or attempt is current.
    """
    if start.expected_version is not None and start.expected_version != session.version:
        raise StaleStateError(session.session_id, start.expected_version, session.version)
    if start.expected_run is None and start.expected_version is None:
        return
    fence = None if current is None else current.fence
    if fence != start.expected_run:
        raise RunConflictError(session.session_id, described(start.expected_run), described(fence))


def started_run(start: StartRun, turn: int, now: int) -> RunRecord:
    """The record of a run that starts; an ephemeral child is driven by the run that started it."""
    link = start.parent
    driver = link.fence.run_id if link is not None and link.ref.mode == "ephemeral" else None
    return RunRecord(
        run_id=start.run_id,
        session_id=start.session_id,
        turn=turn,
        start_sequence=start.start_sequence,
        previous_run_id=start.previous_run_id,
        parent_run_id=start.parent_run_id or driver,
        owner=start.owner,
        workflow_id=start.workflow_id,
        call_hooks=start.call_hooks,
        told="running" if start.tell else None,
        started_at=now,
    )


def check_settle(request: SettleSession, session: SessionState, current: RunRecord | None) -> StatusConflict | None:
    """Why a session may not be settled; None if status, version, run and expiry are as expected."""
    fence = None if current is None else current.fence
    fits = (
        session.status in request.expected
        and request.expected_version in (None, session.version)
        and request.expected_run in (None, fence)
        and (request.expired_by is None or is_expired(session, request.expired_by))
    )
    return None if fits else StatusConflict(current_status=session.status, current_version=session.version)


def is_expired(session: SessionState, now: int) -> bool:
    """Whether a session has expired."""
    return session.expires_at is not None and session.expires_at <= now


def has_open_step(session: SessionState) -> bool:
    """Whether a session waits in the middle of a step, whose results so far are staged."""
    return session.suspension_context is not None or session.suspended_step_id is not None


def awaited_children(session: SessionState) -> tuple[SessionId, ...]:
    """The children that a suspended session waits for."""
    return tuple(wait.child_session_id for wait in session.suspended_awaiting_children.values())


UNSETTLED: tuple[SessionStatus, ...] = ("active", "interrupted", "paused")
"""Statuses in which a session has something left to end."""


def is_unsettled(session: SessionState) -> bool:
    """Whether a session below a settled one has something left to end."""
    return session.status in UNSETTLED


def settled_run(run: RunRecord | None, request: SettleSession, now: int) -> RunRecord | None:
    """The current run after its session was settled; None if it had already ended for good."""
    if run is None or run.status in ("completed", "failed", "interrupted"):
        return None
    update = RunUpdate(
        status=request.run_status,
        completion_reason=request.completion_reason or request.failure_reason,
        error=request.error,
    )
    return updated(run, update, now)


def is_detached(session: SessionState, run: RunRecord | None) -> bool:
    """Whether a child is driven on its own, and not by a run of its parent."""
    return session.mode == "persistent" and (run is None or run.parent_run_id is None)


def given_up(start: StartRun, calls: Iterable[PendingCall]) -> list[PendingCall]:
    """The rows after a start that gives up open calls of its session's tree; a rewind gives up all of them.

    `calls` are those of the sessions that this run drives.
    """
    if start.abandon_pending or start.rewind_to is not None:
        changed = map(abandon, calls)
    elif start.drop_unanswered:
        changed = map(drop, calls)
    else:
        return []
    return [call for call in changed if call is not None]
