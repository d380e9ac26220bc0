"""The protocol's own words: what A2A 1.0 sends in JSON, whichever side sends it. Unknown fields are ignored."""

from typing import Any, Literal, TypeAlias

import msgspec

PROTOCOL_VERSION = "1.0"
VERSION_HEADER = "a2a-version"
CARD_PATH = "/.well-known/agent-card.json"
BINDING = "JSONRPC"

TaskState: TypeAlias = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_AUTH_REQUIRED",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_REJECTED",
]
OVER: frozenset[str] = frozenset(
    ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")
)
WAITING: frozenset[str] = frozenset(("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"))

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
PUSH_NOTIFICATION_NOT_SUPPORTED = -32003
UNSUPPORTED_OPERATION = -32004
CONTENT_TYPE_NOT_SUPPORTED = -32005
VERSION_NOT_SUPPORTED = -32009

REASONS = {
    PARSE_ERROR: "JSON_PARSE_ERROR",
    INVALID_REQUEST: "INVALID_REQUEST",
    METHOD_NOT_FOUND: "METHOD_NOT_FOUND",
    INVALID_PARAMS: "INVALID_PARAMS",
    INTERNAL_ERROR: "INTERNAL",
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOTIFICATION_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    CONTENT_TYPE_NOT_SUPPORTED: "CONTENT_TYPE_NOT_SUPPORTED",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One object of the protocol."""


class AgentInterface(Wire, frozen=True, kw_only=True):
    """The address at which to talk to an agent, and the protocol to use."""

    url: str
    protocol_binding: str = BINDING
    protocol_version: str = PROTOCOL_VERSION
    tenant: str | None = None


class AgentExtension(Wire, frozen=True, kw_only=True):
    """An addition to the protocol; a client that does not know a required one cannot talk to the agent."""

    uri: str
    required: bool | None = None


class AgentCapabilities(Wire, frozen=True, kw_only=True):
    """Which parts of the protocol are supported; what is not mentioned is not."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    extended_agent_card: bool | None = None
    extensions: tuple[AgentExtension, ...] | None = None


class AgentSkill(Wire, frozen=True, kw_only=True):
    """Something that an agent can do."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...]


class A2APart(Wire, frozen=True, kw_only=True):
    """One of text, bytes in base64, a URL, or plain data."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Any = msgspec.UNSET
    filename: str | None = None
    media_type: str | None = None


class AgentMessage(Wire, frozen=True, kw_only=True):
    """What an agent says, or what was said to it."""

    message_id: str = ""
    role: str = ""
    parts: tuple[A2APart, ...] | None = None
    context_id: str | None = None
    task_id: str | None = None


class TaskStatus(Wire, frozen=True, kw_only=True):
    """A task's state, since when, and what the agent says about it."""

    state: TaskState
    message: AgentMessage | None = None
    timestamp: str | None = None

    @property
    def rests(self) -> bool:
        """Whether nothing more happens by itself: the task is over, or waits for somebody."""
        return self.state in OVER or self.state in WAITING


class Artifact(Wire, frozen=True, kw_only=True):
    """Something that a task has made."""

    artifact_id: str
    name: str | None = None
    parts: tuple[A2APart, ...] | None = None


class AgentTask(Wire, frozen=True, kw_only=True):
    """A task as its agent shows it."""

    id: str
    status: TaskStatus
    context_id: str | None = None
    artifacts: tuple[Artifact, ...] | None = None
    history: tuple[AgentMessage, ...] | None = None

    @property
    def is_over(self) -> bool:
        return self.status.state in OVER

    @property
    def rests(self) -> bool:
        return self.status.rests


class TaskList(Wire, frozen=True, kw_only=True):
    """Some tasks, the one that changed last first."""

    tasks: tuple[AgentTask, ...] | None = None


class StatusUpdate(Wire, frozen=True, kw_only=True):
    """A task's new state."""

    status: TaskStatus

    @property
    def rests(self) -> bool:
        return self.status.rests


class ArtifactUpdate(Wire, frozen=True, kw_only=True):
    """A new artifact, its new content, or with `append` the next piece of it."""

    artifact: Artifact
    append: bool | None = None


class Told(Wire, frozen=True, kw_only=True):
    """An answer to a message, or one event of a stream: exactly one of these."""

    task: AgentTask | None = None
    message: AgentMessage | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None
