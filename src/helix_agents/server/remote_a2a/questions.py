"""What a task waits for, as calls that a person can answer, and their answers as messages to the task."""

from datetime import datetime
from hashlib import sha256
from typing import Any, cast

import msgspec

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.pending import Answer, PendingCall, ToolAnswer
from helix_agents.domain.records import JSON, encode
from helix_agents.server.a2a.protocol import WAITING, A2APart, AgentTask
from helix_agents.server.wire import to_wire

ASKS_FOR = {"TASK_STATE_INPUT_REQUIRED": "input_required", "TASK_STATE_AUTH_REQUIRED": "auth_required"}
_UNTOLD = {
    "input_required": "The agent needs more information, and does not say which.",
    "auth_required": "The agent needs an authorization, and does not say which.",
}
_DIGITS = 32
_CALL_ID = 256


def waiting_in(task: AgentTask, session_id: str) -> tuple[PendingCall, ...]:
    """The calls that a task waits for: those that its message names as data, as agents of this library do, or else the
    message as one question. A question whose answer the task already has does not wait any more."""
    if task.status.state not in WAITING:
        return ()
    message = task.status.message
    parts = () if message is None else message.parts or ()
    calls = [call for part in parts if (call := _named_call(task, part, session_id)) is not None]
    if calls:
        return tuple({call.tool_call_id: call for call in calls}.values())
    question = _question(task, parts, session_id)
    given = {each.message_id for each in task.history or ()}
    return () if answer_id(session_id, question.tool_call_id) in given else (question,)


def answer_id(session_id: str, call_id: ToolCallId) -> str:
    """The id of the message that answers a call, always the same, so that an answer that is sent twice is known."""
    return f"{session_id}.{_digest(call_id)}"


def answer_parts(call: PendingCall, answer: Answer) -> list[JSON]:
    """The answer to a call of `waiting_in`, as the parts of a message."""
    if call.tool_name in _UNTOLD:
        assert isinstance(answer, ToolAnswer)
        if answer.error is not None:
            return [{"text": f"There is no answer: {answer.error}"}]
        return [{"text": answer.result} if isinstance(answer.result, str) else {"data": answer.result}]
    if isinstance(answer, ToolAnswer):
        given: dict[str, JSON] = {"result": answer.result} if answer.error is None else {"error": answer.error}
    else:
        told = {"approved": answer.approved, "reason": answer.reason, "editedInput": answer.edited_input}
        given = {name: value for name, value in told.items() if value is not None}
    return [{"data": {"toolCallId": call.tool_call_id, **given}}]


def _question(task: AgentTask, parts: tuple[A2APart, ...], session_id: str) -> PendingCall:
    asks = ASKS_FOR[task.status.state]
    words = "\n".join(part.text for part in parts if part.text is not None).strip()
    # What was not said in words may be a form or a link: a program can read it beside the question.
    more = [_without_nothing(part) for part in parts if part.text is None]
    said: dict[str, JSON] = {"question": words or _UNTOLD[asks]}
    about = [task.id, task.status.timestamp, task.status.message and task.status.message.message_id, words]
    return _call(
        task,
        session_id,
        tool_call_id=f"ask_{_digest(encode(about).decode())}",
        kind="question",
        tool_name=asks,
        input=said if not more else {**said, "parts": more},
    )


def _named_call(task: AgentTask, part: A2APart, session_id: str) -> PendingCall | None:
    match part.data:
        case {"toolCallId": str() as call_id, "toolName": str() as name, "kind": str() as kind, **more} if (
            0 < len(call_id) <= _CALL_ID and name not in _UNTOLD
        ):
            is_question = kind == "question" and _asks(more.get("input"))
            reason, ends = more.get("reason"), _milliseconds(more.get("expiresAt"))
            return _call(
                task,
                session_id,
                tool_call_id=call_id,
                kind="approval" if kind == "approval" else "question" if is_question else "client_tool",
                tool_name=name,
                input=more.get("input"),
                preview=more.get("preview"),
                approval_id=_digest(call_id) if kind == "approval" else None,
                reason=reason if isinstance(reason, str) else None,
                deadline=ends,
            )
        case _:
            return None


def _call(task: AgentTask, session_id: str, **about: Any) -> PendingCall:
    since = _milliseconds(task.status.timestamp) or 0
    return PendingCall(
        session_id=session_id,
        root_session_id=session_id,
        run_id=session_id,
        step_id=session_id,
        created_at=since,
        **about,
    )


def _asks(given: Any) -> bool:
    return isinstance(given, dict) and isinstance(cast("dict[str, Any]", given).get("question"), str)


def _without_nothing(part: A2APart) -> JSON:
    return {name: value for name, value in to_wire(part).items() if value is not msgspec.UNSET}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def _milliseconds(time: Any) -> int | None:
    if not isinstance(time, str):
        return None
    try:
        return int(datetime.fromisoformat(time).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
