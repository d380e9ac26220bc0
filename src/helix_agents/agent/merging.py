"""How changes that parallel tools make to the same field of the state are merged."""

import enum
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.writes import Add, Include, Update, WriteOp


class Merge(enum.Enum):
    """How parallel changes to a field are merged, given beside its type: `spent: Annotated[float, Merge.SUM] = 0.0`.

    Without it, if two calls of one reply change the same field, the later change wins, unless both only appended to a
    list.
    """

    SUM = "sum"
    """For a number: adds up what each call added or subtracted."""

    KEYS = "keys"
    """For a dict: applies each key that a call set or removed. If two calls set the same key, the later one wins."""

    UNION = "union"
    """For a set: applies what each call added or removed."""


_NEEDS = {
    Merge.SUM: ((int, float), "a number, an int or a float"),
    Merge.KEYS: ((dict,), "a dict"),
    Merge.UNION: ((set, frozenset), "a set"),
}


def merges_of(python_type: type[Any], subject: str) -> dict[str, Merge]:
    """The fields of a state type that say how they are merged.

    Raises:
        DefinitionError: a field names two ways, or has a type that cannot be merged in this way.
    """
    found: dict[str, Merge] = {}
    for name, kind, beside in _annotated(python_type, subject):
        said = [each for each in beside if isinstance(each, Merge)]
        if len(said) > 1:
            raise DefinitionError(subject, f"field {name!r} can be merged in one way only, not in {len(said)}.")
        if said:
            _check_kind(said[0], name, kind, subject)
            found[name] = said[0]
    return found


def _annotated(python_type: type[Any], subject: str) -> Iterator[tuple[str, Any, Sequence[Any]]]:
    """The fields, each with its type and the annotations beside it."""
    if issubclass(python_type, BaseModel):
        for name, field in python_type.model_fields.items():
            yield name, field.annotation, field.metadata
        return
    try:
        hints = get_type_hints(python_type, include_extras=True)
    except NameError as problem:
        if any("Merge" in str(each) for each in inspect.get_annotations(python_type).values()):
            raise DefinitionError(subject, f"its annotations cannot be read: {problem}.") from problem
        return
    for name, annotation in hints.items():
        if get_origin(annotation) is Annotated:
            kind, *beside = get_args(annotation)
            yield name, kind, beside


def _check_kind(merge: Merge, name: str, kind: Any, subject: str) -> None:
    allowed, needed = _NEEDS[merge]
    plain = get_origin(kind) or kind
    if not isinstance(plain, type) or not issubclass(plain, allowed) or plain is bool:
        raise DefinitionError(subject, f"field {name!r} has Merge.{merge.name}, which is for {needed}, not for {kind}.")


def merging_change(
    merge: Merge, key: str, before: JSON, loaded: JSON, after: JSON, tool_call_id: ToolCallId | None
) -> WriteOp | None:
    """The change in a form that merges with the changes of others; None if only the whole value can express it.

    What is stored (`before`) may be written in another form than its type writes it (`loaded`), for example by an
    earlier version of the type. That alone is no change: it would undo what others change.
    """
    match merge:
        case Merge.SUM:
            if _is_plain_number(before) and _is_plain_number(after):
                return Add(key=key, before=before, after=after, tool_call_id=tool_call_id)
        case Merge.KEYS:
            if type(before) is type(loaded) is type(after) is dict:
                return _update(key, before, loaded, after, tool_call_id)
        case Merge.UNION:
            if type(before) is type(loaded) is type(after) is list:
                return _include(key, before, loaded, after, tool_call_id)
    return None


def _is_plain_number(value: JSON) -> bool:
    return type(value) is float or (type(value) is int and -(2**63) <= value < 2**63)


def _update(
    key: str,
    before: Mapping[str, JSON],
    loaded: Mapping[str, JSON],
    after: Mapping[str, JSON],
    tool_call_id: ToolCallId | None,
) -> Update | None:
    kept = before.keys() & loaded.keys()
    entries = {
        name: value for name, value in after.items() if name not in kept or encode(loaded[name]) != encode(value)
    }
    removed = tuple(name for name in before if name not in after)
    if list(after) != [*(name for name in before if name in after), *(name for name in entries if name not in before)]:
        # The keys were put into another order, which entries cannot express.
        return None
    return Update(key=key, entries=entries, removed=removed, tool_call_id=tool_call_id)


def _include(
    key: str, before: list[JSON], loaded: list[JSON], after: list[JSON], tool_call_id: ToolCallId | None
) -> Include:
    had, has = set(map(encode, before)), set(map(encode, after))
    if has.issuperset(map(encode, loaded)):
        # Nothing was taken out, so what is stored stays in its form.
        before, had = [], set(map(encode, loaded))
    return Include(
        key=key,
        items=[item for item in after if encode(item) not in had],
        removed=[item for item in before if encode(item) not in has],
        tool_call_id=tool_call_id,
    )
