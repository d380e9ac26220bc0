"""A server's answer to a call, in the form that a model is told."""

import json
from typing import Any, cast

import mcp_types as types

from helix_agents.domain.records import JSON


def text_of(result: types.CallToolResult) -> str:
    """The whole answer in words, for an error."""
    texts = [_told(block) for block in result.content]
    if result.structured_content is not None and not texts:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n\n".join(text for text in texts if text) or "The tool failed and gave no reason."


def content_of(result: types.CallToolResult) -> JSON:
    """The result of a call: text, or data.

    If a server returns both, and its text only repeats the data, the data is enough. Results carry no images, sounds or
    files; the result only says that there was one.
    """
    texts = [text for block in result.content if (text := _told(block))]
    text = "\n\n".join(texts)
    if result.structured_content is None:
        return text if texts else None
    data = _unwrapped(result.structured_content)
    if all(_repeats(each, data, result.structured_content) for each in texts) or _repeats_parts(texts, data):
        return data
    return {"text": text, "data": data}


def _unwrapped(data: Any) -> Any:
    """A value that is not an object is usually sent as the only field of one."""
    fields: dict[str, Any] = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return fields["result"] if set(fields) == {"result"} else cast("Any", data)


def _repeats(text: str, *data: Any) -> bool:
    if any(text == each for each in data):
        return True
    try:
        return json.loads(text) in data
    except ValueError:
        return False


def _repeats_parts(texts: list[str], data: Any) -> bool:
    """A list is often returned one item at a time."""
    if not isinstance(data, list):
        return False
    items = cast("list[Any]", data)
    return len(items) == len(texts) and all(map(_repeats, texts, items))


def _told(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            return f"[{kind}, {len(data) * 3 // 4} bytes; results carry no such content]"
        case types.ResourceLink(uri=uri, name=name, description=about):
            return f"[{name}: {uri}]" + (f" {about}" if about else "")
        case types.EmbeddedResource(resource=resource):
            return told_of(resource)


def told_of(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    """The contents of a resource as text."""
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    return f"[{resource.uri}, {resource.mime_type or 'a file'}; results carry no such content]"
