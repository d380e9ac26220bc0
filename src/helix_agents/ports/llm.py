"""What the engine needs from a language model: one request in, a stream of events out."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.usage import TokenCount
from helix_agents.ports.provider_tools import ProviderTool

CacheTtl: TypeAlias = Literal["5m", "1h"]

StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why a reply ended, in the same words for every provider: it was complete, it wants tools, it reached the token limit,
or the provider withheld it."""

ToolChoice: TypeAlias = Literal["auto", "required", "none"] | str
"""Whether a reply calls tools: as the model likes, in any case, not at all, or in any case the one of this name."""

FINISH_TOOL = "__finish__"
"""The tool a model calls to submit the structured output of an agent."""


class PromptCache(Record):
    """Where a provider should cache the prompt: after the instructions, and after the latest batch of results."""

    provider: Literal["anthropic"] = "anthropic"
    ttl: CacheTtl = "5m"


class ModelSettings(Record):
    """How a model should answer. Settings that are None are left to the provider.

    `tool_choice` makes the model call a tool (`"required"`), one tool (its name), or none (`"none"`; it may still
    submit the output). What it makes the model do, it does until a tool has answered in a turn; `"required"` holds for
    the whole turn if the agent has an `output`, because submitting it is such a call.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: tuple[str, ...] = ()
    seed: int | None = None
    headers: dict[str, str] = {}
    provider_options: dict[str, JSON] = {}
    strict_output: bool = False
    cache: PromptCache | None = None
    tool_choice: ToolChoice | None = None


class ToolSpec(Record):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, JSON]
    strict: bool | None = None


class ModelRequest(Record):
    """One request to a model: the instructions, the history, and the tools it may call.

    `messages` only ever grows between the steps of one run, so an adapter may keep what it has converted. The
    exception: if the first message has changed, a summary has replaced the oldest messages.

    `tools` are those that the model may call in this step, always in the same order. A `tool_choice` in `settings` is
    meant for this step, and can be followed: a tool that it names is one of them. With `"none"`, only `FINISH_TOOL` may
    still be called.

    If the agent's history processors chose the messages, `chosen_from` has all those they chose from. Any message may
    then differ from the step before.

    `provider_tools` are those that the provider runs itself.
    """

    agent_type: str
    session_id: SessionId
    run_id: RunId
    step: int
    instructions: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = ModelSettings()
    chosen_from: Sequence[Message] | None = None
    provider_tools: tuple[ProviderTool, ...] = ()


class TextPiece(Record, tag_field="event", tag="text"):
    """The next piece of the answer."""

    delta: str


class ThinkingPiece(Record, tag_field="event", tag="thinking"):
    """The next piece of reasoning; `done` ends a block."""

    delta: str = ""
    done: bool = False
    signature: str | None = None


class ToolCallStarted(Record, tag_field="event", tag="tool_call_started"):
    """The model started a call; `id` is the provider's."""

    id: ToolCallId
    name: str


class ToolArgumentsPiece(Record, tag_field="event", tag="tool_arguments"):
    """The next piece of a call's arguments, as raw JSON text."""

    id: ToolCallId
    delta: str


class ToolCallEnded(Record, tag_field="event", tag="tool_call_ended"):
    """The arguments of a call are complete."""

    id: ToolCallId


class ProviderCallStarted(Record, tag_field="event", tag="provider_call_started"):
    """The provider started a call of its own; `id` is the provider's."""

    id: ToolCallId
    name: str


class ProviderCallInput(Record, tag_field="event", tag="provider_call_input"):
    """What the provider calls its tool with."""

    id: ToolCallId
    arguments: dict[str, JSON] | str


class ProviderCallEnded(Record, tag_field="event", tag="provider_call_ended"):
    """What came of a call of the provider's own, as far as it can be shown."""

    id: ToolCallId
    result: JSON = None
    error: bool = False


class ReplyDone(Record, tag_field="event", tag="done"):
    """The whole reply, always the last event. Call ids are the provider's, as in the events before. So are those of its
    `provider_calls`; an adapter that wants them back with the reply keeps them elsewhere, because the engine may rename
    calls.

    An adapter in front of several models names the one that answered; usage is counted under its name.
    """

    reply: AssistantMessage
    usage: TokenCount = TokenCount()
    answered_by: str | None = None


ModelEvent: TypeAlias = (
    TextPiece
    | ThinkingPiece
    | ToolCallStarted
    | ToolArgumentsPiece
    | ToolCallEnded
    | ProviderCallStarted
    | ProviderCallInput
    | ProviderCallEnded
    | ReplyDone
)


class LLMAdapter(Protocol):
    """A model behind one name."""

    @property
    def name(self) -> str:
        """The name under which usage is counted, such as `anthropic:claude-sonnet-4-5`."""
        ...

    def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply, or return it as a whole (`ReplyDone`). Closing the iterator early cuts off the call.

        Raises:
            ModelError: what went wrong, and whether asking again may help.
        """
        ...


def replays_turns(model: object) -> bool:
    """Whether a model works on a turn from its beginning, as a flow does: it is not told in the middle of a turn what
    the user says then, and takes no turn over from another agent. Such an adapter has `replays_turns = True`."""
    return bool(getattr(model, "replays_turns", False))


class OpenModel(Protocol):
    """What a model provider's entry point (group `helix_agents.models`) provides under its prefix."""

    def __call__(self, name: str, **options: Any) -> LLMAdapter: ...
