"""What an OpenAI client sends to start a response, and which settings of an agent it may decide: none.

A setting that would change the answer is the agent's to decide and is refused; a note to a provider is ignored.
"""

import mimetypes
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, cast

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import find_tool
from helix_agents.domain.messages import File, Image, Part, Text, UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.server.bodies import checked_url, said
from helix_agents.server.chat.turns import AT_THE_CLIENT
from helix_agents.server.errors import RefusedError
from helix_agents.server.wire import json_in

MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512

DECIDED_HERE = (
    "access_programs", "context_management", "image", "instructions", "max_output_tokens", "max_tool_calls",
    "moderation", "prompt", "reasoning", "temperature", "top_logprobs", "top_p",
)  # fmt: skip
"""Settings that the agent itself decides; a request that sets one of them is refused."""

NOT_LOOKED_AT = (
    "include", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "stream_options", "truncation", "user",
)  # fmt: skip
"""Notes to a provider, which change nothing here."""


# Made here and not on demand, because it reads the machine's lists.
_BY_NAME = mimetypes.MimeTypes()


class BadParameterError(RefusedError):
    """A request that is refused because of one of its fields."""

    def __init__(self, param: str, detail: str, *, status: int = 400, code: str = "invalid_value") -> None:
        super().__init__(status, code, detail)
        self.param = param


class ConversationParam(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, given by its id."""

    id: str


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an OpenAI client. `model` is the name of an agent, and a conversation is a session."""

    model: str
    input: str | list[dict[str, Any]]
    previous_response_id: str | None = None
    conversation: str | ConversationParam | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    text: Any = None

    @property
    def conversation_id(self) -> str | None:
        named = self.conversation
        return named.id if isinstance(named, ConversationParam) else named


class CallOutput(Record):
    """The output of a client's tool, or an answer to a question; `param` is its place in the request."""

    call_id: str
    output: JSON
    param: str

    @property
    def readings(self) -> tuple[JSON, ...]:
        """What was meant, the likeliest first: a client can only send text, which may be JSON."""
        if not isinstance(self.output, str):
            return (self.output,)
        try:
            value = json_in(self.output)
        except ValueError:
            return (self.output,)
        is_plain = not isinstance(value, dict | list)
        return (self.output, value) if is_plain else (cast("JSON", value), self.output)


class Decision(Record):
    """A decision about a call; `param` is its place in the request."""

    approval_id: str
    approved: bool
    reason: str | None
    param: str


class Given(Record):
    """What a request says: answers to waiting calls, and messages of the user."""

    answers: tuple[CallOutput | Decision, ...] = ()
    messages: tuple[UserMessage, ...] = ()


def check_settings(body: CreateResponse, sent: dict[str, Any], agent: AnyAgent, speakers: Sequence[AnyAgent]) -> None:
    """Accept a request only if it asks for nothing other than what the agent does anyway.

    Raises:
        BadParameterError: it asks for something else.
    """
    for name in sent.keys() - set(CreateResponse.__struct_fields__) - {*DECIDED_HERE, *NOT_LOOKED_AT}:
        raise BadParameterError(name, f"Unknown parameter: {name[:80]!r}.", code="unknown_parameter")
    for name in DECIDED_HERE:
        if sent.get(name) is not None:
            _refuse(name, f"The agent {agent.name!r} has its own {name}; leave this parameter out.")
    if body.store is False:
        _refuse(
            "store", "This server stores every response, because otherwise it could be lost; leave this parameter out."
        )
    if body.tool_choice not in (None, "auto"):
        _refuse("tool_choice", f"The agent {agent.name!r} chooses its tools itself; leave this parameter out.")
    match body.text:
        case None | {"format": None | {"type": "text"}}:
            pass
        case _:
            _refuse("text", f"The agent {agent.name!r} defines its own output format; leave this parameter out.")
    _check_tools(body.tools or (), agent, speakers)
    _check_metadata(body.metadata or {})
    if body.previous_response_id is not None and body.conversation is not None:
        _refuse("previous_response_id", "Give either previous_response_id or conversation, not both.")


def _refuse(param: str, why: str) -> NoReturn:
    raise BadParameterError(param, why, code="unsupported_parameter")


def _check_tools(tools: Iterable[dict[str, Any]], agent: AnyAgent, speakers: Sequence[AnyAgent]) -> None:
    """A client may name the tools that it runs for the agent and those that take over from it, but it cannot bring
    others."""
    for place, given in enumerate(tools):
        named = given.get("name")
        tool = find_tool(speakers, named) if given.get("type") == "function" and isinstance(named, str) else None
        if tool is None or tool.kind not in AT_THE_CLIENT:
            _refuse(
                f"tools[{place}]",
                f"The agent {agent.name!r} defines its own tools. A request may only name its client tools, and this "
                "is not one of them.",
            )


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MOST_METADATA:
        raise BadParameterError("metadata", f"Metadata can have at most {MOST_METADATA} entries.")
    for key, value in metadata.items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            sizes = f"at most {LONGEST_KEY} characters, and a value at most {LONGEST_VALUE}"
            raise BadParameterError(f"metadata.{key[:LONGEST_KEY]}", f"A metadata key can have {sizes}.")


def given_of(body: CreateResponse) -> Given:
    """What the request says.

    Raises:
        RefusedError: the request says nothing, or something that a client cannot say here.
    """
    if isinstance(body.input, str):
        return Given(messages=(said(UserMessage(content=body.input)),))
    answers: list[CallOutput | Decision] = []
    messages: list[UserMessage] = []
    for place, item in enumerate(body.input):
        param = f"input[{place}]"
        match item:
            case {"role": "user", "content": content} if item.get("type", "message") == "message":
                messages.append(said(UserMessage(content=_content(content, param))))
            case {"type": "function_call_output", "call_id": str() as call_id, "output": output}:
                answers.append(CallOutput(call_id=call_id, output=_output(output, f"{param}.output"), param=param))
            case {
                "type": "mcp_approval_response",
                "approval_request_id": str() as approval_id,
                "approve": bool() as yes,
            }:
                reason = item.get("reason")
                reason = reason if isinstance(reason, str) and reason else None
                answers.append(Decision(approval_id=approval_id, approved=yes, reason=reason, param=param))
            case {"role": "system" | "developer"}:
                raise BadParameterError(param, "The agent has its own instructions; send only user messages.")
            case _:
                raise BadParameterError(
                    param,
                    "An input item must be a user message, a function_call_output or an mcp_approval_response. The "
                    "server keeps the history; continue it with previous_response_id or conversation.",
                )
    if not answers and not messages:
        raise BadParameterError("input", "The input is empty.")
    return Given(answers=tuple(answers), messages=tuple(messages))


def _output(given: Any, param: str) -> JSON:
    """The output of a function: a text, or parts in our form. Parts that are all texts are read as text."""
    if not isinstance(given, list) or not all(map(_is_part, cast("list[Any]", given))):
        return cast("JSON", given)
    parts = [_part(part, param) for part in cast("list[Any]", given)]
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text)) if parts else []
    return msgspec.to_builtins(parts)


def _is_part(given: Any) -> bool:
    match given:
        case {"type": "input_text" | "input_image" | "input_file"}:
            return True
        case _:
            return False


def _content(given: Any, param: str) -> str | tuple[Part, ...]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise BadParameterError(f"{param}.content", "The content of a message must be a text or a list of parts.")
    given_parts = cast("list[Any]", given)
    parts = tuple(_part(part, f"{param}.content[{place}]") for place, part in enumerate(given_parts))
    match parts:
        case (Text(text=text),):
            return text
        case _:
            return parts


def _part(given: Any, param: str) -> Part:
    match given:
        case {"type": "input_text", "text": str() as text}:
            return Text(text=text)
        case {"type": "input_image", "image_url": str() as url}:
            return Image(url=checked_url(url))
        case {"type": "input_file", "file_url": str() as url}:
            name = _name_of(given)
            return File(url=checked_url(url), media_type=_media_type(name or url), filename=name)
        case {"type": "input_file", "file_data": str() as data}:
            name = _name_of(given)
            head, comma, _ = data.partition(",")
            if comma and head.startswith("data:"):
                kind = head.removeprefix("data:").partition(";")[0] or _media_type(name or "")
                return File(url=data, media_type=kind, filename=name)
            kind = _media_type(name or "")
            return File(url=f"data:{kind};base64,{data}", media_type=kind, filename=name)
        case {"type": "input_image" | "input_file", "file_id": str()}:
            raise BadParameterError(
                f"{param}.file_id", "This server does not store files; send the file's URL or its bytes."
            )
        case _:
            raise BadParameterError(param, "A part must be an input_text, an input_image or an input_file.")


def _name_of(given: dict[str, Any]) -> str | None:
    name = given.get("filename")
    return name if isinstance(name, str) and name else None


def _media_type(name: str) -> str:
    return _BY_NAME.guess_type(name)[0] or "application/octet-stream"
