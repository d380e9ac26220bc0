"""The outcome of a turn as the result of a tool: a text for the client's model, and data for its program."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from helix_agents.domain.messages import Part, Text
from helix_agents.domain.parts import data_of, is_data
from helix_agents.server.a2a.tasks import Task
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError, sentence_for
from helix_agents.server.mcp.tools import ANSWER, CONTINUE, Status
from helix_agents.server.mcp.waiting import Plain, Waiting, waiting_in
from helix_agents.server.wire import as_text

_STATUSES: dict[str, Status] = {
    "TASK_STATE_SUBMITTED": "running",
    "TASK_STATE_WORKING": "running",
    "TASK_STATE_INPUT_REQUIRED": "waiting",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "stopped",
}


def tool_result(texts: list[str], data: Any = None, *, parts: Iterable[Part] = (), is_error: bool = False) -> Plain:
    """A result of a tool, in the protocol's form. The parts come before the texts."""
    content = [*map(_block, parts), *({"type": "text", "text": text} for text in texts if text)]
    told = {} if data is None else {"structuredContent": data}
    return {"content": content, **told, "isError": is_error, "resultType": "complete"}


def refused_result(refusal: RefusedError) -> Plain:
    """A refusal to which the client's model can react."""
    return tool_result([refusal.detail], is_error=True)


async def outcome(call: Call, agent_name: str, task: Task, note: str | None = None) -> Plain:
    """The outcome of a turn. `note` says why a call that was answered still waits."""
    waiting = await waiting_in(call, task.waiting)
    return _outcome(agent_name, task, waiting, note)


def still_running(session_id: str, agent_name: str) -> Plain:
    """The result for a client that waits while this instance shuts down."""
    data: Plain = {"session_id": session_id, "agent": agent_name, "status": "running", "text": ""}
    return tool_result([_RUNNING, _place(session_id, agent_name)], data)


_RUNNING = f"The agent is still working. {CONTINUE} waits for it."


def _outcome(agent_name: str, task: Task, waiting: list[Waiting], note: str | None) -> Plain:
    status = _STATUSES[task.state]
    said = task.last_text
    data: Plain = {"session_id": task.session_id, "agent": agent_name, "status": status, "text": said}
    texts = [said]
    if status == "completed" and (made := task.typed_output) is not None:
        data["output"] = made
        texts = [] if task.output_parts else [as_text(made)]
    if status == "waiting":
        data["pending"] = [each.shown() for each in waiting]
        texts += [note or "", *map(_asked, waiting)]
    if status == "running":
        texts.append(_RUNNING)
    if status == "stopped":
        can_go_on = task.run is not None and task.run.status == "interrupted"
        texts.append("The turn was stopped." + (f" {CONTINUE} continues it." if can_go_on else ""))
    if status == "failed":
        code = (task.run.completion_reason if task.run is not None else None) or "failed"
        data["error"] = {"code": code, "message": sentence_for(code)}
        texts.append(f"{sentence_for(code)} ({code})")
    texts.append(_place(task.session_id, agent_name))
    return tool_result(texts, data, parts=task.output_parts, is_error=status == "failed")


def _block(part: Part) -> Plain:
    """A part as a block of content."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not is_data(part.url):
        kind = {} if part.media_type is None else {"mimeType": part.media_type}
        return {"type": "resource_link", "uri": part.url, "name": part.filename or part.url, **kind}
    declared, data = data_of(part.url)
    blob, kind = b64encode(data).decode(), part.media_type or declared or "application/octet-stream"
    family = kind.partition("/")[0]
    if family in ("image", "audio"):
        return {"type": family, "data": blob, "mimeType": kind}
    name = quote(part.filename or "file", safe="")
    return {"type": "resource", "resource": {"uri": f"output:///{name}", "mimeType": kind, "blob": blob}}


def _place(session_id: str, agent_name: str) -> str:
    """For the model behind a client that shows it only texts: without the id it cannot continue."""
    return f'(session_id: "{session_id}"; pass it to {agent_name} to continue this conversation.)'


def _asked(waiting: Waiting) -> str:
    row = waiting.row
    answered = "approved: true or false, as the user decides" if waiting.is_approval else "result"
    asked = f"This waits for an answer: {waiting.question()}"
    return f'{asked}\nAnswer with {ANSWER}: tool_call_id "{row.tool_call_id}", and {answered}.'
