"""Responses of another agent server, read with distrust: sizes, depths and types first, then as our records."""

from collections.abc import AsyncGenerator, AsyncIterable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, get_args

import msgspec

from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.pending import PendingCall
from helix_agents.ports.remote_agents import RemoteStatus
from helix_agents.server.wire import camel, why_unfit

# What a server accepts, plus one level for what wraps it.
DEEPEST = 65
# Some numbers are counts and positions, and no store accepts a larger one.
LARGEST_INT = 2**63 - 1
RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class NotOursError(Exception):
    """The data is not what an agent server writes; the message says why."""


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    id: str | None
    data: bytes


def read_json(raw: bytes) -> Any:
    """JSON of a bounded depth with numbers that every store accepts.

    Raises:
        NotOursError: it is not.
    """
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise NotOursError(f"it sent something that is not JSON ({str(problem)[:200]})") from None
    unfit = why_unfit(value, DEEPEST, LARGEST_INT)
    if unfit is not None:
        raise NotOursError(f"it sent JSON that {unfit}")
    return value


def read_record(value: Any, kind: type[RecordT], *, without: frozenset[str] = frozenset()) -> RecordT:
    """A record from its form on the wire; additional fields of a newer server are ignored.

    Raises:
        NotOursError: it is no such record.
    """
    if not isinstance(value, dict):
        raise NotOursError(f"it did not send a {kind.__name__}")
    given = cast("dict[str, Any]", value)
    known = {name: given[wire] for name, wire in _fields(kind) if wire in given and name not in without}
    config = kind.__struct_config__
    if config.tag is not None:
        known[config.tag_field or "type"] = config.tag
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as problem:
        raise NotOursError(f"it sent an invalid {kind.__name__} ({str(problem)[:200]})") from None


def read_status(value: Any) -> RemoteStatus:
    """The status of a session there.

    Raises:
        NotOursError: there is none.
    """
    status = read_record(value, RemoteStatus, without=frozenset(("pending",)))
    pending: Any = value.get("pending", [])
    if not isinstance(pending, list) or len(cast("list[Any]", pending)) > 1_000:
        raise NotOursError("it sent no list of waiting calls, or far too many")
    calls = tuple(read_record(each, PendingCall, without=_ANSWERS) for each in cast("list[Any]", pending))
    return msgspec.structs.replace(status, pending=calls)


def read_chunk(event: Event) -> StreamChunk | None:
    """A chunk with its number; None for a kind that only a newer version knows.

    Raises:
        NotOursError: it is no chunk.
    """
    value = read_json(event.data)
    if not isinstance(value, dict) or event.id is None or not event.id.isascii() or not event.id.isdigit():
        raise NotOursError("it sent an event that is not a chunk")
    given = cast("dict[str, Any]", value)
    kind = _kinds().get(str(given.get("type")))
    if kind is None:
        return None
    if len(event.id) > 18:
        raise NotOursError("it sent a chunk with a number that is too high")
    chunk = read_record({**given, "sequence": int(event.id)}, kind, without=_NOT_PROXIED)
    return cast("StreamChunk", chunk)


async def read_events(pieces: AsyncIterable[bytes], most_bytes: int) -> AsyncGenerator[Event, None]:
    """Server-sent events from the bytes of a response; comments are skipped.

    Raises:
        NotOursError: one event has more than `most_bytes`.
    """
    buffer = bytearray()
    async for piece in pieces:
        # Do not search the same bytes again: an event may come in a million pieces.
        begin = max(len(buffer) - 1, 0)
        buffer += piece
        while (end := buffer.find(b"\n\n", begin)) >= 0:
            event = _event(bytes(buffer[:end]))
            del buffer[: end + 2]
            begin = 0
            if event is not None:
                yield event
        if len(buffer) > most_bytes:
            raise NotOursError(f"it sent an event of more than {most_bytes} bytes")


def _event(raw: bytes) -> Event | None:
    name, number, data = "message", None, b""
    for line in raw.splitlines():
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"event":
                name = value.decode(errors="replace")
            case b"id":
                number = value.decode(errors="replace")
            case b"data":
                data += value
            case _:
                pass
    return Event(name, number, data) if data else None


_ANSWERS = frozenset(("answer", "late_answer"))
_NOT_PROXIED = frozenset(("warnings", "remote_sequence"))


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((name, camel(name)) for name in kind.__struct_fields__)


@cache
def _kinds() -> dict[str, type[msgspec.Struct]]:
    return {str(kind.__struct_config__.tag): kind for kind in get_args(StreamChunk)}


def read_whole(value: Any, kind: Any) -> Any:
    """A value of this type from its form on the wire, with the records inside it; additional fields of a newer server
    are ignored.

    Raises:
        NotOursError: it is no such value.
    """
    try:
        return msgspec.convert(_from_wire(value, _shape(kind)), kind)
    except msgspec.ValidationError as problem:
        name = getattr(kind, "__name__", kind)
        raise NotOursError(f"it sent an invalid {name} ({str(problem)[:200]})") from None


@cache
def _shape(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _from_wire(value: Any, shape: msgspec.inspect.Type) -> Any:
    """The value with the names of records' fields as they are in Python. Users' data stays as it is."""
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        record = _record_in(shape, given)
        if record is None:
            return given
        found = {str(record.tag_field): record.tag} if record.tag is not None else {}
        for field in record.fields:
            if (name := camel(field.name)) in given:
                found[field.name] = _from_wire(given[name], field.type)
        return found
    if isinstance(value, list):
        given_items = cast("list[Any]", value)
        items = next((each.item_type for each in _options(shape) if isinstance(each, _LISTS)), None)
        return given_items if items is None else [_from_wire(item, items) for item in given_items]
    return value


_LISTS = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)


def _options(shape: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)


def _record_in(shape: msgspec.inspect.Type, given: dict[str, Any]) -> msgspec.inspect.StructType | None:
    """The record that an object is, if it is one: of several, the one with its tag."""
    records = (each for each in _options(shape) if isinstance(each, msgspec.inspect.StructType))
    return next((each for each in records if each.tag is None or given.get(str(each.tag_field)) == each.tag), None)
