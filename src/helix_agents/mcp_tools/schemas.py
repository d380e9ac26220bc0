"""Input schemas written by others: as a model gets them, and what is certain about arguments before a call."""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import islice
from typing import Any, cast

from pydantic import TypeAdapter

from helix_agents.agent.schemas import MOST_PROBLEMS, DoesNotFitError
from helix_agents.domain.errors import MissingExtraError
from helix_agents.domain.records import JSON
from helix_agents.domain.texts import storable

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_COMBINING = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("not", "if", "then", "else", "enum", "const")
_LONGEST_PROBLEM = 300
_LEFT_OUT = ("pattern", "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")


class SchemaInput:
    """The input of a tool whose JSON schema someone else wrote.

    The model sees that schema, as far as providers accept it. Only what is certainly wrong is rejected here; the server
    has the last word.
    """

    def __init__(self, schema: Mapping[str, JSON]) -> None:
        self._given = dict(schema)
        self.schema = legal_schema(self._given)
        # Loading it takes a while, and must not keep a run waiting.
        _checks()

    def parse(self, data: bytes | str) -> dict[str, JSON]:
        """The arguments in a JSON object; raises `DoesNotFitError`, or pydantic's `ValidationError`."""
        values = _OBJECT.validate_json(data)
        problems = self._problems(values)
        if problems:
            raise DoesNotFitError(storable("; ".join(problems)))
        return values

    def dump(self, values: Mapping[str, JSON]) -> dict[str, JSON]:
        """The arguments as they are."""
        return dict(values)

    @cached_property
    def _validator(self) -> Any:
        return _checks()(self._given)

    def _problems(self, values: dict[str, JSON]) -> list[str]:
        try:
            return [_sentence(error) for error in islice(self._validator.iter_errors(values), MOST_PROBLEMS)]
        except Exception:
            # A schema that cannot be followed here says nothing against the arguments.
            return []


def legal_schema(given: Mapping[str, JSON]) -> dict[str, JSON]:
    """The schema in a form that every provider accepts for parameters: an object with named properties at the top.

    A schema that already has this form is unchanged. Alternatives at the top, which no provider accepts, are replaced
    by what any of them allows.
    """
    schema = dict(given)
    reference = schema.get("$ref")
    target = _resolved(schema, reference) if isinstance(reference, str) else None
    if target is not None:
        del schema["$ref"]
        schema = {**target, **schema}
    properties: dict[str, JSON] = dict(_mapping(schema.get("properties")))
    required = _texts(schema.get("required"))
    for word in _COMBINING:
        branches = [_branch(schema, each) for each in _sequence(schema.pop(word, None))]
        for branch in branches:
            properties = {**_mapping(branch.get("properties")), **properties}
        every = [_texts(branch.get("required")) for branch in branches]
        required += [
            name for names in every for name in names if word == "allOf" or all(name in each for each in every)
        ]
    for word in _CONDITIONS:
        schema.pop(word, None)
    schema |= {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(dict.fromkeys(required))
    return schema


def _branch(schema: Mapping[str, JSON], branch: JSON) -> Mapping[str, JSON]:
    found = _mapping(branch)
    reference = found.get("$ref")
    return (_resolved(schema, reference) or {}) if isinstance(reference, str) else found


def _resolved(schema: Mapping[str, JSON], reference: str) -> dict[str, JSON] | None:
    """What a reference within the schema points to."""
    if not reference.startswith("#/"):
        return None
    found: JSON = schema
    for step in reference[2:].split("/"):
        found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return dict(cast("dict[str, JSON]", found)) if isinstance(found, dict) else None


def _mapping(value: JSON) -> Mapping[str, JSON]:
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else {}


def _sequence(value: JSON) -> list[JSON]:
    return cast("list[JSON]", value) if isinstance(value, list) else []


def _texts(value: JSON) -> list[str]:
    return [each for each in _sequence(value) if isinstance(each, str)]


def _sentence(error: Any) -> str:
    where = ".".join(str(step) for step in error.absolute_path)
    what = str(error.message)[:_LONGEST_PROBLEM]
    return f"{where}: {what}" if where else what


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@cache
def _checks() -> Any:
    """Creates a validator of a schema. It follows no reference to elsewhere, and leaves out what it could understand
    differently than the server, or take forever on: regular expressions have another dialect there.

    Raises:
        MissingExtraError: the extra `mcp` is not installed.
    """
    try:
        validators: Any = import_module("jsonschema.validators")
        nowhere: Any = import_module("referencing").Registry()
    except ImportError:
        raise MissingExtraError("A tool of an MCP server", "mcp") from None
    whole: Any = validators.Draft202012Validator

    def additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema:
            return iter(())
        return whole.VALIDATORS["additionalProperties"](validator, allowed, instance, schema)

    lenient = validators.extend(whole, {**dict.fromkeys(_LEFT_OUT, _nothing), "additionalProperties": additional})
    return partial(lenient, registry=nowhere)
