"""Inputs and outputs from a declaration: models that check them, and JSON schemas that describe them."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, create_model

from helix_agents.agent.schemas import json_schema, sentence
from helix_agents.agent.signatures import Arguments, Signature
from helix_agents.capabilities.declaring import Capability
from helix_agents.capabilities.declaring import Field as Declared
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.records import JSON, check_json, encode

_TYPES: dict[str, Any] = {
    "String": str,
    "Integer": int,
    "Boolean": bool,
    "Number": float,
    "Object": Any,
    "Array": list[Any],
    "DateTime": str,
}
_SCHEMAS: dict[str, dict[str, JSON]] = {
    "String": {"type": "string"},
    "Integer": {"type": "integer"},
    "Boolean": {"type": "boolean"},
    "Number": {"type": "number"},
    "Object": {},
    "Array": {"type": "array"},
    "DateTime": {"type": "string", "format": "date-time"},
}
CONTEXT = "ctx"


class Inputs(Arguments):
    """The inputs of one call."""

    model_config = ConfigDict(extra="forbid", strict=True)


@cache
def signature_of(capability: Capability) -> Signature:
    """The inputs as the engine and every other interface check them."""
    fields: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    for number, declared in enumerate(capability.inputs):
        fields[f"p{number}"] = (_type(declared), Field(**_options(declared)))
        parameters[f"p{number}"] = declared.name
    model = create_model("Inputs", __base__=Inputs, **fields)
    return Signature(
        arguments=model,
        parameters=parameters,
        context=CONTEXT,
        schema=_compact(json_schema(model)),
    )


def check_inputs(capability: Capability, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with their defaults.

    Raises:
        InvalidInput: the inputs do not match the declaration.
    """
    try:
        check_json(dict(given), "input")
        return signature_of(capability).parse(encode(dict(given)))
    except UnstorableValueError as problem:
        raise InvalidInput(str(problem), {"capability": capability.name}) from problem
    except ValidationError as problem:
        raise InvalidInput(sentence(problem), {"capability": capability.name}) from problem


def input_schema(capability: Capability) -> dict[str, JSON]:
    """The JSON schema of the inputs."""
    return signature_of(capability).schema


def output_schema(capability: Capability) -> dict[str, JSON]:
    """The JSON schema of the outputs; null stands for a missing value."""
    properties: dict[str, JSON] = {}
    for declared in capability.outputs:
        schema = dict(_SCHEMAS[declared.kind])
        if declared.kind in ("String", "DateTime"):
            schema["type"] = ["string", "null"]
        properties[declared.name] = schema
    return {"type": "object", "properties": properties, "required": [each.name for each in capability.outputs]}


def _type(declared: Declared) -> Any:
    if declared.choices:
        kind: Any = Literal[declared.choices]
    else:
        kind = _TYPES[declared.kind]
    return kind if declared.required or declared.default is not None or declared.kind == "Object" else kind | None


def _options(declared: Declared) -> dict[str, Any]:
    options: dict[str, Any] = {"alias": declared.name, "description": declared.description}
    if not declared.required:
        options["default"] = declared.default
    if declared.least is not None:
        options["ge"] = declared.least
    if declared.most is not None:
        options["le"] = declared.most
    return options


def _compact(schema: dict[str, JSON]) -> dict[str, JSON]:
    """The schema without the alternatives for null: an optional input can be left out."""
    properties: dict[str, JSON] = {}
    for name, given in schema.get("properties", {}).items():
        found = dict(given)
        choices = found.pop("anyOf", None)
        if choices is not None:
            found |= next(choice for choice in choices if choice.get("type") != "null")
        if found.get("default", 0) is None:
            del found["default"]
        found.pop("items", None)
        properties[name] = found
    return {**schema, "properties": properties}
