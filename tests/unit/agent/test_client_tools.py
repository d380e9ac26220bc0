"""Client tools and questions wait for somebody outside; what comes back is checked against what was declared."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from helix_agents.agent.client_tools import DefaultAnswer, ask_human, client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.errors import DefinitionError, ToolInputError, ToolOutputError
from helix_agents.domain.pending import OnDeadline


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str = Field(description="The city.")
    country: str = "de"


@client_tool
def pick_files(folder: str, most: int = 3) -> list[str]:
    """Let the person pick files.

    Args:
        folder: Where to start.
    """
    raise NotImplementedError


def nothing_typed(folder) -> None:
    """Pick."""


def with_context(ctx: ToolContext, folder: str) -> None:
    """Pick."""


def test_a_function_without_a_body_says_what_the_client_gets_and_gives_back() -> None:
    assert pick_files.kind == "client"
    assert pick_files.waits
    assert pick_files.spec().parameters["properties"]["folder"] == {"type": "string", "description": "Where to start."}
    given = pick_files.parse({"folder": "/"})
    assert pick_files.dump_input(given) == {"folder": "/", "most": 3}
    assert pick_files.check_output(["a.txt"], given).content == ["a.txt"]
    with pytest.raises(ToolOutputError, match="0: Input should be a valid string, got 3"):
        pick_files.check_output([3], given)


def test_everything_can_be_named_without_a_function() -> None:
    weather = client_tool(name="weather", description="The weather.", input=Place, output=dict[str, float], strict=True)
    assert weather.spec().parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "country": {"type": "string", "default": "de"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    given = weather.parse({"city": "Kiel"})
    assert given == weather.dump_input(given) == weather.parse(given) == {"city": "Kiel", "country": "de"}
    assert weather.check_output({"wind": 3}, given).content == {"wind": 3.0}
    with pytest.raises(ToolInputError, match="city: Field required"):
        weather.parse("")
    with pytest.raises(TypeError, match="a client runs this tool"):
        weather(city="Kiel")


def test_without_a_declared_type_any_result_is_taken() -> None:
    @client_tool(deadline=timedelta(minutes=1))
    def show(text: str):
        """Show a text."""

    assert show.check_output({"any": ["thing"]}, {}).content == {"any": ["thing"]}
    assert show.check_output(Place(city="Kiel"), {}).content == {"city": "Kiel", "country": "de"}
    with pytest.raises(ToolOutputError, match="cannot be stored as JSON"):
        show.check_output(object(), {})


def test_a_default_answer_takes_the_place_of_one_that_never_came() -> None:
    made = client_tool(deadline=60, on_deadline=DefaultAnswer([]))(pick_files.function)
    assert (made.deadline_ms, made.on_deadline) == (60_000, OnDeadline(action="default", default=[]))


# ---- questions


def test_without_a_question_the_model_writes_one_and_may_offer_options() -> None:
    ask = ask_human()
    assert (ask.name, ask.kind) == ("ask_human", "question")
    assert list(ask.spec().parameters["properties"]) == ["question", "options"]
    assert ask.spec().parameters["required"] == ["question"]
    open_question = ask.parse({"question": "Why?"})
    assert ask.check_output("Because.", open_question).content == "Because."
    choice = ask.parse({"question": "Which?", "options": ["eu", "us"]})
    assert ask.check_output("eu", choice).content == "eu"
    with pytest.raises(ToolOutputError, match="one of 'eu', 'us'"):
        ask.check_output("asia", choice)


def test_a_fixed_question_leaves_the_model_nothing_to_write() -> None:
    ask = ask_human("Which region?", options=["eu", "us"], name="ask_region")
    assert ask.spec().parameters["properties"] == {}
    assert ask.description.endswith("The question is: Which region?")
    shown = {"question": "Which region?", "options": ["eu", "us"]}
    assert ask.parse({}) == ask.parse(shown) == shown
    assert ask.parse({"question": "Shall I?", "options": ["yes"]}) == shown, "the author decides what is asked"
    with pytest.raises(ToolOutputError):
        ask.check_output("asia", shown)


def test_a_fixed_question_without_options_is_open() -> None:
    assert ask_human("Why?").parse("{}") == {"question": "Why?"}


def test_fixed_options_go_with_a_question_of_the_model() -> None:
    ask = ask_human(options=[1, 2], answer=int)
    assert list(ask.spec().parameters["properties"]) == ["question"]
    given = ask.parse({"question": "How many?"})
    assert given == {"question": "How many?", "options": [1, 2]}
    assert ask.check_output(2, given).content == 2


@pytest.mark.parametrize(
    ("answer", "good", "stored", "bad"),
    [
        (str, "text", "text", 3),
        (int, 3, 3, "many"),
        (bool, True, True, "perhaps"),
        (Place, {"city": "Kiel"}, {"city": "Kiel", "country": "de"}, {"town": "Kiel"}),
        (Literal["yes", "no"], "yes", "yes", "maybe"),
    ],
)
def test_an_answer_has_to_be_of_the_declared_type(answer: Any, good: Any, stored: Any, bad: Any) -> None:
    ask = ask_human("Well?", answer=answer)
    assert ask.check_output(good, {"question": "Well?"}).content == stored
    with pytest.raises(ToolOutputError):
        ask.check_output(bad, {"question": "Well?"})


# ---- what is refused at definition


def a_client_tool(**options: Any) -> Tool[..., Any]:
    return client_tool(name="x", description="X.", input=Place, **options)


@pytest.mark.parametrize(
    ("define", "teaches"),
    [
        (lambda: client_tool(nothing_typed), "parameter 'folder' has no type"),
        (lambda: client_tool(with_context), "there is no context for 'ctx'"),
        (lambda: client_tool(tool(name="y", description="Y.")(pick_files.function)), "is already a tool"),
        (lambda: client_tool(name="workspace_x", description="X.", input=Place), "built-in tool"),
        (lambda: client_tool(name="x", description="", input=Place), "write a docstring"),
        (lambda: client_tool(name="x", description="X.", input=int), "needs named fields"),
        (lambda: client_tool(name="x", description="X.", input=object()), "not a type that JSON can be read into"),
        (lambda: a_client_tool(output=object()), "not a type pydantic can check"),
        (lambda: a_client_tool(output=int, on_deadline=DefaultAnswer("x")), "refused by its own output type"),
        (lambda: a_client_tool(on_deadline=DefaultAnswer(object())), "no JSON form"),
        (lambda: a_client_tool(on_deadline="deny"), "is for approvals"),
        (lambda: a_client_tool(on_deadline="late"), "on_deadline='late' is not one of"),
        (lambda: a_client_tool(on_deadline=DefaultAnswer(1), deadline=None), "has no effect without a deadline"),
        (lambda: ask_human("?", options=[]), "allows no answer"),
        (lambda: ask_human("?", options="yes"), r"options='yes' is a text, not a list; write options=\['yes'\]"),
        (lambda: ask_human("?", options=["one"], answer=int), "option 'one' does not fit answer=int"),
        (lambda: ask_human("?", options=[object()]), "no JSON form"),
        (lambda: ask_human("?", ["a"], on_deadline=DefaultAnswer("b")), "one of 'a'"),
        (lambda: ask_human("?", name="load_skill"), "built-in tool"),
        (
            lambda: Tool(
                name="x", description="X.", input=pick_files.input, function=print, kind="client", finish_with=True
            ),
            "cannot be finish_with",
        ),
        (
            lambda: Tool(
                name="x", description="X.", input=pick_files.input, function=print, kind="client", require_approval=True
            ),
            "a person is asked anyway",
        ),
    ],
)
def test_a_client_tool_that_cannot_work_is_refused_with_a_reason(define: Callable[[], Any], teaches: str) -> None:
    with pytest.raises(DefinitionError, match=teaches):
        define()
