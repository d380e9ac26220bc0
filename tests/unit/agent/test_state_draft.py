"""A draft is changed as an ordinary object; applying its writes to the base always gives the changed state."""

import copy
import itertools
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field

from helix_agents.agent.state_draft import StateDraft
from helix_agents.domain.errors import InvalidStateError
from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.writes import NO_WRITES, Append, Delete, Replace, apply_writes, merge_warnings


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int = 0
    tags: list[str] = []


class Everything(BaseModel):
    """One field of every kind a user might keep."""

    names: list[str] = []
    points: list[Point] = []
    numbers: list[int] = []
    grid: list[list[int]] = []
    moments: list[datetime] = Field(default_factory=lambda: [datetime(2026, 1, 1, tzinfo=UTC)])
    prices: dict[str, Decimal] = {}
    by_number: dict[int, list[str]] = {}
    colours: set[Colour] = set()
    origin: Point = Point(x=1)
    maybe: Point | None = None
    pair: tuple[int, str] = (0, "")
    key: UUID = UUID(int=0)
    length: timedelta = timedelta(seconds=1)
    count: int = 0
    ratio: float = 0.5
    anything: Any = None


@dataclass
class Plain:
    """The same idea as a dataclass."""

    names: list[str] = field(default_factory=list)
    count: int = 0
    origin: Point = field(default_factory=Point)


class TaggedItem(BaseModel):
    name: str = ""
    tags: set[str] = set()


class Tagged(BaseModel):
    items: list[TaggedItem] = []


class Open(BaseModel):
    """Takes keys it does not know."""

    model_config = ConfigDict(extra="allow")
    names: list[str] = []


class Checked(BaseModel):
    """Validates, and so copies, what is assigned."""

    model_config = ConfigDict(validate_assignment=True)
    names: list[str] = []
    count: int = 0


def stored(value: Any) -> dict:
    return StateDraft.holding(value).custom_state()


def changed(state_type: type, base: dict, change) -> tuple[StateDraft, tuple]:
    """A draft after a change, and its writes, which are checked against the promise."""
    untouched = copy.deepcopy(base)
    draft = StateDraft.of(state_type, base)
    change(draft.value)
    writes = draft.writes("call_1")
    assert base == untouched, "the base belongs to somebody else"
    after = apply_writes(base, writes.ops)
    again = StateDraft.of(state_type, decode_json(encode(after)))
    assert again.value == without_deleted(draft)
    assert draft.custom_state() == after
    assert all(op.tool_call_id == "call_1" for op in writes.ops)
    return draft, writes.ops


def without_deleted(draft: StateDraft) -> Any:
    """The draft's own content, where a deleted field counts as its default (compared as values: a set has no order)."""
    return StateDraft.of(type(draft.value), stored(draft.value)).value


# ---- the words of the promise, one by one


def test_a_tool_that_never_looks_at_the_state_writes_nothing_and_reads_nothing() -> None:
    draft = StateDraft.of(Everything, {"names": "not even a list"})
    assert draft.writes() is NO_WRITES


def test_looking_without_changing_writes_nothing() -> None:
    _, ops = changed(Everything, stored(Everything(points=[Point(x=3)], colours={Colour.RED, Colour.BLUE})), repr)
    assert ops == ()


@pytest.mark.parametrize(
    "grow",
    [
        pytest.param(lambda state: state.names.append("c"), id="append"),
        pytest.param(lambda state: state.names.extend(["c"]), id="extend"),
        pytest.param(lambda state: exec("state.names += ['c']"), id="+="),
        pytest.param(lambda state: state.names.insert(2, "c"), id="insert at the end"),
        pytest.param(lambda state: state.names.__setitem__(slice(2, None), ["c"]), id="slice at the end"),
    ],
)
def test_a_list_that_only_grew_is_an_append(grow) -> None:
    _, ops = changed(Everything, {"names": ["a", "b"]}, grow)
    assert ops == (Append(key="names", items=["c"], tool_call_id="call_1"),)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: state.names.insert(0, "c"), id="insert in front"),
        pytest.param(lambda state: state.names.reverse(), id="reorder"),
        pytest.param(lambda state: state.names.clear(), id="clear"),
        pytest.param(lambda state: state.names.__delitem__(0), id="remove"),
        pytest.param(lambda state: state.names.__setitem__(slice(0, 1), ["x", "y"]), id="slice"),
        pytest.param(lambda state: setattr(state, "names", ["a", "b", "c"]), id="assign a list that starts alike"),
        pytest.param(lambda state: (state.names.pop(), state.names.extend(["x", "y"])), id="shrink and grow"),
    ],
)
def test_any_other_change_of_a_list_replaces_it(change) -> None:
    _, [op] = changed(Everything, {"names": ["a", "b"]}, change)
    assert isinstance(op, Replace)


def test_an_append_with_an_edit_inside_an_old_item_replaces_the_list() -> None:
    def change(state: Everything) -> None:
        state.points.append(Point(x=9))
        state.points[0].tags.append("edited")

    _, [op] = changed(Everything, {"points": [{"x": 1, "tags": []}]}, change)
    assert op == Replace(
        key="points", value=[{"x": 1, "tags": ["edited"]}, {"x": 9, "tags": []}], tool_call_id="call_1"
    )


def test_an_item_that_only_begins_like_the_old_one_is_another_item() -> None:
    _, [op] = changed(Everything, {"numbers": [1]}, lambda state: state.numbers.__setitem__(0, 12))
    assert op == Replace(key="numbers", value=[12], tool_call_id="call_1")
    _, [op] = changed(Everything, {"numbers": [1]}, lambda state: state.numbers.__setitem__(slice(0, 1), [12, 3]))
    assert op == Replace(key="numbers", value=[12, 3], tool_call_id="call_1")


def test_appends_of_parallel_tools_merge_without_a_warning() -> None:
    base = {"names": ["a"]}
    first, second = StateDraft.of(Everything, base), StateDraft.of(Everything, base)
    first.value.names.append("b")
    second.value.names.append("c")
    ops = (*first.writes("call_1").ops, *second.writes("call_2").ops)
    assert apply_writes(base, ops)["names"] == ["a", "b", "c"]
    assert merge_warnings(ops) == ()


def test_true_and_one_are_different_values() -> None:
    _, ops = changed(Everything, {"anything": [1]}, lambda state: setattr(state, "anything", [True]))
    assert ops == (Replace(key="anything", value=[True], tool_call_id="call_1"),)


def test_deleting_a_field_deletes_its_key_and_the_next_load_has_the_default() -> None:
    draft, ops = changed(Everything, stored(Everything(count=7)), lambda state: delattr(state, "count"))
    assert ops == (Delete(key="count", tool_call_id="call_1"),)
    assert StateDraft.of(Everything, draft.custom_state()).value.count == 0


@pytest.mark.parametrize("name", ["names", "count", "origin"])
def test_a_field_of_a_dataclass_can_be_deleted_too(name: str) -> None:
    base = stored(Plain(names=["a"], count=3, origin=Point(x=4)))
    _, ops = changed(Plain, base, lambda state: delattr(state, name))
    assert ops == (Delete(key=name, tool_call_id="call_1"),)


def test_a_field_of_a_dataclass_with_slots_can_be_deleted_too() -> None:
    @dataclass(slots=True)
    class Slotted:
        names: list[str] = field(default_factory=list)

    _, ops = changed(Slotted, {"names": ["a"]}, lambda state: delattr(state, "names"))
    assert ops == (Delete(key="names", tool_call_id="call_1"),)


def test_deleting_what_was_never_stored_writes_nothing() -> None:
    _, ops = changed(Everything, {}, lambda state: delattr(state, "count"))
    assert ops == ()


def test_two_names_for_one_list_are_two_lists_once_stored() -> None:
    def change(state: Everything) -> None:
        state.anything = state.names
        state.names.append("b")

    _draft, ops = changed(Everything, {"names": ["a"], "anything": None}, change)
    assert ops == (
        Append(key="names", items=["b"], tool_call_id="call_1"),
        Replace(key="anything", value=["a", "b"], tool_call_id="call_1"),
    )


def test_keys_the_type_does_not_know_stay_untouched() -> None:
    draft, ops = changed(Everything, {"names": [], "of_another": [1]}, lambda state: state.names.append("a"))
    assert ops == (Append(key="names", items=["a"], tool_call_id="call_1"),)
    assert draft.custom_state()["of_another"] == [1]


def test_a_type_that_takes_any_key_can_add_grow_and_delete_them() -> None:
    def change(state: Any) -> None:
        state.log.append("b")
        state.fresh = 1
        del state.old

    _, ops = changed(Open, {"names": [], "log": ["a"], "old": 1}, change)
    assert sorted(ops, key=lambda op: op.key) == [
        Replace(key="fresh", value=1, tool_call_id="call_1"),
        Append(key="log", items=["b"], tool_call_id="call_1"),
        Delete(key="old", tool_call_id="call_1"),
    ]


def test_growing_stays_an_append_where_assignments_are_validated() -> None:
    _, ops = changed(Checked, {"names": ["a"], "count": 0}, lambda state: exec("state.names += ['b']"))
    assert ops == (Append(key="names", items=["b"], tool_call_id="call_1"),)


def test_growing_a_field_that_is_not_stored_yet_keeps_its_default_items() -> None:
    draft, [op] = changed(Everything, {}, lambda state: state.moments.append(datetime(2027, 1, 1, tzinfo=UTC)))
    assert isinstance(op, Replace)
    assert len(draft.custom_state()["moments"]) == 2
    _, [op] = changed(Everything, {}, lambda state: state.names.append("a"))
    assert isinstance(op, Append)


@pytest.mark.parametrize("tags", list(itertools.permutations(["Ann", "Bob", "Cid"])))
def test_growing_a_list_whose_items_hold_sets_is_an_append_in_whichever_order_they_are_stored(tags: Any) -> None:
    draft = StateDraft.of(Tagged, {"items": [{"tags": list(tags), "name": "a"}, {"name": "b", "tags": []}]})
    draft.value.items.append(TaggedItem(name="c"))
    assert draft.writes().ops == (Append(key="items", items=[{"name": "c", "tags": []}]),)


def test_growing_a_list_stored_in_another_spelling_replaces_it() -> None:
    _, [op] = changed(Everything, {"grid": [["1"]]}, lambda state: state.grid.append([2]))
    assert op == Replace(key="grid", value=[[1], [2]], tool_call_id="call_1")


def test_aliases_and_computed_fields_do_not_reach_the_store() -> None:
    class Aliased(BaseModel):
        model_config = ConfigDict(extra="forbid")
        names: list[str] = Field(default=[], alias="theNames", serialization_alias="NAMES")

        @computed_field
        @property
        def how_many(self) -> int:
            return len(self.names)

    draft, _ops = changed(Aliased, {"names": ["a"]}, lambda state: state.names.append("b"))
    assert draft.custom_state() == {"names": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(
            lambda state: setattr(state, "count", "many"), "count: Input should be a valid integer", id="type"
        ),
        pytest.param(lambda state: setattr(state, "ratio", float("nan")), "ratio", id="no JSON number"),
        pytest.param(lambda state: setattr(state, "anything", object()), "unknown type", id="no JSON at all"),
        pytest.param(lambda state: state.names.append(7), "names.0: Input should be a valid string", id="inside"),
        pytest.param(lambda state: setattr(state, "anything", state.points), "", id="a circle"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_before_it_is_stored(change, says: str) -> None:
    draft = StateDraft.of(Everything, {})
    change(draft.value)
    if says:
        with pytest.raises(InvalidStateError, match=says):
            draft.writes()
    else:
        draft.value.anything.append(draft.value.anything)
        with pytest.raises(InvalidStateError):
            draft.writes()


def test_stored_state_that_does_not_fit_is_refused_when_it_is_read() -> None:
    with pytest.raises(InvalidStateError, match="names: Input should be a valid array, got 3"):
        _ = StateDraft.of(Everything, {"names": 3}).value


# ---- savepoints


def test_a_rollback_forgets_what_came_after_and_keeps_what_came_before() -> None:
    draft = StateDraft.of(Everything, {"names": ["a"], "count": 1})
    draft.value.names.append("b")
    before = draft.savepoint()
    draft.value.names.append("c")
    draft.value.count = 9
    del draft.value.key
    draft.rollback(before)
    assert draft.writes().ops == (Append(key="names", items=["b"]),)
    draft.value.names.append("d")
    assert draft.writes().ops == (Append(key="names", items=["b", "d"]),)


def test_a_rollback_remembers_that_a_list_was_assigned() -> None:
    draft = StateDraft.of(Everything, {"names": ["a"]})
    draft.value.names = ["a", "b"]
    before = draft.savepoint()
    draft.value.count = 1
    draft.rollback(before)
    assert draft.writes().ops == (Replace(key="names", value=["a", "b"]),)


def test_a_rollback_to_before_the_first_look_makes_the_draft_new() -> None:
    draft = StateDraft.of(Everything, {"names": ["a"]})
    before = draft.savepoint()
    draft.value.names = []
    draft.rollback(before)
    assert draft.writes() is NO_WRITES
    assert draft.value.names == ["a"]


# ---- and all of it together

texts = st.text(st.characters(codec="utf-8"), max_size=5)
points = st.builds(Point, x=st.integers(), tags=st.lists(texts, max_size=2))
moments = st.datetimes(timezones=st.just(UTC))
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "names": st.lists(texts, max_size=4),
    "points": st.lists(points, max_size=3),
    "numbers": st.lists(st.integers(), max_size=3),
    "grid": st.lists(st.lists(st.integers(), max_size=3), max_size=3),
    "moments": st.lists(moments, max_size=3),
    "prices": st.dictionaries(texts, st.decimals(allow_nan=False, allow_infinity=False), max_size=3),
    "by_number": st.dictionaries(st.integers(), st.lists(texts, max_size=2), max_size=3),
    "colours": st.sets(st.sampled_from(Colour)),
    "origin": points,
    "maybe": st.none() | points,
    "pair": st.tuples(st.integers(), texts),
    "key": st.uuids(),
    "length": st.timedeltas(),
    "count": st.integers(),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "anything": jsons | st.builds(date, st.integers(1, 9999), st.integers(1, 12), st.integers(1, 28)),
}
ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "names": texts,
    "points": points,
    "numbers": st.integers(),
    "grid": st.lists(st.integers(), max_size=2),
    "moments": moments,
}


def _alive(state: Everything, name: str) -> bool:
    return name in state.__dict__


@st.composite
def edits(draw: st.DrawFn) -> list:
    """Some edits, each a function of the state; one that does not apply does nothing."""
    kinds = draw(st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=6))
    return [(kind, EDITS[kind](draw)) for kind in kinds]


def _on_list(change_of_list):
    def make(draw: st.DrawFn):
        name = draw(st.sampled_from(sorted(ITEMS)))
        change = change_of_list(draw, ITEMS[name])
        return lambda state: change(getattr(state, name)) if _alive(state, name) else None

    return make


def _reordered(draw: st.DrawFn, _):
    seed = draw(st.randoms(use_true_random=False))
    return lambda found: seed.shuffle(found)


def _sliced(draw: st.DrawFn, items):
    start, stop = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    new = draw(st.lists(items, max_size=2))
    return lambda found: found.__setitem__(slice(start, stop), new)


def _appended(draw: st.DrawFn, items):
    item = draw(items)
    return lambda found: found.append(item)


def _extended(draw: st.DrawFn, items):
    new = draw(st.lists(items, max_size=3))
    return lambda found: found.__iadd__(new)


def _popped(draw: st.DrawFn, _):
    return lambda found: found.pop(0) if found else None


def _assigned(draw: st.DrawFn):
    name = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[name])
    return lambda state: setattr(state, name, value)


def _deleted(draw: st.DrawFn):
    name = draw(st.sampled_from(sorted(VALUES)))
    return lambda state: delattr(state, name) if _alive(state, name) else None


def _nested(draw: st.DrawFn):
    tag, x, index = draw(texts), draw(st.integers()), draw(st.integers(0, 2))

    def change(state: Everything) -> None:
        if _alive(state, "points") and index < len(state.points):
            state.points[index].tags.append(tag)
        if _alive(state, "origin"):
            state.origin.x = x
        if _alive(state, "by_number"):
            state.by_number.setdefault(x, []).append(tag)
        if _alive(state, "colours"):
            state.colours ^= {Colour.RED}

    return change


def _aliased(draw: st.DrawFn):
    first, second = draw(st.permutations(["names", "anything"]))

    def change(state: Everything) -> None:
        if _alive(state, first):
            value = getattr(state, first)
            if second == "anything" or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                setattr(state, second, value)

    return change


EDITS = {
    "append": _on_list(_appended),
    "extend": _on_list(_extended),
    "reorder": _on_list(_reordered),
    "slice": _on_list(_sliced),
    "pop": _on_list(_popped),
    "clear": _on_list(lambda draw, items: lambda found: found.clear()),
    "assign": _assigned,
    "delete": _deleted,
    "nested": _nested,
    "alias": _aliased,
}

bases = st.fixed_dictionaries({}, optional=VALUES).map(lambda given: (given, stored(Everything(**given))))


@given(bases, st.sets(st.sampled_from(sorted(VALUES))), st.dictionaries(st.just("stranger"), jsons), edits())
def test_applying_the_writes_to_the_base_gives_the_changed_state(base, not_stored, strangers, changes) -> None:
    _, whole = base
    partly = {key: value for key, value in whole.items() if key not in not_stored} | strangers

    def change(state: Everything) -> None:
        for _, edit in changes:
            edit(state)

    draft, ops = changed(Everything, partly, change)
    assert {key: value for key, value in draft.custom_state().items() if key in strangers} == strangers
    assert len({op.key for op in ops}) == len(ops)


@given(bases, edits())
def test_a_state_that_only_grew_is_written_as_appends_only(base, changes) -> None:
    growing = [edit for kind, edit in changes if kind in ("append", "extend")]
    _, ops = changed(Everything, base[1], lambda state: [edit(state) for edit in growing])
    assert all(isinstance(op, Append) for op in ops)


def _in_order(state: dict[str, Any]) -> dict[str, Any]:
    """The state with its set as a sorted list: in which order a set lists its members is nobody's promise."""
    return {**state, "colours": sorted(state["colours"])} if state.get("colours") else state


@given(bases, edits(), edits())
def test_a_rollback_is_as_if_nothing_had_happened(base, kept, dropped) -> None:
    draft, alone = StateDraft.of(Everything, base[1]), StateDraft.of(Everything, base[1])
    for _, edit in kept:
        edit(draft.value)
    before = draft.savepoint()
    expected = draft.writes()
    for _, edit in dropped:
        edit(draft.value)
    draft.rollback(before)
    assert _in_order(apply_writes(base[1], draft.writes().ops)) == _in_order(apply_writes(base[1], expected.ops))
    assert alone.writes() is NO_WRITES


def test_a_rollback_knows_what_was_deleted_before_it() -> None:
    draft = StateDraft.of(Open, {"names": ["a"], "extra": 1})
    del draft.value.names
    del draft.value.extra  # pyright: ignore[reportAttributeAccessIssue]
    draft.rollback(draft.savepoint())
    assert {op.key for op in draft.writes().ops} == {"names", "extra"}
    checked = StateDraft.of(Checked, {"names": ["a"]})
    del checked.value.names
    checked.rollback(checked.savepoint())
    assert checked.writes().ops == (Delete(key="names"),)
