"""State writes: what a step changed in the custom state, and how changes combine."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, Record, encode


class Append(Record, tag_field="kind", tag="append"):
    """Concatenate items onto the list under a key; a missing key is an empty list."""

    key: str
    items: list[JSON]
    tool_call_id: ToolCallId | None = None


class Replace(Record, tag_field="kind", tag="replace"):
    """Set the key to a value, whatever it was."""

    key: str
    value: JSON = None
    tool_call_id: ToolCallId | None = None


class Delete(Record, tag_field="kind", tag="delete"):
    """Remove the key; removing a missing key is fine."""

    key: str
    tool_call_id: ToolCallId | None = None


WriteOp: TypeAlias = Append | Replace | Delete


class StepWrites(Record):
    """The writes of one step, in the model's call order."""

    ops: tuple[WriteOp, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ops)


NO_WRITES = StepWrites()


class MergeWarning(Record):
    """Two calls of one step touched a key and one of them did not append: the later one in call order won."""

    key: str
    tool_call_ids: tuple[ToolCallId, ...]


class Merged(Record):
    """What a merge did."""

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
    """The state after the writes; the given state and its values stay as they were.

    Raises:
        AppendToNonListError: an append meets something that is not a list.
    """
    result = dict(state)
    write_into(result, ops, set())
    return result


def write_into(state: dict[str, JSON], ops: Iterable[WriteOp], grown: set[str]) -> None:
    """Make the writes in the state itself; values that were in it before stay as they were.

    `grown` names the lists that were made here: they grow in place, so whoever keeps a state and its set over many
    steps pays for each item once.

    Raises:
        AppendToNonListError: an append meets something that is not a list; the writes before it are made.
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
    """Keys that several calls touched where the order decided, each with the calls in call order."""
    if len(ops) < 2:
        return ()
    callers: dict[str, list[ToolCallId]] = {}
    contested: set[str] = set()
    for op in ops:
        if op.tool_call_id is None:
            continue
        calls = callers.setdefault(op.key, [])
        if op.tool_call_id not in calls:
            calls.append(op.tool_call_id)
        if not isinstance(op, Append):
            contested.add(op.key)
    return tuple(
        MergeWarning(key=key, tool_call_ids=tuple(calls))
        for key, calls in callers.items()
        if key in contested and len(calls) > 1
    )
