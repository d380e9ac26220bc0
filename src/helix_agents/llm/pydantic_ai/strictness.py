"""Schemas that a provider should enforce, and what it could not enforce without losing something."""

from collections.abc import Iterator
from typing import Any, cast

from pydantic_ai.models import Model

from helix_agents.domain.errors import ModelRefusedError
from helix_agents.ports.llm import ToolSpec


def check_strict(name: str, model: Model[Any], tool: ToolSpec) -> None:
    """Reject a strict tool with a dict in it. A strict schema allows no free keys, so the model could submit nothing
    but an empty dict, and this would go unnoticed.

    Raises:
        ModelRefusedError: says which field.
    """
    if model.canonical_system == "google":
        # It is not told that a schema is strict, and accepts free keys.
        return
    found = next(_free_keys(tool.parameters, tool.name), None)
    if found is not None:
        cure = "give it fields, make it a list of pairs, or leave out strict"
        reason = f"tool {tool.name!r} cannot be strict: {found!r} is a dict, whose keys no strict schema leaves open"
        raise ModelRefusedError(name, f"{reason}; {cure}")


def _free_keys(schema: object, at: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    found = cast("dict[str, Any]", schema)
    is_object = found.get("type") == "object"
    if is_object and found.get("additionalProperties", "properties" not in found) is not False:
        yield at
    for group in ("properties", "$defs"):
        for name, each in found.get(group, {}).items():
            yield from _free_keys(each, name)
    for group in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for each in found.get(group, ()):
            yield from _free_keys(each, at)
    yield from _free_keys(found.get("items"), at)
