"""Bodies on their way in: bounded in size, depth and time, read into records or refused with a sentence."""

import asyncio
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import msgspec
from starlette.requests import ClientDisconnect, Request

from helix_agents.domain.ids import MAX_ID_LENGTH, PATH_DOTS
from helix_agents.domain.messages import File, Image, Part, Text, UserMessage, is_blank
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.sessions import OUR_METADATA
from helix_agents.engine.requests.start_plans import ResumeMode
from helix_agents.engine.scope import DEPTH
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.limits import ServerLimits
from helix_agents.server.wire import why_unfit

T = TypeVar("T")

# What the handlers let pass, for the document that describes it: ids, addresses of files, what is said, and a caller's
# own metadata.
PLAIN_ID = r"^[^\p{C}\p{Z}]( *[^\p{C}\p{Z}])*$"
NO_PLACE = {"enum": list(PATH_DOTS)}
WEB_ADDRESS = "^([hH][tT][tT][pP][sS]?://|[dD][aA][tT][aA]:)"
SAYS_SOMETHING = r"\S"
NOT_OURS = {"anyOf": [{"const": DEPTH}, {"not": {"pattern": "^" + OUR_METADATA.replace(".", "[.]")}}]}

Id: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH, extra_json_schema={"pattern": PLAIN_ID})
]
NewSessionId: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        extra_json_schema={"pattern": PLAIN_ID, "not": {"enum": list(PATH_DOTS)}},
    ),
]
Words: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": SAYS_SOMETHING})]
Url: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": WEB_ADDRESS})]

# What JSON can carry and a store takes back unchanged.
LARGEST_INT = 2**64 - 1


class Body(Record, rename="camel"):
    """A request body; a field it does not know is a mistake worth telling."""


class TextPart(Body, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class ImagePart(Body, tag_field="type", tag="image"):
    """A picture, by web address or data URL."""

    url: Url
    media_type: str | None = None
    filename: str | None = None


class FilePart(Body, tag_field="type", tag="file"):
    """A document, by web address or data URL."""

    url: Url
    media_type: str
    filename: str | None = None


_SAID = {
    "contains": {
        "anyOf": [
            {"properties": {"type": {"enum": ["image", "file"]}}},
            {"properties": {"text": {"pattern": SAYS_SOMETHING}}},
        ]
    }
}


class InputMessage(Body):
    """One message of the user."""

    content: Words | Annotated[list[TextPart | ImagePart | FilePart], msgspec.Meta(extra_json_schema=_SAID)]
    id: Id | None = None
    hidden: bool = False
    metadata: dict[str, JSON] = {}


Input: TypeAlias = Words | Annotated[list[InputMessage], msgspec.Meta(min_length=1)]


class StartBody(Body):
    """Begin a session."""

    agent_type: str
    message: Input
    session_id: NewSessionId | None = None
    state: dict[str, JSON] | None = None
    metadata: Annotated[dict[str, str], msgspec.Meta(extra_json_schema={"propertyNames": NOT_OURS})] = {}
    tags: list[str] = []


class ResumeBody(Body):
    """Go on with a session."""

    session_id: Id
    message: Input | None = None
    mode: ResumeMode | None = None
    checkpoint_id: Id | None = None


class RetryBody(Body):
    """Try again what failed."""

    session_id: Id


class RewindBody(Body):
    """Go back to a checkpoint."""

    session_id: Id
    checkpoint_id: Id


class BranchBody(Body):
    """Make a new session of another one's history."""

    session_id: Id
    new_session_id: NewSessionId
    checkpoint_id: Id | None = None


class StopBody(Body):
    """Stop a session's run."""

    session_id: Id
    reason: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None


class ChatStopBody(Body):
    """Stop the answer that is being written."""

    reason: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None


class ToolResult(Body, tag_field="kind", tag="client-tool-result"):
    """What the client's tool gave back, or why it failed."""

    tool_call_id: Id
    session_id: Id | None = None
    result: JSON = None
    error: str | None = None


class ApprovalResponse(Body, tag_field="kind", tag="approval-response"):
    """A person's decision on one call."""

    tool_call_id: Id
    approval_id: Id
    approved: bool
    session_id: Id | None = None
    reason: str | None = None
    edited_input: dict[str, JSON] | None = None


SubmitBody: TypeAlias = ToolResult | ApprovalResponse


def messages_of(given: str | list[InputMessage]) -> tuple[UserMessage, ...]:
    """The user's messages as the engine takes them.

    Raises:
        RefusedError: one of them says nothing.
    """
    if isinstance(given, str):
        return (said(UserMessage(content=given)),)
    return tuple(said(_message(message)) for message in given)


def said(message: UserMessage) -> UserMessage:
    """The message, if it says something.

    Raises:
        RefusedError: it has neither a text nor a file.
    """
    if is_blank(message.content):
        raise invalid("The message says nothing: it needs a text or a file.")
    return message


def _message(given: InputMessage) -> UserMessage:
    content = given.content if isinstance(given.content, str) else tuple(_part(part) for part in given.content)
    return UserMessage(content=content, id=given.id, hidden=given.hidden, metadata=given.metadata)


def _part(part: TextPart | ImagePart | FilePart) -> Part:
    match part:
        case TextPart(text=text):
            return Text(text=text)
        case ImagePart(url=url, media_type=media_type, filename=filename):
            return Image(url=checked_url(url), media_type=media_type, filename=filename)
        case FilePart(url=url, media_type=media_type, filename=filename):
            return File(url=checked_url(url), media_type=media_type, filename=filename)


def checked_url(url: str) -> str:
    """Let a file's address pass that leads to the web or carries the file itself, never to this machine's own files."""
    if not url.lower().startswith(("https://", "http://", "data:")):
        raise invalid("A file needs an http, https or data URL.")
    return url


async def read_json(request: Request, limits: ServerLimits) -> Any:
    """The body as JSON. An empty one is an empty object.

    Raises:
        RefusedError: it is no JSON, too large, too deep, or did not arrive in time.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        # A page of another site can send any other type, or none at all, without asking, with this site's cookies.
        sent = f"not {media_type[:80]!r}" if media_type else "and there was none"
        raise RefusedError(415, "unsupported_media_type", f"The content-type has to be application/json, {sent}.")
    raw = await _read(request, limits)
    if not raw.strip():
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise invalid(f"The body is not JSON this server reads: {problem}") from None
    unfit = why_unfit(value, limits.json_depth, LARGEST_INT)
    if unfit is not None:
        raise invalid(f"The body {unfit}.")
    return value


async def _read(request: Request, limits: ServerLimits) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 20 or int(announced) > limits.body_bytes):
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise RefusedError(
            408,
            "body_timeout",
            f"The body did not arrive within {limits.body_seconds:g} s.",
            retryable=True,
            headers={"connection": "close"},
        ) from None
    except ClientDisconnect:
        raise invalid("The client left before its body was complete.") from None
    return bytes(body)


def _too_large(limits: ServerLimits) -> RefusedError:
    detail = f"A body may have {limits.body_bytes} bytes."
    return RefusedError(413, "payload_too_large", detail, headers={"connection": "close"})


def read_body(value: Any, kind: Any) -> Any:
    """The body as a record of this kind.

    Raises:
        RefusedError: it is none; says where it goes wrong.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise invalid(f"{problem}{_fields_to_choose_from(str(problem), kind)}") from None


def _fields_to_choose_from(problem: str, kind: Any) -> str:
    """For who misspelled a field: those that there are. A field further inside is told with its place."""
    if "unknown field" not in problem or " at `$" in problem:
        return ""
    kinds = [each for each in get_args(kind) or (kind,) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    names = dict.fromkeys(name for each in kinds for name in each.__struct_encode_fields__)
    return f"; there are {', '.join(names)}" if names else ""
