"""What a client of A2A sends: messages made of parts, and answers to what a task waits for."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import msgspec

from helix_agents.domain.messages import File, Image, Part, Text, UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, encode
from helix_agents.engine.scope import DEPTH
from helix_agents.server.a2a.protocol import A2APart, Wire
from helix_agents.server.bodies import ApprovalResponse, Id, SubmitBody, ToolResult, checked_url, said
from helix_agents.server.errors import invalid

MOST_PARTS = 256


class A2AMessage(Wire, frozen=True, kw_only=True):
    """What a client says: something new in a context, or an answer to a task."""

    message_id: Id
    role: Literal["ROLE_USER"]
    parts: Annotated[list[A2APart], msgspec.Meta(min_length=1, max_length=MOST_PARTS)]
    context_id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def depth(self) -> dict[str, str]:
        """The depth at which its sender delegates, as metadata of the session that it starts; only our own client says
        it."""
        told = (self.metadata or {}).get(DEPTH)
        return {DEPTH: told} if isinstance(told, str) else {}


class Configuration(Wire, frozen=True, kw_only=True):
    """How the client wants to receive the answer."""

    return_immediately: bool = False
    history_length: int | None = None
    task_push_notification_config: Any = None


class SendMessage(Wire, frozen=True, kw_only=True):
    """The parameters of `SendMessage` and `SendStreamingMessage`."""

    message: A2AMessage
    configuration: Configuration = Configuration()


class NamedTask(Wire, frozen=True, kw_only=True):
    """The parameters of `GetTask`, `CancelTask` and `SubscribeToTask`."""

    id: str
    history_length: int | None = None


class TaskQuery(Wire, frozen=True, kw_only=True):
    """The parameters of `ListTasks`."""

    context_id: str | None = None
    status: str | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    page_token: str | None = None
    history_length: int | None = None
    status_timestamp_after: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    include_artifacts: bool = False

    @property
    def since(self) -> int:
        """The earliest time of interest, in milliseconds."""
        return 0 if self.status_timestamp_after is None else int(self.status_timestamp_after.timestamp() * 1000)


def user_message(message: A2AMessage) -> UserMessage:
    """The message in the form that the engine takes.

    Raises:
        RefusedError: the message says nothing, or one of its parts is invalid.
    """
    parts = tuple(_part(part) for part in message.parts)
    match parts:
        case (Text(text=text),):
            return said(UserMessage(content=text, id=message.message_id))
        case _:
            return said(UserMessage(content=parts, id=message.message_id))


def _part(part: A2APart) -> Part:
    if part.text is not None:
        return Text(text=part.text)
    if part.data is not msgspec.UNSET:
        return Text(text=encode(part.data).decode())
    kind = part.media_type or "application/octet-stream"
    if part.raw is not None:
        return _file(f"data:{kind};base64,{part.raw}", kind, part.filename)
    if part.url is not None:
        return _file(checked_url(part.url), kind, part.filename)
    raise invalid("A part of a message needs one of text, raw, url or data.")


def _file(url: str, media_type: str, filename: str | None) -> Part:
    if media_type.startswith("image/"):
        return Image(url=url, media_type=media_type, filename=filename)
    return File(url=url, media_type=media_type, filename=filename)


def answers_to(waiting: Sequence[PendingCall], message: A2AMessage) -> list[SubmitBody]:
    """The answers that a message gives to the calls that wait. Data names its call, unless only one waits. Text answers
    a question but never decides an approval, because its meaning would have to be guessed.

    Raises:
        RefusedError: the message does not answer what waits.
    """
    rows = {row.tool_call_id: row for row in waiting}
    words = [part.text for part in message.parts if part.text is not None and part.text.strip()]
    given = [part.data for part in message.parts if part.data is not msgspec.UNSET]
    if not given and words:
        [row] = [_only(rows)]
        if row.approval_id is not None:
            raise invalid(f'The approval of {row.tool_name} must be answered with data such as {{"approved": true}}.')
        return [ToolResult(tool_call_id=row.tool_call_id, result="\n".join(words))]
    if not given:
        raise invalid('An answer must be text, or data such as {"approved": true} or {"result": …}.')
    return [_answer(rows, data) for data in given]


def _only(rows: dict[str, PendingCall]) -> PendingCall:
    if len(rows) == 1:
        return next(iter(rows.values()))
    raise invalid(f"Several calls wait; name the call that you answer with toolCallId: {', '.join(sorted(rows))}.")


def _answer(rows: dict[str, PendingCall], data: Any) -> SubmitBody:
    if not isinstance(data, dict):
        raise invalid("The data of an answer must be an object.")
    fields = cast("dict[str, Any]", data)
    call_id = fields.get("toolCallId")
    row = _only(rows) if call_id is None else rows.get(call_id) if isinstance(call_id, str) else None
    if row is None:
        raise invalid(f"No call {str(call_id)[:80]!r} waits in this task.")
    match fields:
        case {"approved": bool() as approved} if row.approval_id is not None:
            reason, edited = fields.get("reason"), fields.get("editedInput")
            return ApprovalResponse(
                tool_call_id=row.tool_call_id,
                approval_id=row.approval_id,
                approved=approved,
                reason=reason if isinstance(reason, str) else None,
                edited_input=cast("dict[str, JSON]", edited) if isinstance(edited, dict) else None,
            )
        case {"error": str() as error}:
            return ToolResult(tool_call_id=row.tool_call_id, error=error)
        case {"result": result}:
            return ToolResult(tool_call_id=row.tool_call_id, result=result)
        case _:
            wanted = "approved" if row.approval_id is not None else "result or error"
            raise invalid(f"An answer to {row.tool_name} ({row.tool_call_id}) needs {wanted}.")
