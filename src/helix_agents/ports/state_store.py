"""The single durable surface: everything a session is, behind one port made of small facets.

Every method names a guarantee, and a store has to keep all of them: none is optional. Unless a method says otherwise,
it raises `SessionNotFoundError` for an id that does not exist (a method that may return None does that instead) and
`InvalidIdError` for an id that can never exist, and a write that raises has changed nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from helix_agents.domain.checkpoints import Checkpoint, CheckpointMeta
from helix_agents.domain.commits import Committed, RunStartCommitted, SettleSession, StartRun, StepCommit
from helix_agents.domain.effects import BeginEffect, Effect, EffectOutcome, FinishOutcome
from helix_agents.domain.errors import IncompleteStoreError
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId, ToolCallId
from helix_agents.domain.messages import Message, StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import AnswerOutcome, PendingCall, PendingFilter, SubmitAnswer
from helix_agents.domain.queued import QueueChange, QueuedTurn, TakenTurn
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import Fence, KnownAs, Lease, RunMetadata, RunRecord, RunStatus, RunUpdate
from helix_agents.domain.schedules import Schedule, ScheduleId
from helix_agents.domain.sessions import (
    BranchPoint,
    CreateSession,
    InterruptContext,
    InterruptFlag,
    InterruptOutcome,
    SessionFilter,
    SessionState,
    SessionStatus,
    SessionSummary,
    StatusOutcome,
    StopKind,
)
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.webhooks import Delivery, DeliveryId, DeliveryState
from helix_agents.domain.writes import Merged, StepWrites


class StoreLimits(Record):
    """The largest values a store accepts, in bytes of JSON; None means no limit."""

    state_bytes: int | None = None
    staged_write_bytes: int | None = None
    message_bytes: int | None = None


class Sessions(Protocol):
    """Sessions as a whole: created, loaded, changed, listed, deleted."""

    async def create_session(self, session_id: SessionId, options: CreateSession | None = None) -> SessionState:
        """Create the session; of many concurrent callers, in any number of processes, exactly one wins.

        Raises:
            SessionAlreadyExistsError: the id is taken.
        """
        ...

    async def session_exists(self, session_id: SessionId) -> bool:
        """Whether the session exists; any string may be passed."""
        ...

    async def find_session(self, session_id: SessionId) -> SessionSummary | None:
        """The session as a listing shows it, at the same cost however much it holds; any string may be passed."""
        ...

    async def delete_session(self, session_id: SessionId) -> None:
        """Delete the session and every session below it; idempotent.

        Branches stay whole. Text is deleted with the last session that refers to it.
        """
        ...

    async def clone_session(self, source: BranchPoint, session_id: SessionId) -> SessionState:
        """Create a new session from another one's messages, state, agent type and user, at a cost that does not grow.

        Runs, pending calls, children, flags, stream and usage are not copied. Calls open at that point are answered
        with what is known about them by then, or else as not executed.

        Raises:
            SessionAlreadyExistsError: the new id is taken.
            CheckpointNotFoundError: the source has no such checkpoint, or fewer messages than that.
        """
        ...

    async def load_state(self, session_id: SessionId) -> SessionState:
        """The session as last committed, including the rows that others write: one consistent read."""
        ...

    async def save_state(
        self, session_id: SessionId, state: SessionState, *, expected_version: int | None = None
    ) -> Committed:
        """Store the record (except fields that others write) with a checkpoint of source `save`.

        Raises:
            StaleStateError: `expected_version` was given and is not the stored one.
            ModeIsWriteOnceError: the record changes a mode that was already set.
        """
        ...

    async def merge_custom_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        """Apply state writes in order; concurrent merges from several processes are all applied.

        Raises:
            InvalidWriteError: an append meets something that is not a list.
        """
        ...

    async def update_status(
        self,
        session_id: SessionId,
        status: SessionStatus,
        *,
        interrupt_context: InterruptContext | None = None,
        error: str | None = None,
        failure_reason: str | None = None,
    ) -> int:
        """Set the status, and store the context given with it; returns the new version."""
        ...

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
        """Set the status if it is one of the expected and the version matches; reports truthfully what was found."""
        ...

    async def increment_step_count(self, session_id: SessionId) -> int:
        """Count one step; returns the new count. Concurrent callers get different counts."""
        ...

    async def increment_resume_count(self, session_id: SessionId) -> int:
        """Count one resume; returns the new count. Concurrent callers get different counts."""
        ...

    async def patch_metadata(self, session_id: SessionId, patch: dict[str, str | None]) -> dict[str, str]:
        """Set the given keys, and remove those given as None; returns the resulting metadata."""
        ...

    async def list_sessions(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """Matching sessions, newest first, ties by id.

        If the filter asks for one of the `MARKS` in their metadata, a store that outlives its process reads only those.
        """
        ...


class Messages(Protocol):
    """The transcript: immutable rows, stored once, shared with branches."""

    async def append_messages(self, session_id: SessionId, messages: Sequence[Message]) -> int:
        """Append in order; returns the new count. Appends from several processes never interleave or get lost."""
        ...

    async def get_messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        ...

    async def load_transcript(self, session_id: SessionId, *, after: int = 0) -> tuple[StoredMessage, ...]:
        """The whole transcript after a sequence, oldest first: what a model is given."""
        ...

    async def get_message_count(self, session_id: SessionId) -> int:
        """How many messages the session sees."""
        ...

    async def truncate_messages(self, session_id: SessionId, count: int) -> int:
        """Keep the first `count` messages; returns how many there are now. Branches see no difference."""
        ...


class Runs(Protocol):
    """Runs, the leases of the processes that drive them, and how dead runs are found."""

    async def create_run(self, session_id: SessionId, run_id: RunId, metadata: RunMetadata | None = None) -> RunRecord:
        """Record a run outside the engine; it becomes the session's current run.

        Raises:
            RunAlreadyExistsError: the run id is taken.
        """
        ...

    async def update_run_status(self, run_id: RunId, status: RunStatus, updates: RunUpdate | None = None) -> RunRecord:
        """Set a run's status.

        Raises:
            RunNotFoundError: there is no such run.
        """
        ...

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        """The run that was started last."""
        ...

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        """One run by its id."""
        ...

    async def list_runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's runs, newest first; turns count 1, 2, 3 without gaps."""
        ...

    async def count_running(self, user_id: str | None) -> int:
        """How many of the user's root sessions have a running run, whichever process drives it.

        None counts the sessions that belong to no user. The cost grows with the number of running runs, not with the
        store.
        """
        ...

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        """Declare a process alive for another `ttl_ms` of the store's clock. One row per process, not per run."""
        ...

    async def find_lease(self, owner: str) -> Lease | None:
        """The process's lease, if it is still alive on the store's clock."""
        ...

    async def release_lease(self, owner: str) -> None:
        """Declare that a process gave up its runs; they are orphans at once."""
        ...

    async def list_orphans(
        self, *, limit: int = DEFAULT_LIMIT, after: RunRecord | None = None
    ) -> tuple[RunRecord, ...]:
        """Running runs that no live process owns and whose parent run is not running, oldest first. If one of them is
        given, only those that follow it in that order.

        One indexed query however many runs there are.
        """
        ...

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        """Take a run over: the same run, next attempt. Of many claimants exactly one wins.

        With `known_as`, the run moves to another runtime, which has another name for it or none.

        Raises:
            RunConflictError: it is not at this attempt, or no longer running.
        """
        ...


class Checkpoints(Protocol):
    """Boundaries to return to. They hold counts and writes, never copies."""

    async def create_checkpoint(self, session_id: SessionId, meta: CheckpointMeta) -> Checkpoint:
        """Write a checkpoint of the session as it is, and move the pointer to it."""
        ...

    async def get_latest_checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        """The checkpoint written last, whatever the step counts of others."""
        ...

    async def get_checkpoint(self, session_id: SessionId, checkpoint_id: CheckpointId) -> Checkpoint | None:
        """One checkpoint of this session; the id of another session's checkpoint is unknown here."""
        ...

    async def list_checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        """The session's checkpoints, newest first."""
        ...

    async def load_checkpoint_state(self, session_id: SessionId, checkpoint_id: CheckpointId) -> dict[str, JSON]:
        """The custom state exactly as it was at the checkpoint.

        Raises:
            CheckpointNotFoundError: the session has no such checkpoint.
        """
        ...


class SubSessions(Protocol):
    """A session's children."""

    async def add_sub_session_refs(self, session_id: SessionId, refs: Sequence[SubSessionRef]) -> None:
        """Add references; a reference that exists already (same child) is left unchanged."""
        ...

    async def update_sub_session_ref(self, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
        """Change a reference; None if the session has no such child."""
        ...

    async def get_sub_session_refs(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        """All references, oldest first."""
        ...


class Staging(Protocol):
    """Results that are held between their effect and the step's commit."""

    async def stage_changes(
        self, session_id: SessionId, change: StagedChange, *, fence: Fence | None = None, synced: bool = True
    ) -> None:
        """Upsert by step and call.

        A change that is not `synced` survives the process that staged it, like everything else, but may be lost in a
        power cut unless this session was committed after it. Use it for what can be done again if it is missing.

        Raises:
            SupersededError: the fence is not the current one.
            StateSizeExceededError: the change is larger than the store accepts.
        """
        ...

    async def get_staged_changes(self, session_id: SessionId, step_id: StepId) -> tuple[StagedChange, ...]:
        """The changes staged for a step, in call order."""
        ...

    async def has_staged_changes(self, session_id: SessionId, step_id: StepId | None = None) -> bool:
        """Whether anything is staged, for one step or for any."""
        ...

    async def promote_staging(self, session_id: SessionId, meta: CheckpointMeta) -> Committed:
        """Apply a step's staged writes in call order, once, with a checkpoint of source `staging`."""
        ...

    async def discard_staging(self, session_id: SessionId, step_id: StepId | None = None) -> int:
        """Drop what is staged, for one step or for all; returns how many rows were dropped."""
        ...

    async def cleanup_orphaned_staging(self, older_than_ms: int) -> int:
        """Drop rows older than this whose session neither runs nor waits in the middle of a step; returns how many were
        dropped.

        Results that an open step holds are staged rows as well, and may have to be kept for days.
        """
        ...


class Flags(Protocol):
    """Durable stop requests, each aimed at one run."""

    async def set_interrupt_flag(
        self,
        session_id: SessionId,
        reason: str | None = None,
        *,
        kind: StopKind = "interrupt",
        run_id: RunId | None = None,
    ) -> InterruptOutcome:
        """Ask the running run to stop. An abort replaces an interrupt; an interrupt does not replace an abort.

        With `run_id`, the stop is meant for that run alone: if another run is current by then, nothing is stored.
        """
        ...

    async def check_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        """Take the flag aimed at the current run: of many callers, one gets it."""
        ...

    async def find_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        """Look at the flag aimed at the current run, and leave it in place."""
        ...

    async def clear_interrupt_flag(self, session_id: SessionId) -> None:
        """Remove any flag; idempotent."""
        ...

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        """The flag aimed at the current run, as soon as there is one; None after `timeout` seconds.

        At most two statements a second while nothing happens.
        """
        ...


class Pending(Protocol):
    """Calls that wait for an answer, across all sessions."""

    async def submit_answer(self, submission: SubmitAnswer) -> AnswerOutcome:
        """Store an answer, once and forever; the outcome says what is needed next. Never raises for an unknown call."""
        ...

    async def get_pending_call(self, session_id: SessionId, tool_call_id: ToolCallId) -> PendingCall | None:
        """One call by id, looked up at its root or at its owner."""
        ...

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        """Matching calls, newest first, ties by id; one indexed query however many there are."""
        ...

    async def find_expired_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        """Calls that still wait past their deadline on the store's clock, oldest deadline first.

        `session_id` limits it to the tree of that root. One indexed query.
        """
        ...

    async def expire_pending(
        self, *, session_id: SessionId | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[PendingCall, ...]:
        """Mark such calls expired; each call is returned to exactly one of many callers."""
        ...

    async def list_unresumed(
        self, grace_ms: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[SessionId, ...]:
        """Root sessions that wait, have an answer or a timeout older than `grace_ms` that no run consumed, and have no
        running run: they have to be resumed. The one that has waited longest comes first. One indexed query."""
        ...


class Effects(Protocol):
    """The ledger of tools that must not run twice."""

    async def begin_effect(self, request: BeginEffect) -> EffectOutcome:
        """Announce that a tool is about to run, or learn that it may not.

        Raises:
            SupersededError: the fence is not the current one.
        """
        ...

    async def renew_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, lease_ms: int
    ) -> FinishOutcome:
        """Keep an intent alive while its tool runs. With a lease of 0 it is given up, and its outcome is unknown."""
        ...

    async def finish_effect(
        self, session_id: SessionId, tool_call_id: ToolCallId, owner: str, result: JSON
    ) -> FinishOutcome:
        """Record the result, once."""
        ...

    async def list_effects(self, session_id: SessionId) -> tuple[Effect, ...]:
        """The session's ledger, oldest first; an effect that was started again counts from then on."""
        ...


class Queues(Protocol):
    """Turns that wait until their session is free, and messages that wait for the run in progress to take them in.

    A start that says `queued` takes its turn from here; a step commit that says `takes_messages` takes the messages.
    """

    async def queue_turn(self, turn: QueuedTurn) -> QueuedTurn | None:
        """Put a turn at the end of its session's queue, and keep the session alive for the turn's `expires_in_ms`, as
        `kept_alive` says. If a turn with the same run id already waits there, that one is returned instead, and nothing
        is changed except for what `sent_again` says.

        None if there is nothing to wait for, in which case nothing was written: its run was started before, a run took
        it in, or the session is free and no other turn waits.

        Raises:
            QueueFullError: `MOST_QUEUED` turns are waiting already.
            StateSizeExceededError: a message is larger than the store accepts.
        """
        ...

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        """The turns that wait: first those that steer, then the others, each in the order in which they arrived, unless
        one was moved to the front."""
        ...

    async def find_queued(self, session_id: SessionId, run_id: RunId) -> QueuedTurn | TakenTurn | None:
        """A turn that waits, or the run that took its messages in; known for as long as the session lives. None if it
        started, was dropped, or never waited here."""
        ...

    async def change_queued(self, session_id: SessionId, run_id: RunId, change: QueueChange) -> QueuedTurn | None:
        """Change a turn that waits; None if it does not. Of this and what takes the turn, one comes first: a turn that
        is started or taken in after the change is the changed one.

        Raises:
            InvalidInputError: it cannot steer, because it brings what only a turn of its own can have.
            StateSizeExceededError: a message is larger than the store accepts.
        """
        ...

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        """Remove a turn from the queue; False if it is not there. Of this and the start of its run, exactly one
        happens."""
        ...

    async def list_queues(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> tuple[SessionId, ...]:
        """Sessions in which a turn waits, by id."""
        ...


class Schedules(Protocol):
    """What is said to agents at set times. Schedules belong to no session, and no run touches them."""

    async def save_schedule(self, schedule: Schedule, *, replaces: str | None = None) -> Schedule:
        """Store a schedule in place of the revision that it replaces; None for a schedule that is new.

        The same save sent again, because its answer was lost, is answered as the first one was.

        Raises:
            ScheduleChangedError: another writer was first, or the schedule was deleted; nothing was written.
        """
        ...

    async def find_schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        """One schedule; None if it does not exist."""
        ...

    async def delete_schedule(self, schedule_id: ScheduleId, *, revision: str | None = None) -> bool:
        """Remove a schedule, or only this revision of it; False when that is not there."""
        ...

    async def list_schedules(
        self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Schedule]:
        """All schedules, or those of a user, by id."""
        ...

    async def list_due_schedules(
        self, until: int, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> tuple[Schedule, ...]:
        """Schedules whose next time is not after `until`, earliest first."""
        ...


class Deliveries(Protocol):
    """What webhooks are owed. A run that ended says by itself that it has to be told about; a delivery is the record of
    telling one webhook. No run waits for any of this."""

    async def list_untold(self, *, limit: int = DEFAULT_LIMIT) -> tuple[RunRecord, ...]:
        """Runs with an end that webhooks have to be told about (`is_untold`), the oldest end first.

        A run is listed from the commit that ended it on, until somebody has seen to it. One indexed query however many
        runs there are.
        """
        ...

    async def owe_deliveries(self, run: RunRecord, deliveries: Sequence[Delivery]) -> bool:
        """See to a run that was untold: add these deliveries, and take note that this status of the run is told.

        False if another process was first, or the run's status has changed since; then nothing was written. A process
        that dies in between leaves the run untold. A delivery that exists already is left unchanged.
        """
        ...

    async def save_delivery(self, delivery: Delivery, *, replaces: str) -> bool:
        """Store a change to a delivery in place of the revision that it replaces.

        False if the stored revision is another one, or the delivery is gone; then nothing was written. The same save
        sent again, because its answer was lost, is answered as the first one was.
        """
        ...

    async def find_delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        """One delivery; None if it does not exist, or not any more."""
        ...

    async def list_deliveries(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        """The deliveries in these states, or all, newest first, ties by id."""
        ...

    async def list_due_deliveries(
        self, webhook: str, until: int, *, limit: int = DEFAULT_LIMIT
    ) -> tuple[Delivery, ...]:
        """A webhook's owed deliveries that are to be tried by this time, earliest first. One indexed query."""
        ...

    async def forget_deliveries(self, until: int) -> int:
        """Remove deliveries whose records are kept no longer than this time (`Delivery.is_forgotten`): those that are
        over, and those that nobody will try again; returns how many."""
        ...


class Commits(Protocol):
    """The writes that make up the life of a run: its start, its steps, and its end from outside."""

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        """Start a run in one commit; this is the mutex of a session.

        If the same caller sends the same start again because the reply was lost, it gets the first result.

        Raises:
            SessionAlreadyExistsError: `create` was given and the id is taken.
            StaleStateError: the session changed since it was read.
            RunConflictError: the current run is not the one that the caller read.
            SupersededError: the parent's fence is not the current one.
        """
        ...

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
        """Commit a step: messages, state, staging, checkpoint, pointer and all of `commit`, together or not at all.

        Raises:
            SupersededError: the commit's fence is not the current one; checked before anything else.
            StaleStateError: `expected_version` was given and is not the stored one.
            StateSizeExceededError: something is larger than the store accepts.
        """
        ...

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        """End what a session and everything below it are doing, by compare-and-set.

        Raises:
            InvalidWriteError: an append meets something that is not a list; nothing was written.
            StateSizeExceededError: something is larger than the store accepts; nothing was written.
        """
        ...


class SessionStateStore(
    Sessions,
    Messages,
    Runs,
    Checkpoints,
    SubSessions,
    Staging,
    Flags,
    Pending,
    Effects,
    Queues,
    Schedules,
    Deliveries,
    Commits,
    Protocol,
):
    """Everything durable about the sessions of one namespace. No call can reach outside the namespace."""

    @property
    def limits(self) -> StoreLimits:
        """The largest values this store accepts."""
        ...

    def now_ms(self) -> int:
        """The store's clock: deadlines and leases are measured on it."""
        ...

    async def migration_version(self) -> int:
        """The schema version of the data."""
        ...

    async def vacuum(self) -> None:
        """Give freed space back, and leave no byte of deleted text behind."""
        ...

    async def close(self) -> None:
        """Release files and connections; idempotent. Everything acknowledged before is durable."""
        ...


_FACETS = (
    Sessions,
    Messages,
    Runs,
    Checkpoints,
    SubSessions,
    Staging,
    Flags,
    Pending,
    Effects,
    Queues,
    Schedules,
    Deliveries,
    Commits,
)

REQUIRED_OPERATIONS: frozenset[str] = frozenset(
    name for facet in _FACETS for name in vars(facet) if not name.startswith("_")
) | {"limits", "now_ms", "migration_version", "vacuum", "close"}
"""Every operation of the port, by name."""


def check_complete(store: object) -> None:
    """Reject a store that lacks an operation.

    Raises:
        IncompleteStoreError: names what is missing.
    """
    missing = tuple(sorted(name for name in REQUIRED_OPERATIONS if not hasattr(type(store), name)))
    if missing:
        raise IncompleteStoreError(type(store).__name__, missing)
