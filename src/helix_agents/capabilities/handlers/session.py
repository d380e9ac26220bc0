"""`state.session.*`."""

from helix_agents.capabilities.calls import BoundSession, Call
from helix_agents.capabilities.values import canonical, check_key, check_prefix, parsed
from helix_agents.domain.capability_errors import SessionNotFound
from helix_agents.domain.records import JSON


async def get(call: Call) -> dict[str, JSON]:
    """Look a key up."""
    found = await _session(call).get(check_key(call.inputs["key"], call.limits))
    return {"value": parsed(found), "found": found is not None}


async def set_value(call: Call) -> dict[str, JSON]:
    """Store a value."""
    key, value = check_key(call.inputs["key"], call.limits), canonical(call.inputs["value"], call.limits)
    previous = await _session(call).set(key, value)
    return {"previous_value": parsed(previous), "overwritten": previous is not None}


async def delete(call: Call) -> dict[str, JSON]:
    """Remove a key."""
    previous = await _session(call).delete(check_key(call.inputs["key"], call.limits))
    return {"previous_value": parsed(previous), "deleted": previous is not None}


async def list_keys(call: Call) -> dict[str, JSON]:
    """List keys."""
    keys = list(await _session(call).keys(check_prefix(call.inputs["prefix"] or "")))
    return {"keys": keys, "count": len(keys)}


async def clear(call: Call) -> dict[str, JSON]:
    """Remove everything."""
    return {"removed_count": await _session(call).clear()}


def _session(call: Call) -> BoundSession:
    if call.bound_session is None:
        raise SessionNotFound("There is no session; session.create makes one.", {})
    return call.bound_session
