"""What hooks are told: one record per hook point, named after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.sub_sessions import SubSessionStatus
from helix_agents.domain.usage import TokenCount
from helix_agents.domain.writes import StepWrites
from helix_agents.ports.llm import ModelRequest

HookName: TypeAlias = Literal[
    "on_agent_start",
    "on_agent_complete",
    "on_agent_fail",
    "on_agent_suspended",
    "on_agent_resumed",
    "before_llm_call",
    "after_llm_call",
    "before_tool",
    "after_tool",
    "before_sub_agent",
    "after_sub_agent",
    "on_message",
    "on_state_change",
    "on_text_delta",
    "on_thinking",
]


@dataclass(frozen=True, kw_only=True)
class HookEvent:
    """Something that happened, or is about to."""

    hook: ClassVar[HookName]


@dataclass(frozen=True, kw_only=True)
class AgentStartEvent(HookEvent):
    """A turn begins; the model has not been asked yet."""

    hook = "on_agent_start"
    turn: int
    input: tuple[UserMessage, ...]


@dataclass(frozen=True, kw_only=True)
class AgentCompleteEvent(HookEvent):
    """The run has its output."""

    hook = "on_agent_complete"
    output: JSON
    step_count: int
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class AgentFailEvent(HookEvent):
    """The run failed."""

    hook = "on_agent_fail"
    code: str
    error: str
    retryable: bool
    step_count: int
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class AgentSuspendedEvent(HookEvent):
    """The run ends because it needs somebody."""

    hook = "on_agent_suspended"
    run_id: RunId
    reason: Literal["client_tool", "awaiting_children"]
    tool_call_ids: tuple[ToolCallId, ...]


@dataclass(frozen=True, kw_only=True)
class AgentResumedEvent(HookEvent):
    """A run goes on with what an earlier one left; `previous_run_id` is the suspended one."""

    hook = "on_agent_resumed"
    run_id: RunId
    previous_run_id: RunId
    session_id: SessionId
    resumed_from_checkpoint_id: CheckpointId | None


@dataclass(frozen=True, kw_only=True)
class BeforeLLMCallEvent(HookEvent):
    """The model is about to be asked."""

    hook = "before_llm_call"
    model: str
    request: ModelRequest


@dataclass(frozen=True, kw_only=True)
class AfterLLMCallEvent(HookEvent):
    """The model answered, or did not."""

    hook = "after_llm_call"
    model: str
    reply: AssistantMessage | None
    usage: TokenCount
    duration_ms: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class BeforeToolEvent(HookEvent):
    """A tool is about to run."""

    hook = "before_tool"
    tool_name: str
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]


@dataclass(frozen=True, kw_only=True)
class AfterToolEvent(HookEvent):
    """A call has its result, whoever ran it; an `error` result is what the model was told instead."""

    hook = "after_tool"
    tool_name: str
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]
    result: JSON
    error: bool
    code: str | None
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class BeforeSubAgentEvent(HookEvent):
    """A child session is about to work on a call."""

    hook = "before_sub_agent"
    tool_call_id: ToolCallId
    agent: str
    child_session_id: SessionId
    input: JSON


@dataclass(frozen=True, kw_only=True)
class AfterSubAgentEvent(HookEvent):
    """A child session is done with a call."""

    hook = "after_sub_agent"
    tool_call_id: ToolCallId
    agent: str
    child_session_id: SessionId
    status: SubSessionStatus
    result: JSON
    error: str | None
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class MessageEvent(HookEvent):
    """A message joins the transcript."""

    hook = "on_message"
    message: Message


@dataclass(frozen=True, kw_only=True)
class StateChangeEvent(HookEvent):
    """A tool changed the state."""

    hook = "on_state_change"
    tool_call_id: ToolCallId
    writes: StepWrites


@dataclass(frozen=True, kw_only=True)
class TextDeltaEvent(HookEvent):
    """The next piece of the answer."""

    hook = "on_text_delta"
    delta: str


@dataclass(frozen=True, kw_only=True)
class ThinkingEvent(HookEvent):
    """The next piece of reasoning; `done` ends a block."""

    hook = "on_thinking"
    delta: str
    done: bool = False
