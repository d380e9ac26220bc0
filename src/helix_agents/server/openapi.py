"""The OpenAPI document, generated from the table of routes, so that it cannot promise what the server does not do."""

from inspect import getdoc
from typing import Any, cast

import msgspec

from helix_agents.domain.records import Record
from helix_agents.server.answers import Health
from helix_agents.server.bodies import Body
from helix_agents.server.body_rules import RULES
from helix_agents.server.errors import ErrorBody
from helix_agents.server.operations import OPERATIONS, STREAM, Operation
from helix_agents.server.wire import camel

REF = "#/components/schemas/{name}"
# One event of a stream; its data is JSON, or the [DONE] that ends a chat stream.
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("data", "event", "id")},
    "required": ["data"],
}
# Possible for every caller: not authenticated, not allowed, or this instance cannot serve the request.
ALWAYS = (401, 403, 500, 503)
_IN_PATHS = {"session_id": "sessionId", "run_id": "runId", "schedule_id": "scheduleId"}
"""The public names of path parameters."""


def document(version: str) -> dict[str, Any]:
    """The routes of this server, as OpenAPI 3.1."""
    kinds = _kinds()
    shown, components = msgspec.json.schema_components(kinds, ref_template=REF)
    schemas = dict(zip(map(_key, kinds), shown, strict=True))
    for kind, rules in RULES.items():
        components[kind.__name__]["allOf"] = [rules]
    wire = _on_the_wire(kinds)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        path = _written(operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, schemas)
    for path, summary in (
        ("/healthz", "Whether the process is alive."),
        ("/readyz", "Whether the instance can serve requests."),
    ):
        paths[path] = {"get": _health(summary, schemas[_key(Health)])}
    paths["/openapi.json"] = {"get": _itself()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Helix Agents", "version": version},
        "paths": paths,
        "components": {
            "schemas": {name: _camelled(schema) if name in wire else schema for name, schema in components.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _kinds() -> list[Any]:
    kinds: dict[Any, Any] = {_key(ErrorBody): ErrorBody, _key(Health): Health}
    for operation in OPERATIONS:
        for kind in (operation.body, operation.answer, operation.errors.body):
            if kind is not None and kind != STREAM:
                kinds[_key(kind)] = kind
    return list(kinds.values())


def _key(kind: Any) -> str:
    return str(kind)


def _on_the_wire(kinds: list[Any]) -> set[str]:
    """The records whose fields become camelCase in responses; bodies are declared that way."""
    _, components = msgspec.json.schema_components(
        [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Record) and not issubclass(kind, Body)],
        ref_template=REF,
    )
    return set(components)


def _camelled(schema: dict[str, Any]) -> dict[str, Any]:
    """A record's schema in its written form: names in camelCase, and fields without a value left out."""
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
    changed = {camel(name): _without_null(each) for name, each in properties.items()}
    # A field is written even if it holds its default; only None is left out.
    required = [camel(name) for name, each in properties.items() if not _may_be_missing(each)]
    return {**schema, "properties": changed, "required": required}


def _may_be_missing(schema: dict[str, Any]) -> bool:
    if not schema.keys() - {"default", "description"}:
        return True
    return any(each.get("type") == "null" for each in schema.get("anyOf", ())) or schema.get("type") == "null"


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "anyOf" not in kept:
        return kept
    options = [each for each in kept.pop("anyOf") if each.get("type") != "null"]
    return {**kept, **options[0]} if len(options) == 1 else {**kept, "anyOf": options}


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    summary, _, more = (getdoc(operation.handler) or "").partition("\n")
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "tags": [operation.tag],
        "summary": summary,
        "responses": _responses(operation, schemas),
    }
    if more:
        described["description"] = " ".join(more.split())
    if operation.parameters:
        described["parameters"] = [
            {
                "name": _IN_PATHS.get(parameter.name, parameter.name),
                "in": parameter.place,
                "required": parameter.required,
                "schema": parameter.schema,
                "description": parameter.description,
            }
            for parameter in operation.parameters
        ]
    if operation.body is not None:
        body = {"schema": schemas[_key(operation.body)]}
        described["requestBody"] = {"required": True, "content": {"application/json": body}}
    return described


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if operation.answer == STREAM:
        responses["200"] = {
            "description": "A stream.",
            "content": {"text/event-stream": {"schema": EVENT}},
        }
    elif operation.answer is not None:
        answer = {"schema": schemas[_key(operation.answer)]}
        events = {"text/event-stream": {"schema": EVENT}} if operation.may_stream else {}
        responses["200"] = {"description": "Success.", "content": {"application/json": answer, **events}}
    if operation.may_be_accepted:
        responses["202"] = {"description": "Accepted."}
    if operation.may_be_empty:
        responses["204"] = {"description": "No content."}
    refused = {"schema": schemas[_key(operation.errors.body)]}
    for status in sorted({*operation.refusals, *ALWAYS}):
        responses[str(status)] = {"description": "Refused.", "content": {"application/json": refused}}
    return responses


def _health(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    answer = {"content": {"application/json": {"schema": schema}}}
    responses = {"200": {"description": "Yes.", **answer}, "503": {"description": "No.", **answer}}
    return {"summary": summary, "tags": ["health"], "security": [], "responses": responses}


def _itself() -> dict[str, Any]:
    answer = {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    refused = {"content": {"application/json": {"schema": {"$ref": REF.format(name="ErrorBody")}}}}
    responses: dict[str, Any] = {str(status): {"description": "Refused.", **refused} for status in ALWAYS}
    return {
        "summary": "The OpenAPI document of this server.",
        "tags": ["health"],
        "responses": {"200": answer, **responses},
    }


def _written(path: str) -> str:
    for name, outside in _IN_PATHS.items():
        path = path.replace(f"{{{name}}}", f"{{{outside}}}")
    return path
