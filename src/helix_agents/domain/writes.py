"""State writes: what a step changed in the custom state, and how changes combine."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, Record, encode


class Append(Record, tag_field="kind", tag="append"):
    """Append items to the list under a key; a missing key counts as an empty list."""

    key: str
    items: list[JSON]
    tool_call_id: ToolCallId | None = None


class Replace(Record, tag_field="kind", tag="replace"):
    """Set the key to a value, whatever it was before."""

    key: str
    value: JSON = None
    tool_call_id: ToolCallId | None = None


class Delete(Record, tag_field="kind", tag="delete"):
    """Remove the key; a missing key is fine."""

    key: str
    tool_call_id: ToolCallId | None = None


class Add(Record, tag_field="kind", tag="add"):
    """Add the difference between `after` and `before` to the number under a key; a missing key, or any other value,
    counts as zero.

    If nothing else changed the number, the result is exactly `after`. It is also `after` if the sum cannot be stored.
    """

    key: str
    after: int | float
    before: int | float = 0
    tool_call_id: ToolCallId | None = None


class Update(Record, tag_field="kind", tag="update"):
    """Set entries of the object under a key, and remove others; a missing key, or any other value, counts as empty."""

    key: str
    entries: dict[str, JSON] = {}
    removed: tuple[str, ...] = ()
    tool_call_id: ToolCallId | None = None


class Include(Record, tag_field="kind", tag="include"):
    """Make sure that the list under a key contains these items, each once, and no longer contains the removed ones; a
    missing key, or any other value, counts as an empty list."""

    key: str
    items: list[JSON] = []
    removed: list[JSON] = []
    tool_call_id: ToolCallId | None = None


WriteOp: TypeAlias = Append | Replace | Delete | Add | Update | Include


class StepWrites(Record):
    """The writes of one step, in the model's call order."""

    ops: tuple[WriteOp, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ops)


NO_WRITES = StepWrites()


class MergeWarning(Record):
    """Two calls of one step changed the same thing under a key: the later one in call order won."""

    key: str
    tool_call_ids: tuple[ToolCallId, ...]


class Merged(Record):
    """The result of a merge."""

    new_version: int
    warnings: tuple[MergeWarning, ...] = ()


class AppendToNonListError(TypeError):
    """An append met a value that is not a list."""

    def __init__(self, key: str, found: str) -> None:
        super().__init__(key, found)
        self.key = key
        self.found = found

    def __str__(self) -> str:
        return f"append needs a list under {self.key!r}, found {self.found}"


def apply_writes(state: Mapping[str, JSON], ops: Iterable[WriteOp]) -> dict[str, JSON]:
    """The state after the writes; the given state and its values are not changed.

    Raises:
        AppendToNonListError: an append meets something that is not a list.
    """
    result = dict(state)
    write_into(result, ops, set())
    return result


def write_into(state: dict[str, JSON], ops: Iterable[WriteOp], grown: set[str]) -> None:
    """Apply the writes to the state itself; values that were in it before are not changed.

    `grown` names the lists that were created here: they grow in place, so a caller that keeps a state and its set over
    many steps pays for each item once.

    Raises:
        AppendToNonListError: an append meets something that is not a list; the writes before it have been applied.
    """
    for op in ops:
        match op:
            case Append(key=key, items=items):
                present: list[JSON] = state.get(key, [])
                if type(present) is not list:
                    raise AppendToNonListError(key, type(present).__name__)
                if key in grown:
                    present.extend(items)
                else:
                    state[key] = [*present, *items]
                    grown.add(key)
            case Replace(key=key, value=value):
                state[key] = value
                grown.discard(key)
            case Delete(key=key):
                state.pop(key, None)
                grown.discard(key)
            case Add() | Update() | Include():
                state[op.key] = _changed(state.get(op.key), op)
                grown.discard(op.key)


def _changed(present: JSON, op: Add | Update | Include) -> JSON:
    """The result of applying a change to a value that others may have changed; the value itself is not changed."""
    match op:
        case Add(before=before, after=after):
            # Sums of fractions are not exact; a call that works alone gets exactly the value it wrote.
            number = present if type(present) in (int, float) else 0
            return after if number == before else _summed(number, after - before, otherwise=after)
        case Update(entries=entries, removed=removed):
            kept = cast("dict[str, JSON]", present) if type(present) is dict else {}
            return {key: value for key, value in kept.items() if key not in removed} | entries
        case Include(items=items, removed=removed):
            members = cast("list[JSON]", present) if type(present) is list else []
            gone = set(map(encode, removed))
            by_text = {encode(item): item for item in (*members, *items)}
            return [item for text, item in by_text.items() if text not in gone]


def _summed(number: float, more: float, *, otherwise: float) -> float:
    try:
        total = number + more
        return total if math.isfinite(total) else otherwise
    except OverflowError:
        # A whole number too large for a float.
        return otherwise


def difference(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> StepWrites:
    """The writes, one per changed key, that turn one state into another."""
    ops: list[WriteOp] = [Delete(key=key) for key in old if key not in new]
    ops.extend(
        Replace(key=key, value=value)
        for key, value in new.items()
        if key not in old or encode(old[key]) != encode(value)
    )
    return StepWrites(ops=tuple(ops))


def merge_warnings(ops: Sequence[WriteOp]) -> tuple[MergeWarning, ...]:
    """Keys that several calls changed so that the order decided, each with the calls in call order."""
    if len(ops) < 2:
        return ()
    callers: dict[str, list[ToolCallId]] = {}
    contested: set[str] = set()
    changed: dict[tuple[str, bytes], tuple[ToolCallId, bytes]] = {}
    for op in ops:
        if op.tool_call_id is None:
            continue
        calls = callers.setdefault(op.key, [])
        if op.tool_call_id not in calls:
            calls.append(op.tool_call_id)
        for part, to in _parts(op):
            by, before = changed.setdefault((op.key, part), (op.tool_call_id, to))
            if by != op.tool_call_id and before != to:
                contested.add(op.key)
        if isinstance(op, Replace | Delete):
            contested.add(op.key)
    return tuple(
        MergeWarning(key=key, tool_call_ids=tuple(calls))
        for key, calls in callers.items()
        if key in contested and len(calls) > 1
    )


def changed_by_several(ops: Sequence[WriteOp]) -> tuple[str, ...]:
    """Keys that several calls changed, unless all of them only appended."""
    if len(ops) < 2:
        return ()
    callers: dict[str, set[ToolCallId]] = {}
    for op in ops:
        if op.tool_call_id is not None:
            callers.setdefault(op.key, set()).add(op.tool_call_id)
    several = {key for key, calls in callers.items() if len(calls) > 1}
    return tuple(dict.fromkeys(op.key for op in ops if op.key in several and not isinstance(op, Append)))


def _parts(op: WriteOp) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a value that a change names, and what happens to each."""
    match op:
        case Update(entries=entries, removed=removed):
            yield from ((name.encode(), encode(value)) for name, value in entries.items())
            yield from ((name.encode(), b"") for name in removed)
        case Include(items=items, removed=removed):
            yield from ((encode(item), b"in") for item in items)
            yield from ((encode(item), b"out") for item in removed)
        case _:
            return
