"""The events that hooks receive: one record per hook point, named after it."""

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

import msgspec

from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, Part, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.sub_sessions import SubSessionStatus
from helix_agents.domain.usage import TokenCount
from helix_agents.domain.writes import StepWrites
from helix_agents.ports.llm import ModelRequest

HookName: TypeAlias = Literal[
    "on_agent_start",
    "on_agent_complete",
    "on_agent_fail",
    "on_agent_interrupted",
    "on_agent_suspended",
    "on_agent_resumed",
    "on_handoff",
    "before_llm_call",
    "around_llm_call",
    "on_llm_retry",
    "after_llm_call",
    "before_tool",
    "around_tool",
    "after_tool",
    "on_tool_refused",
    "on_tool_unsettled",
    "before_sub_agent",
    "after_sub_agent",
    "on_message",
    "on_state_change",
    "on_text_delta",
    "on_thinking",
]

RanBy: TypeAlias = Literal["function", "agent", "companion", "client", "nobody"]
"""What works on a call: your function, a sub-agent here or in another service, a companion, the client or a person, or
nobody, as with a call that was given up."""


Purpose: TypeAlias = Literal["reply", "summary", "memory"]
"""What a model is asked for: the next words of the conversation, a summary of its oldest part (`Compaction`), or what
is worth remembering of it (`Memory`). Of the last one, only the hooks around a model call are told."""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, or is about to."""

    hook: ClassVar[HookName]


class AgentStartEvent(HookEvent, frozen=True, kw_only=True):
    """A turn starts; the model has not been asked yet."""

    hook = "on_agent_start"
    turn: int
    input: tuple[UserMessage, ...]


class AgentCompleteEvent(HookEvent, frozen=True, kw_only=True):
    """The run has its output."""

    hook = "on_agent_complete"
    output: JSON
    step_count: int
    duration_ms: int


class AgentFailEvent(HookEvent, frozen=True, kw_only=True):
    """The run failed."""

    hook = "on_agent_fail"
    code: str
    error: str
    retryable: bool
    step_count: int
    duration_ms: int


class AgentInterruptedEvent(HookEvent, frozen=True, kw_only=True):
    """The run ends because it was asked to stop. An aborted run fails instead."""

    hook = "on_agent_interrupted"
    reason: str | None
    step_count: int
    duration_ms: int


class AgentSuspendedEvent(HookEvent, frozen=True, kw_only=True):
    """The run ends because it waits for an answer or for a child."""

    hook = "on_agent_suspended"
    run_id: RunId
    reason: Literal["client_tool", "awaiting_children"]
    tool_call_ids: tuple[ToolCallId, ...]
    step_count: int
    duration_ms: int


class AgentResumedEvent(HookEvent, frozen=True, kw_only=True):
    """A run continues what an earlier run left; `previous_run_id` is the suspended one."""

    hook = "on_agent_resumed"
    run_id: RunId
    previous_run_id: RunId
    session_id: SessionId
    resumed_from_checkpoint_id: CheckpointId | None


class HandoffEvent(HookEvent, frozen=True, kw_only=True):
    """The agent hands the conversation over to another one, which does the next step. The hooks of the agent that hands
    over are called."""

    hook = "on_handoff"
    tool_call_id: ToolCallId
    to: str
    input: Mapping[str, JSON]


class BeforeLLMCallEvent(HookEvent, frozen=True, kw_only=True):
    """The model is about to be asked."""

    hook = "before_llm_call"
    model: str
    request: ModelRequest
    purpose: Purpose = "reply"


class AroundLLMCallEvent(HookEvent, frozen=True, kw_only=True):
    """The model is asked, as many times as it takes; the outcome is an `AfterLLMCallEvent`."""

    hook = "around_llm_call"
    model: str
    request: ModelRequest
    purpose: Purpose = "reply"


class LLMRetryEvent(HookEvent, frozen=True, kw_only=True):
    """The model gave no answer and will be asked again after `wait_seconds`."""

    hook = "on_llm_retry"
    model: str
    code: str
    error: str
    failures: int
    wait_seconds: float


class AfterLLMCallEvent(HookEvent, frozen=True, kw_only=True):
    """The model answered. If a step gets no answer, the run fails and `on_agent_fail` is called instead; if only a
    summary is missing, the run continues."""

    hook = "after_llm_call"
    model: str
    reply: AssistantMessage
    usage: TokenCount
    duration_ms: int
    purpose: Purpose = "reply"


class BeforeToolEvent(HookEvent, frozen=True, kw_only=True):
    """A tool is about to run, or a call is about to be given to another agent."""

    hook = "before_tool"
    tool_name: str
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]


class AroundToolEvent(HookEvent, frozen=True, kw_only=True):
    """Your function runs for a call; the outcome is an `AfterToolEvent`, even if the function raised."""

    hook = "around_tool"
    tool_name: str
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]


class AfterToolEvent(HookEvent, frozen=True, kw_only=True):
    """A call has its result, whatever ran it. If `error` is set, the result is what the model was told instead. If the
    result consists of texts, images and files, `parts` has them, and `result` their JSON form.

    The result was available at `ended_at`, in milliseconds; hooks are called once the whole batch is done. If another
    agent worked on the call, its `ctx.trace.errand` equals the `errand` here.
    """

    hook = "after_tool"
    tool_name: str
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]
    result: JSON
    error: bool
    code: str | None
    duration_ms: int
    ended_at: int
    ran_by: RanBy
    errand: str | None = None
    parts: tuple[Part, ...] = ()


class ToolRefusedEvent(HookEvent, frozen=True, kw_only=True):
    """A call did not run, and the model is told why: a person denied it, the user continued without it, it was not
    understood, or a deploy removed its tool."""

    hook = "on_tool_refused"
    tool_name: str
    tool_call_id: ToolCallId
    code: str
    error: JSON


class ToolUnsettledEvent(HookEvent, frozen=True, kw_only=True):
    """The run ends while a call has no result from it: the call waits for an answer, or was left behind with the
    run."""

    hook = "on_tool_unsettled"
    tool_name: str
    tool_call_id: ToolCallId
    waits: bool
    duration_ms: int
    ran_by: RanBy
    errand: str | None = None


class BeforeSubAgentEvent(HookEvent, frozen=True, kw_only=True):
    """A child session is about to work on a call."""

    hook = "before_sub_agent"
    tool_call_id: ToolCallId
    agent: str
    child_session_id: SessionId
    input: JSON


class AfterSubAgentEvent(HookEvent, frozen=True, kw_only=True):
    """A child session is done with a call."""

    hook = "after_sub_agent"
    tool_call_id: ToolCallId
    agent: str
    child_session_id: SessionId
    status: SubSessionStatus
    result: JSON
    error: str | None
    duration_ms: int


class MessageEvent(HookEvent, frozen=True, kw_only=True):
    """A message joins the transcript."""

    hook = "on_message"
    message: Message


class StateChangeEvent(HookEvent, frozen=True, kw_only=True):
    """A tool changed the state."""

    hook = "on_state_change"
    tool_call_id: ToolCallId
    writes: StepWrites


class TextDeltaEvent(HookEvent, frozen=True, kw_only=True):
    """The next piece of the answer."""

    hook = "on_text_delta"
    delta: str


class ThinkingEvent(HookEvent, frozen=True, kw_only=True):
    """The next piece of reasoning; `done` ends a block."""

    hook = "on_thinking"
    delta: str
    done: bool = False
