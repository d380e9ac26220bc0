"""What pydantic knows about a type, in words a model understands: a JSON schema, and a sentence about a mistake."""

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from helix_agents.agent.failures import ControlFlow, RetryOutput, RetryTool, ToolFailed
from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.messages import File, Image, Text, says_nothing
from helix_agents.domain.parts import Content, in_json, parts_of
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.texts import said_by, storable

SCHEMA_PROBLEMS = (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError)
"""What pydantic raises for a type it cannot work with."""

REFUSALS = (Exception, RetryOutput, RetryTool, ToolFailed)
"""What handling a value of a user's type can raise: its validators and serialisers are user code, and pydantic treats
only some exceptions as a verdict on the value."""

MOST_PROBLEMS = 8
"""How many mistakes a model is shown at once."""
_LONGEST_VALUE = 80


class DoesNotFitError(ValueError):
    """A value does not match a schema that is not backed by one of our types; the text says everything."""


class _ModelFacingSchema(GenerateJsonSchema):
    """Leaves out titles made from names, which only repeat the names, and anything only a Python reader needs."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(form: TypeAdapter[Any] | type[BaseModel]) -> dict[str, JSON]:
    """The JSON schema of what the type accepts, never hidden behind a reference at the top."""
    if isinstance(form, TypeAdapter):
        schema = form.json_schema(schema_generator=_ModelFacingSchema)
    else:
        schema = form.model_json_schema(schema_generator=_ModelFacingSchema)
    schema.pop("title", None)
    # A recursive type is a bare reference; providers want to see an object.
    reference = schema.get("$ref")
    if isinstance(reference, str):
        own = schema["$defs"][reference.rpartition("/")[2]]
        schema = {**{key: value for key, value in own.items() if key != "title"}, "$defs": schema["$defs"]}
    return schema


def is_object(schema: dict[str, JSON]) -> bool:
    """Whether every value of the schema is a JSON object, as the arguments of a tool have to be."""
    return schema.get("type") == "object"


def arguments_json(arguments: Mapping[str, JSON] | str) -> bytes | str:
    """A call's arguments as a JSON document."""
    if not isinstance(arguments, str):
        return encode(dict(arguments))
    return "{}" if says_nothing(arguments) else arguments.strip()


def adapter_for(form: Any) -> TypeAdapter[Any]:
    """The validator and serialiser of a type; raises one of `SCHEMA_PROBLEMS` if pydantic cannot handle the type."""
    return TypeAdapter(form)


def unfit(problem: Exception) -> str:
    """Pydantic's objection to a type, without its advice, which would not help here."""
    line = str(problem).strip().partition("\n")[0]
    return line.partition(" Set `arbitrary_types_allowed")[0].rstrip(".") + "."


def sentence(problem: ValidationError) -> str:
    """What is wrong with a value, field by field, short enough for a model to read."""
    errors = problem.errors(include_url=False, include_context=False)
    parts: list[str] = []
    for error in errors[:MOST_PROBLEMS]:
        where = ".".join(str(step) for step in error["loc"])
        what = error["msg"].rstrip(".")
        if error["type"] not in ("missing", "json_invalid", "extra_forbidden"):
            what += f", got {shown(error['input'])}"
        parts.append(f"{where}: {what}" if where else what)
    if len(errors) > MOST_PROBLEMS:
        parts.append(f"and {len(errors) - MOST_PROBLEMS} more")
    return storable("; ".join(parts))


def shown(value: object) -> str:
    """A value of any kind in a few words."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def refusal(problem: BaseException) -> str:
    """A type's objection to a value, whichever of `REFUSALS` it raised."""
    match problem:
        case ValidationError():
            return sentence(problem)
        case UnstorableValueError():
            return problem.reason
        case PydanticSerializationError() | ControlFlow() | DoesNotFitError():
            return said_by(problem)
        case _:
            return f"{type(problem).__name__}: {said_by(problem)}"


def no_json_form(value: Any) -> NoReturn:
    """Refuse a value that pydantic cannot write as JSON."""
    if isinstance(value, Text | Image | File):
        problem = "inside other data it is not shown to a model; return it by itself, or in a list with texts"
        raise UnstorableValueError(type(value).__name__, problem)
    raise PydanticSerializationError(f"Unable to serialize unknown type: {type(value)}")


def jsonable(value: Any) -> JSON:
    """The value in a form that JSON can carry; a string stays as it is.

    Raises:
        UnstorableValueError: it contains something with no JSON form, refers to itself, or is not valid text.
    """
    try:
        plain = value if type(value) is str else to_jsonable_python(value, inf_nan_mode="null", fallback=no_json_form)
    except UnstorableValueError:
        raise
    except REFUSALS as problem:
        raise UnstorableValueError(type(value).__name__, refusal(problem)) from problem
    # Anything that cannot be encoded has to be found here, where it can be reported, and not in a commit.
    encode(plain)
    return plain


def content_of(value: Any) -> Content:
    """What a function returned, as a tool message holds it: texts, images and files are shown to the model, and
    anything else is data.

    Raises:
        UnstorableValueError: as `jsonable` does.
    """
    if type(value) is str:
        return Content(jsonable(value))
    parts = parts_of(value)
    return Content(jsonable(value)) if parts is None else in_json(parts)
