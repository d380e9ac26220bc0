"""`state.briefing.generate`: what happened in a window of revisions, from durable facts and by fixed rules."""

import msgspec

from helix_agents.capabilities.calls import Call, rows_of
from helix_agents.capabilities.health import look_at_health
from helix_agents.capabilities.inbox import read_messages
from helix_agents.capabilities.manifests import compare, look_at_files
from helix_agents.capabilities.scopes import ACTIVITY, ALERTS, APPROVALS, BACKUPS, SHARED
from helix_agents.capabilities.settings import HOUR_MS, StateSettings
from helix_agents.capabilities.values import parse_time, parsed, shown_time
from helix_agents.domain.entries import EntryEvent, Glance, Put
from helix_agents.domain.records import JSON

SYSTEM = (ALERTS, APPROVALS, BACKUPS)
MOST_ITEMS = 50
DAY_MS = 24 * HOUR_MS


async def generate(call: Call) -> dict[str, JSON]:
    """The briefing. Requesting it changes nothing: the window starts where the agent's last session or run ended."""
    last = await call.store.find(ACTIVITY, call.caller.agent)
    if call.inputs["since"] is None and last is not None:
        since, start = last.updated_at, last.revision
    else:
        now, given = call.store.now_ms(), call.inputs["since"]
        since = parse_time(given, now) if given is not None else _as_far_as_known(now, call.limits.event_age_ms)
        start = await call.store.revision_at(since)
    seen = await call.store.glance(SYSTEM, agent=call.caller.agent, runs_since=since)
    events, changes = await _events(call, start, seen.revision)
    files = compare(
        parsed(last.value)["files"] if last is not None else {}, await look_at_files(call.settings.briefing_roots)
    )
    messages, unread = await read_messages(call, 500, [])
    health = await look_at_health(call)
    sections: dict[str, list[dict[str, JSON]]] = {
        "filesystem_changes": files,
        "process_events": _process_events(seen),
        "pending_approvals": _approvals(call, seen),
        "unread_messages": [
            {"id": each["id"], "type": each["type"], "source": f"inbox:{each['id']}"} for each in messages
        ],
        "alerts": _alerts(call, seen),
        "state_changes": _state_changes(events),
        "backups": _backups(seen, since),
    }
    counts = {name: len(items) for name, items in sections.items()}
    counts |= {"unread_messages": unread, "state_changes": changes}
    briefing: dict[str, JSON] = {
        "since": shown_time(since) if since else None,
        "window": {"from": start, "to": seen.revision},
        # Not the number of free bytes, which differs at every look.
        "health": {
            "status": health["status"],
            "checks": [{"name": check["name"], "status": check["status"]} for check in health["checks"]],
        },
        "summary": _summary(counts, str(health["status"])),
    }
    detailed = call.inputs["detail_level"] == "detailed"
    for name, items in sections.items():
        briefing[name] = list[JSON](items[:MOST_ITEMS]) if detailed else counts[name]
    if detailed:
        briefing["counts"] = dict[str, JSON](counts)
    return {"briefing": briefing}


async def activity_of(agent: str, settings: StateSettings) -> Put:
    """The change that lets the next briefing start here: at its own revision and time, with the files as they are."""
    row = {"files": await look_at_files(settings.briefing_roots) if settings.briefing_roots else {}}
    return Put(scope=ACTIVITY, key=agent, value=msgspec.json.encode(row).decode())


def _as_far_as_known(now: int, event_age_ms: int) -> int:
    """Where the window starts for an agent that was never active before: as far back as changes are kept, at the start
    of a day, so that the same window is used all day long."""
    return max(0, (now - event_age_ms) // DAY_MS * DAY_MS)


async def _events(call: Call, start: int, end: int) -> tuple[list[EntryEvent], int]:
    """Announced changes in the window that this agent may know, in its own scope and the shared one: the first ones,
    which may be shown, and how many there are. The window may hold the whole log."""
    first: list[EntryEvent] = []
    count = 0
    for scope in (call.own_scope, SHARED):
        after, room = start, MOST_ITEMS
        while after < end:
            page = await call.store.list_events(after, scope=scope, until=end)
            first.extend(page.events[:room])
            room -= len(page.events[:room])
            count += len(page.events)
            after = page.reached
    return sorted(first, key=lambda event: (event.revision, event.position)), count


def _process_events(seen: Glance) -> list[dict[str, JSON]]:
    """Runs of this agent that started, continued or ended in the window."""
    return [
        {
            "run_id": run.run_id,
            "session_id": run.session_id,
            "turn": run.turn,
            "status": run.status,
            "started_at": shown_time(run.started_at),
            "ended_at": None if run.ended_at is None else shown_time(run.ended_at),
            "source": f"run:{run.run_id}",
        }
        for run in seen.runs
    ]


def _approvals(call: Call, seen: Glance) -> list[dict[str, JSON]]:
    waiting: list[dict[str, JSON]] = [
        {
            "tool_call_id": each.tool_call_id,
            "tool_name": each.tool_name,
            "session_id": each.session_id,
            "requested_at": shown_time(each.created_at),
            "source": f"pending:{each.tool_call_id}",
        }
        for each in seen.pending
    ]
    waiting.extend(
        {
            "approval_id": row["id"],
            "capability": row["capability"],
            "requested_at": row["requested_at"],
            "source": f"approval:{row['id']}",
        }
        for row in rows_of(seen.system[APPROVALS])
        if row.get("status", "pending") == "pending" and row["agent"] == call.caller.agent
    )
    return waiting


def _alerts(call: Call, seen: Glance) -> list[dict[str, JSON]]:
    ranks = {"critical": 0, "warning": 1, "info": 2}
    found = [row for row in rows_of(seen.system[ALERTS]) if row["agent"] == call.caller.agent]
    found.sort(key=lambda row: (ranks.get(row["severity"], 3), row["created_at"], row["id"]))
    return [
        {"alert_id": row["id"], "severity": row["severity"], "message": row["message"], "source": f"alert:{row['id']}"}
        for row in found
    ]


def _state_changes(events: list[EntryEvent]) -> list[dict[str, JSON]]:
    return [
        {
            "scope": "shared" if event.scope == SHARED else "persistent",
            "key": event.key,
            "op": event.operation,
            "version": event.version,
            "by": event.owner,
            "at": shown_time(event.at),
            "source": f"revision:{event.revision}",
        }
        for event in events
    ]


def _backups(seen: Glance, since: int) -> list[dict[str, JSON]]:
    """Backups of everything, which say nothing about any single agent."""
    return [
        {
            "backup_id": entry.key,
            "scope": row["scope"],
            "created_at": row["created_at"],
            "source": f"backup:{entry.key}",
        }
        for entry in seen.system[BACKUPS]
        if entry.created_at >= since and (row := parsed(entry.value))["scope"] == "full"
    ]


def _summary(counts: dict[str, int], health: str) -> str:
    """One sentence per kind that has something to report, the most urgent first."""
    words = {
        "pending_approvals": ("approval waits", "approvals wait"),
        "alerts": ("alert is open", "alerts are open"),
        "unread_messages": ("message is unread", "messages are unread"),
        "process_events": ("run changed", "runs changed"),
        "filesystem_changes": ("file changed", "files changed"),
        "state_changes": ("state entry changed", "state entries changed"),
        "backups": ("backup was made", "backups were made"),
    }
    parts = [
        f"{counts[name]} {one if counts[name] == 1 else many}" for name, (one, many) in words.items() if counts[name]
    ]
    parts += [] if health == "ok" else [f"health is {health}"]
    happened = ", ".join(parts) if parts else "nothing happened"
    return f"Since your last activity: {happened}."
