"""Our messages in Pydantic AI's format."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
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
from helix_agents.llm.pydantic_ai.provenance import Provenance
from helix_agents.llm.pydantic_ai.wording import legal_name

_URL_KINDS = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
_REAL_TYPES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}

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
            content=_told_of_edit(message) if EDITED_INPUT in message.metadata else _result(message.content),
            tool_call_id=message.tool_call_id,
            outcome="failed" if message.error else "success",
        )

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
        return response

    def _wanted(self, part: ModelResponsePart, response: ModelResponse, intact: bool, alike: bool) -> bool:
        """Reasoning that is not this provider's own, or was changed, would be sent as if it had been said aloud. Calls
        that another provider carried out mean nothing to this one.

        Anthropic's models produce blank texts that Anthropic refuses to read again.
        """
        if isinstance(part, TextPart):
            return self._model.canonical_system != "anthropic" or not part.content.isspace()
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
            case Image(url=url, media_type=media_type):
                yield _attachment(url, media_type, "image/*")
            case File(url=url, media_type=media_type, filename=filename):
                yield _attachment(url, media_type, "application/octet-stream", filename)


def _attachment(url: str, media_type: str | None, otherwise: str, filename: str | None = None) -> UserContent:
    media_type = _plain_type(media_type or "")
    if url[:5].lower() == "data:":
        header, _, body = url[5:].partition(",")
        declared, _, encoding = header.partition(";")
        raw = unquote_to_bytes(body)
        data = _from_base64(raw) if encoding.lower().endswith("base64") else raw
        return BinaryContent(data, media_type=media_type or _plain_type(declared) or otherwise, identifier=filename)
    kind = _URL_KINDS.get((media_type or otherwise).partition("/")[0], DocumentUrl)
    return kind(url, media_type=media_type or None, identifier=filename)


def _plain_type(media_type: str) -> str:
    """A media type as providers list it; browsers add the character set, and use invalid names."""
    plain = media_type.partition(";")[0].strip().lower()
    return _REAL_TYPES.get(plain, plain)


def _from_base64(raw: bytes) -> bytes:
    """Decodes base64 even if the padding is missing."""
    try:
        return b64decode(raw + b"=" * (-len(raw) % 4))
    except ValueError as problem:
        raise ValueError(f"a data URL in the conversation is not valid base64 ({problem})") from problem


def _told_of_edit(message: ToolMessage) -> str:
    """The result of a call that did not run with the model's input, although its history says so."""
    result = _result(message.content)
    text = result if isinstance(result, str) else encode(result).decode()
    ran_with = encode(message.metadata[EDITED_INPUT]).decode()
    return f"(A person changed the input of this call before approving it. It ran with {ran_with}.)\n{text}"


def _result(content: JSON) -> JSON:
    """Texts and objects are sent as they are; a list would be split into its items, so it is sent as JSON text. Some
    providers would refuse an empty text, and every later request that has it in its history."""
    if type(content) is str and (not content or content.isspace()):
        return _NOTHING_GIVEN
    return content if type(content) in (str, dict) else encode(content).decode()
