"""An output type becomes the `__finish__` tool; what the model hands in is stored and read back as the same object."""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field
from typing_extensions import TypedDict

from helix_agents.agent.output import OutputType
from helix_agents.domain.errors import DefinitionError, ToolInputError, ToolOutputError


class Report(BaseModel):
    """A finished report."""

    title: str
    on: date = date(2026, 1, 1)


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Names(RootModel[list[str]]):
    pass


class Colour(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@dataclass
class Plain:
    title: str


class Typed(TypedDict):
    title: str


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    short_title: str = Field(alias="shortTitle", serialization_alias="SHORT")

    @computed_field
    @property
    def length(self) -> int:
        return len(self.short_title)


@pytest.mark.parametrize(
    ("form", "arguments", "stored", "value"),
    [
        (Report, {"title": "Tides"}, {"title": "Tides", "on": "2026-01-01"}, Report(title="Tides")),
        (Plain, {"title": "Tides"}, {"title": "Tides"}, Plain("Tides")),
        (Typed, {"title": "Tides"}, {"title": "Tides"}, {"title": "Tides"}),
        (dict[str, int], {"a": 1}, {"a": 1}, {"a": 1}),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, None, Tree(name="a", children=[Tree(name="b")])),
        (list[str], {"result": ["a"]}, ["a"], ["a"]),
        (int, {"result": 3}, 3, 3),
        (bool, {"result": True}, True, True),
        (Names, {"result": ["a"]}, ["a"], Names(["a"])),
        (Colour, {"result": "red"}, "red", Colour.RED),
        (Report | None, {"result": None}, None, None),
        (Cat | Dog, {"result": {"kind": "cat", "lives": 9}}, {"kind": "cat", "lives": 9}, Cat(lives=9)),
        (list[Tree], {"result": [{"name": "a"}]}, [{"name": "a", "children": []}], [Tree(name="a")]),
        (Aliased, {"shortTitle": "T"}, {"short_title": "T"}, Aliased(shortTitle="T")),
    ],
)
def test_every_output_type_is_handed_in_stored_and_read_back(
    form: Any, arguments: dict[str, Any], stored: Any, value: Any
) -> None:
    output: OutputType[Any] = OutputType(form, "Agent 'x'")
    spec = output.spec()
    assert spec.name == "__finish__"
    assert spec.parameters["type"] == "object"
    found = output.parse(arguments)
    assert stored is None or found == stored
    assert output.load(found) == value
    assert output.check(value, "publish") == found
    if "result" in arguments:
        assert list(spec.parameters["properties"]) == ["result"]
        assert spec.parameters["required"] == ["result"]
    else:
        assert "result" not in spec.parameters.get("properties", {})


def test_strict_decoding_is_passed_on() -> None:
    assert OutputType(Report, "Agent 'x'").spec(strict=True).strict is True


@pytest.mark.parametrize(
    ("form", "arguments", "says"),
    [
        (Report, {"headline": "Tides"}, "title: Field required"),
        (Report, "Here is your report", "Invalid JSON"),
        (Report, "", "title: Field required"),
        (list[str], {"result": "a, b"}, "result: Input should be a valid array"),
        (list[str], ["a"], "should be an object"),
        (list[str], {"result": [], "more": 1}, "more: Extra inputs"),
    ],
)
def test_a_malformed_finish_is_refused_in_a_sentence_the_model_can_act_on(form: Any, arguments: Any, says: str) -> None:
    given = arguments if isinstance(arguments, dict | str) else str(arguments).replace("'", '"')
    with pytest.raises(ToolInputError, match=says):
        OutputType(form, "Agent 'x'").parse(given)


def test_an_output_that_could_not_be_read_back_is_refused_when_it_is_handed_in() -> None:
    with pytest.raises(ToolInputError, match="valid number"):
        OutputType(float, "Agent 'a'").parse('{"result": NaN}')
    with pytest.raises(ToolOutputError, match="valid number"):
        OutputType(float, "Agent 'a'").check(float("nan"), "measure")


def test_a_tool_that_finishes_may_return_the_object_or_what_it_is_made_of() -> None:
    output: OutputType[Report] = OutputType(Report, "Agent 'x'")
    assert output.check(Report(title="Tides"), "publish") == output.check({"title": "Tides"}, "publish")
    with pytest.raises(ToolOutputError, match="The result of 'publish' was refused: title: Field required"):
        output.check({}, "publish")


def test_an_output_stored_before_the_type_changed_is_refused_by_name() -> None:
    with pytest.raises(ToolOutputError, match="title: Field required"):
        OutputType(Report, "Agent 'x'").load({"headline": "Tides"})


def test_a_type_that_no_model_could_fill_in_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"not a type that a model could fill in: [^\n`]*\.$"):
        OutputType(object(), "Agent 'x'")
