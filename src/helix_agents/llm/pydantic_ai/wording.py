"""Text that both sides accept: a provider may send incomplete characters, and may refuse some of ours."""

import json
import re
from base64 import b32encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, cast

from helix_agents.domain.errors import SessionCorruptError, UnstorableValueError
from helix_agents.domain.messages import says_nothing
from helix_agents.domain.records import JSON, decode_json, encode

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
_LONGEST_ID = 40
"""What Chat Completions accept. The id of a call in a sub-agent may be longer, or that of another model's call."""
_IDS_OF_MISTRAL = re.compile(r"[a-zA-Z0-9]{9}")


class Pieces:
    """The pieces of one text. Some providers cut a character in two: its first half waits for the second."""

    def __init__(self) -> None:
        self._half = ""

    def next(self, piece: str) -> str:
        """The text that is complete now that this piece has arrived."""
        text = self._half + piece
        self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        return mended(text[: len(text) - len(self._half)])

    def rest(self) -> str:
        """What is left at the end."""
        half, self._half = self._half, ""
        return mended(half)


def mended(text: str) -> str:
    """The text with halves of characters joined, and a mark in place of lone halves, which cannot be stored."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def mended_arguments(arguments: Mapping[str, Any]) -> dict[str, JSON]:
    """Arguments that a provider sent as values, with all their texts mended."""
    return mended_value(dict(arguments))


def mended_value(value: JSON) -> JSON:
    """A value that a provider sent, with all its texts mended."""
    try:
        encode(value)
    except UnstorableValueError:
        return decode_json(mended(json.dumps(value, ensure_ascii=False)))
    return value


def legal_name(tool: str) -> str:
    """A tool's name in a form that every provider accepts. Models invent names that providers refuse to read again."""
    return _FOREIGN.sub("_", tool)[:_LONGEST_NAME] or "unknown"


def legal_id(call_id: str, api: str) -> str:
    """The id of a call in a form that an API accepts, which is the same one every time. Mistral refuses any id that is
    not made like its own, so also those that the engine gives to calls in sub-agents."""
    if api == "mistral":
        return call_id if _IDS_OF_MISTRAL.fullmatch(call_id) else _digest(call_id)
    return call_id if len(call_id) <= _LONGEST_ID else call_id[: _LONGEST_ID - 9] + _digest(call_id)


def _digest(text: str) -> str:
    """Nine letters and digits that stand for a text."""
    return b32encode(sha256(text.encode()).digest()).decode()[:9]


def read_arguments(args: str | Mapping[str, Any] | None) -> dict[str, JSON] | str:
    """A call's arguments as values, or as the original text if they cannot be parsed."""
    if not args or (isinstance(args, str) and says_nothing(args)):
        return {}
    if not isinstance(args, str):
        return mended_arguments(args)
    args = mended(args)
    try:
        value = decode_json(args)
    except (SessionCorruptError, RecursionError):
        return args
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else args
