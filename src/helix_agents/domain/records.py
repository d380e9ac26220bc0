"""How records look in memory and in JSON: frozen, keyword-only, and strict about unknown fields."""

import math
from typing import Any, TypeAlias, TypeVar, cast, dataclass_transform

import msgspec

from helix_agents.domain.errors import RecordTooNewError, SessionCorruptError, UnstorableValueError

JSON: TypeAlias = Any
"""A value that JSON can carry: None, bool, int, float, str, list, or dict with string keys."""

SCHEMA_VERSION = 1
"""The version of every record in this package. A field may be added with a default; anything else raises it."""

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class _RecordMeta(msgspec.StructMeta):
    """Makes every record keyword-only: msgspec inherits its other options, but not this one."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> type:
        options.setdefault("kw_only", True)
        return super().__new__(mcls, name, bases, namespace, **options)


# Records hold JSON and other records, never anything that refers back to them, so the garbage collector need not search
# them for cycles: with a long transcript in memory, that would slow down every collection.
class Record(
    msgspec.Struct, metaclass=_RecordMeta, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """One piece of durable data. A field missing in older JSON takes its default; an unknown one is refused."""


_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def encode(value: JSON | Record) -> bytes:
    """The value as compact UTF-8 JSON.

    Raises:
        UnstorableValueError: the value contains something that JSON cannot carry.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise UnstorableValueError(type(value).__name__, str(problem)) from problem


def check_json(value: JSON, what: str) -> None:
    """Check that a value reads back exactly as it was written.

    The encoder would quietly turn NaN into null, bytes into text and number keys into strings, so values from outside
    the engine are checked before they are stored.

    Raises:
        UnstorableValueError: it contains something that has no JSON form, or itself.
    """
    try:
        _check_json(value, what)
    except RecursionError as problem:
        raise UnstorableValueError(what, "it is nested too deeply, or contains itself") from problem


def _check_json(value: JSON, what: str) -> None:
    match value:
        case None | bool() | int() | str():
            pass
        case float() if math.isfinite(value):
            pass
        case list():
            for item in cast("list[JSON]", value):
                _check_json(item, what)
        case dict():
            for key, item in cast("dict[JSON, JSON]", value).items():
                if not isinstance(key, str):
                    raise UnstorableValueError(what, f"the key {key!r} is not a string")
                _check_json(item, what)
        case _:
            raise UnstorableValueError(what, f"{type(value).__name__} {value!r} has no JSON form")


def check_record(record: Record) -> None:
    """Check that a record can be read back: nothing else checks the fields of a record that user code fills in.

    Raises:
        UnstorableValueError: a field's value does not have its declared type.
    """
    check_given(record, type(record), type(record).__name__)


def check_given(given: object, kind: Any, what: str) -> None:
    """The same for any value, which has to read back as one of this type.

    Raises:
        UnstorableValueError: it does not.
    """
    read_back(given, kind, what)


def read_back(given: T, kind: Any, what: str) -> T:
    """A given value as it would be read back from a store.

    Raises:
        UnstorableValueError: it could not be.
    """
    try:
        return _decoder_of(kind).decode(encode(given))
    except msgspec.ValidationError as problem:
        raise UnstorableValueError(what, str(problem)) from problem


def decode(data: bytes | str, record: type[T]) -> T:
    """Read one record back.

    Raises:
        RecordTooNewError: the data has a field this version does not know.
        SessionCorruptError: the data is not such a record at all.
    """
    try:
        return _decoder_of(record).decode(data)
    except msgspec.ValidationError as problem:
        # An unknown field, tag or literal is what a newer version would write; anything else is corruption.
        if "unknown field" in str(problem) or "Invalid" in str(problem):
            raise RecordTooNewError(_name(record), str(problem), SCHEMA_VERSION) from problem
        raise SessionCorruptError(_name(record), str(problem)) from problem
    except msgspec.DecodeError as problem:
        raise SessionCorruptError(_name(record), str(problem)) from problem


def decode_json(data: bytes | str) -> JSON:
    """Read plain JSON back.

    Raises:
        SessionCorruptError: the data is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as problem:
        raise SessionCorruptError("JSON value", str(problem)) from problem


def _name(record: Any) -> str:
    return getattr(record, "__name__", str(record))
