"""Everything visible while an agent works: one tagged union of chunks with sequence numbers."""

from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId, ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON, Record, encode
from helix_agents.domain.writes import MergeWarning


class ChunkHeader(Record, tag_field="type"):
    """The fields of every chunk. The store assigns `sequence`; a producer leaves it 0.

    A child's chunk in its parent's stream carries the child's session and the call that delegated to it. A chunk from
    another service also carries the number it had there.
    """

    session_id: SessionId
    run_id: RunId
    agent_type: str
    step: int = 0
    sequence: int = 0
    timestamp: int = 0
    parent_tool_call_id: ToolCallId | None = None
    remote_sequence: int | None = None

    @property
    def type(self) -> str:
        """The kind of chunk, as in its JSON: `text_delta`, `tool_start`, …"""
        return str(self.__struct_config__.tag)


class TextDelta(ChunkHeader, tag="text_delta"):
    """The next piece of the answer."""

    delta: str


class ThinkingChunk(ChunkHeader, tag="thinking"):
    """The next piece of reasoning; when complete, the end of a block with its signature."""

    content: str
    is_complete: bool = False
    signature: str | None = None


class ToolArgStreamStart(ChunkHeader, tag="tool_arg_stream_start"):
    """The model started to write the arguments of a call."""

    tool_call_id: ToolCallId
    tool_name: str


class ToolArgStreamDelta(ChunkHeader, tag="tool_arg_stream_delta"):
    """The next piece of a call's arguments, as raw JSON text."""

    tool_call_id: ToolCallId
    delta: str


class ToolArgStreamEnd(ChunkHeader, tag="tool_arg_stream_end"):
    """The arguments of a call are complete."""

    tool_call_id: ToolCallId


class ToolStart(ChunkHeader, tag="tool_start"):
    """A call starts, on the server or at the client that has to run it."""

    tool_call_id: ToolCallId
    tool_name: str
    arguments: JSON = None


class ToolEnd(ChunkHeader, tag="tool_end"):
    """A call has its result. If it is `in_parts`, it is a list of texts, images and files in their JSON form."""

    tool_call_id: ToolCallId
    tool_name: str
    result: JSON = None
    in_parts: bool = False


class ToolError(ChunkHeader, tag="tool_error"):
    """A call failed, was denied, timed out or was not executed. The model sees the same text."""

    tool_call_id: ToolCallId
    tool_name: str
    error: str
    code: str | None = None


class ProviderToolStart(ChunkHeader, tag="provider_tool_start"):
    """The model's provider starts a call of its own. No tool of the agent runs for it."""

    tool_call_id: ToolCallId
    tool_name: str


class ProviderToolInput(ChunkHeader, tag="provider_tool_input"):
    """What the provider calls its tool with. Some providers say so only together with the result."""

    tool_call_id: ToolCallId
    tool_name: str
    arguments: JSON = None


class ProviderToolEnd(ChunkHeader, tag="provider_tool_end"):
    """A call of the provider's own is over; `result` is None if the provider gave none, or if it is too large here."""

    tool_call_id: ToolCallId
    tool_name: str
    result: JSON = None
    error: bool = False


class SourceChunk(ChunkHeader, tag="source"):
    """Something that the reply of this step refers to, with the positions in its text."""

    url: str | None = None
    title: str | None = None
    document_id: str | None = None
    start: int | None = None
    end: int | None = None


class ToolApprovalRequest(ChunkHeader, tag="tool_approval_request"):
    """A call waits for a person's decision."""

    tool_call_id: ToolCallId
    tool_name: str
    approval_id: str
    input: JSON = None
    preview: JSON = None
    reason: str | None = None


class SubagentStart(ChunkHeader, tag="subagent_start"):
    """A child session starts work on a call."""

    tool_call_id: ToolCallId
    child_session_id: SessionId
    child_agent_type: str


class SubagentEnd(ChunkHeader, tag="subagent_end"):
    """A child session has finished its work on a call."""

    tool_call_id: ToolCallId
    child_session_id: SessionId
    child_agent_type: str
    status: str
    result: JSON = None


class StatePatch(ChunkHeader, tag="state_patch"):
    """The custom state changed: RFC 6902 operations."""

    patch: list[JSON]


class Custom(ChunkHeader, tag="custom"):
    """An event that a tool or hook emitted."""

    name: str
    data: JSON = None


class Output(ChunkHeader, tag="output"):
    """The run's final output."""

    output: JSON = None


class ErrorChunk(ChunkHeader, tag="error"):
    """The run failed."""

    error: str
    code: str
    retryable: bool = False


class RunStarted(ChunkHeader, tag="run_started"):
    """A turn starts. `taken` are the last messages that it starts with, if they were sent to an earlier run while that
    was going."""

    turn: int
    attempt: int = 1
    taken: tuple[UserMessage, ...] = ()


class RunResumed(ChunkHeader, tag="run_resumed"):
    """A turn starts that continues what an earlier run left open. `taken` as for `run_started`."""

    turn: int
    previous_run_id: RunId | None = None
    checkpoint_id: CheckpointId | None = None
    taken: tuple[UserMessage, ...] = ()


class RunPaused(ChunkHeader, tag="run_paused"):
    """The run ended because it needs an answer from a person or a client."""

    reason: str
    tool_call_ids: tuple[ToolCallId, ...] = ()


class RunInterrupted(ChunkHeader, tag="run_interrupted"):
    """The run was stopped."""

    reason: str | None = None


class RunSuperseded(ChunkHeader, tag="run_superseded"):
    """Another run replaced this one."""

    by_run_id: RunId


class CheckpointCreated(ChunkHeader, tag="checkpoint_created"):
    """A point that the session can be rewound to or branched from."""

    checkpoint_id: CheckpointId


class StepCommitted(ChunkHeader, tag="step_committed"):
    """All chunks of this step are final: its messages are in the store. `taken` are the last ones of them: messages
    that the user sent to the run while it was going, and that the model sees from here on."""

    step_id: StepId
    checkpoint_id: CheckpointId
    message_count: int
    warnings: tuple[MergeWarning, ...] = ()
    taken: tuple[UserMessage, ...] = ()


class StepDiscarded(ChunkHeader, tag="step_discarded"):
    """Disregard the chunks in this inclusive range: the step is repeated."""

    from_sequence: int
    to_sequence: int


class StreamResync(ChunkHeader, tag="stream_resync"):
    """What a reader saw is no longer valid (the session was rewound): take a new snapshot."""

    reason: str


class Truncated(ChunkHeader, tag="truncated"):
    """Chunks before this number have been deleted. Sent to a reader that asks for them, never stored."""

    first_sequence: int


StreamChunk: TypeAlias = (
    TextDelta
    | ThinkingChunk
    | ToolArgStreamStart
    | ToolArgStreamDelta
    | ToolArgStreamEnd
    | ToolStart
    | ToolEnd
    | ToolError
    | ProviderToolStart
    | ProviderToolInput
    | ProviderToolEnd
    | SourceChunk
    | ToolApprovalRequest
    | SubagentStart
    | SubagentEnd
    | StatePatch
    | Custom
    | Output
    | ErrorChunk
    | RunStarted
    | RunResumed
    | RunPaused
    | RunInterrupted
    | RunSuperseded
    | CheckpointCreated
    | StepCommitted
    | StepDiscarded
    | StreamResync
    | Truncated
)

MARKERS = (
    RunStarted,
    RunResumed,
    RunPaused,
    RunInterrupted,
    RunSuperseded,
    CheckpointCreated,
    StepCommitted,
    SubagentStart,
    StepDiscarded,
    StreamResync,
)
"""Chunks about a run rather than by it: these stay when the content of a step is discarded."""

Delta: TypeAlias = TextDelta | ThinkingChunk | ToolArgStreamDelta
"""A piece of a text that arrives bit by bit."""
DeltaT = TypeVar("DeltaT", TextDelta, ThinkingChunk, ToolArgStreamDelta)

# A store adds a sequence and a time to what a producer wrote.
_STAMP_BYTES = 80
# The names around a text are far shorter than this, and no character takes more than six bytes of JSON.
_MOST_BYTES_AROUND = 20_000
MOST_BYTES_A_CHARACTER = 6


def text_of(chunk: Delta) -> str:
    """The piece of text in a chunk."""
    return chunk.content if isinstance(chunk, ThinkingChunk) else chunk.delta


def with_text(chunk: Delta, text: str) -> Delta:
    """The same chunk with another piece of text."""
    return replace(chunk, content=text) if isinstance(chunk, ThinkingChunk) else replace(chunk, delta=text)


def split_delta(chunk: DeltaT, limit_bytes: int | None) -> tuple[DeltaT, ...]:
    """The same text in as many chunks as needed for each to fit a stream that accepts at most `limit_bytes`.

    Only the last piece of a complete reasoning block is marked as complete.
    """
    text = text_of(chunk)
    if limit_bytes is None or len(text) * MOST_BYTES_A_CHARACTER + _MOST_BYTES_AROUND <= limit_bytes:
        return (chunk,)
    if len(text) < 2 or len(encode(chunk)) + _STAMP_BYTES <= limit_bytes:
        return (chunk,)
    middle = len(text) // 2
    first: dict[str, Any] = {"delta": text[:middle]}
    rest: dict[str, Any] = {"delta": text[middle:]}
    if isinstance(chunk, ThinkingChunk):
        first = {"content": text[:middle], "is_complete": False, "signature": None}
        rest = {"content": text[middle:]}
    return (*split_delta(replace(chunk, **first), limit_bytes), *split_delta(replace(chunk, **rest), limit_bytes))
