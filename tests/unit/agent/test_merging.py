"""A field that says how it is merged: what each of several drafts of a state changed is in what they give together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, NonNegativeInt

from helix_agents import Agent, Merge, ScriptedModel
from helix_agents.agent.state_draft import StateDraft
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.writes import Add, Include, Replace, Update, WriteOp, apply_writes, merge_warnings


class Trip(BaseModel):
    spent: Annotated[float, Merge.SUM] = 0
    seats: Annotated[NonNegativeInt, Merge.SUM] = 2
    prices: Annotated[dict[str, int], Merge.KEYS] = {}
    places: Annotated[set[int], Merge.UNION] = set()


@dataclass
class PlainTrip:
    spent: Annotated[float, Merge.SUM] = 0
    prices: Annotated[dict[str, int], Merge.KEYS] = field(default_factory=dict)


def changed(base: dict[str, Any], change: Callable[[Any], object], kind: type[Any] = Trip) -> tuple[WriteOp, ...]:
    draft = StateDraft.of(kind, base)
    change(draft.value)
    return draft.writes("call").ops


def _spend(state: Any) -> None:
    state.spent += 2.5


def _set_price(state: Any) -> None:
    state.prices["a"] = 1


@pytest.mark.parametrize("kind", [Trip, PlainTrip])
def test_a_change_is_what_it_adds_to_what_is_there(kind: type[Any]) -> None:
    base: dict[str, Any] = {"spent": 1.5, "prices": {"b": 2}, "places": [1, 2]}
    assert changed(base, _spend, kind) == (Add(key="spent", before=1.5, after=4.0, tool_call_id="call"),)
    assert changed(base, _set_price, kind) == (Update(key="prices", entries={"a": 1}, tool_call_id="call"),)


def test_a_set_says_what_came_and_what_went() -> None:
    [op] = changed({"places": [1, 2]}, lambda state: (state.places.add(3), state.places.discard(1)))
    assert op == Include(key="places", items=[3], removed=[1], tool_call_id="call")


def test_what_is_not_stored_yet_counts_as_none_and_a_default_that_is_more_is_written_out() -> None:
    assert changed({}, _spend) == (Add(key="spent", before=0, after=2.5, tool_call_id="call"),)
    [op] = changed({}, lambda state: setattr(state, "seats", 3))
    assert op == Replace(key="seats", value=3, tool_call_id="call")


def test_keys_in_another_order_and_numbers_that_few_can_read_are_written_out() -> None:
    [op] = changed({"prices": {"a": 1, "b": 2}}, lambda state: setattr(state, "prices", {"b": 2, "a": 1}))
    assert op == Replace(key="prices", value={"b": 2, "a": 1}, tool_call_id="call")
    [op] = changed({"seats": 1}, lambda state: setattr(state, "seats", 2**70))
    assert op == Replace(key="seats", value=2**70, tool_call_id="call")


floats = st.floats(allow_nan=False, allow_infinity=False)
prices = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3))
places = st.sets(st.integers(0, 4))
states = st.fixed_dictionaries({"spent": floats, "seats": st.integers(0, 9), "prices": prices, "places": places})


def stored(given: dict[str, Any]) -> dict[str, Any]:
    return Trip(**given).model_dump(mode="json")


def loaded(state: dict[str, Any]) -> Trip:
    return Trip(**state)


@given(states, states)
def test_who_works_alone_gets_exactly_what_they_wrote(before: dict[str, Any], after: dict[str, Any]) -> None:
    base = stored(before)

    def change(state: Any) -> None:
        for key, value in after.items():
            setattr(state, key, value)

    assert loaded(apply_writes(base, changed(base, change))) == Trip(**after)


@given(prices, places, st.lists(st.tuples(st.integers(0, 5), prices, places), min_size=2, max_size=4))
def test_what_each_of_several_changed_is_in_what_they_give_together(
    before: dict[str, int], been: set[int], calls: list[tuple[int, dict[str, int], set[int]]]
) -> None:
    base = stored({"prices": before, "places": been})
    ops: list[WriteOp] = []
    for number, (more, set_to, seen) in enumerate(calls):

        def change(state: Any, more: int = more, set_to: dict[str, int] = set_to, seen: set[int] = seen) -> None:
            state.seats += more
            state.prices |= set_to
            state.places |= seen

        draft = StateDraft.of(Trip, base)
        change(draft.value)
        ops.extend(draft.writes(f"call {number}").ops)
    together = loaded(apply_writes(base, ops))
    assert together.seats == 2 + sum(more for more, _, _ in calls)
    assert together.places == been.union(*(seen for _, _, seen in calls))
    assert together.prices.keys() == before.keys() | {key for _, set_to, _ in calls for key in set_to}
    changes = [{key: value for key, value in each.items() if before.get(key) != value} for _, each, _ in calls]
    disputed = {key for each in changes for key in each if len({one[key] for one in changes if key in one}) > 1}
    assert ["prices"] * bool(disputed) == [warning.key for warning in merge_warnings(ops)]


class Priced(BaseModel):
    prices: Annotated[dict[str, float], Merge.KEYS] = {}
    places: Annotated[set[float], Merge.UNION] = set()


def _raise_a(state: Priced) -> None:
    state.prices["a"] = 5.0
    state.places.discard(1.0)


def _add_b(state: Priced) -> None:
    state.prices["b"] = 3.0
    state.places.add(2.0)


def test_what_is_stored_in_another_form_is_no_change_that_would_undo_those_of_others() -> None:
    """A program outside the run, or an earlier version of the type, wrote whole numbers."""
    base: dict[str, Any] = {"prices": {"a": 1, "z": 7}, "places": [1, 9]}
    for order in ([_raise_a, _add_b], [_add_b, _raise_a]):
        ops = [op for change in order for op in changed(base, change, Priced)]
        together = Priced(**apply_writes(base, ops))
        assert together.prices == {"a": 5.0, "b": 3.0, "z": 7.0}
        assert together.places == {2.0, 9.0}
    [prices, places] = changed(base, _add_b, Priced)
    assert prices == Update(key="prices", entries={"b": 3.0}, tool_call_id="call")
    assert places == Include(key="places", items=[2.0], tool_call_id="call")


def test_a_sum_that_is_no_number_leaves_what_the_later_call_wrote() -> None:
    for other in (1.7e308, 10**400):
        state = apply_writes({"spent": other}, [Add(key="spent", before=0.0, after=1.7e308)])
        assert state == {"spent": 1.7e308}
        assert math.isfinite(state["spent"])


class Twice(BaseModel):
    spent: Annotated[int, Merge.SUM, Merge.KEYS] = 0


class Money(BaseModel):
    spent: Annotated[Decimal, Merge.SUM] = Decimal(0)


class Maybe(BaseModel):
    spent: Annotated[int | None, Merge.SUM] = None


class Flag(BaseModel):
    up: Annotated[bool, Merge.SUM] = False


class Listed(BaseModel):
    names: Annotated[list[str], Merge.UNION] = []


@dataclass
class Text:
    words: Annotated[str, Merge.KEYS] = ""


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Twice, "'spent' can be merged in one way only, not in 2"),
        (Money, r"'spent' has Merge.SUM, which is for a number, an int or a float, not for <class 'decimal.Decimal'>"),
        (Maybe, "'spent' has Merge.SUM"),
        (Flag, "'up' has Merge.SUM"),
        (Listed, r"'names' has Merge.UNION, which is for a set, not for list\[str\]"),
        (Text, "'words' has Merge.KEYS, which is for a dict"),
    ],
)
def test_a_field_that_cannot_be_merged_as_it_says_is_refused_at_the_definition(kind: type[Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Agent(name="traveller", model=ScriptedModel([]), state=kind)


def test_annotations_that_cannot_be_read_are_told() -> None:
    # pydantic finds the name where the class is made, and it is not to be had later.
    Number = int  # noqa: N806

    @dataclass
    class Hidden:
        spent: Annotated[Number, Merge.SUM] = 0  # pyright: ignore[reportInvalidTypeForm]

    with pytest.raises(DefinitionError, match="annotations cannot be read: name 'Number' is not defined"):
        Agent(name="traveller", model=ScriptedModel([]), state=Hidden)
