"""`state.shared.*`."""

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.handlers.persistent import missing, remove, summaries
from helix_agents.capabilities.scopes import SHARED
from helix_agents.capabilities.values import canonical, check_key, check_prefix, parsed, shown_time
from helix_agents.capabilities.watching import subscribe
from helix_agents.domain.entries import Entry, Put
from helix_agents.domain.records import JSON


async def get(call: Call) -> dict[str, JSON]:
    """A value, and the version to write it back with."""
    key = check_key(call.inputs["key"], call.limits)
    found = await call.store.find(SHARED, key)
    if found is None:
        missing(call, key)
        return {"value": None, "version": 0, "found": False, "owner_agent": None, "updated_at": None}
    return {
        "value": parsed(found.value),
        "version": found.version,
        "found": True,
        "owner_agent": found.owner,
        "updated_at": shown_time(found.updated_at),
    }


async def set_value(call: Call) -> dict[str, JSON]:
    """Write a value based on the version that was read."""
    put = Put(
        scope=SHARED,
        key=check_key(call.inputs["key"], call.limits),
        value=canonical(call.inputs["value"], call.limits),
        expected_version=call.inputs["expected_version"],
        keep_versions=call.limits.versions,
        announce=True,
        limit_bytes=call.limits.shared_bytes,
        limit_keys=call.limits.keys,
    )
    done = await call.commit(put)
    return {"version": done.results[0].version, "revision": done.revision}


async def delete(call: Call) -> dict[str, JSON]:
    """Remove a key."""
    return {"deleted": await remove(call, SHARED)}


async def list_entries(call: Call) -> dict[str, JSON]:
    """Keys, their sizes and who wrote them."""
    return await summaries(call, SHARED, _summary)


async def watch(call: Call) -> dict[str, JSON]:
    """Subscribe to changes; a subscription of a session that is over would be gone before it reports anything."""
    if call.bound_session is not None:
        await call.bound_session.check_alive()
    subscription_id, revision = await subscribe(
        call,
        prefix=check_prefix(call.inputs["prefix"] or ""),
        include_own=call.inputs["include_own"],
        durable=call.inputs["durable"],
        wake=call.inputs["wake"],
    )
    return {"subscription_id": subscription_id, "from_revision": revision}


def _summary(entry: Entry) -> dict[str, JSON]:
    return {
        "key": entry.key,
        "version": entry.version,
        "size_bytes": entry.size,
        "history_bytes": entry.history_bytes,
        "owner_agent": entry.owner,
        "updated_at": shown_time(entry.updated_at),
    }
