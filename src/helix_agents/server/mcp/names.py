"""Ids that contain what they refer to, so that nothing has to be stored to look it up."""

import base64
import binascii
import hashlib
from typing import Any, TypeVar

import msgspec

from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.records import Record

_ASKED = "helix."
_WRAPPED = ("=?base64?", "?=")

T = TypeVar("T", bound=Record)


class Place(Record):
    """A call of a client, and how far the client has read what it was sent about it.

    `asked_id` is the message that the call said, and `cursor` the last chunk that the client was told of. `asked` are
    the waiting calls about which the client has been asked. `follower` tells the questions of this client from those of
    others about the same calls.
    """

    session_id: SessionId
    asked_id: str
    rpc_id: str | int | None = None
    progress_token: str | int | None = None
    cursor: int | None = None
    asked: tuple[ToolCallId, ...] = ()
    follower: str = ""


class Asked(Record):
    """A question to a client, about a call that waits."""

    session_id: SessionId
    tool_call_id: ToolCallId
    follower: str


def write_place(place: Place) -> str:
    """The place as a text without line breaks: the id of an event, or the state that a client sends back."""
    return _write(place)


def read_place(text: str) -> Place | None:
    """The place that a client sends back; None if it is not from this server."""
    return _read(text, Place)


def write_asked(asked: Asked) -> str:
    """The id of a request to a client. Its answer has the same id, and may reach any instance."""
    return _ASKED + _write(asked)


def read_asked(rpc_id: Any) -> Asked | None:
    """The question that a client answers; None if no question has this id."""
    if not isinstance(rpc_id, str) or not rpc_id.startswith(_ASKED):
        return None
    return _read(rpc_id.removeprefix(_ASKED), Asked)


def digest(*parts: Any) -> str:
    """A short name for what identifies something."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def read_header(value: str | None) -> str | None:
    """The text in a header, which is encoded if it is not plain ASCII."""
    head, tail = _WRAPPED
    if value is None or not (value.startswith(head) and value.endswith(tail)):
        return value
    try:
        return base64.b64decode(value[len(head) : -len(tail)], validate=True).decode()
    except ValueError:
        return None


def _write(record: Record) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(record)).decode().rstrip("=")


def _read(text: str, kind: type[T]) -> T | None:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
