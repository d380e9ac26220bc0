"""What an AG-UI client sends: its whole history, of which only what follows the agent's last message is news."""

from contextlib import suppress
from typing import Any, Literal, cast

import msgspec

from helix_agents.domain.messages import File, Image, Part, Text, UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, Record
from helix_agents.server.bodies import ApprovalResponse, Id, NewSessionId, SubmitBody, ToolResult, checked_url, said
from helix_agents.server.chat.inputs import at_most
from helix_agents.server.errors import invalid
from helix_agents.server.wire import json_in

CANCELLED = "The user cancelled this."


class Resumed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A user's answer to one interrupt."""

    interrupt_id: Id
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The request of an AG-UI client. Its tools and context are ignored: an agent declares its own client tools."""

    thread_id: NewSessionId
    run_id: Id
    messages: list[dict[str, Any]]
    state: Any = None
    resume: list[Resumed] | None = None
    protocol_version: str | None = None
    forwarded_props: Any = None

    @property
    def first_state(self) -> dict[str, JSON] | None:
        """The state of a new session, if the client sends any."""
        state: object = self.state
        return cast("dict[str, JSON]", state) or None if isinstance(state, dict) else None

    @property
    def if_running(self) -> Any:
        """What the client wants if a turn is in progress (`forwardedProps.ifRunning`)."""
        props = self.forwarded_props
        return cast("dict[str, Any]", props).get("ifRunning", "reject") if isinstance(props, dict) else "reject"


class News(Record):
    """What a request contains that the server may not know: results of the client's tools, each in the ways in which it
    can be read, and a message."""

    results: tuple[tuple[ToolResult, ...], ...] = ()
    message: UserMessage | None = None


def news_of(body: RunAgentInput) -> News:
    """What follows the agent's last message.

    Raises:
        RefusedError: it is nothing that a client may send.
    """
    results: list[tuple[ToolResult, ...]] = []
    message: UserMessage | None = None
    for each in reversed(body.messages):
        match each:
            case {"role": "tool", "toolCallId": str() as call_id}:
                results.append(_result(call_id, each))
            case {"role": "user", "id": str() as message_id, "content": content}:
                if message is None:
                    message = said(UserMessage(content=_content(content), id=message_id))
            case {"role": "user" | "tool"}:
                raise invalid("A user message needs an id and content; a tool message needs a toolCallId.")
            case {"role": "assistant"}:
                break
            case _:
                pass
        if message is not None and results:
            # Results before a user message belong to an answer that is over.
            break
    return News(results=tuple(reversed(results)), message=message)


def _result(call_id: str, message: dict[str, Any]) -> tuple[ToolResult, ...]:
    """A result in the ways in which it can be read, the likeliest first: a client sends texts, which may be JSON."""
    error = message.get("error")
    if isinstance(error, str) and error:
        return (ToolResult(tool_call_id=call_id, error=error),)
    content = message.get("content")
    readings: tuple[JSON, ...] = (content,)
    if isinstance(content, str):
        with suppress(ValueError):
            readings = (json_in(content), content)
    return tuple(ToolResult(tool_call_id=call_id, result=each) for each in readings)


def answer_to(row: PendingCall, given: Resumed) -> SubmitBody:
    """An answer to a waiting call, in the engine's form.

    Raises:
        RefusedError: it is no answer to such a call.
    """
    call_id, payload = row.tool_call_id, given.payload
    if row.approval_id is None:
        if given.status == "cancelled":
            return ToolResult(tool_call_id=call_id, error=CANCELLED)
        return ToolResult(tool_call_id=call_id, result=payload)
    if given.status == "cancelled":
        return _decision(row.approval_id, call_id, False, CANCELLED)
    match payload:
        case bool():
            return _decision(row.approval_id, call_id, payload)
        case {"approved": bool() as approved, **rest}:
            reason = rest.get("reason")
            edited = cast("JSON", rest.get("editedInput"))
            return _decision(row.approval_id, call_id, approved, reason if isinstance(reason, str) else None, edited)
        case _:
            raise invalid("The payload for an approval must be true, false, or an object with approved.")


def _decision(
    approval_id: str, call_id: str, approved: bool, reason: str | None = None, edited: JSON = None
) -> ApprovalResponse:
    return ApprovalResponse(
        tool_call_id=call_id, approval_id=approval_id, approved=approved, reason=reason, edited_input=edited
    )


def _content(given: Any) -> str | tuple[Part, ...]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid("The content of a message must be a text or a list of parts.")
    return tuple(_part(part) for part in at_most(cast("list[Any]", given)))


def _part(given: Any) -> Part:
    match given:
        case {"type": "text", "text": str() as text}:
            return Text(text=text)
        case {
            "type": "image" | "audio" | "video" | "document" as kind,
            "source": {"type": "url", "value": str() as url, **rest},
        }:
            media_type = rest.get("mimeType")
            return _file(kind, checked_url(url), media_type if isinstance(media_type, str) else None)
        case {
            "type": "image" | "audio" | "video" | "document" as kind,
            "source": {"type": "data", "value": str() as data, "mimeType": str() as media_type},
        }:
            return _file(kind, f"data:{media_type};base64,{data}", media_type)
        case {"source": {"type": "file"}}:
            raise invalid("Files stored at a provider are not supported; send the file's URL or its bytes.")
        case _:
            raise invalid("A part of a message must be a text, or a file with a source.")


def _file(kind: str, url: str, media_type: str | None) -> Part:
    if kind == "image":
        return Image(url=url, media_type=media_type)
    return File(url=url, media_type=media_type or "application/octet-stream")
