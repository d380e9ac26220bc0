"""What a transcript consists of: user, assistant and tool messages."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, cast

import msgspec

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, Record, decode


class _Part(Record):
    """A piece of a message. It can also be the type of a tool's result or an agent's output: pydantic validates it."""

    @classmethod
    def _given(cls, value: Any) -> Any:
        return value if isinstance(value, cls) else msgspec.convert(value, cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        # A plain dictionary, so that the library is not needed here.
        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": cls._given},
            "serialization": {"type": "function-plain", "function": msgspec.to_builtins, "when_used": "always"},
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        (own,) = msgspec.json.schema(cls)["$defs"].values()
        return {key: value for key, value in own.items() if key != "title"}


class Text(_Part, tag_field="type", tag="text"):
    """A piece of text in a message."""

    text: str


class Image(_Part, tag_field="type", tag="image"):
    """A picture, as a web address or data URL."""

    url: str
    media_type: str | None = None
    filename: str | None = None

    @classmethod
    def of(cls, data: bytes, media_type: str, filename: str | None = None) -> "Image":
        """The picture with these bytes, as a data URL: `Image.of(png, "image/png")`."""
        return cls(url=_data_url(data, media_type), media_type=media_type, filename=filename)


class File(_Part, tag_field="type", tag="file"):
    """A document, as a web address or data URL."""

    url: str
    media_type: str
    filename: str | None = None

    @classmethod
    def of(cls, data: bytes, media_type: str, filename: str | None = None) -> "File":
        """The file with these bytes, as a data URL: `File.of(pdf, "application/pdf", "papers.pdf")`."""
        return cls(url=_data_url(data, media_type), media_type=media_type, filename=filename)


Part: TypeAlias = Text | Image | File


def _data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


class UserMessage(Record, tag_field="role", tag="user"):
    """What a person, or the system on a person's behalf, says to the model. A hidden message is for the model only."""

    content: str | tuple[Part, ...]
    hidden: bool = False
    id: str | None = None
    metadata: dict[str, JSON] = {}

    @property
    def role(self) -> Literal["user"]:
        """Who says it, as in its JSON."""
        return "user"


def is_blank(content: str | tuple[Part, ...]) -> bool:
    """Whether a message is empty: it has neither text nor a file."""
    parts = (Text(text=content),) if isinstance(content, str) else content
    return all(isinstance(part, Text) and not part.text.strip() for part in parts)


class Thinking(Record):
    """A block of the model's reasoning, with the provider's signature over it."""

    text: str
    signature: str | None = None
    details: dict[str, JSON] = {}


class ToolCall(Record):
    """One call that the model requested. Arguments that were not valid JSON are kept as the original text."""

    id: ToolCallId
    name: str
    arguments: dict[str, JSON] | str = {}


def says_nothing(arguments: str) -> bool:
    """Whether a model wrote no arguments; some models then write nothing, and some write null."""
    return arguments.strip() in ("", "null")


class ProviderCall(Record):
    """One call that the model's provider carried out itself while it replied, such as a web search.

    It is part of the reply: no tool of the agent runs for it, and no tool message answers it. `result` is what can be
    shown of it; None if the provider gave none. `thoughts_before` and `text_before` say how many blocks of reasoning
    and how many characters of the text came before it.
    """

    id: ToolCallId
    name: str
    arguments: dict[str, JSON] | str = {}
    result: JSON = None
    error: bool = False
    thoughts_before: int = 0
    text_before: int = 0


class Source(Record):
    """Something that a reply refers to: a web page, or a document that the provider knows by its id.

    `start` and `end` are the positions in the reply's text that it stands behind, if the provider said so.
    """

    url: str | None = None
    title: str | None = None
    document_id: str | None = None
    start: int | None = None
    end: int | None = None


class AssistantMessage(Record, tag_field="role", tag="assistant"):
    """One reply of the model."""

    text: str = ""
    thinking: tuple[Thinking, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: str | None = None
    model: str | None = None
    interrupted: Literal["interrupt", "abort", "crash"] | None = None
    id: str | None = None
    metadata: dict[str, JSON] = {}
    provider_calls: tuple[ProviderCall, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def role(self) -> Literal["assistant"]:
        """Who says it, as in its JSON."""
        return "assistant"


def in_spoken_order(reply: AssistantMessage) -> Iterator[Thinking | str | ProviderCall]:
    """The reasoning, the text and the provider's own calls of a reply, each where it began. The text is one piece."""
    calls = iter((*reply.provider_calls, None))
    call = next(calls)
    for place, thought in enumerate(reply.thinking):
        while call is not None and call.text_before == 0 and call.thoughts_before <= place:
            yield call
            call = next(calls)
        yield thought
    while call is not None and call.text_before == 0:
        yield call
        call = next(calls)
    if reply.text:
        yield reply.text
    while call is not None:
        yield call
        call = next(calls)


EDITED_INPUT = "edited_input"
"""Metadata key of a tool message: the input that a person gave in place of the model's."""

HELD_SINCE = "held_since"
"""Metadata key of a tool message: since when this was known about a call whose step was not complete."""

TOOLS_BEGUN = "tools_begun"
"""Metadata of a sub-agent's result that was cut short: the names of the tools that were begun below it."""


class ToolMessage(Record, tag_field="role", tag="tool"):
    """The result of one call. A string is stored verbatim; `code` says why a call failed or did not run.

    If the result is `in_parts`, the content is a list of texts, images and files in their JSON form, and the model sees
    them; `parts` has them as objects. Any other list is data, whatever it looks like.
    If a person changed the input before approving the call, `metadata["edited_input"]` is the input it ran with. The
    call in the transcript stays as the model wrote it, so an adapter tells the model about the change with the result.
    If the result was known while other calls of its step were still open, `metadata["held_since"]` says since when, so
    that going back to a checkpoint in between still finds it.
    """

    tool_call_id: ToolCallId
    tool_name: str
    content: JSON = None
    in_parts: bool = False
    error: bool = False
    code: str | None = None
    id: str | None = None
    metadata: dict[str, JSON] = {}

    @property
    def role(self) -> Literal["tool"]:
        """Who says it, as in its JSON."""
        return "tool"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The texts, images and files of the result; empty if it is something else."""
        return parts_in(self.content) if self.in_parts else ()


def parts_in(content: JSON) -> tuple[Part, ...]:
    """The parts with this JSON form.

    Raises:
        ValueError: it is not the JSON form of parts.
    """
    return msgspec.convert(content, tuple[Part, ...])


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class StoredMessage(Record):
    """A message and its position in the session: sequences count 1, 2, 3 without gaps."""

    sequence: int
    message: Message
    created_at: int


def decode_message(data: bytes | str) -> Message:
    """Read one message back; raises like `decode`."""
    return decode(data, cast("type[Message]", Message))
