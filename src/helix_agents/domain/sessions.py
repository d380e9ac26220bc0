"""The session: a conversation and everything known about it except its messages."""

from typing import Literal, NamedTuple, TypeAlias

from helix_agents.domain.budgets import Budget, Spent
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId, StreamId, ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import SuspensionKind
from helix_agents.domain.usage import TokenCount

SessionStatus: TypeAlias = Literal["active", "completed", "failed", "interrupted", "paused"]
SessionMode: TypeAlias = Literal["standard", "persistent"]
CheckpointSource: TypeAlias = Literal["staging", "save"]
StopKind: TypeAlias = Literal["interrupt", "abort"]

OUR_METADATA = "helix."
"""Metadata keys with this prefix belong to the engine."""

MARKS = ("helix.remote", "helix.remote_waits")
"""The engine's own metadata by which a listing finds its sessions without reading the others."""


class InterruptContext(Record):
    """Why and where a session was interrupted or paused."""

    reason: str | None = None
    run_id: RunId | None = None
    step_count: int | None = None
    at: int | None = None
    details: dict[str, JSON] = {}


class InterruptFlag(Record):
    """A durable request to stop, aimed at the one run that was current when it was written."""

    run_id: RunId
    kind: StopKind = "interrupt"
    reason: str | None = None
    set_at: int


class ChildWait(Record):
    """A delegated call whose child session waits for an answer."""

    tool_call_id: ToolCallId
    child_session_id: SessionId
    agent_type: str


class OpenCall(Record):
    """One call of a suspended step, as the engine planned it."""

    tool_call_id: ToolCallId
    tool_name: str
    kind: str
    child_session_id: SessionId | None = None
    settled: bool = False


class SuspensionContext(Record):
    """Everything that `resume` needs to continue a suspended step.

    `entry_messages` arrived while calls were open; they follow the calls' results and are never placed between them.
    `tokens` is the usage of the reply that made the calls.
    """

    kind: SuspensionKind
    run_id: RunId
    step_id: StepId
    step: int
    round: int = 0
    reason: str | None = None
    calls: tuple[OpenCall, ...] = ()
    children: tuple[ChildWait, ...] = ()
    remaining_steps: int | None = None
    agent_version: int = 1
    entry_messages: tuple[UserMessage, ...] = ()
    tokens: TokenCount = TokenCount()


class TracingContext(Record):
    """The single trace of a session, shared by all its runs and all sessions below it.

    Its root is the session's first run. A session that another service started hangs below a span of that service.
    """

    trace_id: str
    root_span_id: str
    last_active_span_id: str | None = None
    parent_span_id: str | None = None


class WorkspaceRef(Record):
    """The workspace that a session owns, so that it survives interrupt and resume.

    `owner` is the key of the session that the workspace was opened for. A branch starts with the ref of the session it
    came from, whose owner is not the branch itself. `at` is the point in the conversation at which the files last
    changed.
    """

    provider_id: str
    ref: str
    details: dict[str, JSON] = {}
    owner: str | None = None
    at: str | None = None


class EarlierVersion(Record):
    """The version of the agent that a session's state had, until the session reached this version of its own.

    `agent` is the agent that had the session until then; None if it is the one that had it afterwards as well.
    """

    agent_version: int
    until: int
    agent: str | None = None


class Holder(NamedTuple):
    """The agent that has a session at some point, and the version of it that the state there belongs to."""

    agent: str
    version: int


class SessionState(Record):
    """A session as the store knows it.

    `agent_type` is the agent that it belongs to; that never changes. `held_by` is the agent that it was handed over to,
    which works in it until it hands it on or back; None while it has not been handed over.

    `resumed` says that its current run continues what an earlier one left. `agent_version` is the version of the agent
    at work that the state has; `earlier_versions` lists the ones before, oldest first, for a rewind or a branch to
    them. `budget` is what the caller gave for the turn, and `spent` what the turn has used, which is counted only if
    there is a budget. `queued_at` is when a turn that had to wait in the queue was requested.

    Pending calls, ownership, completed markers and the interrupt flag are separate rows that others may write at any
    time: `load_state` includes them here, and `save_state` ignores them.
    """

    session_id: SessionId
    agent_type: str
    held_by: str | None = None
    agent_version: int = 1
    earlier_versions: tuple[EarlierVersion, ...] = ()
    stream_id: StreamId | None = None
    custom_state: dict[str, JSON] = {}
    status: SessionStatus = "active"
    step_count: int = 0
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_context: InterruptContext | None = None
    interrupt_flag: InterruptFlag | None = None
    pending_client_tool_calls: dict[ToolCallId, PendingCall] = {}
    suspended_awaiting_children: dict[ToolCallId, ChildWait] = {}
    suspended_step_id: StepId | None = None
    suspension_context: SuspensionContext | None = None
    completed_client_tool_calls: dict[ToolCallId, int] = {}
    client_tool_call_ownership: dict[ToolCallId, SessionId] = {}
    tracing_context: TracingContext | None = None
    expires_at: int | None = None
    parent_session_id: SessionId | None = None
    root_session_id: SessionId
    mode: SessionMode | None = None
    version: int = 1
    resume_count: int = 0
    resumed: bool = False
    message_count: int = 0
    current_run_id: RunId | None = None
    checkpoint_id: CheckpointId | None = None
    checkpointed_at: int | None = None
    checkpoint_source: CheckpointSource | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    workspace_ref: WorkspaceRef | None = None
    budget: Budget | None = None
    spent: Spent | None = None
    queued_at: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def worked_by(self) -> str:
        """The agent that works in the session: the one that it was handed over to, or else its own."""
        return self.held_by or self.agent_type


class SessionDetail(Record):
    """The part of a session that stores keep as one JSON document beside their columns."""

    held_by: str | None = None
    agent_version: int = 1
    earlier_versions: tuple[EarlierVersion, ...] = ()
    stream_id: StreamId | None = None
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_context: InterruptContext | None = None
    suspended_awaiting_children: dict[ToolCallId, ChildWait] = {}
    suspended_step_id: StepId | None = None
    tracing_context: TracingContext | None = None
    workspace_ref: WorkspaceRef | None = None
    resumed: bool = False
    budget: Budget | None = None
    spent: Spent | None = None
    queued_at: int | None = None

    @classmethod
    def of(cls, state: SessionState) -> "SessionDetail":
        return cls(
            held_by=state.held_by,
            agent_version=state.agent_version,
            earlier_versions=state.earlier_versions,
            stream_id=state.stream_id,
            output=state.output,
            error=state.error,
            failure_reason=state.failure_reason,
            interrupt_context=state.interrupt_context,
            suspended_awaiting_children=state.suspended_awaiting_children,
            suspended_step_id=state.suspended_step_id,
            tracing_context=state.tracing_context,
            workspace_ref=state.workspace_ref,
            resumed=state.resumed,
            budget=state.budget,
            spent=state.spent,
            queued_at=state.queued_at,
        )


class BranchPoint(Record):
    """Where a new session branches off an existing one: at a checkpoint, at a message, or at its present end."""

    from_session_id: SessionId
    checkpoint_id: CheckpointId | None = None
    message_count: int | None = None


class CreateSession(Record):
    """What a new session starts with."""

    agent_type: str = "agent"
    agent_version: int = 1
    custom_state: dict[str, JSON] = {}
    stream_id: StreamId | None = None
    parent_session_id: SessionId | None = None
    root_session_id: SessionId | None = None
    mode: SessionMode | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    expires_at: int | None = None
    tracing_context: TracingContext | None = None
    workspace_ref: WorkspaceRef | None = None
    branch: BranchPoint | None = None


class SessionSummary(Record):
    """One session in a listing."""

    session_id: SessionId
    agent_type: str
    status: SessionStatus
    step_count: int
    message_count: int
    version: int
    held_by: str | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    parent_session_id: SessionId | None = None
    root_session_id: SessionId
    current_run_id: RunId | None = None
    expires_at: int | None = None
    created_at: int
    updated_at: int

    @property
    def worked_by(self) -> str:
        """The agent that works in the session: the one that it was handed over to, or else its own."""
        return self.held_by or self.agent_type


class SessionFilter(Record):
    """Which sessions to list; all given conditions must hold.

    `agent_type` is the agent that a session belongs to, whichever has it now. `roots_only` selects sessions without a
    parent; `created_from` and `created_to` are inclusive.
    """

    user_id: str | None = None
    agent_type: str | None = None
    statuses: tuple[SessionStatus, ...] = ()
    parent_session_id: SessionId | None = None
    root_session_id: SessionId | None = None
    roots_only: bool = False
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    created_from: int | None = None
    created_to: int | None = None
    expires_before: int | None = None


class StatusChanged(Record):
    """The compare-and-set won."""

    new_version: int

    @property
    def ok(self) -> Literal[True]:
        return True


class StatusConflict(Record):
    """The compare-and-set lost; this is what the store holds."""

    current_status: SessionStatus
    current_version: int

    @property
    def ok(self) -> Literal[False]:
        return False


StatusOutcome: TypeAlias = StatusChanged | StatusConflict


class InterruptSet(Record):
    """The stop is stored and aimed at this run."""

    run_id: RunId


class NothingRunning(Record):
    """No run was running, so nothing was stored."""


InterruptOutcome: TypeAlias = InterruptSet | NothingRunning
