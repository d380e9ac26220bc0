"""The items of an OpenAI response: what an agent said, thought and did, in one shape for the stream and for the store.

Tools that run here, and those that the model's provider runs itself, are `mcp_call` items: for an OpenAI client, those
are the calls that another party carries out, and approvals for them have their own item types. A `function_call` is a
call that the client itself has to answer.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from helix_agents.domain.chunks import SourceChunk
from helix_agents.domain.ids import RunId, ToolCallId
from helix_agents.domain.messages import File, Image, Part, ProviderCall, Source, Text, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.server.wire import as_text

Item: TypeAlias = dict[str, Any]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


def text_part(text: str, annotations: Iterable[Item] = ()) -> Item:
    """What was said, as a part of its message."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def annotation(source: Source | SourceChunk, text: str) -> Item:
    """Something that a text refers to. If it is not known where, it is the whole text."""
    start, end = source.start or 0, len(text) if source.end is None else source.end
    if source.url is None:
        file_id = source.document_id or ""
        return {"type": "file_citation", "file_id": file_id, "filename": source.title or file_id, "index": end}
    told = {"type": "url_citation", "url": source.url, "title": source.title or source.url}
    return {**told, "start_index": start, "end_index": end}


def message_id(step: str) -> str:
    """The id of what was said in a step."""
    return f"msg_{step}"


def output_id(run_id: RunId) -> str:
    """The id of the message that holds a run's output, if the output is not what the model said."""
    return f"msg_{run_id}_output"


def reasoning_id(step: str, number: int) -> str:
    """The id of a block of reasoning in a step, counted from 1."""
    return f"rs_{step}_{number}"


def tool_call_id(call_id: ToolCallId) -> str:
    """The id of a call that runs here."""
    return f"mcp_{call_id}"


def message_item(
    item_id: str, text: str | None, status: Status = "completed", annotations: Iterable[Item] = ()
) -> Item:
    """What the agent said; None is the item before its first word."""
    content = [] if text is None else [text_part(text, annotations)]
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": content}


def reasoning_item(item_id: str, text: str | None, status: Status = "completed") -> Item:
    """What the model thought; None is the item before its first word."""
    summary = [] if text is None else [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "summary": summary, "status": status}


def tool_call_item(
    item_id: str,
    label: str,
    name: str,
    arguments: JSON,
    *,
    approval_id: str | None = None,
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress",
    output: str | None = None,
    error: str | None = None,
) -> Item:
    """A call that runs here."""
    return {
        "type": "mcp_call",
        "id": item_id,
        "server_label": label,
        "name": name,
        "arguments": as_text(arguments),
        "approval_request_id": approval_id,
        "status": status,
        "output": output,
        "error": None if error is None else {"type": "mcp_tool_execution_error", "content": error},
    }


def provider_call_item(call: ProviderCall, label: str) -> Item:
    """A call that the model's provider carried out itself."""
    result = as_text(call.result)
    outcome: dict[str, Any] = (
        {"status": "failed", "error": result} if call.error else {"status": "completed", "output": result}
    )
    return tool_call_item(tool_call_id(call.id), label, call.name, call.arguments, **outcome)


def approval_item(approval_id: str, label: str, name: str, arguments: JSON) -> Item:
    """A call that waits, or waited, for a person's decision."""
    asked = {"type": "mcp_approval_request", "id": approval_id, "server_label": label, "name": name}
    return {**asked, "arguments": as_text(arguments)}


def function_call_item(
    call_id: ToolCallId, name: str, arguments: JSON, status: Status = "completed", *, begins: bool = False
) -> Item:
    """A call that the client answers: one of its tools, or a question."""
    told = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "status": status}
    return {**told, "arguments": "" if begins else as_text(arguments)}


def input_message_item(item_id: str, message: UserMessage) -> Item:
    """What the user said."""
    parts = (Text(text=message.content),) if isinstance(message.content, str) else message.content
    content = [_input_part(part) for part in parts]
    return {"type": "message", "id": item_id, "role": "user", "status": "completed", "content": content}


def _input_part(part: Part) -> Item:
    match part:
        case Text(text=text):
            return {"type": "input_text", "text": text}
        case Image(url=url):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case File(url=url, filename=filename):
            place = "file_data" if url.startswith("data:") else "file_url"
            return {"type": "input_file", place: url, "filename": filename}
