"""A run: one execute, resume or retry inside a session, and the fence that keeps old ones from writing."""

from typing import Literal, TypeAlias, get_args

import msgspec

from helix_agents.domain.errors import RunConflictError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import JSON, Record

SuspensionKind: TypeAlias = Literal["suspended_client_tool", "suspended_awaiting_children", "suspended_step_partial"]
RunStatus: TypeAlias = Literal["running", "completed", "failed", "interrupted"] | SuspensionKind

SUSPENDED: frozenset[RunStatus] = frozenset(get_args(SuspensionKind))


class Fence(Record):
    """Who may write: a run and its attempt. A store checks first that the fence is the current one, and refuses any
    other."""

    run_id: RunId
    attempt: int = 1


class RunRecord(Record):
    """One turn of a session. Recovery raises `attempt` and does not create a new run.

    `call_hooks` says that the caller passed hooks, which exist only in the caller's process. `told` is the last status
    of the run that webhooks were told, or are going to be told; None if they are told nothing about this run.
    """

    run_id: RunId
    session_id: SessionId
    turn: int
    attempt: int = 1
    status: RunStatus = "running"
    step_count: int = 0
    start_sequence: int = 0
    previous_run_id: RunId | None = None
    parent_run_id: RunId | None = None
    completion_reason: str | None = None
    output: JSON = None
    error: str | None = None
    owner: str | None = None
    workflow_id: str | None = None
    call_hooks: bool = False
    told: RunStatus | None = None
    started_at: int
    ended_at: int | None = None

    @property
    def fence(self) -> Fence:
        return Fence(run_id=self.run_id, attempt=self.attempt)


class RunMetadata(Record):
    """What a caller outside the engine says about a run that it records."""

    turn: int | None = None
    start_sequence: int = 0
    previous_run_id: RunId | None = None
    parent_run_id: RunId | None = None
    owner: str | None = None
    workflow_id: str | None = None


class RunUpdate(Record):
    """A change to a run's record; fields that are None are left unchanged."""

    status: RunStatus | None = None
    step_count: int | None = None
    completion_reason: str | None = None
    output: JSON = None
    error: str | None = None


class KnownAs(Record):
    """The name by which an engine knows a run from now on; None if no engine does."""

    workflow_id: str | None


DEAD_LEASES_LAST_MS = 86_400_000
"""How long a store may keep an expired lease; longer than any two clocks differ."""


class Lease(Record):
    """A process is alive until this time; after that, the runs it owns are orphans."""

    owner: str
    expires_at: int


def recorded(session_id: SessionId, run_id: RunId, metadata: RunMetadata, next_turn: int, now: int) -> RunRecord:
    """A run that starts outside the engine, at the turn its caller names or else the next one."""
    return RunRecord(
        run_id=run_id,
        session_id=session_id,
        turn=next_turn if metadata.turn is None else metadata.turn,
        start_sequence=metadata.start_sequence,
        previous_run_id=metadata.previous_run_id,
        parent_run_id=metadata.parent_run_id,
        owner=metadata.owner,
        workflow_id=metadata.workflow_id,
        started_at=now,
    )


def updated(run: RunRecord, update: RunUpdate, now: int) -> RunRecord:
    """The run after the change. Any status but `running` ends it, and the time of its first end is kept."""
    status = run.status if update.status is None else update.status
    first_end = now if run.ended_at is None else run.ended_at
    return msgspec.structs.replace(
        run,
        status=status,
        step_count=run.step_count if update.step_count is None else update.step_count,
        completion_reason=run.completion_reason if update.completion_reason is None else update.completion_reason,
        output=run.output if update.output is None else update.output,
        error=run.error if update.error is None else update.error,
        ended_at=None if status == "running" else first_end,
    )


def settled(run: RunRecord | None, status: RunStatus, reason: str | None, now: int) -> RunRecord | None:
    """The run after another one replaced it or it was ended from outside; None if none is running."""
    if run is None or run.status != "running":
        return None
    return updated(run, RunUpdate(status=status, completion_reason=reason), now)


def claimed(
    session_id: SessionId,
    current: RunRecord | None,
    fence: Fence,
    owner: str | None,
    known_as: KnownAs | None = None,
) -> RunRecord:
    """The session's current run, handed to its next attempt, under another name if one is given.

    Raises:
        RunConflictError: it is not at this attempt, or no longer running.
    """
    if current is None or current.fence != fence or current.status != "running":
        raise RunConflictError(session_id, described(fence, "running"), _standing(current))
    workflow_id = current.workflow_id if known_as is None else known_as.workflow_id
    return msgspec.structs.replace(current, attempt=current.attempt + 1, owner=owner, workflow_id=workflow_id)


def went_on(run: RunRecord | None) -> bool:
    """Whether a session that waited no longer does, because its current run is running or over."""
    return run is not None and run.status not in SUSPENDED


def age(run: RunRecord | None) -> tuple[int, RunId]:
    """A run's position among others by start time; None sorts before all of them."""
    return (run.started_at, run.run_id) if run is not None else (-1, "")


def is_orphan(run: RunRecord, lease: Lease | None, parent: RunRecord | None, now: int) -> bool:
    """Whether a run is running without a live process behind it, and without a parent run that would take care of it.

    `lease` is that of the run's owner, `parent` the run that `parent_run_id` names.
    """
    if run.status != "running" or (parent is not None and parent.status == "running"):
        return False
    return run.owner is None or lease is None or lease.expires_at <= now


def check_same_attempt(session_id: SessionId, current: RunRecord | None, fence: Fence) -> RunRecord:
    """The session's current run, if it is the one that the fence names, whether or not it is still running.

    Raises:
        SupersededError: another run or attempt is current.
    """
    if current is None or current.fence != fence:
        raise SupersededError(session_id, fence.run_id, fence.attempt, f"the session is at {_standing(current)}")
    return current


def check_fence(session_id: SessionId, current: RunRecord | None, fence: Fence) -> RunRecord:
    """The session's current run, if it is the one that the fence names and is still running.

    Raises:
        SupersededError: another run or attempt is current, or the run ended.
    """
    run = check_same_attempt(session_id, current, fence)
    if run.status != "running":
        raise SupersededError(session_id, fence.run_id, fence.attempt, f"the run is {run.status}")
    return run


def described(fence: Fence | None, status: str | None = None) -> str:
    """A fence in words, for errors."""
    if fence is None:
        return "no run"
    return f"run {fence.run_id!r} attempt {fence.attempt}" + (f" ({status})" if status else "")


def _standing(run: RunRecord | None) -> str:
    return "no run" if run is None else described(run.fence, run.status)
