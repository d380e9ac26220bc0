"""What a user said, as pages show it."""

from typing import Any

from helix_agents.domain.messages import File, Image, Text, UserMessage


def user_message(message: UserMessage, message_id: str) -> dict[str, Any]:
    """What a user said, as a page shows it."""
    content = (Text(text=message.content),) if isinstance(message.content, str) else message.content
    return {"id": message.id or message_id, "role": "user", "parts": [_shown(part) for part in content]}


def _shown(part: Text | Image | File) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Image(url=url, media_type=media_type, filename=filename):
            return _file(url, media_type or "image/*", filename)
        case File(url=url, media_type=media_type, filename=filename):
            return _file(url, media_type, filename)


def _file(url: str, media_type: str, filename: str | None) -> dict[str, Any]:
    named = {} if filename is None else {"filename": filename}
    return {"type": "file", "mediaType": media_type, "url": url, **named}
