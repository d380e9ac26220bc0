"""`state.snapshot.*`: one consistent read of the whole system, kept as a file without values."""

import asyncio
import hashlib
from typing import Any

import msgspec

from helix_agents import __version__
from helix_agents.capabilities.calls import Call, redacted, rows_of
from helix_agents.capabilities.files import folder_of, kept_if_known, names_in, read_checked, remove_file, write_whole
from helix_agents.capabilities.health import look_at_health
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import ALERTS, APPROVALS, NAMES, SNAPSHOTS, SUBSCRIPTIONS, agent_of
from helix_agents.capabilities.values import parsed, shown_time, stamp
from helix_agents.domain.capability_errors import SnapshotNotFound, VersionConflict
from helix_agents.domain.entries import SESSION_SCOPES, Entry, EntryTransaction, Overview, Put, Remove
from helix_agents.domain.records import JSON

SYSTEM = (ALERTS, APPROVALS, SUBSCRIPTIONS)
MOST_TRIES = 100


async def create(call: Call) -> dict[str, JSON]:
    """Read everything at once, write the file, then the row that registers it."""
    known = await call.remembered()
    if known is not None:
        return known
    seen = await call.store.overview(SYSTEM)
    health = await look_at_health(call)
    told = {**describe(call, seen, health), "store_id": await call.store.store_id()}
    data = msgspec.json.format(msgspec.json.encode(told, order="sorted"), indent=1)
    folder = folder_of(call.store, call.settings, "snapshots")
    row = {
        "timestamp": shown_time(seen.at),
        "size_bytes": len(data),
        "at_revision": seen.revision,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    for attempt in range(1, MOST_TRIES):
        name = f"snap-{stamp(seen.at)}" + (f"-{attempt}" if attempt > 1 else "")
        path = folder / f"{name}.json"
        try:
            await asyncio.to_thread(write_whole, path, data)
        except FileExistsError:
            continue
        answer = {"snapshot_id": name, "timestamp": row["timestamp"], "size_bytes": len(data)}
        named = Put(scope=NAMES, key=name, value="1", expected_version=0)
        put = Put(scope=SNAPSHOTS, key=name, value=msgspec.json.encode(row).decode(), expected_version=0)
        try:
            async with kept_if_known(call.store, SNAPSHOTS, name, path):
                await call.commit(named, put, result=answer)
        except VersionConflict as conflict:
            if call.was_done(conflict):
                raise
            continue
        await _retire(call, name)
        return answer
    raise FileExistsError(f"snap-{stamp(seen.at)}")


async def list_snapshots(call: Call) -> dict[str, JSON]:
    """The registered snapshots, newest first; a file that is gone is reported as missing."""
    folder = folder_of(call.store, call.settings, "snapshots")
    rows = await _rows(call)
    present = await asyncio.to_thread(names_in, folder) if rows else set[str]()
    snapshots: list[JSON] = []
    for entry in rows:
        row = parsed(entry.value)
        shown = {"snapshot_id": entry.key, "timestamp": row["timestamp"], "size_bytes": row["size_bytes"]}
        if f"{entry.key}.json" not in present:
            shown["missing"] = True
        snapshots.append(shown)
    return {"snapshots": snapshots, "count": len(snapshots)}


async def load(call: Call) -> dict[str, JSON]:
    """One snapshot, looked up by its id and never by a path."""
    name = call.inputs["snapshot_id"]
    found = await call.store.find(SNAPSHOTS, name)
    if found is None:
        raise SnapshotNotFound(f"There is no snapshot {name[:80]!r}.", {"snapshot_id": name[:80]})
    path = folder_of(call.store, call.settings, "snapshots") / f"{found.key}.json"
    data = await asyncio.to_thread(read_checked, path, parsed(found.value)["sha256"])
    return {"snapshot": parsed(data.decode())}


def describe(call: Call, seen: Overview, health: dict[str, JSON]) -> dict[str, JSON]:
    """The snapshot itself: counts, sizes and names, never a value or the input of a call."""
    agents: dict[str, Any] = {agent: msgspec.to_builtins(summary) for agent, summary in seen.agents.items()}
    for usage in seen.scopes:
        if (agent := agent_of(usage.scope)) is not None:
            agents.setdefault(agent, {"sessions": 0, "running": 0})
    limits = call.limits
    quota = {"shared": limits.shared_bytes}
    return {
        "schema": 1,
        "version": __version__,
        "at_revision": seen.revision,
        "timestamp": shown_time(seen.at),
        "agents": agents,
        "sessions": [msgspec.to_builtins(session) for session in seen.sessions],
        "resources": {"runs": seen.runs, "usage": seen.usage},
        "approvals": [*_waiting_calls(seen), *_waiting_requests(seen)],
        "alerts": [
            {name: row[name] for name in ("id", "agent", "severity", "created_at")}
            for row in rows_of(seen.system[ALERTS])
        ],
        "health": health,
        "state": [
            {
                "scope": "session" if usage.scope == SESSION_SCOPES else usage.scope,
                "keys": usage.keys,
                "bytes": usage.bytes,
                "limit_bytes": quota.get(usage.scope, limits.persistent_bytes if agent_of(usage.scope) else None),
                "last_revision": usage.revision,
            }
            for usage in seen.scopes
            if not usage.scope.startswith("sys.")
        ],
        "subscriptions": [
            {key: row[key] for key in ("id", "agent", "cursor") if key in row}
            for row in rows_of(seen.system[SUBSCRIPTIONS])
        ],
    }


def _waiting_calls(seen: Overview) -> list[JSON]:
    return [
        {
            "tool_call_id": waiting.tool_call_id,
            "session_id": waiting.session_id,
            "tool_name": waiting.tool_name,
            "created_at": shown_time(waiting.created_at),
            "input_sha256": _digest(waiting.input),
        }
        for waiting in seen.pending
    ]


def _waiting_requests(seen: Overview) -> list[JSON]:
    return [
        {
            "approval_id": row["id"],
            "agent": row["agent"],
            "capability": row["capability"],
            "input_sha256": _digest(row["inputs"]),
            "inputs": sorted(redacted(row["inputs"])),
        }
        for row in rows_of(seen.system[APPROVALS])
        if row.get("status", "pending") == "pending"
    ]


def _digest(value: JSON) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


async def _rows(call: Call) -> list[Entry]:
    entries = [entry async for entry in every_entry(call.store, SNAPSHOTS)]
    return sorted(entries, key=lambda entry: (entry.created_at, entry.key), reverse=True)


async def _retire(call: Call, made: str) -> None:
    """Remove what is beyond the limit; the one that was just made is always kept, whatever the clock says."""
    folder = folder_of(call.store, call.settings, "snapshots")
    others = [entry for entry in await _rows(call) if entry.key != made]
    for entry in others[max(0, call.limits.snapshots - 1) :]:
        # The row goes first: a file without a row is not a snapshot, but a row without its file is a broken one. It
        # goes in its own transaction: the call itself is done, and is reported and remembered once.
        gone = Remove(scope=SNAPSHOTS, key=entry.key, forget=True)
        line = call.audit_line("done", retired=entry.key)
        await call.store.transact(EntryTransaction(changes=(gone,), owner=call.caller.agent, audit=(line,)))
        await asyncio.to_thread(remove_file, folder / f"{entry.key}.json")
