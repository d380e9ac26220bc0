"""What the routes answer, as records: the wire form and the document that describes it come from the same place."""

from typing import Any, Literal

from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StreamId, ToolCallId
from helix_agents.domain.messages import Message, ToolMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.sessions import CheckpointSource, SessionStatus, SessionSummary
from helix_agents.domain.streams import StreamStatus
from helix_agents.domain.sub_sessions import Location, SubSessionMode, SubSessionRef, SubSessionStatus
from helix_agents.domain.usage import UsageOfDay
from helix_agents.ports.workspaces import FileInfo


class Started(Record):
    """A run that is going, and where its chunks are read."""

    session_id: SessionId
    stream_id: StreamId
    run_id: RunId


class Status(Record):
    """How a session stands. `awaiting_client_tool` says that it waits for an answer from outside."""

    session_id: SessionId
    agent_type: str
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
    """What a stop found: it is stored and aimed at a run, or nothing was running."""

    outcome: Literal["interrupt_set", "nothing_running"]
    run_id: RunId | None = None


class Submitted(Record):
    """What became of an answer, and what is needed next: a resume, other answers first, or nothing."""

    outcome: Literal["accepted", "already_completed", "late_answer_after_timeout"]
    continuation: Literal["resume", "wait", "nothing"]
    still_waiting: int = 0
    run_id: RunId | None = None


class WorkspaceListing(Record):
    """What is in a folder of a session's workspace. One that no tool has opened yet is empty; `has_more` says that only
    the first entries are told."""

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
    """Where a session can be rewound to or branched from."""

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
    """A session right below another one, and the call that made it. Where a `remote` one lives is not told."""

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
    """The sessions right below another one, oldest first."""

    items: tuple[Child, ...]


class UsageDays(Record):
    """What was used per day, agent and source, newest day first. `since` is when the first day begins, in UTC."""

    items: tuple[UsageOfDay, ...]
    since: int
    timestamp: int


class Caller(Record):
    """Who the server takes the caller for. With `open_to_all` nobody is asked, and every session is everybody's."""

    user_id: str | None = None
    operator: bool
    open_to_all: bool
    agents: tuple[str, ...]
    timestamp: int


class PendingPage(Record):
    """Calls that wait."""

    items: tuple[PendingCall, ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class QueuedMessages(Record):
    """Turns that wait until those before them are over, in the order in which they begin."""

    items: tuple[QueuedTurn, ...]


class UIMessagePage(Record):
    """UI messages in the order of the conversation. `offset` counts from the newest."""

    items: tuple[dict[str, Any], ...]
    total: int
    offset: int
    limit: int
    has_more: bool


class Snapshot(Record):
    """What a page shows first. `active` says that an answer is being written: reconnect to read on.

    `stream_sequence` is the position the messages stand for; `GET /chat/{sessionId}/stream?after=…` or `GET /sse`
    with it misses nothing that came since.
    """

    session_id: SessionId
    status: SessionStatus
    active: bool
    messages: tuple[dict[str, Any], ...]
    total_messages: int
    state: dict[str, JSON]
    pending: tuple[PendingCall, ...]
    stream_sequence: int
    stream_status: StreamStatus | None = None
    run_id: RunId | None = None
    run_status: RunStatus | None = None
    timestamp: int


class Tail(Record):
    """What is visible of a session beyond its stored messages: results that wait for others of their step, and what
    the stream said since the last commit, up to `sequence`. `GET /sse` after it misses and repeats nothing.

    A reply in the stream becomes the message whose id is its run and step, as in `run_x.2`: who shows both shows that.
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
    """Whether the instance is fit."""

    status: Literal["ok", "draining", "unavailable"]
