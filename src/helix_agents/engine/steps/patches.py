"""State writes as RFC 6902 operations, for readers who follow the state."""

from collections.abc import Mapping

from helix_agents.domain.records import JSON
from helix_agents.domain.writes import Append, Delete, Replace, StepWrites


def json_patch(writes: StepWrites, base: Mapping[str, JSON]) -> list[JSON]:
    """The operations that turn the base into what the writes make of it."""
    present = set(base)
    patch: list[JSON] = []
    for op in writes.ops:
        path = "/" + op.key.replace("~", "~0").replace("/", "~1")
        match op:
            case Append(items=items):
                if op.key not in present:
                    patch.append({"op": "add", "path": path, "value": []})
                patch.extend({"op": "add", "path": f"{path}/-", "value": item} for item in items)
                present.add(op.key)
            case Replace(value=value):
                patch.append({"op": "replace" if op.key in present else "add", "path": path, "value": value})
                present.add(op.key)
            case Delete():
                if op.key in present:
                    patch.append({"op": "remove", "path": path})
                    present.discard(op.key)
    return patch
