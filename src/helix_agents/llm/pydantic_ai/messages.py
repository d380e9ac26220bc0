"""Our messages in Pydantic AI's format."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic_ai.messages import (
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model

from helix_agents.domain.messages import (
    EDITED_INPUT,
    AssistantMessage,
    File,
    Image,
    Part,
    Text,
    ToolMessage,
    UserMessage,
)
from helix_agents.domain.records import JSON, encode
from helix_agents.llm.pydantic_ai.attachments import attachment
from helix_agents.llm.pydantic_ai.provenance import Provenance
from helix_agents.llm.pydantic_ai.tool_results import told
from helix_agents.llm.pydantic_ai.wording import legal_id, legal_name

_REFUSE_BLANKS = {"anthropic", "bedrock"}
_NOTHING_SAID = "(empty message)"
_NOTHING_GIVEN = "(empty result)"


class MessageConverter:
    """Converts for one model, and counts: a history that is converted repeatedly costs more with every step."""

    def __init__(self, name: str, model: Model[Any]) -> None:
        self._name = name
        self._model = model
        self.converted = 0

    def request_part(self, message: UserMessage | ToolMessage) -> ModelRequestPart:
        """What a person or a tool said."""
        self.converted += 1
        if isinstance(message, UserMessage):
            return UserPromptPart(content=_user_content(message.content))
        return ToolReturnPart(
            tool_name=legal_name(message.tool_name),
            content=self._content(message),
            tool_call_id=legal_id(message.tool_call_id, _api_of(self._name)),
            outcome="failed" if message.error else "success",
        )

    def _content(self, message: ToolMessage) -> JSON:
        if message.in_parts:
            result: JSON = told(message.parts, _api_of(self._name)) or _NOTHING_GIVEN
        else:
            result = _result(message.content)
        return _told_of_edit(message, result) if EDITED_INPUT in message.metadata else result

    def response(self, message: AssistantMessage) -> ModelResponse:
        """What a model said, part by part as its provider sent it, without what this provider cannot verify: reasoning
        and calls of another."""
        self.converted += 1
        described = Provenance.find(message)
        kept = described or Provenance(name=self._model.system if message.model == self._name else None)
        response = ModelResponse(
            parts=(),
            provider_name=kept.name,
            canonical_system=kept.system,
            provider_response_id=kept.response_id,
            provider_url=kept.url,
            provider_details=None if kept.container is None else {"container_id": kept.container},
        )
        intact = described is not None and described.fits(message)
        # Two APIs of one provider represent reasoning differently, and neither reads the other's.
        alike = _api_of(message.model or self._name) == _api_of(self._name)
        response.parts = [part for part in kept.parts_of(message) if self._wanted(part, response, intact, alike)]
        for part in response.parts:
            if isinstance(part, ToolCallPart):
                part.tool_call_id = legal_id(part.tool_call_id, _api_of(self._name))
        return response

    def _wanted(self, part: ModelResponsePart, response: ModelResponse, intact: bool, alike: bool) -> bool:
        """Reasoning that is not this provider's own, or was changed, would be sent as if it had been said aloud. Calls
        that another provider carried out mean nothing to this one.

        Anthropic's models produce blank texts that Anthropic refuses to read again, and so does Bedrock for all models.
        """
        if isinstance(part, TextPart):
            return not part.content.isspace() or not {self._model.system, self._model.canonical_system} & _REFUSE_BLANKS
        is_ours = part.provider_name == self._model.system
        if isinstance(part, NativeToolCallPart | NativeToolReturnPart):
            return is_ours and alike
        if not isinstance(part, ThinkingPart):
            return True
        own = alike if is_ours else self._model.accepts_stateless_artifacts(response, part)
        signed_alone = part.signature is not None and self._model.canonical_system == "anthropic"
        return own and (intact or signed_alone)


def _api_of(model: str) -> str:
    return model.partition(":")[0]


def _user_content(content: str | tuple[Part, ...]) -> str | Sequence[UserContent]:
    """What was said; an empty message is put into words, because no provider accepts it otherwise."""
    if isinstance(content, str):
        return content if content and not content.isspace() else _NOTHING_SAID
    return list(_pieces(content)) or _NOTHING_SAID


def _pieces(content: tuple[Part, ...]) -> Iterator[UserContent]:
    for part in content:
        match part:
            case Text(text=text):
                if text and not text.isspace():
                    yield text
            case Image() | File():
                yield attachment(part)


def _told_of_edit(message: ToolMessage, result: JSON) -> JSON:
    """The result of a call that did not run with the model's input, although its history says so."""
    ran_with = encode(message.metadata[EDITED_INPUT]).decode()
    note = f"(A person changed the input of this call before approving it. It ran with {ran_with}.)"
    if isinstance(result, list):
        return [note, *cast("list[UserContent]", result)]
    text = result if isinstance(result, str) else encode(result).decode()
    return f"{note}\n{text}"


def _result(content: JSON) -> JSON:
    """Texts and objects are sent as they are; a list would be split into its items, so it is sent as JSON text. Some
    providers would refuse an empty text, and every later request that has it in its history."""
    if type(content) is str and (not content or content.isspace()):
        return _NOTHING_GIVEN
    return content if type(content) in (str, dict) else encode(content).decode()
