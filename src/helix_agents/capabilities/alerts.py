"""Alerts: open until a person closes them; if an agent has too many, the newest are kept."""

from collections import defaultdict
from collections.abc import Sequence

from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import ALERTS
from helix_agents.capabilities.values import shown_time
from helix_agents.domain.entries import Entry, EntryTransaction, Remove
from helix_agents.domain.records import JSON

CLOSED_AT_ONCE = 1_000


async def close_alerts(gateway: Gateway, alert_ids: Sequence[str], *, by: str) -> list[str]:
    """Close alerts that were dealt with; returns those that were open."""
    found = [alert_id for alert_id in dict.fromkeys(alert_ids) if await gateway.store.find(ALERTS, alert_id)]
    await _close(gateway, found, status="closed", by=by)
    return found


async def trim_alerts(gateway: Gateway) -> int:
    """Remove the oldest alerts of an agent that has more open alerts than it may; returns how many. No agent can drown
    out what another one reported."""
    of_agent: dict[str, list[Entry]] = defaultdict(list)
    async for entry in every_entry(gateway.store, ALERTS, values=False):
        of_agent[entry.owner].append(entry)
    old: list[str] = []
    for entries in of_agent.values():
        entries.sort(key=lambda entry: (entry.created_at, entry.key), reverse=True)
        old += [entry.key for entry in entries[gateway.settings.limits.alerts :]]
    await _close(gateway, old, status="dropped", by="housekeeping")
    return len(old)


async def _close(gateway: Gateway, alert_ids: Sequence[str], *, status: str, by: str) -> None:
    for start in range(0, len(alert_ids), CLOSED_AT_ONCE):
        some = alert_ids[start : start + CLOSED_AT_ONCE]
        line: dict[str, JSON] = {
            "at": shown_time(gateway.store.now_ms()),
            "agent": by,
            "status": status,
            "alerts": list[JSON](some),
        }
        changes = tuple(Remove(scope=ALERTS, key=alert_id, forget=True) for alert_id in some)
        await gateway.store.transact(EntryTransaction(changes=changes, owner=by, audit=(line,)))
