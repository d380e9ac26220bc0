"""Reads a function's signature: which arguments a model may pass, and where the engine puts the context."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Secret,
    SecretBytes,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from pydantic.fields import FieldInfo

from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.schemas import REFUSALS, SCHEMA_PROBLEMS, json_schema, no_json_form, shown, unfit
from helix_agents.domain.errors import DefinitionError, UnstorableValueError
from helix_agents.domain.records import JSON, encode

NOTHING: Any = inspect.Signature.empty
"""Stands for a missing annotation."""

_MASKED = b"**********"
"""How pydantic writes a secret."""


class Arguments(BaseModel):
    """What a model passed to one call. Fields have made-up names, so that no parameter's name can clash with ours."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A function as a tool: the model fills in all parameters except the context."""

    arguments: type[Arguments]
    parameters: dict[str, str]
    context: str | None = None
    wanted_state: Any = NOTHING
    wanted_deps: Any = NOTHING
    returns: Any = NOTHING
    by_position: tuple[str, ...] = ()
    schema: dict[str, JSON] = field(repr=False)

    def parse(self, data: bytes | str) -> dict[str, Any]:
        """The parameters' values in a JSON object; raises pydantic's `ValidationError`."""
        given = self.arguments.model_validate_json(data)
        return {name: getattr(given, made_up) for made_up, name in self.parameters.items()}

    def dump(self, values: Mapping[str, Any]) -> dict[str, JSON]:
        """The values as JSON that `parse` reads back."""
        given = {made_up: values[name] for made_up, name in self.parameters.items()}
        try:
            return self._dumped(given)
        except REFUSALS:
            return {name: self._shown(made_up, given[made_up]) for made_up, name in self.parameters.items()}

    def dump_given(self, values: Mapping[str, Any]) -> dict[str, JSON]:
        """Only the values that were given, as JSON that `parse` reads back; raises if they have no JSON form."""
        given = {made_up: values[name] for made_up, name in self.parameters.items() if name in values}
        arguments = self.arguments.model_construct(**given)
        dumped = arguments.model_dump(
            mode="json", include=set(given), by_alias=True, round_trip=True, warnings=False, fallback=no_json_form
        )
        if _MASKED in encode(dumped) and _has_secret(arguments.model_dump(include=set(given))):
            problem = "a secret is not written down; the tool gets it from what its process knows, such as ctx.deps"
            raise UnstorableValueError("argument", problem)
        return dumped

    def _dumped(self, given: Mapping[str, Any]) -> dict[str, JSON]:
        arguments = self.arguments.model_construct(**given)
        dumped = arguments.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False, fallback=repr)
        encode(dumped)
        return dumped

    def _shown(self, made_up: str, value: Any) -> JSON:
        """One value as JSON, or its repr if it has no JSON form."""
        try:
            return self._dumped({made_up: value})[self.parameters[made_up]]
        except REFUSALS:
            return shown(value)

    def bind(self, function: Callable[..., Any], context: Any, values: Mapping[str, Any]) -> Callable[[], Any]:
        """The function with everything it needs, ready to be called."""
        given = dict(values) if self.context is None else {**values, self.context: context}
        positional = [given.pop(name) for name in self.by_position]
        return functools.partial(function, *positional, **given)


def _has_secret(value: object) -> bool:
    match value:
        case Mapping():
            return any(map(_has_secret, cast("Mapping[Any, object]", value).values()))
        case list() | tuple() | set() | frozenset():
            return any(map(_has_secret, cast("Iterable[object]", value)))
        case _:
            return isinstance(value, Secret | SecretStr | SecretBytes)


def read_signature(function: Callable[..., Any], subject: str, texts: Mapping[str, str]) -> Signature:
    """What a function takes; `texts` describes its parameters.

    Raises:
        DefinitionError: no model could call it; says why.
    """
    hints = _hints(function, subject)
    context: str | None = None
    wanted: tuple[Any, Any] = (NOTHING, NOTHING)
    fields: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    by_position: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = hints.get(name, NOTHING)
        _check_parameter(parameter, annotation, subject)
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            by_position.append(name)
        if (named := _named_by_context(annotation)) is not None:
            if context is not None:
                raise DefinitionError(subject, f"{context!r} and {name!r} are both contexts; one is enough.")
            context, wanted = name, named
            continue
        made_up = f"p{len(fields)}"
        fields[made_up] = _field(name, annotation, parameter.default, texts.get(name))
        parameters[made_up] = name
    arguments, schema = _model(fields, parameters, subject)
    return Signature(
        arguments=arguments,
        parameters=parameters,
        context=context,
        wanted_state=wanted[0],
        wanted_deps=wanted[1],
        returns=hints.get("return", NOTHING),
        by_position=tuple(by_position),
        schema=schema,
    )


def written_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as its author wrote it, underneath partials and callable objects."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    return target if inspect.isroutine(target) else type(target).__call__


def _hints(function: Callable[..., Any], subject: str) -> dict[str, Any]:
    try:
        return get_type_hints(written_function(function), include_extras=True)
    except NameError as problem:
        raise DefinitionError(
            subject,
            f"an annotation cannot be resolved: {problem}. Types in a tool's signature are needed at run time: "
            "define them at module level and import them outside `if TYPE_CHECKING`.",
        ) from problem


def _check_parameter(parameter: inspect.Parameter, annotation: Any, subject: str) -> None:
    name = parameter.name
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise DefinitionError(
            subject,
            f"a model cannot fill {stars}{name}; give every argument a name and a type. A decorator between the "
            "function and @tool needs functools.wraps.",
        )
    if annotation is NOTHING and name in ("self", "cls"):
        raise DefinitionError(
            subject, "it is a method that is not bound to an object; bind it first: tool(my_object.method)."
        )
    if annotation is NOTHING:
        raise DefinitionError(
            subject, f"parameter {name!r} has no type, so a model cannot know what to pass; annotate it."
        )


def _named_by_context(annotation: Any) -> tuple[Any, Any] | None:
    """The types of state and deps that a context annotation names (`NOTHING` where it names none); None for any other
    annotation."""
    # `type Ctx = ToolContext[Notes]` hides the type it stands for.
    annotation = getattr(annotation, "__value__", annotation)
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if (get_origin(annotation) or annotation) not in (ToolContext, RunContext):
        return None
    state, deps, *_ = (*get_args(annotation), NOTHING, NOTHING)
    return state, deps


def _field(name: str, annotation: Any, default: Any, text: str | None) -> tuple[Any, Any]:
    described = any(isinstance(part, FieldInfo) and part.description for part in (default, *get_args(annotation)[1:]))
    own: dict[str, Any] = {"alias": name}
    if text and not described:
        own["description"] = text
    if default is None and type(None) not in get_args(annotation):
        annotation = Annotated[annotation, WrapValidator(_null_if_refused)]
    return Annotated[annotation, Field(**own)], ... if default is NOTHING else default


def _null_if_refused(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """`limit: int = None` uses None for a missing value, so the null that is stored for it has to be accepted too."""
    try:
        return check(value)
    except ValidationError:
        if value is None:
            return None
        raise


def _model(
    fields: dict[str, Any], parameters: Mapping[str, str], subject: str
) -> tuple[type[Arguments], dict[str, JSON]]:
    try:
        return _checked_model(fields)
    except SCHEMA_PROBLEMS:
        for made_up, field in fields.items():
            try:
                _checked_model({made_up: field})
            except SCHEMA_PROBLEMS as problem:
                raise DefinitionError(
                    subject,
                    f"parameter {parameters[made_up]!r} has a type that JSON cannot be read into: {unfit(problem)} "
                    "A tool on the server gets what a model cannot provide from ctx.deps.",
                ) from problem
        raise


def _checked_model(fields: dict[str, Any]) -> tuple[type[Arguments], dict[str, JSON]]:
    model = create_model("Arguments", __base__=Arguments, **fields)
    return model, json_schema(model)
