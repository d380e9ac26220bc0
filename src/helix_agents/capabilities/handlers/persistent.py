"""`state.persistent.*`."""

from typing import Any

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.paging import Pager
from helix_agents.capabilities.values import canonical, check_key, check_prefix, parsed, shown_time
from helix_agents.domain.capability_errors import KeyNotFound
from helix_agents.domain.entries import Entry, Put, Remove
from helix_agents.domain.records import JSON


async def get(call: Call) -> dict[str, JSON]:
    """The latest version of a key, or an earlier one that is kept."""
    key, version = check_key(call.inputs["key"], call.limits), call.inputs["version"]
    found = await call.store.find(call.own_scope, key)
    if found is not None and version is not None and version != found.version:
        found = await _kept(call, key, version, found)
    elif found is None and version is not None:
        raise KeyNotFound(f"There is no key {key!r}.", {"key": key, "reason": "key_unknown"})
    if found is None:
        missing(call, key)
        return {"value": None, "version": 0, "found": False, "created_at": None, "updated_at": None}
    return {
        "value": parsed(found.value),
        "version": found.version,
        "found": True,
        "created_at": shown_time(found.created_at),
        "updated_at": shown_time(found.updated_at),
    }


async def set_value(call: Call) -> dict[str, JSON]:
    """Store a new version of a key."""
    put = Put(
        scope=call.own_scope,
        key=check_key(call.inputs["key"], call.limits),
        value=canonical(call.inputs["value"], call.limits),
        expected_version=call.inputs["expected_version"],
        keep_versions=call.limits.versions,
        announce=True,
        limit_bytes=call.limits.persistent_bytes,
        limit_keys=call.limits.keys,
    )
    done = (await call.commit(put)).results[0]
    return {"version": done.version, "previous_version": done.previous_version}


async def delete(call: Call) -> dict[str, JSON]:
    """Remove a key with its history."""
    return {"deleted": await remove(call, call.own_scope)}


async def list_entries(call: Call) -> dict[str, JSON]:
    """Keys and their sizes."""
    return await summaries(call, call.own_scope, _summary)


async def query(call: Call) -> dict[str, JSON]:
    """Keys with their values, as many as fit into one result."""
    pager = Pager(call)
    page = await pager.read(call.own_scope, check_prefix(call.inputs["prefix"]), values=True)
    entries: list[JSON] = []
    room, last = call.limits.answer_bytes, None
    for entry in page.items:
        room -= entry.size
        if room < 0 and entries:
            break
        entries.append(
            {
                "key": entry.key,
                "value": parsed(entry.value),
                "version": entry.version,
                "created_at": shown_time(entry.created_at),
                "updated_at": shown_time(entry.updated_at),
            }
        )
        last = entry.key
    more = page.has_more or len(entries) < len(page.items)
    return {"entries": entries, "count": len(entries), **pager.end(last if more else None, page.total)}


async def history(call: Call) -> dict[str, JSON]:
    """The kept versions, newest first, as many as fit into one result."""
    key, limit = check_key(call.inputs["key"], call.limits), call.inputs["limit"]
    found = await call.store.list_versions(call.own_scope, key, limit=limit)
    if not found:
        raise KeyNotFound(f"There is no key {key!r}.", {"key": key, "reason": "key_unknown"})
    versions: list[JSON] = []
    room = call.limits.answer_bytes
    for entry in found:
        room -= entry.size
        if room < 0 and versions:
            break
        versions.append(
            {
                "value": parsed(entry.value),
                "version": entry.version,
                "created_at": shown_time(found[0].created_at),
                "updated_at": shown_time(entry.updated_at),
            }
        )
    return {"versions": versions, "count": len(versions), "truncated": len(versions) < len(found)}


async def remove(call: Call, scope: str) -> bool:
    """Remove a key of a scope; returns whether it existed."""
    change = Remove(
        scope=scope,
        key=check_key(call.inputs["key"], call.limits),
        expected_version=call.inputs["expected_version"],
        must_exist=call.inputs["must_exist"],
        keep_versions=call.limits.versions,
        announce=True,
    )
    return bool((await call.commit(change)).results[0].removed)


async def summaries(call: Call, scope: str, shown: Any) -> dict[str, JSON]:
    """A page of keys without values, and the total size of all matches."""
    pager = Pager(call)
    page = await pager.read(scope, check_prefix(call.inputs["prefix"] or ""), values=False)
    last = page.items[-1].key if page.has_more else None
    return {
        "entries": [shown(entry) for entry in page.items],
        "count": len(page.items),
        "total_size_bytes": page.total_bytes,
        "history_bytes": page.history_bytes,
        **pager.end(last, page.total),
    }


def missing(call: Call, key: str) -> None:
    """A missing key is a normal result, unless the caller wants it to be an error."""
    if call.inputs["must_exist"]:
        raise KeyNotFound(f"There is no key {key!r}.", {"key": key, "reason": "key_unknown"})


async def _kept(call: Call, key: str, version: int, present: Entry) -> Entry:
    if version < present.version:
        found = await call.store.find_version(call.own_scope, key, version)
        if found is not None:
            return found
    versions = await call.store.list_versions(call.own_scope, key)
    if not versions:
        # It was deleted meanwhile.
        raise KeyNotFound(f"There is no key {key!r}.", {"key": key, "reason": "key_unknown"})
    oldest = versions[-1].version
    reason = "version_pruned" if version < oldest else "version_unknown"
    raise KeyNotFound(
        f"Key {key!r} has no version {version}; versions {oldest} to {present.version} are kept.",
        {"key": key, "reason": reason, "oldest_version": oldest, "newest_version": present.version},
    )


def _summary(entry: Entry) -> dict[str, JSON]:
    return {
        "key": entry.key,
        "version": entry.version,
        "size_bytes": entry.size,
        "history_bytes": entry.history_bytes,
        "updated_at": shown_time(entry.updated_at),
    }
