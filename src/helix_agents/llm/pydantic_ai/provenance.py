"""Keeps what a provider wants back with its own reply: signatures, item ids, and the order of its parts.

A reply of ours is one text, its reasoning and its calls. A provider's reply is a list of parts, some of them signed,
and the provider may refuse a history whose parts come back in another order or without their ids. The difference is
kept in the reply's metadata, and ignored by everyone but the provider it came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import to_jsonable_python

from helix_agents.domain.errors import RecordTooNewError, SessionCorruptError
from helix_agents.domain.messages import AssistantMessage, Thinking, ToolCall, says_nothing
from helix_agents.domain.records import JSON, Record, decode, decode_json, encode
from helix_agents.llm.pydantic_ai.wording import legal_name, mended, mended_arguments
from helix_agents.ports.llm import StopReason

METADATA_KEY = "provider"


class PartPlace(Record):
    """The position in our reply of a part of the provider's, and what else the part carried."""

    thinking: int | None = None
    text: tuple[int, int] | None = None
    call: int | None = None
    id: str | None = None
    details: dict[str, JSON] | None = None


class Provenance(Record):
    """Whose reply it is. `parts` is empty if the reply is reasoning, then text, then calls, with nothing else to
    keep."""

    name: str | None = None
    system: str | None = None
    model: str | None = None
    response_id: str | None = None
    refusal: str | None = None
    parts: tuple[PartPlace, ...] = ()

    @classmethod
    def find(cls, message: AssistantMessage) -> Self | None:
        """What is kept with a reply. A reply that was cut off has nothing: its stream never ended."""
        kept = message.metadata.get(METADATA_KEY)
        if kept is None:
            return None
        try:
            return decode(encode(kept), cls)
        except (RecordTooNewError, SessionCorruptError):
            return None

    def fits(self, message: AssistantMessage) -> bool:
        """Whether the description is still true: the reply may have been edited since."""
        return not self.parts or _extent(self.parts) == _extent(_places_in(message))

    def parts_of(self, message: AssistantMessage) -> Iterator[ModelResponsePart]:
        """The parts that the provider sent, in its order; for an edited reply, those that it has now."""
        for place in self.parts if self.parts and self.fits(message) else _places_in(message):
            extras: dict[str, Any] = {"id": place.id, "provider_name": self.name, "provider_details": place.details}
            if place.thinking is not None:
                block = message.thinking[place.thinking]
                yield ThinkingPart(block.text, signature=block.signature, **extras)
            elif place.text is not None:
                start, end = place.text
                yield TextPart(message.text[start:end], **extras)
            elif place.call is not None:
                call = message.tool_calls[place.call]
                yield ToolCallPart(legal_name(call.name), call.arguments, call.id, **extras)


def read_reply(response: ModelResponse, name: str, stop_reason: StopReason) -> AssistantMessage:
    """A provider's reply in our format, together with what the provider wants back."""
    text = ""
    joints = TextJoints()
    thinking: list[Thinking] = []
    calls: list[ToolCall] = []
    places: list[PartPlace] = []
    for index, part in enumerate(response.parts):
        match part:
            case TextPart(content=content) if content:
                start = len(text) + len(joint := joints.before(index))
                text += joint + mended(content)
                places.append(_place(part, text=(start, len(text))))
            case ThinkingPart(content=content, signature=signature):
                places.append(_place(part, thinking=len(thinking)))
                thinking.append(Thinking(text=mended(content), signature=signature))
            case ToolCallPart(tool_name=tool, tool_call_id=call_id, args=args):
                places.append(_place(part, call=len(calls)))
                calls.append(ToolCall(id=call_id, name=mended(tool), arguments=read_arguments(args)))
            case _:
                # We never ask a provider for other parts, such as calls of its own tools.
                continue
    plain = _plain_places(len(thinking), len(text), len(calls))
    provenance = Provenance(
        name=response.provider_name,
        system=response.canonical_system,
        model=response.model_name,
        response_id=response.provider_response_id,
        refusal=_refusal(response),
        parts=() if places == plain else tuple(places),
    )
    return AssistantMessage(
        text=text,
        thinking=tuple(thinking),
        tool_calls=tuple(calls),
        # Some providers say only that the reply is complete.
        stop_reason="tool_calls" if calls and stop_reason == "stop" else stop_reason,
        model=name,
        metadata={METADATA_KEY: decode_json(encode(provenance))},
    )


class TextJoints:
    """Adjacent text parts are one text; text parts with something in between are separated by an empty line."""

    def __init__(self) -> None:
        self._last: int | None = None

    def before(self, index: int) -> str:
        """What to write before more text of the part at this index."""
        apart = self._last is not None and index > self._last + 1
        self._last = index
        return "\n\n" if apart else ""


def _place(part: TextPart | ThinkingPart | ToolCallPart, **where: Any) -> PartPlace:
    details = to_jsonable_python(part.provider_details) if part.provider_details else None
    return PartPlace(id=part.id, details=details, **where)


def _plain_places(thinking: int, text: int, calls: int) -> list[PartPlace]:
    places = [PartPlace(thinking=index) for index in range(thinking)]
    if text:
        places.append(PartPlace(text=(0, text)))
    return places + [PartPlace(call=index) for index in range(calls)]


def _places_in(message: AssistantMessage) -> list[PartPlace]:
    return _plain_places(len(message.thinking), len(message.text), len(message.tool_calls))


def _extent(places: Sequence[PartPlace]) -> tuple[int, int, int]:
    return (
        sum(place.thinking is not None for place in places),
        max((place.text[1] for place in places if place.text is not None), default=0),
        sum(place.call is not None for place in places),
    )


def _refusal(response: ModelResponse) -> str | None:
    said = (response.provider_details or {}).get("refusal")
    return mended(said) if isinstance(said, str) else None


def read_arguments(args: str | Mapping[str, Any] | None) -> dict[str, JSON] | str:
    """A call's arguments as values, or as the original text if they cannot be parsed."""
    if not args or (isinstance(args, str) and says_nothing(args)):
        return {}
    if not isinstance(args, str):
        return mended_arguments(args)
    args = mended(args)
    try:
        value = decode_json(args)
    except (SessionCorruptError, RecursionError):
        return args
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else args
