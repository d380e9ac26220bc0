"""Capabilities as MCP tools: plain definitions and calls, before any protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.catalogue import CATALOGUE, find_capability
from helix_agents.capabilities.declaring import Capability
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.inputs import input_schema, output_schema
from helix_agents.capabilities.policy import decide
from helix_agents.domain.capability_errors import CapabilityError
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.ids import check_id
from helix_agents.domain.records import JSON

SESSION_ID: dict[str, JSON] = {"type": "string", "description": "From session__create."}


def tool_definitions(gateway: Gateway, agent: str, names: Sequence[str] | None = None) -> list[dict[str, JSON]]:
    """Every tool that the agent may be shown, in a fixed order; tools that the policy blocks are left out."""
    chosen = [CATALOGUE[name] for name in names] if names is not None else list(CATALOGUE.values())
    policy = gateway.settings.policy
    return [definition(each) for each in chosen if decide(policy, each, agent, {}).tier != "blocked"]


def definition(capability: Capability) -> dict[str, JSON]:
    """One tool in the protocol's form."""
    schema = dict(input_schema(capability))
    if capability.in_session:
        schema["properties"] = {**schema.get("properties", {}), "session_id": SESSION_ID}
    return {
        "name": capability.tool_name,
        "title": capability.name,
        "description": capability.description,
        "inputSchema": schema,
        "outputSchema": output_schema(capability),
        "annotations": {
            "readOnlyHint": capability.reads_only,
            "destructiveHint": capability.destructive,
            "idempotentHint": capability.idempotent,
        },
    }


async def call_tool(
    gateway: Gateway, caller: Caller, name: str, arguments: Mapping[str, Any]
) -> tuple[bool, dict[str, JSON]]:
    """Make a call; returns whether it succeeded, and its result or its error as data."""
    given = dict(arguments)
    capability = find_capability(name)
    if capability is not None and capability.in_session:
        # A client names its session with every call that concerns one.
        caller = replace(caller, session_id=_id_of(given.pop("session_id", None)))
    try:
        return True, await gateway.call(caller, name, given)
    except CapabilityError as problem:
        return False, problem.as_data()


def _id_of(given: Any) -> str | None:
    """The id of a session; None if no session can have it."""
    try:
        return check_id(given) if isinstance(given, str) else None
    except InvalidIdError:
        return None
