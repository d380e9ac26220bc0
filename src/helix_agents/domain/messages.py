"""What stands in a transcript: user, assistant and tool messages."""

from typing import Literal, TypeAlias, cast

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, Record, decode


class Text(Record, tag_field="type", tag="text"):
    """A piece of text in a user message."""

    text: str


class Image(Record, tag_field="type", tag="image"):
    """A picture, by web address or data URL."""

    url: str
    media_type: str | None = None
    filename: str | None = None


class File(Record, tag_field="type", tag="file"):
    """A document, by web address or data URL."""

    url: str
    media_type: str
    filename: str | None = None


Part: TypeAlias = Text | Image | File


class UserMessage(Record, tag_field="role", tag="user"):
    """What a person, or the system on a person's behalf, says to the model. A hidden one is for the model only."""

    content: str | tuple[Part, ...]
    hidden: bool = False
    id: str | None = None
    metadata: dict[str, JSON] = {}


def is_blank(content: str | tuple[Part, ...]) -> bool:
    """Whether a message says nothing: it has neither a text nor a file."""
    parts = (Text(text=content),) if isinstance(content, str) else content
    return all(isinstance(part, Text) and not part.text.strip() for part in parts)


class Thinking(Record):
    """A block of the model's reasoning, with the provider's signature over it."""

    text: str
    signature: str | None = None
    details: dict[str, JSON] = {}


class ToolCall(Record):
    """One call the model asked for. Arguments that were not valid JSON are kept as the text they were."""

    id: ToolCallId
    name: str
    arguments: dict[str, JSON] | str = {}


def says_nothing(arguments: str) -> bool:
    """Whether a model wrote no arguments; some write nothing then, and some write null."""
    return arguments.strip() in ("", "null")


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


EDITED_INPUT = "edited_input"
"""The key in a tool message's metadata of the input that a person gave in place of the model's."""

HELD_SINCE = "held_since"
"""The key in a tool message's metadata of the time since when this was known of a call whose step was not whole."""


class ToolMessage(Record, tag_field="role", tag="tool"):
    """The result of one call. A string is stored verbatim; `code` says why a call failed or did not run.

    Where a person changed the input before approving the call, `metadata["edited_input"]` is what it ran with: the
    call in the transcript stays as the model wrote it, so an adapter tells the model of it with the result. Where this
    was known while others of its step were open, `metadata["held_since"]` says since when: whoever goes back to a
    checkpoint in between finds it there.
    """

    tool_call_id: ToolCallId
    tool_name: str
    content: JSON = None
    error: bool = False
    code: str | None = None
    id: str | None = None
    metadata: dict[str, JSON] = {}


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class StoredMessage(Record):
    """A message at its place in the session: sequences count 1, 2, 3 without gaps."""

    sequence: int
    message: Message
    created_at: int


def decode_message(data: bytes | str) -> Message:
    """Read one message back; raises like `decode`."""
    return decode(data, cast("type[Message]", Message))
