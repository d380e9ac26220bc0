"""Incoming bodies: bounded in size, depth and time, read into records or refused with an explanation."""

import asyncio
import re
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect, Request

from helix_agents.domain.ids import MAX_ID_LENGTH, PATH_DOTS
from helix_agents.domain.messages import File, Image, Part, Text, UserMessage, is_blank
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.schedules import IfBusy
from helix_agents.domain.sessions import OUR_METADATA
from helix_agents.engine.requests.going_on import ResumeMode
from helix_agents.engine.scope import DEPTH
from helix_agents.runtimes.executor.inputs import IfRunning
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.limits import ServerLimits
from helix_agents.server.wire import LARGEST_INT, why_unfit

T = TypeVar("T")

# What the handlers accept, for the OpenAPI document: ids, addresses of files, texts, and a caller's own metadata.
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

# Times up to the year 3000, and intervals from a minute to ten years.
Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=32_503_680_000_000)]
Interval: TypeAlias = Annotated[int, msgspec.Meta(ge=60_000, le=315_360_000_000)]
# Five fields: an expression with a sixth one can be due every second.
_CRON_FIELD = "[0-9A-Za-z*/,#-]+"
_CRON = f"^{_CRON_FIELD}( +{_CRON_FIELD}){{4}}$"
Cron: TypeAlias = Annotated[str, msgspec.Meta(pattern=_CRON, max_length=200)]

_WRONG_VALUE = re.compile(r"Invalid (?:enum )?value .* - at `\$\.(\w+)`$")


class Body(Record, rename="camel"):
    """A request body. Unknown fields are refused."""


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
    """Start a session."""

    agent_type: Annotated[str, msgspec.Meta(description="The name of the agent.")]
    message: Annotated[Input, msgspec.Meta(description="The first message: a text, or a list of user messages.")]
    session_id: Annotated[
        NewSessionId | None, msgspec.Meta(description="The id of the new session. Default: a generated id.")
    ] = None
    state: Annotated[dict[str, JSON] | None, msgspec.Meta(description="The initial state.")] = None
    metadata: Annotated[
        dict[str, str],
        msgspec.Meta(description="Your own metadata of the session.", extra_json_schema={"propertyNames": NOT_OURS}),
    ] = {}
    tags: Annotated[list[str], msgspec.Meta(description="Tags to find the session by.")] = []


class ExecuteBody(Body):
    """Say something to an agent."""

    message: Annotated[Input, msgspec.Meta(description="What to say: a text, or a list of user messages.")]
    agent_type: Annotated[
        str | None,
        msgspec.Meta(description="The name of the agent. Default: the session's, or the only one of the server."),
    ] = None
    session_id: Annotated[
        NewSessionId | None, msgspec.Meta(description="The session to continue, or to create. Default: a new one.")
    ] = None
    idempotency_key: Annotated[
        Id | None, msgspec.Meta(description="Repeating a key returns the run that it started.")
    ] = None
    if_running: Annotated[
        IfRunning, msgspec.Meta(description="What happens to the message if a run of the session is running.")
    ] = "reject"
    state: Annotated[dict[str, JSON] | None, msgspec.Meta(description="The initial state of a new session.")] = None
    metadata: Annotated[
        dict[str, str],
        msgspec.Meta(description="Your own metadata of a new session.", extra_json_schema={"propertyNames": NOT_OURS}),
    ] = {}
    tags: Annotated[list[str], msgspec.Meta(description="Tags to find a new session by.")] = []


class ChangeQueuedBody(Body):
    """Change a message that waits."""

    message: Annotated[Input | None, msgspec.Meta(description="What it says instead.")] = None
    steers: Annotated[
        bool | None,
        msgspec.Meta(description="Whether the run in progress is to take it in, or it is a turn of its own."),
    ] = None
    first: Annotated[bool, msgspec.Meta(description="Move it before the others of its kind.")] = False


class ResumeBody(Body):
    """Continue a session."""

    session_id: Annotated[Id, msgspec.Meta(description="The session to continue.")]
    agent_type: Annotated[
        str | None,
        msgspec.Meta(description="Refused if the session neither belongs to this agent nor was handed over to it."),
    ] = None
    run_id: Annotated[Id | None, msgspec.Meta(description="Refused if another run has followed this one.")] = None
    message: Annotated[Input | None, msgspec.Meta(description="A new user message.")] = None
    mode: Annotated[
        ResumeMode | None,
        msgspec.Meta(description="Default: `with_message` if there is a message, otherwise `continue`."),
    ] = None
    checkpoint_id: Annotated[Id | None, msgspec.Meta(description="The checkpoint for mode `from_checkpoint`.")] = None


class RetryBody(Body):
    """Retry a failed run."""

    session_id: Annotated[Id, msgspec.Meta(description="The session whose run failed.")]
    agent_type: Annotated[
        str | None,
        msgspec.Meta(description="Refused if the session neither belongs to this agent nor was handed over to it."),
    ] = None
    run_id: Annotated[Id | None, msgspec.Meta(description="Refused if another run has followed this one.")] = None


class RewindBody(Body):
    """Take a session back to a checkpoint."""

    session_id: Annotated[Id, msgspec.Meta(description="The session to rewind.")]
    checkpoint_id: Annotated[Id, msgspec.Meta(description="A checkpoint of the session, or `beginning`.")]


class BranchBody(Body):
    """Create a session from the history of another."""

    session_id: Annotated[Id, msgspec.Meta(description="The session to branch from.")]
    new_session_id: Annotated[NewSessionId, msgspec.Meta(description="The id of the new session.")]
    checkpoint_id: Annotated[
        Id | None, msgspec.Meta(description="A checkpoint to branch from. Default: the current state.")
    ] = None


class StopBody(Body):
    """Stop a session's run."""

    session_id: Annotated[Id, msgspec.Meta(description="The session to stop.")]
    run_id: Annotated[
        Id | None, msgspec.Meta(description="Stop only this run; one that waits for its turn is taken back.")
    ] = None
    reason: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None


class ChatStopBody(Body):
    """Stop the answer that is being written."""

    reason: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None


class ScheduleBody(Body):
    """Say something to an agent at set times: `at` a time, every `everyMs`, or by a `cron` expression."""

    agent_type: Annotated[str, msgspec.Meta(description="The name of the agent.")]
    message: Annotated[Input, msgspec.Meta(description="What it is told: a text, or a list of user messages.")]
    at: Annotated[
        Moment | None, msgspec.Meta(description="When it is due, or due first, in milliseconds since 1970.")
    ] = None
    every_ms: Annotated[Interval | None, msgspec.Meta(description="The interval; not together with `cron`.")] = None
    cron: Annotated[
        Cron | None, msgspec.Meta(description="A cron expression of five fields, such as `0 7 * * 1-5`.")
    ] = None
    timezone: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None,
        msgspec.Meta(description="The timezone of `cron`, such as `Europe/Berlin`. Default: UTC."),
    ] = None
    session_id: Annotated[
        NewSessionId | None, msgspec.Meta(description="The session of all turns. Default: a new one each time.")
    ] = None
    tags: Annotated[list[str], msgspec.Meta(description="Tags to find new sessions by.")] = []
    metadata: Annotated[
        dict[str, str],
        msgspec.Meta(description="Your own metadata of new sessions.", extra_json_schema={"propertyNames": NOT_OURS}),
    ] = {}
    if_busy: Annotated[
        IfBusy, msgspec.Meta(description="Whether a turn waits if the session is busy, or is left out.")
    ] = "enqueue"


class NoFields(Body):
    """An empty object: the path says everything. It is required, because pages of other sites cannot send JSON."""


class ToolResult(Body, tag_field="kind", tag="client-tool-result"):
    """The result of a client tool or the answer to a question, or why there is none."""

    tool_call_id: Annotated[Id, msgspec.Meta(description="The call to answer.")]
    session_id: Annotated[Id | None, msgspec.Meta(description="The session; required unless the path names it.")] = None
    result: Annotated[JSON, msgspec.Meta(description="The result of the call.")] = None
    error: Annotated[str | None, msgspec.Meta(description="Why there is no result; not together with `result`.")] = None


class ApprovalResponse(Body, tag_field="kind", tag="approval-response"):
    """A person's decision on one call."""

    tool_call_id: Annotated[Id, msgspec.Meta(description="The call to decide on.")]
    approval_id: Annotated[Id, msgspec.Meta(description="The `approvalId` of the call.")]
    approved: bool
    session_id: Annotated[Id | None, msgspec.Meta(description="The session; required unless the path names it.")] = None
    reason: Annotated[str | None, msgspec.Meta(description="The reason for the decision.")] = None
    edited_input: Annotated[
        dict[str, JSON] | None,
        msgspec.Meta(description="Input to run the call with, instead of the model's; only if approved."),
    ] = None


SubmitBody: TypeAlias = ToolResult | ApprovalResponse


def messages_of(given: str | list[InputMessage]) -> tuple[UserMessage, ...]:
    """The user's messages in the engine's form.

    Raises:
        RefusedError: one of them is empty.
    """
    if isinstance(given, str):
        return (said(UserMessage(content=given)),)
    return tuple(said(_message(message)) for message in given)


def said(message: UserMessage) -> UserMessage:
    """The message, if it is not empty.

    Raises:
        RefusedError: it has neither a text nor a file.
    """
    if is_blank(message.content):
        raise invalid("The message is empty: it needs a text or a file.")
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
    """Accept a file's address that leads to the web or carries the file itself, never to this machine's own files."""
    if not url.lower().startswith(("https://", "http://", "data:")):
        raise invalid("A file needs an http, https or data URL.")
    return url


async def read_json(request: Request, limits: ServerLimits) -> Any:
    """The body as JSON; an empty body is an empty object.

    Raises:
        RefusedError: it is not JSON, too large, too deep, or did not arrive in time.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        # A page of another site can send any other type, or none, without a preflight request and with this site's
        # cookies.
        sent = f"not {media_type[:80]!r}" if media_type else "and it is missing"
        raise RefusedError(415, "unsupported_media_type", f"The content-type must be application/json, {sent}.")
    raw = await _read(request, limits)
    if not raw.strip():
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise invalid(f"The body is not valid JSON: {problem}") from None
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
        raise invalid("The client disconnected before its body was complete.") from None
    return bytes(body)


def _too_large(limits: ServerLimits) -> RefusedError:
    detail = f"A body can have at most {limits.body_bytes} bytes."
    return RefusedError(413, "payload_too_large", detail, headers={"connection": "close"})


def read_body(value: Any, kind: Any) -> Any:
    """The body as a record of this kind.

    Raises:
        RefusedError: it does not fit; the message says where.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        # A regular expression would tell the caller little.
        said = str(problem).replace(f"`str` matching regex {_CRON!r}", "five fields such as `0 7 * * 1-5`")
        raise invalid(f"{said}{_to_choose_from(said, kind)}") from None


def _to_choose_from(problem: str, kind: Any) -> str:
    """The valid fields, for a misspelled field, or the valid values of a field that has a few. For what is nested, the
    error only names its place."""
    kinds = [each for each in get_args(kind) or (kind,) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    if "unknown field" in problem and " at `$" not in problem:
        names = dict.fromkeys(name for each in kinds for name in each.__struct_encode_fields__)
        return f"; valid fields: {', '.join(names)}" if names else ""
    if (place := _WRONG_VALUE.match(problem)) is not None:
        values = sorted({repr(value) for each in kinds for value in _values_of(each, place[1])})
        return f"; valid values: {', '.join(values)}" if values else ""
    return ""


def _values_of(kind: type[msgspec.Struct], field: str) -> tuple[Any, ...]:
    """The few values that a field may have, or the one that marks this kind of record."""
    config = kind.__struct_config__
    if config.tag_field == field:
        return (config.tag,)
    return next((_words_of(each.type) for each in msgspec.structs.fields(kind) if each.encode_name == field), ())


def _words_of(kind: Any) -> tuple[Any, ...]:
    """The words of a choice, which may be optional or have a description."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(word for part in get_args(kind) for word in _words_of(part))
