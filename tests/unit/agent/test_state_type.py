"""A state type is checked when an agent is defined, so that no session starts with a state that cannot be kept."""

import dataclasses
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr
from pydantic.dataclasses import dataclass as pydantic_dataclass

from helix_agents.agent.state_type import state_type_of
from helix_agents.domain.errors import DefinitionError, InvalidStateError

T = TypeVar("T")


class Inner(BaseModel):
    size: int = 0


class Notes(BaseModel):
    queries: list[str] = []
    inner: Inner = Inner(size=2)
    ids: list[int] = Field(default_factory=lambda: [1])


class Names(RootModel[list[str]]):
    root: list[str] = []


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    count: int = 0


class NeedsTwo(BaseModel):
    first: str
    second: int
    third: str = ""


class NeedsOne(BaseModel):
    inner: Inner


class WrongDefault(BaseModel):
    queries: list[str] = None  # pyright: ignore[reportAssignmentType]


class Unstorable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: Any = Field(default_factory=object)


class Unresolved(BaseModel):
    later: "NotThere | None" = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


class Secretive(BaseModel):
    keys: dict[str, SecretStr] = {}


@dataclasses.dataclass(frozen=True)
class FrozenData:
    count: int = 0


@dataclasses.dataclass
class GenericData(Generic[T]):
    items: list[T] = dataclasses.field(default_factory=list["T"])


@dataclasses.dataclass
class NeedsData:
    count: int


@dataclasses.dataclass
class Stamped:
    count: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Summed:
    parts: list[int] = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = sum(self.parts)


class HoldsStamped(BaseModel):
    stamped: list[Stamped] = []
    count: int = 0


@dataclasses.dataclass
class Data:
    names: list[str] = dataclasses.field(default_factory=list)
    inner: Inner = dataclasses.field(default_factory=Inner)


@pydantic_dataclass
class PydanticData:
    names: list[str] = dataclasses.field(default_factory=list)
    inner: Inner = dataclasses.field(default_factory=Inner)


def test_a_session_starts_with_the_defaults() -> None:
    assert state_type_of(Notes).initial() == {"queries": [], "inner": {"size": 2}, "ids": [1]}
    assert state_type_of(Data).initial() == state_type_of(PydanticData).initial() == {"names": [], "inner": {"size": 0}}


def test_a_session_may_start_with_an_object_or_with_some_of_its_fields() -> None:
    notes = state_type_of(Notes)
    assert notes.initial({"queries": ["a"]}) == {"queries": ["a"], "inner": {"size": 2}, "ids": [1]}
    assert notes.initial(Notes(inner=Inner(size=9), ids=[])) == {"queries": [], "inner": {"size": 9}, "ids": []}


def test_a_field_that_is_worked_out_when_the_state_is_loaded_may_be_left_out_of_the_constructor() -> None:
    summed = state_type_of(Summed)
    assert summed.load(summed.initial({"parts": [1, 2]})).total == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"queries": 3}, "queries: Input should be a valid array"),
        ({"querys": []}, "querys: no such field; it has queries, inner, ids"),
        (Notes.model_construct(queries=[3]), "queries.0: Input should be a valid string"),
        (Inner(), "Inner is neither a Notes nor a mapping"),
    ],
)
def test_a_session_cannot_start_with_a_state_that_does_not_fit(given: Any, says: str) -> None:
    with pytest.raises(InvalidStateError, match=says):
        state_type_of(Notes).initial(given)


@pytest.mark.parametrize(
    ("python_type", "teaches"),
    [
        (NeedsTwo, "every field needs a default.*first, second have none"),
        (NeedsOne, "inner has none"),
        (NeedsData, "count has none"),
        (WrongDefault, "defaults do not survive being stored: queries: Input should be a valid array"),
        (Unstorable, "defaults do not survive being stored"),
        (Secretive, "give secrets to tools as deps"),
        (Frozen, "it is frozen"),
        (FrozenData, "it is frozen"),
        (Names, "has no fields"),
        (dict, "a pydantic model or a dataclass"),
        (dict[str, int], "a pydantic model or a dataclass"),
        (Notes(), "a pydantic model or a dataclass"),
        ("Notes", "a pydantic model or a dataclass"),
        (Data(), "a pydantic model or a dataclass"),
        (Stamped, "Stamped.count: a field with init=False is stored, but never read back"),
        (HoldsStamped, "Stamped.count: a field with init=False"),
        (Unresolved, "pydantic cannot handle it"),
        (GenericData[int], r"GenericData\[int\] is a generic dataclass.*make it a pydantic model"),
    ],
)
def test_a_type_that_cannot_hold_state_is_refused_with_a_reason(python_type: Any, teaches: str) -> None:
    with pytest.raises(DefinitionError, match=teaches):
        state_type_of(python_type)
