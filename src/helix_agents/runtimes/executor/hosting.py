"""What a host, such as the agent server, needs from an executor. Every runtime provides it, and so can your own."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Protocol

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.durations import Duration
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import StoredMessage, ToolMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import Answer, AnswerOutcome, PendingCall, PendingFilter
from helix_agents.domain.queued import ChangeOutcome, DropOutcome, QueuedTurn
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.schedules import IfBusy, Schedule, ScheduleId
from helix_agents.domain.sessions import BranchPoint, InterruptOutcome, SessionFilter, SessionState, SessionSummary
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.usage import UsageFilter, UsageOfDay, UsageRollup
from helix_agents.engine.requests.going_on import ResumeMode
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.ports.locks import LockManager
from helix_agents.ports.workspaces import WorkspaceFiles
from helix_agents.runtimes.executor.inputs import IfRunning, Input
from helix_agents.runtimes.executor.recovery import Recovered


class HostedRun(Protocol):
    """A handle on one run. `is_driven_here` spares a host from checking what happened to the run's process."""

    @property
    def session_id(self) -> SessionId:
        """The session of the run."""
        ...

    @property
    def run_id(self) -> RunId:
        """The id of the run."""
        ...

    async def begun(self) -> "HostedRun":
        """The run itself, once it has started: at once, unless it had to wait for its turn."""
        ...

    def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        """The run's chunks, from its start or after a sequence, whichever process drives it. Ends when the run does,
        and does not raise because the run failed."""
        ...

    async def result(self) -> Any:
        """Wait until the run ends or waits for an answer, and return which."""
        ...

    async def interrupt(self, reason: str | None = None) -> InterruptOutcome:
        """Stop this run, keeping what it did, and take one that waits for its turn from the queue. It never hits
        another run of the session: where one has followed, there is nothing to stop."""
        ...

    async def abort(self, reason: str | None = None) -> InterruptOutcome:
        """Stop it like `interrupt`, but for good: it fails."""
        ...

    async def usage(self) -> UsageRollup:
        """What the session and everything below it have used so far."""
        ...


class HostedSessions(Protocol):
    """The stored sessions."""

    def now_ms(self) -> int:
        """The clock that all stored times come from."""
        ...

    async def get(self, session_id: SessionId) -> SessionState:
        """One session.

        Raises:
            SessionNotFoundError: it does not exist.
        """
        ...

    async def find(self, session_id: SessionId) -> SessionSummary | None:
        """One session as a listing shows it; None if it does not exist."""
        ...

    async def list(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """Matching sessions, newest first."""
        ...

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        ...

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's turns, newest first."""
        ...

    async def delegations(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        """The sessions directly below, and which call created each of them."""
        ...

    async def count_running(self, user_id: str | None) -> int:
        """How many of a user's conversations have a running run, in whichever process."""
        ...

    async def checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        """The points to which the session can be rewound, or from which it can be branched, newest first."""
        ...

    async def branch(
        self, session_id: SessionId, new_session_id: SessionId, *, checkpoint_id: CheckpointId | None = None
    ) -> SessionState:
        """Create a new session with the messages and state that this one has, or had at a checkpoint.

        Raises:
            SessionNotFoundError, SessionAlreadyExistsError, CheckpointNotFoundError: it cannot be created.
        """
        ...

    async def snapshot(self, session_id: SessionId) -> SessionSnapshot:
        """Messages and state, and the position in the stream from which to continue: nothing is missed, nothing
        repeated."""
        ...

    async def held(self, session_id: SessionId) -> tuple[ToolMessage, ...]:
        """Results of a step that waits for an answer; the transcript gets them with the others. Empty if no step waits.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        ...

    async def workspace(self, session_id: SessionId) -> WorkspaceFiles | None:
        """The files that a session's agent works with; None if no tool has opened them yet.

        Raises:
            WorkspaceFailedError: they are not available.
        """
        ...

    async def queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        """The messages that wait in a session, in the order in which they are to be taken."""
        ...

    async def change_queued(
        self,
        session_id: SessionId,
        run_id: RunId,
        *,
        message: Input | None = None,
        steers: bool | None = None,
        first: bool = False,
    ) -> ChangeOutcome:
        """Change a message that waits: what it says, whether the run in progress is to take it in, or that it comes
        first among its like."""
        ...

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> DropOutcome:
        """Remove a message that waits."""
        ...

    async def delete(self, session_id: SessionId, *, unless_running: bool = False) -> None:
        """Delete the session and everything below it, including streams; idempotent.

        Raises:
            AgentAlreadyRunningError: its run is running, and `unless_running` was given.
            NotARootSessionError: it is driven by its parent, and `unless_running` was given.
        """
        ...


class HostedSchedules(Protocol):
    """What agents are told at set times."""

    def of_user(self, user_id: str) -> "HostedSchedules":
        """The schedules of one user. All others look as if they did not exist, but their ids are taken; what is set
        here belongs to the user."""
        ...

    async def set(
        self,
        schedule_id: ScheduleId,
        agent: str,
        input: Input,
        *,
        at: datetime | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        session_id: SessionId | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        if_busy: IfBusy = "enqueue",
    ) -> Schedule:
        """Create a schedule, or change the one with this id. Setting the same schedule again changes nothing.

        Raises:
            InvalidInputError, InvalidIdError: an argument is invalid; nothing was stored.
            NotTheOwnerError: the id is taken by a schedule of another user.
            MissingExtraError: cron expressions cannot be read here.
        """
        ...

    async def find(self, schedule_id: ScheduleId) -> Schedule | None:
        """One schedule; None if it does not exist."""
        ...

    async def list(self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[Schedule]:
        """All schedules, or those of a user, by id."""
        ...

    async def pause(self, schedule_id: ScheduleId) -> Schedule:
        """Start no more turns until the schedule is resumed; raises `ScheduleNotFoundError`."""
        ...

    async def resume(self, schedule_id: ScheduleId) -> Schedule:
        """Continue a paused schedule with its next time; raises `ScheduleNotFoundError`."""
        ...

    async def delete(self, schedule_id: ScheduleId) -> bool:
        """Remove a schedule; False if it does not exist. What it has started is not affected."""
        ...


class AgentExecutor(Protocol):
    """An executor as a host sees it, whatever runtime is behind it.

    `locks` are shared by all processes on the store. Without them, limits across processes are only approximate.
    """

    @property
    def agents(self) -> AgentRegistry:
        """The agents this process knows."""
        ...

    @property
    def sessions(self) -> HostedSessions:
        """The stored sessions."""
        ...

    @property
    def schedules(self) -> HostedSchedules:
        """What agents are told at set times."""
        ...

    @property
    def locks(self) -> LockManager | None:
        """Locks that all processes on the store share; None if there are none."""
        ...

    async def execute(
        self,
        agent: AnyAgent,
        input: Input,
        session_id: SessionId | None = None,
        *,
        branch: BranchPoint | None = None,
        state: Any = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        only_new: bool = False,
        only_own: bool = False,
        if_running: IfRunning = "reject",
    ) -> HostedRun:
        """Start a turn, in a new session or as the next one of an existing session. Of many concurrent callers, one
        succeeds.

        The turn is stored when this returns, and continues whatever happens to its caller. If its process dies,
        `recover` continues it. With an `idempotency_key`, repeating the call returns the handle of the turn that the
        first call started. With `only_new`, an existing session is left alone; with `only_own`, one that does not
        belong to `user_id`. With `branch`, the session starts as a copy of another one. If a turn is running,
        `if_running` decides whether the new message is refused, waits until it is over, is taken in by it, or stops it.

        Raises:
            AgentAlreadyRunningError: the session has a running turn.
            QueueFullError: too many turns are waiting already.
            AgentMismatchError: the session was started with another agent.
            NotARootSessionError: the session is driven by its parent.
            NotTheOwnerError: the session belongs to another user, and `only_own` was given.
            SessionAlreadyExistsError: the session was to be new, or a branch, but already exists.
            InvalidInputError: an argument is not what it should be.
            ExecutorClosedError: this process starts no more turns.
        """
        ...

    async def resume(
        self,
        agent: AnyAgent,
        session_id: SessionId,
        *,
        mode: ResumeMode = "continue",
        message: Input | None = None,
        checkpoint_id: CheckpointId | None = None,
    ) -> HostedRun:
        """Continue what a session left open: answered calls, an interrupted turn, or an earlier checkpoint. Of many
        concurrent callers, one succeeds.

        Raises:
            AgentAlreadyRunningError: another caller continues it already.
            NothingToResumeError, StillWaitingError: there is nothing to continue, or not yet.
            SessionNotFoundError, NotARootSessionError, AgentMismatchError, CheckpointNotFoundError, InvalidInputError,
            ExecutorClosedError: it cannot be resumed.
        """
        ...

    async def retry(self, agent: AnyAgent, session_id: SessionId) -> HostedRun:
        """Continue from the last commit of a failed run, with a fresh budget. Of many concurrent callers, one succeeds.

        Raises:
            AgentAlreadyRunningError: another caller continues it already.
            SessionNotFoundError, NotARootSessionError, AgentMismatchError, NothingToRetryError, ExecutorClosedError: it
            cannot be retried.
        """
        ...

    async def rewind(self, session_id: SessionId, checkpoint_id: CheckpointId) -> SessionState:
        """Take a session back to a checkpoint and leave it there, interrupted; `resume` continues from there.

        Raises:
            SessionNotFoundError, CheckpointNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot be
            rewound.
        """
        ...

    async def get_handle(self, agent: AnyAgent, session_id: SessionId, run_id: RunId | None = None) -> HostedRun | None:
        """A handle on the session's current run, or on the run with this `run_id`, whichever process drives it, even if
        it is still waiting for its turn; None if there is no such run."""
        ...

    async def submit_tool_result(
        self, session_id: SessionId, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None = None
    ) -> AnswerOutcome:
        """Store an answer to a waiting call, in any process; the first answer counts. This resumes nothing; the result
        says what is needed next.

        Raises:
            InvalidInputError: it is not an answer, or contradicts itself.
        """
        ...

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        """The calls that wait for an answer, across all sessions."""
        ...

    async def usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        """The usage of all sessions, added up per day, agent and source."""
        ...

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop a session and everything below it, whichever process drives it, keeping what was done; `resume`
        continues it.

        The request is stored when this returns; the run picks it up by itself, soon.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        ...

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop a session like `interrupt`, but for good: its run fails.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        ...

    async def sweep(self) -> Any:
        """Run one round of the janitor now, and return what it did. Any number of processes may do so."""
        ...

    async def recover(self) -> Recovered:
        """Continue runs whose process died, each as the next attempt of the same run. Each run goes to exactly one
        process."""
        ...

    async def close(self) -> None:
        """Start nothing new, give running steps their grace period, then release the rest; idempotent."""
        ...
