"""What a server says of its arguments reaches the model as it is, and is held against arguments where that is sure."""

import json
import subprocess
import sys
from typing import Any

import pytest

from helix_agents.agent.schemas import DoesNotFitError
from helix_agents.mcp_tools.schemas import SchemaInput, legal_schema

ORDINARY = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "title": "Order",
    "properties": {"title": {"type": "string", "minLength": 1}, "copies": {"$ref": "#/definitions/Copies"}},
    "required": ["title"],
    "definitions": {"Copies": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


def test_an_ordinary_schema_stays_as_it_is() -> None:
    assert legal_schema(ORDINARY) == ORDINARY
    assert list(legal_schema(ORDINARY)) == list(ORDINARY)


LEGAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"type": "object", "properties": {}}),
    "no properties": ({"type": "object"}, {"type": "object", "properties": {}}),
    "a reference": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}},
        {
            "type": "object",
            "properties": {"a": {}},
            "required": ["a"],
            "$defs": {"A": {"type": "object", "properties": {"a": {}}, "required": ["a"]}},
        },
    ),
    "any of two": (
        {
            "anyOf": [
                {"properties": {"a": {}, "c": {}}, "required": ["a", "c"]},
                {"properties": {"b": {}, "c": {}}, "required": ["b", "c"]},
            ]
        },
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["c"]},
    ),
    "all of two": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"$ref": "#/$defs/B"}],
            "$defs": {"B": {"properties": {"b": {}}, "required": ["b"]}},
        },
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "required": ["a", "b"],
            "$defs": {"B": {"properties": {"b": {}}, "required": ["b"]}},
        },
    ),
    "conditions": (
        {"type": "object", "properties": {"a": {}}, "not": {"required": ["b"]}, "if": {}, "then": {}, "else": {}},
        {"type": "object", "properties": {"a": {}}},
    ),
    "nonsense": (
        {"type": ["object"], "properties": [1], "required": "a", "oneOf": 5, "$ref": "#/nowhere"},
        {"type": "object", "properties": {}, "required": "a", "$ref": "#/nowhere"},
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_schema_that_providers_refuse_gets_a_form_that_they_take(name: str) -> None:
    given, expected = LEGAL[name]
    assert legal_schema(given) == expected


def refused(schema: dict[str, Any], arguments: Any) -> str | None:
    try:
        assert SchemaInput(schema).parse(json.dumps(arguments)) == arguments
    except DoesNotFitError as problem:
        return str(problem)
    return None


def test_what_is_wrong_for_certain_is_refused_with_a_sentence_for_each_mistake() -> None:
    assert refused(ORDINARY, {"title": "Tides", "copies": 2}) is None
    problem = refused(ORDINARY, {"copies": 0, "more": 1})
    assert problem is not None
    assert "'title' is a required property" in problem
    assert "copies: 0 is less than the minimum of 1" in problem
    assert "'more' was unexpected" in problem


UNSURE: dict[str, tuple[dict[str, Any], Any]] = {
    "another kind of regular expression": (
        {"properties": {"a": {"type": "string", "pattern": r"^\p{L}+$"}}},
        {"a": "1"},
    ),
    "one that takes for ever": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 60 + "!"}),
    "names by expression": ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 60 + "!": 1}),
    "a schema elsewhere": ({"properties": {"a": {"$ref": "http://127.0.0.1:9/a.json"}}}, {"a": 1}),
    "a reference to nothing": ({"properties": {"a": {"$ref": "#/$defs/A"}}}, {"a": 1}),
    "a type that is none": ({"properties": {"a": {"type": "text"}}}, {"a": 1}),
    "a schema that is none": ({"properties": 5, "required": 7}, {"a": 1}),
    "a schema without end": ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, {"a": 1}),
}


@pytest.mark.parametrize("name", UNSURE)
def test_what_cannot_be_judged_here_is_left_to_the_server(name: str) -> None:
    schema, arguments = UNSURE[name]
    assert refused(schema, arguments) is None


def test_a_definition_without_the_extra_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "for name in ('mcp', 'jsonschema', 'referencing', 'httpx2'):\n"
        "    sys.modules[name] = None\n"
        "from helix_agents import MCPToolServer\n"
        "from helix_agents.mcp_tools.catalogue import catalogue_of\n"
        "server = MCPToolServer('docs', url='https://docs.example/mcp')\n"
        "try:\n"
        "    server.tools(catalogue=catalogue_of([{'name': 'search', 'inputSchema': {}}]))\n"
        "except Exception as problem:\n"
        "    print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (
        "A tool of an MCP server needs an optional dependency: pip install 'helix-agents[mcp]'\n",
        "",
    )
