"""A server's answer to a call, in the form that a model is told."""

import json
from collections.abc import Sequence
from typing import Any, cast

import mcp_types as types

from helix_agents.domain.messages import File, Image, Part, Text
from helix_agents.domain.parts import in_words
from helix_agents.domain.records import JSON


def text_of(result: types.CallToolResult) -> str:
    """The whole answer in words, for an error."""
    texts = [in_words([part_of(block)]) for block in result.content]
    if result.structured_content is not None and not texts:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n\n".join(text for text in texts if text) or "The tool failed and gave no reason."


def content_of(result: types.CallToolResult) -> JSON | list[Part]:
    """The result of a call: text or data, or parts if it has images, sounds or files.

    If a server returns both text and data, and its text only repeats the data, the data is enough.
    """
    parts = [part_of(block) for block in result.content]
    texts = [part.text for part in parts if isinstance(part, Text) and part.text]
    if any(not isinstance(part, Text) for part in parts):
        return _with_data(parts, texts, result.structured_content)
    text = "\n\n".join(texts)
    if result.structured_content is None:
        return text if texts else None
    data = _unwrapped(result.structured_content)
    if all(_repeats(each, data, result.structured_content) for each in texts) or _repeats_parts(texts, data):
        return data
    return {"text": text, "data": data}


def _with_data(parts: Sequence[Part], texts: Sequence[str], data: Any) -> list[Part]:
    """The parts, and the data that came with them unless a text says the same."""
    is_said = data is None or any(_repeats(text, _unwrapped(data), data) for text in texts)
    more = [] if is_said else [Text(text=json.dumps(data, ensure_ascii=False))]
    return [*parts, *more]


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


def part_of(block: types.ContentBlock) -> Part:
    """One piece of an answer or of a prompt."""
    match block:
        case types.TextContent(text=text):
            return Text(text=text)
        case types.ImageContent(data=data, mime_type=kind):
            return Image(url=_data_url(kind, data), media_type=kind)
        case types.AudioContent(data=data, mime_type=kind):
            return File(url=_data_url(kind, data), media_type=kind)
        case types.ResourceLink(uri=uri, name=name, description=about):
            return Text(text=f"[{name}: {uri}]" + (f" {about}" if about else ""))
        case types.EmbeddedResource(resource=resource):
            return contents_of(resource)


def contents_of(resource: types.TextResourceContents | types.BlobResourceContents) -> Part:
    """The contents of a resource."""
    if isinstance(resource, types.TextResourceContents):
        return Text(text=resource.text)
    kind = resource.mime_type or "application/octet-stream"
    made = Image if kind.startswith("image/") else File
    name = str(resource.uri).rpartition("/")[2] or None
    return made(url=_data_url(kind, resource.blob), media_type=kind, filename=name)


def _data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"
