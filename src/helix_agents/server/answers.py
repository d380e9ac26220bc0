"""The responses of the routes, as records: the wire form and the OpenAPI document both come from them."""

from typing import Any, Literal

from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId, StreamId, ToolCallId
from helix_agents.domain.messages import Message, ToolMessage, UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.schedules import IfBusy, LastTime, Schedule, ScheduleId
from helix_agents.domain.sessions import CheckpointSource, ChildWait, SessionStatus, SessionSummary
from helix_agents.domain.streams import StreamStatus
from helix_agents.domain.sub_sessions import Location, SubSessionMode, SubSessionRef, SubSessionStatus
from helix_agents.domain.usage import UsageOfDay
from helix_agents.ports.workspaces import FileInfo


class Started(Record):
    """A started run, and the stream in which to read its chunks."""

    session_id: SessionId
    stream_id: StreamId
    run_id: RunId


class RunOutcome(Record):
    """What became of a run. A suspended run waits for what `pending` lists; answer it and resume the session."""

    session_id: SessionId
    agent_type: str
    held_by: str | None = None
    run_id: RunId
    status: RunStatus | Literal["queued"]
    output: JSON = None
    reason: str | None = None
    code: str | None = None
    error: str | None = None
    retryable: bool = False
    step_id: StepId | None = None
    pending: tuple[PendingCall, ...] = ()
    children: tuple[ChildWait, ...] = ()


class Status(Record):
    """The status of a session. `awaiting_client_tool` says that it waits for an answer from outside."""

    session_id: SessionId
    agent_type: str
    held_by: str | None = None
    status: SessionStatus
    run_id: RunId | None = None
    run_status: RunStatus | None = None
    turn: int = 0
    attempt: int = 0
    step_count: int = 0
    awaiting_client_tool: bool = False
    pending: tuple[PendingCall, ...] = ()
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_reason: str | None = None
    stream_id: StreamId
    updated_at: int


class Stopped(Record):
    """The result of a stop request: it is stored for a run, or nothing was running."""

    outcome: Literal["interrupt_set", "nothing_running"]
    run_id: RunId | None = None


class Submitted(Record):
    """What became of an answer, and what is needed next: a resume, more answers, or nothing."""

    outcome: Literal["accepted", "already_completed", "late_answer_after_timeout"]
    continuation: Literal["resume", "wait", "nothing"]
    still_waiting: int = 0
    run_id: RunId | None = None


class WorkspaceListing(Record):
    """The contents of a folder in a session's workspace. A workspace that no tool has opened yet is empty. `has_more`
    says that only the first entries are listed."""

    session_id: SessionId
    provider_id: str
    capabilities: tuple[str, ...]
    opened: bool
    path: str = ""
    entries: tuple[FileInfo, ...] = ()
    has_more: bool = False


class SessionDetail(Record):
    """A session with its state."""

    session_id: SessionId
    agent_type: str
    held_by: str | None = None
    agent_version: int
    status: SessionStatus
    state: dict[str, JSON]
    step_count: int
    message_count: int
    version: int
    tags: tuple[str, ...]
    metadata: dict[str, str]
    user_id: str | None = None
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    parent_session_id: SessionId | None = None
    root_session_id: SessionId
    run: RunRecord | None = None
    pending: tuple[PendingCall, ...] = ()
    expires_at: int | None = None
    created_at: int
    updated_at: int


class SessionPage(Record):
    """Sessions, newest first."""

    items: tuple[SessionSummary, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class ShownMessage(Record):
    """A message at its place in the transcript."""

    sequence: int
    message: Message
    created_at: int


class MessagePage(Record):
    """Messages, newest first."""

    items: tuple[ShownMessage, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class RunPage(Record):
    """Runs, newest first."""

    items: tuple[RunRecord, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class ShownCheckpoint(Record):
    """A point to which a session can be rewound, or from which it can be branched."""

    checkpoint_id: CheckpointId
    run_id: RunId | None = None
    step_count: int
    message_count: int
    status: SessionStatus
    source: CheckpointSource
    created_at: int


class CheckpointPage(Record):
    """Checkpoints, newest first."""

    items: tuple[ShownCheckpoint, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class Child(Record):
    """A child session, and the call that created it. The address of a `remote` session is not shown."""

    session_id: SessionId
    agent_type: str
    tool_call_id: ToolCallId
    mode: SubSessionMode
    name: str | None = None
    status: SubSessionStatus
    location: Location
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, ref: SubSessionRef) -> "Child":
        return cls(
            session_id=ref.sub_session_id,
            agent_type=ref.agent_type,
            tool_call_id=ref.tool_call_id,
            mode=ref.mode,
            name=ref.name,
            status=ref.status,
            location=ref.location,
            created_at=ref.created_at,
            updated_at=ref.updated_at,
        )


class Children(Record):
    """The child sessions of a session, oldest first."""

    items: tuple[Child, ...]


class UsageDays(Record):
    """Usage per day, agent and source, newest day first. `since` is the start of the first day, in UTC."""

    items: tuple[UsageOfDay, ...]
    since: int
    timestamp: int


class Caller(Record):
    """The caller's identity. With `open_to_all` there is no authentication, and every session belongs to everybody."""

    user_id: str | None = None
    operator: bool
    open_to_all: bool
    agents: tuple[str, ...]
    timestamp: int


class PendingPage(Record):
    """Calls that wait for an answer."""

    items: tuple[PendingCall, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class QueuedMessages(Record):
    """Messages that wait, in the order in which they are to be taken."""

    items: tuple[QueuedTurn, ...]


class ScheduleSummary(Record):
    """A schedule as listings show it, without what it says. `next_at` is missing if it is paused or over."""

    schedule_id: ScheduleId
    agent_type: str
    at: int | None = None
    every_ms: int | None = None
    cron: str | None = None
    timezone: str
    session_id: SessionId | None = None
    user_id: str | None = None
    tags: tuple[str, ...]
    if_busy: IfBusy
    paused: bool
    next_at: int | None = None
    created_at: int
    times: int
    last: LastTime | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> "ScheduleSummary":
        return cls(**_listed(schedule))


class ScheduleDetail(ScheduleSummary):
    """A schedule, and the messages that it sends."""

    messages: tuple[UserMessage, ...]
    metadata: dict[str, str]
    expires_in_ms: int | None = None
    budget: Budget | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> "ScheduleDetail":
        return cls(
            **_listed(schedule),
            messages=schedule.messages,
            metadata=schedule.metadata,
            expires_in_ms=schedule.expires_in_ms,
            budget=schedule.budget,
        )


def _listed(schedule: Schedule) -> dict[str, Any]:
    fields = {name: getattr(schedule, name) for name in ScheduleSummary.__struct_fields__ if name != "agent_type"}
    return {**fields, "agent_type": schedule.agent}


class SchedulePage(Record):
    """Schedules, by id."""

    items: tuple[ScheduleSummary, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class UIMessagePage(Record):
    """UI messages in the order of the conversation. `offset` counts from the newest."""

    items: tuple[dict[str, Any], ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class Snapshot(Record):
    """What a chat page shows first. `active` says that an answer is being written: reconnect to read the rest.

    `stream_sequence` is the stream position up to which the messages go. Pass it to
    `GET /chat/{sessionId}/stream?after=…` or `GET /sse` to miss nothing that came after.

    `queued` lists the messages that wait for their turn, in the order in which they will be answered, each with the
    `runId` of its future run in its metadata. They are not part of `messages`, whose last one is what the page
    continues.
    """

    session_id: SessionId
    status: SessionStatus
    active: bool
    messages: tuple[dict[str, Any], ...]
    total_messages: int
    queued: tuple[dict[str, Any], ...] = ()
    state: dict[str, JSON]
    pending: tuple[PendingCall, ...]
    stream_sequence: int
    stream_status: StreamStatus | None = None
    run_id: RunId | None = None
    run_status: RunStatus | None = None
    timestamp: int


class Tail(Record):
    """What is visible of a session beyond its stored messages: results that wait for others of their step, and the
    chunks since the last commit, up to `sequence`. `GET /sse` from there misses and repeats nothing.

    A reply in the stream becomes the message whose id is its run and step, as in `run_x.2`. If you show both, show the
    message.
    """

    session_id: SessionId
    status: SessionStatus
    run: RunRecord | None = None
    message_count: int
    held: tuple[ToolMessage, ...]
    chunks: tuple[StreamChunk, ...]
    sequence: int
    stream_status: StreamStatus | None = None


class Health(Record):
    """The health of the instance."""

    status: Literal["ok", "draining", "unavailable"]
