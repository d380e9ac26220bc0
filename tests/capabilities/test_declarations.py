"""One declaration per capability: complete, consistent, and the only source of everything that is made from it."""

import json
import re

import pytest

from helix_agents.agent.tools import Tool
from helix_agents.capabilities.catalogue import CATALOGUE, STATE, find_capability
from helix_agents.capabilities.declaring import Capability
from helix_agents.capabilities.handlers import HANDLERS
from helix_agents.capabilities.inputs import input_schema
from helix_agents.capabilities.mcp.tools import definition
from helix_agents.capabilities.toolset import state_capabilities
from helix_agents.domain.capability_errors import ERRORS, OWN_ERRORS

HINTS = [hint for each in STATE for case in each.errors for hint in case.recovery]


def test_there_are_24_with_everything_they_ever_had() -> None:
    assert len(STATE) == 24
    assert sum(each.tier == "autonomous" for each in STATE) == 18
    assert sum(each.tier == "notify" for each in STATE) == 3
    assert sum(each.tier == "approval_required" for each in STATE) == 3
    assert sum(not given.added for each in STATE for given in each.inputs) == 29
    assert sum(not given.added for each in STATE for given in each.outputs) == 53
    assert sum(len(each.side_effects) for each in STATE) == 22
    assert len({case.error for each in STATE for case in each.errors}) == 12
    assert sum(len(each.errors) for each in STATE) == 30
    assert len(HINTS) == 34
    assert len({hint.action for hint in HINTS}) == 14


@pytest.mark.parametrize("capability", CATALOGUE.values(), ids=lambda each: each.name)
def test_a_declaration_is_complete(capability: Capability) -> None:
    assert capability.purpose.endswith(".")
    assert capability.version == "1.0"
    assert capability.outputs
    assert capability.name in HANDLERS
    assert re.search(r"\b(instead|not|For|Use)\b", capability.when_to_use)
    assert find_capability(capability.tool_name) is capability
    assert all(case.recovery for case in capability.errors)
    assert all(case.error in ERRORS for case in capability.errors)
    assert all(given.required or given.added or given.description for given in capability.inputs)


def test_every_hint_names_something_that_exists() -> None:
    for hint in HINTS:
        assert hint.description
        if hint.capability is not None:
            takes = {given.name for given in CATALOGUE[hint.capability].inputs}
            assert hint.inputs.keys() <= takes, hint
        mentioned = re.findall(r"\b(?:state|alerts|system|inbox)\.[a-z.]+[a-z]", hint.description)
        assert all(name in CATALOGUE for name in mentioned), hint


def test_the_twelve_errors_are_those_that_are_declared() -> None:
    assert {kind.__name__ for kind in OWN_ERRORS} == {case.error for each in STATE for case in each.errors}


def test_tool_names_suit_every_host_and_definitions_are_small() -> None:
    definitions = [definition(each) for each in STATE]
    for each in definitions:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each["name"])
    assert len(json.dumps(definitions, ensure_ascii=False, separators=(",", ":")).encode()) < 24_000


def test_an_agent_gets_the_same_inputs_that_every_other_face_has() -> None:
    tools = {tool.name: tool for tool in state_capabilities().tools}
    assert {each.tool_name for each in STATE} <= tools.keys()
    for each in STATE:
        tool = tools[each.tool_name]
        assert isinstance(tool, Tool)
        assert tool.spec().parameters == input_schema(each)
        assert [*tool.spec().parameters.get("properties", {})] == [given.name for given in each.inputs]


def test_only_some_may_be_chosen() -> None:
    names = {tool.name for tool in state_capabilities(only=["state.session.*", "state.shared.get"]).tools}
    assert names == {*(each.tool_name for each in STATE if "session" in each.name), "state__shared__get"}


def test_the_reference_page_is_what_the_declarations_say() -> None:
    from pathlib import Path

    from helix_agents.capabilities.reference import render

    page = Path(__file__).parents[2] / "docs" / "reference" / "state-capabilities.md"
    cure = "uv run python -m helix_agents.capabilities.reference docs/reference/state-capabilities.md"
    found = page.read_text(encoding="utf-8") if page.exists() else ""
    assert found == render(), f"write it again: {cure}"
