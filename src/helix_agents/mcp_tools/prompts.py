"""Prompts of a server, as messages for an agent."""

import mcp_types as types

from helix_agents.domain.messages import File, Image, Part, Text, UserMessage
from helix_agents.mcp_tools.results import told_of
from helix_agents.mcp_tools.troubles import TroubleMet


def messages_of(name: str, prompt: types.GetPromptResult) -> tuple[UserMessage, ...]:
    """What a prompt has somebody say to a model.

    Raises:
        TroubleMet: it also has words of the model, which nobody else can say.
    """
    if any(each.role != "user" for each in prompt.messages):
        raise TroubleMet("refused", f"its prompt {name!r} has words of the model in it, which cannot be said for it")
    return tuple(_message(each.content) for each in prompt.messages)


def _message(block: types.ContentBlock) -> UserMessage:
    part = _part(block)
    return UserMessage(content=part.text if isinstance(part, Text) else (part,))


def _part(block: types.ContentBlock) -> Part:
    match block:
        case types.TextContent(text=text):
            return Text(text=text)
        case types.ImageContent(data=data, mime_type=kind):
            return Image(url=_url(kind, data), media_type=kind)
        case types.AudioContent(data=data, mime_type=kind):
            return File(url=_url(kind, data), media_type=kind)
        case types.EmbeddedResource(resource=types.BlobResourceContents(blob=data, mime_type=str() as kind)):
            return File(url=_url(kind, data), media_type=kind)
        case types.EmbeddedResource(resource=resource):
            return Text(text=told_of(resource))
        case types.ResourceLink(uri=uri, name=name):
            return Text(text=f"[{name}: {uri}]")


def _url(kind: str, data: str) -> str:
    return f"data:{kind};base64,{data}"
