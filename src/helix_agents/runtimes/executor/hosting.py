"""What a host, such as the agent server, needs of an executor; every runtime has it, and so may one of your own."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import Answer, AnswerOutcome, PendingCall, PendingFilter
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import BranchPoint, InterruptOutcome, SessionFilter, SessionState, SessionSummary
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.usage import UsageFilter, UsageOfDay, UsageRollup
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.requests.start_plans import ResumeMode
from helix_agents.ports.locks import LockManager
from helix_agents.ports.workspaces import WorkspaceFiles
from helix_agents.runtimes.executor.inputs import IfRunning, Input
from helix_agents.runtimes.executor.recovery import Recovered


class HostedRun(Protocol):
    """A handle on one run. One that says `is_driven_here` spares a host the looks for what became of its process."""

    @property
    def session_id(self) -> SessionId:
        """Whose run it is."""
        ...

    @property
    def run_id(self) -> RunId:
        """Which of its runs."""
        ...

    async def begun(self) -> "HostedRun":
        """The run itself, once it has begun: at once, unless it had to wait for its turn."""
        ...

    def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        """The run's chunks, from its beginning or after a sequence, whoever drives it; ends when the run does, and does
        not raise because the run failed."""
        ...

    async def result(self) -> Any:
        """How the run ended, or where it waits for somebody; waits until one of them is so."""
        ...

    async def usage(self) -> UsageRollup:
        """What the session and everything below it used so far."""
        ...


class HostedSessions(Protocol):
    """What is stored."""

    def now_ms(self) -> int:
        """The clock by which all times of what is stored are told."""
        ...

    async def get(self, session_id: SessionId) -> SessionState:
        """One session.

        Raises:
            SessionNotFoundError: there is none.
        """
        ...

    async def find(self, session_id: SessionId) -> SessionSummary | None:
        """One session as a listing shows it; None when there is none."""
        ...

    async def list(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """Sessions that match, newest first."""
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
        """The sessions right below, and which call made each of them."""
        ...

    async def count_running(self, user_id: str | None) -> int:
        """How many of a user's conversations have a run that is going, in whichever process."""
        ...

    async def checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        """Where the session can be rewound to or branched from, newest first."""
        ...

    async def branch(
        self, session_id: SessionId, new_session_id: SessionId, *, checkpoint_id: CheckpointId | None = None
    ) -> SessionState:
        """A new session with the messages and state that this one has, or had at a checkpoint.

        Raises:
            SessionNotFoundError, SessionAlreadyExistsError, CheckpointNotFoundError: it cannot be made.
        """
        ...

    async def snapshot(self, session_id: SessionId) -> SessionSnapshot:
        """Messages and state, and from where in the stream to read on: nothing is missed, nothing is told twice."""
        ...

    async def workspace(self, session_id: SessionId) -> WorkspaceFiles | None:
        """The files that a session's agent works with; None where no tool has opened them yet.

        Raises:
            WorkspaceFailedError: they are not to be had.
        """
        ...

    async def queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        """The turns that wait in a session, in the order in which they came."""
        ...

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> bool:
        """Take a turn from the queue; False when it does not wait, or not any more."""
        ...

    async def delete(self, session_id: SessionId, *, unless_running: bool = False) -> None:
        """Remove the session and everything below it, streams included; idempotent.

        Raises:
            AgentAlreadyRunningError: its run is going, and it was to be removed `unless_running`.
            NotARootSessionError: its parent drives it, and it was to be removed `unless_running`.
        """
        ...


class AgentExecutor(Protocol):
    """An executor as it is hosted, whatever runtime is behind it.

    `locks` are shared by all processes on the store; without them limits that hold for all of them are kept roughly.
    """

    @property
    def agents(self) -> AgentRegistry:
        """The agents this process knows."""
        ...

    @property
    def sessions(self) -> HostedSessions:
        """What is stored."""
        ...

    @property
    def locks(self) -> LockManager | None:
        """Locks that all processes on the store share; None where there are none."""
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
        if_running: IfRunning = "reject",
    ) -> HostedRun:
        """Begin a turn, in a new session or as the next one of an existing one; of many concurrent callers one does.

        The turn is stored when this answers, and goes on whatever becomes of its caller; that of a process that died
        goes on with `recover`. With an `idempotency_key`, the same call again gives the handle of the turn it began.
        With `only_new`, a session that exists is left alone; with `branch`, the session begins as a copy of another
        one. While a turn goes on, this one is refused, or waits for it, or stops it, as `if_running` says.

        Raises:
            AgentAlreadyRunningError: the session has a turn that is going on.
            QueueFullError: too many wait already.
            AgentMismatchError: it was begun with another agent.
            NotARootSessionError: its parent drives it.
            SessionAlreadyExistsError: it was to be a new one, or a branch, and is there already.
            InvalidInputError: what was given is not what it should be.
            ExecutorClosedError: this process begins nothing any more.
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
        """Go on with what a session left open: answered calls, an interrupted turn, or an earlier checkpoint; of many
        concurrent callers one does.

        Raises:
            AgentAlreadyRunningError: somebody goes on already.
            NothingToResumeError, StillWaitingError: there is nothing to go on with, or not yet.
            SessionNotFoundError, NotARootSessionError, AgentMismatchError, CheckpointNotFoundError, InvalidInputError,
            ExecutorClosedError: it cannot.
        """
        ...

    async def retry(self, agent: AnyAgent, session_id: SessionId) -> HostedRun:
        """Go on from the last commit of a run that failed, with a fresh budget; of many concurrent callers one does.

        Raises:
            AgentAlreadyRunningError: somebody goes on already.
            SessionNotFoundError, NotARootSessionError, AgentMismatchError, NothingToRetryError, ExecutorClosedError: it
            cannot.
        """
        ...

    async def rewind(self, session_id: SessionId, checkpoint_id: CheckpointId) -> SessionState:
        """Bring a session back to a checkpoint and leave it there, interrupted; resume goes on from there.

        Raises:
            SessionNotFoundError, CheckpointNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot.
        """
        ...

    async def get_handle(self, agent: AnyAgent, session_id: SessionId, run_id: RunId | None = None) -> HostedRun | None:
        """A handle on the session's current run, or on this one of its runs, whoever drives it, and also one that waits
        for its turn; None when there is none."""
        ...

    async def submit_tool_result(
        self, session_id: SessionId, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None = None
    ) -> AnswerOutcome:
        """Store an answer to a call that waits, in any process; the first one counts. It resumes nothing, and says what
        is needed next.

        Raises:
            InvalidInputError: it is no answer, or contradicts itself.
        """
        ...

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        """What waits, across all sessions."""
        ...

    async def usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        """What was used across all sessions, added up per day, agent and source."""
        ...

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop what a session and everything below it do, whoever drives it, keeping what was done; resume goes on.

        It is stored when this answers; the run takes it by itself, soon.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        ...

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop it like `interrupt`, but for good: its run fails.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        ...

    async def sweep(self) -> Any:
        """One round of the janitor, now; says what it did. Any number of processes may do so."""
        ...

    async def recover(self) -> Recovered:
        """Continue runs whose process died, each as the next attempt of the same run; one process gets each."""
        ...

    async def close(self) -> None:
        """Begin nothing new, give running steps their grace, then let go of what is left; idempotent."""
        ...
