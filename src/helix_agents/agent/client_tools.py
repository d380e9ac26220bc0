"""Tools that do not run here: the client runs them, or a person answers, and the run waits without using a process."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, ParamSpec, TypeAlias, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from typing_extensions import TypeVar

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.choices import check_choice
from helix_agents.agent.docstrings import read_docstring
from helix_agents.agent.durations import Deadline, deadline_milliseconds
from helix_agents.agent.names import ASK_HUMAN, check_tool_name
from helix_agents.agent.schemas import SCHEMA_PROBLEMS, adapter_for, is_object, json_schema, jsonable, unfit
from helix_agents.agent.signatures import read_signature, written_function
from helix_agents.agent.tools import Tool, ToolInput, named_function, output_adapter
from helix_agents.domain.errors import DefinitionError, ToolOutputError, UnstorableValueError
from helix_agents.domain.parts import Content, in_plain
from helix_agents.domain.pending import OnDeadline
from helix_agents.domain.records import JSON, encode

P = ParamSpec("P")
R = TypeVar("R")
AnswerT = TypeVar("AnswerT", default=str)


@dataclass(frozen=True)
class DefaultAnswer:
    """The answer that is assumed when the deadline passes without one."""

    value: Any


WhenUnanswered: TypeAlias = Literal["timeout"] | DefaultAnswer


class InputType:
    """The input of a tool whose parameters are the fields of a type; the model does not choose the `fixed` ones."""

    def __init__(self, form: Any, subject: str, fixed: Mapping[str, JSON] | None = None) -> None:
        self._fixed = dict(fixed or {})
        try:
            self._adapter: TypeAdapter[Any] = adapter_for(form)
            self.schema = json_schema(self._adapter)
        except SCHEMA_PROBLEMS as problem:
            raise DefinitionError(
                subject, f"input={form!r} is not a type that JSON can be read into: {unfit(problem)}"
            ) from problem
        if not is_object(self.schema):
            raise DefinitionError(
                subject, "its input needs named fields; give a pydantic model, a dataclass or a TypedDict."
            )
        for name in self._fixed:
            self.schema["properties"].pop(name)

    def read(self, data: bytes | str) -> Any:
        """An object of the type; raises pydantic's `ValidationError`."""
        return self._adapter.validate_json(data)

    def parse(self, data: bytes | str) -> dict[str, JSON]:
        given = self._adapter.dump_python(self.read(data), mode="json", by_alias=True)
        return {**given, **self._fixed}

    def dump(self, values: Mapping[str, JSON]) -> dict[str, JSON]:
        return dict(values)


class Question(Tool[..., Any]):
    """A tool that a person answers."""

    def check_output(self, result: Any, given: Mapping[str, JSON]) -> Content:
        """As for any tool; if the question offers options, the answer has to be one of them."""
        answer = super().check_output(result, given)
        options: Sequence[JSON] = given.get("options") or ()
        if options and encode(answer.content) not in [encode(option) for option in options]:
            raise ToolOutputError(self.name, f"the answer has to be one of {', '.join(map(repr, options))}")
        return answer


@overload
def client_tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def client_tool(
    *,
    name: str,
    description: str,
    input: Any,
    output: Any = None,
    strict: bool | None = None,
    retries: int | None = None,
    deadline: Deadline = "inherit",
    on_deadline: WhenUnanswered = "timeout",
    available: AvailabilityPredicate | None = None,
) -> Tool[..., Any]: ...
@overload
def client_tool(
    *,
    name: str | None = None,
    description: str | None = None,
    output: Any = None,
    strict: bool | None = None,
    retries: int | None = None,
    deadline: Deadline = "inherit",
    on_deadline: WhenUnanswered = "timeout",
    available: AvailabilityPredicate | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def client_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input: Any = None,
    output: Any = None,
    strict: bool | None = None,
    retries: int | None = None,
    deadline: Deadline = "inherit",
    on_deadline: WhenUnanswered = "timeout",
    available: AvailabilityPredicate | None = None,
) -> Any:
    """Declare a tool that the client runs. The run waits until the result is submitted from outside.

    Either decorate a function without a body: its parameters are what the client gets, and its return type is what the
    client has to give back. Or pass everything by name:
    `client_tool(name=…, description=…, input=Place, output=Weather)`.

    Args:
        name: The name the model calls the tool by. Defaults to the function's name.
        description: What the model reads about the tool. Defaults to the docstring.
        input: A type whose fields are the tool's parameters.
        output: The type the client's result must have. Defaults to the function's return type.
        strict: Ask the provider to hold the model to the schema.
        retries: How many times per turn the model may correct its arguments. Defaults to the agent's `retries`.
        deadline: How long a call may wait; None means forever. Defaults to the agent's or the executor's deadline.
        on_deadline: What an unanswered call counts as.
        available: Decides before each model call whether the model may call the tool; see `tool`.

    Raises:
        DefinitionError: no model could call the tool, or its options contradict each other.
    """

    def define(called: str, about: str, takes: ToolInput, gives: Any, function: Callable[..., Any]) -> Tool[..., Any]:
        subject = f"Tool {called!r}"
        return _with_default_checked(
            Tool(
                name=called,
                description=about,
                input=takes,
                function=function,
                kind="client",
                strict=strict,
                retries=retries,
                deadline_ms=deadline_milliseconds(deadline, subject, "deadline"),
                on_deadline=_on_deadline(on_deadline, subject),
                output=output_adapter(gives, subject),
                available=available,
            ),
            {},
        )

    def define_from(function: Callable[..., Any]) -> Tool[..., Any]:
        called = named_function(function, name)
        documented = read_docstring(inspect.getdoc(written_function(function)))
        signature = read_signature(function, f"Tool {called!r}", documented.parameters)
        if signature.context is not None:
            raise DefinitionError(
                f"Tool {called!r}", f"the client runs it, so there is no context for {signature.context!r}."
            )
        gives = signature.returns if output is None else output
        return define(called, description or documented.description, signature, gives, function)

    if function is not None:
        return define_from(function)
    if input is None:
        return define_from
    called = check_tool_name(name or "")
    return define(called, description or "", InputType(input, f"Tool {called!r}"), output, _runs_elsewhere)


def ask_human(
    question: str | None = None,
    options: Sequence[Any] | None = None,
    answer: type[AnswerT] = str,
    *,
    name: str = ASK_HUMAN,
    description: str | None = None,
    deadline: Deadline = "inherit",
    on_deadline: WhenUnanswered = "timeout",
    available: AvailabilityPredicate | None = None,
) -> Tool[..., AnswerT]:
    """A tool with which the model asks a person a question. The run waits for the answer without using a process.

    The model decides whatever you leave out: `ask_human()` lets it write the question and offer options, while
    `ask_human("Which region?", options=["eu", "us"], name="ask_region")` asks exactly that.

    Args:
        question: The question for the person.
        options: The answers to choose from; the answer has to be one of them.
        answer: The type of the answer.
        name: The name the model calls the tool by. Two questions of one agent need two names.
        description: What the model reads about the tool.
        deadline: How long the question may wait; None means forever. Defaults to the agent's or the executor's
            deadline.
        on_deadline: What an unanswered question counts as.
        available: Decides before each model call whether the model may ask; see `tool`.

    Raises:
        DefinitionError: an option is not a possible answer, or the tool's arguments contradict each other.
    """
    called = name if name == ASK_HUMAN else check_tool_name(name)
    subject = f"Tool {called!r}"
    fixed: dict[str, JSON] = {} if question is None else {"question": question}
    if options is not None:
        fixed["options"] = _checked_options(options, answer, subject)
    about = "Ask the person you work for, and wait for the answer."
    return _with_default_checked(
        Question(
            name=called,
            description=description or (about if question is None else f"{about} The question is: {question}"),
            input=InputType(_question_form(question, options, answer), subject, fixed),
            function=_runs_elsewhere,
            kind="question",
            deadline_ms=deadline_milliseconds(deadline, subject, "deadline"),
            on_deadline=_on_deadline(on_deadline, subject),
            output=output_adapter(answer, subject),
            available=available,
        ),
        fixed,
    )


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _question_form(question: str | None, options: Sequence[Any] | None, answer: Any) -> type[BaseModel]:
    asks = Annotated[str, Field(description="What to ask, in words the person understands.")]
    offers = Annotated[
        list[answer] | None, Field(description="The answers to choose from; leave it out for a free answer.")
    ]
    fields: dict[str, Any] = {"question": (asks, ... if question is None else question)}
    # A fixed question without options is open; the model is not asked to narrow it down.
    if question is None or options is not None:
        fields["options"] = (offers, None)
    return create_model("Question", __base__=_Asked, **fields)


def _checked_options(options: Sequence[Any], answer: Any, subject: str) -> list[JSON]:
    if isinstance(options, str):
        raise DefinitionError(subject, f"options={options!r} is a text, not a list; write options=[{options!r}].")
    if not options:
        raise DefinitionError(subject, "options=[] allows no answer; leave it out for a free answer.")
    try:
        plain = jsonable(list(options))
    except UnstorableValueError as problem:
        raise DefinitionError(subject, f"an option has no JSON form: {problem.reason}") from problem
    check = output_adapter(answer, subject)
    for option in plain:
        try:
            _ = check and check.validate_json(encode(option))
        except ValueError as problem:
            raise DefinitionError(subject, f"option {option!r} does not fit answer={answer.__name__}.") from problem
    return plain


def _on_deadline(when: WhenUnanswered, subject: str) -> OnDeadline:
    if not isinstance(when, DefaultAnswer):
        check_choice(
            subject, "on_deadline", when, ("timeout",), other=' or a DefaultAnswer(…); "deny" is for approvals'
        )
        return OnDeadline(action=when)
    try:
        return OnDeadline(action="default", default=jsonable(in_plain(when.value)))
    except UnstorableValueError as problem:
        raise DefinitionError(subject, f"its default answer has no JSON form: {problem.reason}") from problem


ToolT = TypeVar("ToolT", bound=Tool[..., Any])


def _with_default_checked(tool: ToolT, given: Mapping[str, JSON]) -> ToolT:
    if tool.on_deadline.action == "default":
        try:
            tool.check_output(tool.on_deadline.default, given)
        except ToolOutputError as problem:
            raise DefinitionError(
                tool.subject, f"its default answer is refused by its own output type: {problem.problem}."
            ) from problem
    return tool


def _runs_elsewhere(*_: object, **__: object) -> NoReturn:
    raise TypeError("a client runs this tool; here it has no function to call")
