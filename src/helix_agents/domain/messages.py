"""What a transcript consists of: user, assistant and tool messages."""

from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, Record, decode


class Text(Record, tag_field="type", tag="text"):
    """A piece of text in a user message."""

    text: str


class Image(Record, tag_field="type", tag="image"):
    """A picture, as a web address or data URL."""

    url: str
    media_type: str | None = None
    filename: str | None = None


class File(Record, tag_field="type", tag="file"):
    """A document, as a web address or data URL."""

    url: str
    media_type: str
    filename: str | None = None


Part: TypeAlias = Text | Image | File


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

    @property
    def role(self) -> Literal["assistant"]:
        """Who says it, as in its JSON."""
        return "assistant"


EDITED_INPUT = "edited_input"
"""Metadata key of a tool message: the input that a person gave in place of the model's."""

HELD_SINCE = "held_since"
"""Metadata key of a tool message: since when this was known about a call whose step was not complete."""


class ToolMessage(Record, tag_field="role", tag="tool"):
    """The result of one call. A string is stored verbatim; `code` says why a call failed or did not run.

    If a person changed the input before approving the call, `metadata["edited_input"]` is the input it ran with. The
    call in the transcript stays as the model wrote it, so an adapter tells the model about the change with the result.
    If the result was known while other calls of its step were still open, `metadata["held_since"]` says since when, so
    that going back to a checkpoint in between still finds it.
    """

    tool_call_id: ToolCallId
    tool_name: str
    content: JSON = None
    error: bool = False
    code: str | None = None
    id: str | None = None
    metadata: dict[str, JSON] = {}

    @property
    def role(self) -> Literal["tool"]:
        """Who says it, as in its JSON."""
        return "tool"


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class StoredMessage(Record):
    """A message and its position in the session: sequences count 1, 2, 3 without gaps."""

    sequence: int
    message: Message
    created_at: int


def decode_message(data: bytes | str) -> Message:
    """Read one message back; raises like `decode`."""
    return decode(data, cast("type[Message]", Message))
