"""State writes as RFC 6902 operations, for readers who follow the state."""

from collections.abc import Iterable, Mapping

from helix_agents.domain.records import JSON
from helix_agents.domain.writes import Add, Append, Delete, Include, Replace, StepWrites, Update, apply_writes


def json_patch(writes: StepWrites, base: Mapping[str, JSON]) -> list[JSON]:
    """The operations that apply the writes to the base."""
    present = set(base)
    patch: list[JSON] = []
    for place, op in enumerate(writes.ops):
        path = _path(op.key)
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
            case Add() | Update() | Include():
                value = apply_writes(base, writes.ops[: place + 1])[op.key]
                patch.append({"op": "replace" if op.key in present else "add", "path": path, "value": value})
                present.add(op.key)
    return patch


def values_patch(state: Mapping[str, JSON], keys: Iterable[str]) -> list[JSON]:
    """The operations that set these keys to their values in the state, whatever the reader has there."""
    patch: list[JSON] = []
    for key in keys:
        patch.append({"op": "add", "path": _path(key), "value": state.get(key)})
        if key not in state:
            patch.append({"op": "remove", "path": _path(key)})
    return patch


def _path(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")
