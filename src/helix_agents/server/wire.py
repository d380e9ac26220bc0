"""Records in their wire form: their own fields in camelCase, users' data untouched."""

from functools import cache
from typing import Any, cast

import msgspec

from helix_agents.domain.records import JSON, encode

_encoder = msgspec.json.Encoder()

SMALLEST_INT = -(2**63)
# The largest integer that JSON can carry and a store returns unchanged.
LARGEST_INT = 2**64 - 1
DEEPEST = 64
"""How deeply the JSON inside a text may nest."""


@cache
def camel(name: str) -> str:
    """`tool_call_id` as `toolCallId`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@cache
def _layout(kind: type[msgspec.Struct]) -> tuple[str, str | None, tuple[tuple[str, str], ...]]:
    """A record's tag, and its fields with their wire names."""
    config = kind.__struct_config__
    tag = config.tag if isinstance(config.tag, str) else None
    return config.tag_field or "type", tag, tuple((name, camel(name)) for name in kind.__struct_fields__)


def to_wire(value: Any) -> Any:
    """The value as plain JSON. A record's fields without a value are left out; plain data stays as it is."""
    if isinstance(value, msgspec.Struct):
        tag_field, tag, fields = _layout(type(value))
        shown: dict[str, Any] = {} if tag is None else {tag_field: tag}
        for name, name_on_wire in fields:
            field = getattr(value, name)
            if field is not None:
                shown[name_on_wire] = field if isinstance(field, str | int) else to_wire(field)
        return shown
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: to_wire(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def to_json(value: Any) -> bytes:
    """The value as the bytes of a response."""
    return _encoder.encode(to_wire(value))


def as_text(value: Any) -> str:
    """A result or an argument as text: a text as is, everything else as JSON."""
    return value if isinstance(value, str) else encode(value).decode()


def why_unfit(value: Any, deepest: int, largest: int) -> str | None:
    """Why plain JSON is refused, if it is: it nests too deeply, or has a number that no store keeps."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > deepest + 1:
            return f"nests deeper than {deepest} levels"
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
            elif isinstance(item, int) and not SMALLEST_INT <= item <= largest:
                return "contains an integer of more than 64 bits"
        level = below
    return None


def json_in(text: str) -> JSON:
    """The JSON that a text is, within the bounds of the JSON that bodies may carry themselves.

    Raises:
        ValueError: it is none.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ValueError(str(problem)) from None
    unfit = why_unfit(value, DEEPEST, LARGEST_INT)
    if unfit is not None:
        raise ValueError(f"it {unfit}")
    return value
