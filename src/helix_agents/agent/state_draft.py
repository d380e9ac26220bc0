"""A draft of the state: tools and hooks change it like an ordinary object, and it knows what has to be written."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, cast

import msgspec

from helix_agents.agent.merging import merging_change
from helix_agents.agent.state_type import StateT, StateType, state_type_of
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.domain.writes import NO_WRITES, Append, Delete, Replace, StepWrites, WriteOp, apply_writes


class Savepoint(NamedTuple):
    """A draft at one moment: its JSON (None if it had not been read yet), and the lists still in place."""

    data: bytes | None
    lists: frozenset[str]


class StateDraft(Generic[StateT]):
    """One reader's copy of the committed state, and the changes made to it.

    Applying `writes()` to the base always gives the changed state. A list that only grew becomes an append, which
    merges with the appends of tools that run in parallel. A deleted field becomes a delete. A field that says how it is
    merged (`Merge`) is changed in that way. Any other change replaces its top-level key. Keys of the base that the type
    does not know are left alone.

    The state is loaded when `value` is first read: a tool that never looks at it costs nothing.
    """

    def __init__(self, state_type: StateType[StateT], base: Mapping[str, JSON]) -> None:
        self._type = state_type
        self._base = base
        self._value: StateT | None = None
        self._before: dict[str, bytes] = {}
        self._lists: dict[str, list[Any]] = {}

    @classmethod
    def of(cls, state_type: type[StateT], custom_state: Mapping[str, JSON]) -> "StateDraft[StateT]":
        """A draft of stored state."""
        return cls(state_type_of(state_type), custom_state)

    @classmethod
    def holding(cls, value: StateT) -> "StateDraft[StateT]":
        """A draft around the caller's own object, which is changed in place."""
        draft = cls(StateType(type(value)), {})
        draft._base = draft._type.dump(value)
        draft._take(value)
        return draft

    @property
    def value(self) -> StateT:
        """The object to read and change.

        Raises:
            InvalidStateError: the stored state does not fit the type.
        """
        if self._value is None:
            return self._take(self._type.load(self._base))
        return self._value

    def writes(self, tool_call_id: ToolCallId | None = None) -> StepWrites:
        """The writes that turn the base into the draft as it is now, attributed to a call.

        Raises:
            InvalidStateError: the draft holds a value that its type rejects, so it could not be loaded again.
        """
        if self._value is None:
            return NO_WRITES
        data = self._type.dump_json(self._value)
        after = _by_key(data)
        if after == self._before:
            return NO_WRITES
        self._type.load_json(data)
        ops: list[WriteOp] = [
            Delete(key=key, tool_call_id=tool_call_id) for key in self._before if key not in after and key in self._base
        ]
        ops.extend(
            self._change(key, data, tool_call_id) for key, data in after.items() if data != self._before.get(key)
        )
        return StepWrites(ops=tuple(ops))

    def custom_state(self) -> dict[str, JSON]:
        """The stored state as it would be after the writes; raises like `writes`."""
        return apply_writes(self._base, self.writes().ops)

    def savepoint(self) -> Savepoint:
        """Remember the draft as it is now; raises like `writes`."""
        if self._value is None:
            return Savepoint(None, frozenset())
        kept = frozenset(key for key in self._lists if self._in_place(key))
        return Savepoint(self._type.dump_json(self._value), kept)

    def rollback(self, savepoint: Savepoint) -> None:
        """Undo every change since the savepoint. Objects taken from `value` earlier are no longer part of the draft."""
        if savepoint.data is None:
            self._value = None
            return
        self._value = self._type.load_json(savepoint.data)
        for key in self._before.keys() - _by_key(savepoint.data).keys():
            if hasattr(self._value, key):
                delattr(self._value, key)
        self._lists = _lists_of(self._value, savepoint.lists)

    def _take(self, value: StateT) -> StateT:
        self._before = _by_key(self._type.dump_json(value))
        self._lists = _lists_of(value, self._before)
        self._value = value
        return value

    def _change(self, key: str, data: bytes, tool_call_id: ToolCallId | None) -> WriteOp:
        tail = self._grown_by(key, data)
        if tail is not None:
            return Append(key=key, items=tail, tool_call_id=tool_call_id)
        value = decode_json(data)
        merging = self._merging(key, value, tool_call_id)
        return merging if merging is not None else Replace(key=key, value=value, tool_call_id=tool_call_id)

    def _merging(self, key: str, value: JSON, tool_call_id: ToolCallId | None) -> WriteOp | None:
        merge = self._type.merges.get(key)
        if merge is None:
            return None
        loaded = decode_json(self._before.get(key, b"null"))
        if key not in self._base and loaded:
            # A missing value counts as empty, but the field's default is more than that.
            return None
        return merging_change(merge, key, self._base.get(key, loaded), loaded, value, tool_call_id)

    def _grown_by(self, key: str, data: bytes) -> list[JSON] | None:
        """The new items of a list that kept its place and all its old items; None for any other change.

        Equal items are equal JSON, so a list has grown if its JSON starts as before and continues after a comma.
        """
        if key not in self._lists or not self._in_place(key):
            return None
        before = self._before[key]
        old_items = before[:-1]
        if before == b"[]":
            tail = data
        elif data.startswith(old_items + b","):
            tail = b"[" + data[len(old_items) + 1 :]
        else:
            return None
        # An append applies to what is stored: a field that is not stored yet, or is stored in another form, has to be
        # replaced.
        stored = self._base.get(key, [])
        return decode_json(tail) if before == encode(stored) or _same_items(decode_json(before), stored) else None

    def _in_place(self, key: str) -> bool:
        """Whether a field still holds the list it was loaded with; assigning another list replaces the field.

        A type that validates assignments copies the list even for `+=`, so there the content alone decides.
        """
        return self._type.copies_on_assignment or getattr(self._value, key, None) is self._lists[key]


def _lists_of(value: object, keys: Iterable[str]) -> dict[str, list[Any]]:
    return {key: found for key in keys if isinstance(found := getattr(value, key, None), list)}


def _by_key(data: bytes) -> dict[str, bytes]:
    return {key: bytes(raw) for key, raw in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items()}


def _same_items(items: JSON, others: JSON) -> bool:
    """Whether two lists hold the same items in the same order, ignoring the order of sets and fields within items."""
    if type(items) is not list or type(others) is not list:
        return False
    return [*map(_unordered, cast("list[JSON]", items))] == [*map(_unordered, cast("list[JSON]", others))]


def _unordered(value: JSON) -> bytes:
    match value:
        case list():
            return encode(sorted(map(_unordered, cast("list[JSON]", value))))
        case dict():
            return encode({key: _unordered(each) for key, each in sorted(cast("dict[str, JSON]", value).items())})
        case _:
            return encode(value)
