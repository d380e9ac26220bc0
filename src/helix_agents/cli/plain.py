"""Records as plain JSON with every field in it, and times and durations as people read them."""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from helix_agents.domain.chunks import SourceChunk
from helix_agents.domain.messages import Source, parts_in
from helix_agents.domain.paging import Page
from helix_agents.domain.parts import in_words, looks_like_parts


def plain(value: Any) -> Any:
    """The value as JSON, defaults included, so that a script always finds the same fields."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag_field
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return {tag: value.__struct_config__.tag, **fields} if tag is not None else fields
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def plain_page(page: Page[Any]) -> dict[str, Any]:
    """A page as JSON: its items and their position in the whole."""
    return {
        "items": plain(page.items),
        "total": page.total,
        "offset": page.offset,
        "limit": page.limit,
        "has_more": page.has_more,
    }


def shown_time(at_ms: int | None) -> str:
    """A time of the store's clock, in UTC."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shown_span(milliseconds: float) -> str:
    """A duration in its largest unit."""
    seconds = abs(milliseconds) / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def shown_count(count: int, noun: str) -> str:
    """A count with its noun, in the singular or the plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shown_json(value: Any) -> str:
    """A value on one line: text as is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def source_line(source: Source | SourceChunk) -> str:
    """Something that an answer refers to, in one line."""
    return " ".join(word for word in (source.title, source.url or source.document_id) if word)


def shown_output(output: Any) -> str:
    """An output on one line; images and files are named, because nobody reads their data."""
    parts = cast("list[Any]", output) if isinstance(output, list) else [output]
    return " ".join(in_words(parts_in(parts)).split("\n")) if looks_like_parts(parts) else shown_json(output)
