"""Values made of parts: results and outputs that show a model texts, images and files."""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.messages import File, Image, Message, Part, Text, ToolMessage, parts_in
from helix_agents.domain.records import JSON, check_record

_LONGEST_ADDRESS = 200


class Content(NamedTuple):
    """A value as a tool message holds it."""

    content: JSON
    in_parts: bool = False


def in_json(parts: Iterable[Part]) -> Content:
    """Parts as a tool message holds them."""
    return Content(msgspec.to_builtins(list(parts)), in_parts=True)


def parts_of(value: object) -> tuple[Part, ...] | None:
    """The parts that a value consists of: one, or several in a list or tuple, with strings among them. None if it
    consists of something else.

    Raises:
        UnstorableValueError: a part cannot be read, or the list has something else among its parts.
    """
    if isinstance(value, Text | Image | File):
        _check(value)
        return (value,)
    if type(value) not in (list, tuple):
        return None
    items = cast("Sequence[Any]", value)
    if not any(isinstance(item, Text | Image | File) for item in items):
        return None
    return tuple(_part(item) for item in items)


def _part(item: object) -> Part:
    match item:
        case str() | Text() | Image() | File():
            part = Text(text=item) if isinstance(item, str) else item
            _check(part)
            return part
        case _:
            problem = f"beside images and files, a list has texts only, not a {type(item).__name__}"
            raise UnstorableValueError("list", problem)


def _check(part: Part) -> None:
    """A part that cannot be read would spoil every later request of its conversation."""
    check_record(part)
    if isinstance(part, Text):
        return
    kind, url = type(part).__name__, cast("object", part.url)
    if not isinstance(url, str) or not url.strip():
        raise UnstorableValueError(kind, f"its url is {url!r}; give an address, or write {kind}.of(data, media_type)")
    if is_data(url):
        try:
            data_of(url)
        except ValueError as problem:
            raise UnstorableValueError(kind, f"its data URL is not valid base64 ({problem})") from problem


def in_plain(value: object) -> JSON:
    """The value; if it consists of parts, their JSON form in the same shape, as a client would send it.

    Raises:
        UnstorableValueError: as `parts_of` does.
    """
    return value if parts_of(value) is None else msgspec.to_builtins(value)


def parts_of_output(output: JSON, messages: Iterable[Message]) -> tuple[Part, ...]:
    """The parts of a run's output, if one of its tools made it of parts; what the model itself wrote is data, whatever
    it looks like."""
    given = cast("list[JSON]", output) if isinstance(output, list) else [output]
    if not looks_like_parts(given):
        return ()
    results = (each for each in messages if isinstance(each, ToolMessage) and each.in_parts)
    return next((each.parts for each in results if each.content == given), ())


def looks_like_parts(value: JSON) -> bool:
    """Whether plain data could be the JSON form of parts."""
    try:
        return isinstance(value, list) and bool(parts_in(value))
    except ValueError:
        return False


def is_data(url: str) -> bool:
    """Whether an address holds the data itself."""
    return url[:5].lower() == "data:"


def data_of(url: str) -> tuple[str, bytes]:
    """The media type that a data URL declares, if any, and the bytes in it.

    Raises:
        ValueError: the bytes cannot be decoded.
    """
    header, _, body = url[5:].partition(",")
    declared, _, encoding = header.partition(";")
    raw = unquote_to_bytes(body)
    if not encoding.lower().endswith("base64"):
        return declared, raw
    # Some writers leave out the padding.
    return declared, b64decode(raw + b"=" * (-len(raw) % 4))


def in_words(parts: Iterable[Part]) -> str:
    """Parts as text for people and for models that write about them: an image or file is named and not shown."""
    return "\n".join(part.text if isinstance(part, Text) else named(part) for part in parts)


def named(part: Image | File) -> str:
    """A short text in place of an image or a file."""
    what = "image" if isinstance(part, Image) else "file"
    about = [part.filename or "", part.media_type or ""]
    # The size is not worth decoding for: three bytes are written as four characters.
    data = part.url.partition(",")[2]
    about += [f"about {len(data) * 3 // 4:,} bytes"] if is_data(part.url) else [part.url[:_LONGEST_ADDRESS]]
    return f"[{what}: {', '.join(each for each in about if each)}]"


def result_in_words(result: JSON, *, in_parts: bool) -> JSON:
    """A result without the data of its images and files."""
    return in_words(parts_in(result)) if in_parts else result
