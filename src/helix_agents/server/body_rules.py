"""Rules for bodies beyond the types of their fields, as JSON Schema: the document states what handlers refuse."""

from typing import Annotated, Any

import msgspec

from helix_agents.server.bodies import (
    SAYS_SOMETHING,
    WEB_ADDRESS,
    ApprovalResponse,
    ResumeBody,
    ScheduleBody,
    SubmitBody,
    ToolResult,
)
from helix_agents.server.chat.inputs import MOST_PARTS, ChatBody
from helix_agents.server.mcp.requests import RPCMessage

_NULL: dict[str, Any] = {"type": "null"}
_TEXT: dict[str, Any] = {"type": "string"}
_WORDS: dict[str, Any] = {"type": "string", "pattern": SAYS_SOMETHING}
_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 256}
_URL: dict[str, Any] = {"type": "string", "pattern": WEB_ADDRESS}


def _with(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"properties": properties, **({"required": list(required)} if required else {})}


def _one_of(*options: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(options)}


_ONE_RESULT = _one_of(_with(result=_NULL), _with(error=_NULL))
_EDITED_ONLY_IF_APPROVED = _one_of(_with(approved={"const": True}), _with(editedInput=_NULL))

_FILE = _with(("mediaType", "url"), type={"const": "file"}, mediaType=_TEXT, url=_URL)
_TEXT_OR_FILE = _one_of(_with(("text",), type={"const": "text"}, text=_TEXT), _FILE)
_SAID = _one_of(_with(("text",), type={"const": "text"}, text=_WORDS), _FILE)
_NOT_SAID = _with(type={"type": "string", "not": {"enum": ["text", "file"]}})
_DECISION = {"type": "object", **_with(("id", "approved"), id=_ID, approved={"type": "boolean"})}
_SHOWN = _one_of(
    _with(type={"type": "string", "not": {"pattern": "^(tool-|dynamic-tool$)"}}),
    _with(("toolCallId",), toolCallId=_ID, state={"not": {"const": "approval-responded"}}),
    _with(("toolCallId", "approval"), toolCallId=_ID, approval=_DECISION),
)


def _parts(each: dict[str, Any], **more: Any) -> dict[str, Any]:
    item = {"type": "object", "required": ["type"], "allOf": [_with(type=_TEXT), each]}
    return {"type": "array", "items": item, "maxItems": MOST_PARTS * 16, **more}


_UI_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {"id": _one_of(_ID, _NULL), "role": {"enum": ["user", "assistant"]}},
    **_one_of(
        _with(("parts",), role={"const": "user"}, parts=_parts(_one_of(_TEXT_OR_FILE, _NOT_SAID), contains=_SAID)),
        _with(("parts",), role={"const": "assistant"}, parts=_parts(_SHOWN)),
        _with(("content",), role={"const": "user"}, content=_WORDS, parts=_NULL),
        _with(("content",), role={"const": "assistant"}, content=_TEXT, parts=_NULL),
    ),
}

SubmitToSession = Annotated[
    SubmitBody, msgspec.Meta(extra_json_schema=_with(("sessionId",), sessionId={"type": "string"}))
]
"""An answer on a route whose path does not name its session."""

RULES: dict[type, dict[str, Any]] = {
    ToolResult: _ONE_RESULT,
    ApprovalResponse: _EDITED_ONLY_IF_APPROVED,
    ScheduleBody: {
        "allOf": [
            _one_of(*(_with((name,), **{name: {"not": _NULL}}) for name in ("at", "everyMs", "cron"))),
            _one_of(_with(everyMs=_NULL), _with(cron=_NULL)),
            _one_of(_with(("cron",), cron=_TEXT), _with(timezone={"enum": ["UTC", None]})),
        ]
    },
    ResumeBody: _one_of(
        _with(mode={"enum": ["continue", None]}, checkpointId=_NULL),
        _with(
            ("mode", "message"),
            mode={"const": "with_message"},
            message={"type": ["string", "array"]},
            checkpointId=_NULL,
        ),
        _with(("mode", "checkpointId"), mode={"const": "from_checkpoint"}, checkpointId=_TEXT),
    ),
    ChatBody: _one_of(
        _with(("message",), message=_UI_MESSAGE),
        # Only the last message of a history is read, and it has to be such a message.
        _with(("messages",), message=_NULL, messages={"type": "array", "minItems": 1}),
    ),
    RPCMessage: _one_of(
        _with(("method",), method=_TEXT),
        _with(("id", "result"), id={"type": ["string", "integer"]}, result={"type": "object"}),
        _with(("id", "error"), id={"type": ["string", "integer"]}, error={"type": "object"}),
    ),
}
"""The rules by the type of the body."""
