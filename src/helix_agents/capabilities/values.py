"""Which keys and values are allowed, and how they are written and read back."""

import unicodedata
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from helix_agents.capabilities.settings import Limits
from helix_agents.domain.capability_errors import InvalidInput, InvalidTimestamp
from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.records import JSON, check_json, decode_json

RESERVED = ("sys.", "__")
_canonical = msgspec.json.Encoder(order="sorted")


def check_key(key: str, limits: Limits) -> str:
    """The key itself, if it is valid.

    Raises:
        InvalidInput: it is empty, too long, not normalised, reserved, or contains control characters.
    """
    problem = None
    if not key:
        problem = "it is empty"
    elif any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in key):
        problem = "it holds control characters"
    elif len(key.encode()) > limits.key_bytes:
        problem = f"it is longer than {limits.key_bytes} bytes"
    elif not unicodedata.is_normalized("NFC", key):
        problem = "it is not in the composed form NFC, so that two ways to write it would be two keys"
    elif key.startswith(RESERVED):
        problem = f"keys that start with {' or '.join(RESERVED)} are reserved"
    if problem is not None:
        raise InvalidInput(f"Key {key[:80]!r} cannot be used: {problem}.", {"key": key[:512]})
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, if keys could start with it."""
    if any(0xD800 <= ord(letter) < 0xE000 for letter in prefix):
        raise InvalidInput("The prefix is not valid text.", {})
    return prefix


def canonical(value: JSON, limits: Limits) -> str:
    """The value as JSON text with sorted names, so that equal values have equal texts.

    Raises:
        InvalidInput: it has no JSON form, is too deep, or is too large.
    """
    _check_depth(value, limits.depth)
    try:
        check_json(value, "value")
        text = _canonical.encode(value).decode()
    except (UnstorableValueError, TypeError, ValueError) as problem:
        raise InvalidInput(f"The value cannot be stored: {problem}", {}) from problem
    if len(text) > limits.value_bytes or len(text.encode()) > limits.value_bytes:
        raise InvalidInput(
            f"The value has {len(text.encode())} bytes, at most {limits.value_bytes} are stored; split it.",
            {"size_bytes": len(text.encode()), "limit": limits.value_bytes},
        )
    return text


def _check_depth(value: JSON, depth: int) -> None:
    level: list[Any] = [value]
    for _ in range(depth + 1):
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                deeper.extend(cast("dict[str, Any]", each).values())
            elif isinstance(each, list):
                deeper.extend(cast("list[Any]", each))
        if not deeper:
            return
        level = deeper
    raise InvalidInput(f"The value is nested deeper than {depth} levels.", {"depth": depth})


def parsed(text: str | None) -> JSON:
    """A stored value."""
    return None if text is None else decode_json(text)


def shown_time(at_ms: int) -> str:
    """A time in ISO 8601, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp(at_ms: int) -> str:
    """A time for use in a name, such as 20260325T140000."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")


def parse_time(text: str, now_ms: int) -> int:
    """A time in ISO 8601 as milliseconds since 1970; without a zone it is UTC.

    Raises:
        InvalidTimestamp: it is not such a time, or is in the future.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as problem:
        raise InvalidTimestamp(f"{text[:80]!r} is not a time in ISO 8601.", {"since": text[:80]}) from problem
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    try:
        at = int(moment.astimezone(UTC).timestamp() * 1000)
    except (OverflowError, ValueError) as problem:
        raise InvalidTimestamp(f"{text[:80]!r} is out of range.", {"since": text[:80]}) from problem
    if at > now_ms:
        raise InvalidTimestamp(f"{text[:80]!r} lies in the future.", {"since": text[:80]})
    return at
