"""Keeps what a provider wants back with its own reply: signatures, item ids, and the order of its parts.

A reply of ours is one text, its reasoning and its calls. A provider's reply is a list of parts, some of them signed,
and the provider may refuse a history whose parts come back in another order or without their ids. The difference is
kept in the reply's metadata, and ignored by everyone but the provider it came from.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from msgspec.structs import replace
from pydantic_ai.messages import (
    Citation,
    ContentCitationAnchor,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    WebCitationSource,
)
from pydantic_core import to_jsonable_python

from helix_agents.domain.errors import RecordTooNewError, SessionCorruptError
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Source, Thinking, ToolCall
from helix_agents.domain.records import JSON, Record, decode, decode_json, encode
from helix_agents.llm.pydantic_ai.provider_tools import failed, shown, stored
from helix_agents.llm.pydantic_ai.wording import legal_name, mended, read_arguments
from helix_agents.ports.llm import StopReason

METADATA_KEY = "provider"


class PartPlace(Record):
    """The position in our reply of a part of the provider's, and what else the part carried.

    A call of the provider's own has two parts: it is `made`, and it `returned`. `differs` is what these parts have
    otherwise than the reply shows it: their id, and what only the provider can read.
    """

    thinking: int | None = None
    text: tuple[int, int] | None = None
    call: int | None = None
    id: str | None = None
    details: dict[str, JSON] | None = None
    made: int | None = None
    returned: int | None = None
    differs: dict[str, JSON] = {}


class Provenance(Record):
    """Whose reply it is. `parts` is empty if the reply is reasoning, then text, then calls, with nothing else to keep.

    `url` and `container` say where the provider keeps what its own tools left, if they left anything.
    """

    name: str | None = None
    system: str | None = None
    model: str | None = None
    response_id: str | None = None
    refusal: str | None = None
    parts: tuple[PartPlace, ...] = ()
    url: str | None = None
    container: str | None = None

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
        provided = {at for place in self.parts for at in (place.made, place.returned) if at is not None}
        if provided != set(range(len(message.provider_calls))):
            return False
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
                text = message.text[start:end]
                yield TextPart(text, **extras, citations=_citations(text, place))
            elif place.call is not None:
                call = message.tool_calls[place.call]
                yield ToolCallPart(legal_name(call.name), call.arguments, call.id, **extras)
            elif place.made is not None:
                yield NativeToolCallPart(**_made(message.provider_calls[place.made]) | place.differs, **extras)
            elif place.returned is not None:
                del extras["id"]
                known = _returned(message.provider_calls[place.returned])
                yield NativeToolReturnPart(**known | place.differs, **extras)


def read_reply(response: ModelResponse, name: str, stop_reason: StopReason) -> AssistantMessage:
    """A provider's reply in our format, together with what the provider wants back."""
    text = ""
    joints = TextJoints()
    thinking: list[Thinking] = []
    calls: list[ToolCall] = []
    places: list[PartPlace] = []
    provided = _Provided()
    sources: list[Source] = []
    for index, part in enumerate(response.parts):
        match part:
            case TextPart(content=content) if content:
                start = len(text) + len(joint := joints.before(index))
                text += joint + mended(content)
                places.append(_place(part, text=(start, len(text))))
                sources.extend(_sources(part.citations or (), start))
            case ThinkingPart(content=content, signature=signature):
                places.append(_place(part, thinking=len(thinking)))
                thinking.append(Thinking(text=mended(content), signature=signature))
            case ToolCallPart(tool_name=tool, tool_call_id=call_id, args=args):
                places.append(_place(part, call=len(calls)))
                calls.append(ToolCall(id=call_id, name=mended(tool), arguments=read_arguments(args)))
            case NativeToolCallPart():
                places.append(provided.made(part, thoughts=len(thinking), text=len(text)))
            case NativeToolReturnPart():
                places.append(provided.returned(part, thoughts=len(thinking), text=len(text)))
            case _:
                # Other parts, such as pictures that a provider's code has drawn, are not kept.
                continue
    plain = _plain_places(len(thinking), len(text), len(calls))
    provenance = Provenance(
        name=response.provider_name,
        system=response.canonical_system,
        model=response.model_name,
        response_id=response.provider_response_id,
        refusal=_refusal(response),
        parts=() if places == plain else tuple(places),
        url=response.provider_url if provided.calls else None,
        container=(response.provider_details or {}).get("container_id"),
    )
    return AssistantMessage(
        text=text,
        thinking=tuple(thinking),
        tool_calls=tuple(calls),
        # Some providers say only that the reply is complete.
        stop_reason="tool_calls" if calls and stop_reason == "stop" else stop_reason,
        model=name,
        metadata={METADATA_KEY: decode_json(encode(provenance))},
        provider_calls=tuple(provided.calls),
        sources=tuple(sources),
    )


class _Provided:
    """The calls that the provider made itself in one reply, as they become known part by part."""

    def __init__(self) -> None:
        self.calls: list[ProviderCall] = []

    def made(self, part: NativeToolCallPart, *, thoughts: int, text: int) -> PartPlace:
        call = ProviderCall(
            id=part.tool_call_id,
            name=mended(part.tool_name),
            arguments=read_arguments(part.args),
            thoughts_before=thoughts,
            text_before=text,
        )
        self.calls.append(call)
        return _place(part, made=len(self.calls) - 1, differs=_differing(part, _made(call)))

    def returned(self, part: NativeToolReturnPart, *, thoughts: int, text: int) -> PartPlace:
        """A result; it may be that of a call in an earlier reply, which is then shown again."""
        at = next((at for at, call in enumerate(self.calls) if call.id == part.tool_call_id), None)
        if at is None:
            at = len(self.calls)
            name = mended(part.tool_name)
            self.calls.append(ProviderCall(id=part.tool_call_id, name=name, thoughts_before=thoughts, text_before=text))
        self.calls[at] = call = replace(self.calls[at], result=shown(part.content), error=failed(part))
        return _place(part, returned=at, differs=_differing(part, _returned(call)))


def _made(call: ProviderCall) -> dict[str, Any]:
    return {"tool_name": call.name, "args": call.arguments, "tool_call_id": call.id}


def _returned(call: ProviderCall) -> dict[str, Any]:
    return {"tool_name": call.name, "content": call.result, "tool_call_id": call.id, "outcome": "success"}


def _differing(part: NativeToolCallPart | NativeToolReturnPart, known: dict[str, Any]) -> dict[str, JSON]:
    """What a part has otherwise than its call shows it. The id is always kept, because the engine may rename the
    call."""
    values = {name: stored(getattr(part, name)) for name in (*known, "tool_kind")}
    if isinstance(part, NativeToolCallPart):
        # An input is the same whether it is written as a text or as values.
        values["args"] = read_arguments(part.args)
    known = {**known, "tool_kind": None, "tool_call_id": None}
    return {name: value for name, value in values.items() if value != known[name]}


def _sources(citations: Sequence[Citation], start: int) -> Iterator[Source]:
    """What a text refers to. Its positions are counted from the beginning of the whole text."""
    for citation in citations:
        at: dict[str, Any] = {}
        if (anchor := citation.anchor) is not None:
            at = {"start": start + anchor.start, "end": start + anchor.end}
        for source in citation.sources:
            title = None if source.title is None else mended(source.title)
            if isinstance(source, WebCitationSource):
                yield Source(url=mended(source.url), title=title, **at)
            else:
                yield Source(document_id=source.document_id, title=title, **at)


def _citations(text: str, place: PartPlace) -> list[Citation] | None:
    """A sign that what the provider cited in a text, which is in its details, is still what it stands behind."""
    if not place.details or "citations" not in place.details or not text:
        return None
    return [Citation([WebCitationSource("")], anchor=ContentCitationAnchor(start=0, end=len(text)))]


class TextJoints:
    """Adjacent text parts are one text; text parts with something in between are separated by an empty line."""

    def __init__(self) -> None:
        self._last: int | None = None

    def before(self, index: int) -> str:
        """What to write before more text of the part at this index."""
        apart = self._last is not None and index > self._last + 1
        self._last = index
        return "\n\n" if apart else ""


def _place(part: ModelResponsePart, **where: Any) -> PartPlace:
    details = to_jsonable_python(part.provider_details) if part.provider_details else None
    return PartPlace(id=getattr(part, "id", None), details=details, **where)


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
