"""What was said, as attributes of the GenAI conventions: only if content capture is switched on."""

import os
from collections.abc import Iterable
from typing import Any, cast

from helix_agents.domain.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    ProviderCall,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    in_spoken_order,
    parts_in,
)
from helix_agents.domain.parts import in_words, looks_like_parts
from helix_agents.domain.records import encode
from helix_agents.ports.llm import ToolSpec

SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON = frozenset(("true", "1", "span_only", "span_and_event"))


def are_captured_by_environment() -> bool:
    """Whether the environment asks for contents, by the variable that all GenAI instrumentations share."""
    return os.environ.get(SWITCH, "").strip().lower() in _ON


def json_of(value: Any) -> str:
    """A value as an attribute that keeps its structure."""
    return value if isinstance(value, str) else encode(value).decode()


def messages_of(messages: Iterable[Message]) -> str:
    """Messages in the conventions' format."""
    return json_of([_message(each) for each in messages])


def reply_of(reply: AssistantMessage, finish_reason: str | None) -> str:
    """The model's reply, which is its only output message."""
    return json_of([{**_message(reply), "finish_reason": finish_reason or "stop"}])


def instructions_of(text: str) -> str:
    """The system prompt."""
    return json_of([{"type": "text", "content": text}])


def tools_of(tools: Iterable[ToolSpec]) -> str:
    """The tools that the model may call."""
    return json_of(
        [
            {"type": "function", "name": each.name, "description": each.description, "parameters": each.parameters}
            for each in tools
        ]
    )


def _message(message: Message) -> dict[str, Any]:
    match message:
        case UserMessage(content=content):
            parts = (Text(text=content),) if isinstance(content, str) else content
            return {"role": "user", "parts": [_part(part) for part in parts]}
        case AssistantMessage():
            return {"role": "assistant", "parts": _parts_of_reply(message)}
        case ToolMessage(tool_call_id=call_id, content=content, in_parts=in_parts):
            response = parts_of_result(message.parts) if in_parts else content
            return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id, "response": response}]}


def output_of(output: Any) -> str:
    """A run's output. The bytes of images and files in it do not belong in a trace."""
    parts = cast("list[Any]", output) if isinstance(output, list) else [output]
    return in_words(parts_in(parts)) if looks_like_parts(parts) else json_of(output)


def parts_of_result(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The texts, images and files of a result."""
    return [_part(part) for part in parts]


def _part(part: Text | Image | File) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "content": part.text}
    about = {"modality": "image" if isinstance(part, Image) else "file", "mime_type": part.media_type}
    # The bytes of a file do not belong in a trace; its location does.
    if part.url.lower().startswith("data:"):
        return {"type": "blob", **about, "content": f"({len(part.url)} characters left out)"}
    return {"type": "uri", **about, "uri": part.url}


def _parts_of_reply(reply: AssistantMessage) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for said in in_spoken_order(reply):
        match said:
            case Thinking(text=thought):
                parts.append({"type": "reasoning", "content": thought})
            case ProviderCall():
                parts.append(_call(said))
                parts.append({"type": "tool_call_response", "id": said.id, "response": said.result})
            case str():
                parts.append({"type": "text", "content": said})
    parts.extend(_call(call) for call in reply.tool_calls)
    return parts


def _call(call: ToolCall | ProviderCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
