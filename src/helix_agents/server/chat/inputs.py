"""What a chat front end sends: only its last message is an intent; the server already knows everything before it."""

from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

import msgspec

from helix_agents.domain.messages import File, Image, Part, Text, UserMessage
from helix_agents.domain.records import Record
from helix_agents.runtimes.executor.inputs import IfRunning
from helix_agents.server.bodies import (
    ApprovalResponse,
    Id,
    NewSessionId,
    SubmitBody,
    ToolResult,
    checked_url,
    read_body,
    said,
)
from helix_agents.server.errors import invalid

T = TypeVar("T")

MOST_PARTS = 256


class ChatBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request of a chat transport: the whole history, or the last message alone. Fields of an application's own
    are allowed and ignored."""

    id: NewSessionId
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    agent: str | None = None
    if_running: IfRunning = "reject"


class Said(Record):
    """The user says something new."""

    message: UserMessage


class Answered(Record):
    """The page answers calls of the assistant's last message, as far as the server waits for them.

    `calls` are the calls that the page shows; `steps` groups them by step and so shows how far the page's copy goes.
    """

    message_id: str
    answers: tuple[SubmitBody, ...]
    steps: tuple[frozenset[str], ...]
    calls: frozenset[str]


Intent = Said | Answered


def intent_of(body: ChatBody) -> Intent:
    """What the last message of a request wants.

    Raises:
        RefusedError: there is no message, or it is not one that a chat sends.
    """
    last = body.message if body.message is not None else (body.messages or [None])[-1]
    if last is None:
        raise invalid("The body needs messages or message.")
    message_id = last.get("id")
    if message_id is not None:
        message_id = read_body(message_id, Id)
    parts = _parts(last)
    match last.get("role"):
        case "user":
            return Said(message=_said(parts, message_id))
        case "assistant":
            return _answered(parts, message_id or "")
        case role:
            raise invalid(f"The last message must have the role user or assistant, not {str(role)[:80]!r}.")


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = message.get("parts")
    if parts is None and isinstance(message.get("content"), str):
        return [{"type": "text", "text": message["content"]}]
    if not isinstance(parts, list):
        raise invalid("The last message needs a list of parts.")
    found = at_most(cast("list[Any]", parts), MOST_PARTS * 16)
    for part in found:
        match part:
            case {"type": str()}:
                pass
            case _:
                raise invalid("Every part of a message must be an object with a type.")
    return cast("list[dict[str, Any]]", found)


def at_most(parts: list[T], most: int = MOST_PARTS) -> list[T]:
    """Return the parts of a message unless there are too many: a part that was left out would be lost silently.

    Raises:
        RefusedError: there are too many parts.
    """
    if len(parts) > most:
        raise invalid(f"A message can have at most {most} parts; this one has {len(parts)}.")
    return parts


def _said(parts: list[dict[str, Any]], message_id: str | None) -> UserMessage:
    content: list[Part] = []
    for part in at_most(parts):
        match part:
            case {"type": "text", "text": str() as text}:
                content.append(Text(text=text))
            case {"type": "file", "mediaType": str() as media_type, "url": str() as url}:
                name = part.get("filename")
                content.append(_file(media_type, checked_url(url), name if isinstance(name, str) else None))
            case {"type": "text" | "file"}:
                raise invalid("A text part needs text; a file part needs mediaType and url.")
            case _:
                pass
    if len(content) == 1 and isinstance(content[0], Text):
        return said(UserMessage(content=content[0].text, id=message_id))
    return said(UserMessage(content=tuple(content), id=message_id))


def _file(media_type: str, url: str, filename: str | None) -> Part:
    if media_type.startswith("image/"):
        return Image(url=url, media_type=None if media_type == "image/*" else media_type, filename=filename)
    return File(url=url, media_type=media_type, filename=filename)


def _answered(parts: list[dict[str, Any]], message_id: str) -> Answered:
    starts = [place for place, part in enumerate(parts) if part["type"] == "step-start"]
    last_step = parts[starts[-1] + 1 :] if starts else parts
    answers = at_most([answer for part in last_step if (answer := _answer(part)) is not None])
    steps = tuple(_calls(parts[begin:end]) for begin, end in pairwise((*starts, len(parts))))
    return Answered(message_id=message_id, answers=tuple(answers), steps=steps, calls=_calls(parts))


def _calls(parts: list[dict[str, Any]]) -> frozenset[str]:
    return frozenset(part["toolCallId"] for part in parts if isinstance(part.get("toolCallId"), str))


def _answer(part: dict[str, Any]) -> SubmitBody | None:
    """What a part says about its call, if it says how the call was settled at the page."""
    if not (part["type"].startswith("tool-") or part["type"] == "dynamic-tool"):
        return None
    call_id = read_body(part.get("toolCallId"), Id)
    match part.get("state"), part.get("approval"):
        case "approval-responded", {"id": str() as approval_id, "approved": bool() as approved, **rest}:
            reason: Any = rest.get("reason")
            return ApprovalResponse(
                tool_call_id=call_id,
                approval_id=read_body(approval_id, Id),
                approved=approved,
                reason=reason if isinstance(reason, str) else None,
            )
        case "approval-responded", _:
            raise invalid("An answered approval needs an id and a decision.")
        case "output-available", _:
            return None if part.get("providerExecuted") else ToolResult(tool_call_id=call_id, result=part.get("output"))
        case "output-error", _:
            error = part.get("errorText")
            told = error if isinstance(error, str) and error else "The tool failed at the client."
            return None if part.get("providerExecuted") else ToolResult(tool_call_id=call_id, error=told)
        case _:
            return None
