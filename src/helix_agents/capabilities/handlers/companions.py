"""What the state capabilities rely on: inbox, alerts, health, sessions, approvals and policy."""

from typing import cast

from helix_agents.capabilities.approval_rows import find_approval
from helix_agents.capabilities.calls import Call, rows_of
from helix_agents.capabilities.catalogue import find_capability
from helix_agents.capabilities.handlers.briefing import activity_of
from helix_agents.capabilities.health import look_at_health
from helix_agents.capabilities.inbox import read_messages
from helix_agents.capabilities.minted_sessions import create_session as mint
from helix_agents.capabilities.minted_sessions import end_session as end
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import ALERTS, APPROVALS, DECIDED
from helix_agents.capabilities.values import canonical, shown_time
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.entries import Entry, Put
from helix_agents.domain.records import JSON


async def read_inbox(call: Call) -> dict[str, JSON]:
    """Messages, oldest first; those that were dealt with are removed."""
    done: list[JSON] = call.inputs["ack"] or []
    if not all(isinstance(each, str) for each in done):
        raise InvalidInput("ack is a list of ids, as the messages have them.", {"ack": done[:5]})
    messages, unread = await read_messages(call, call.inputs["limit"], done)
    return {"messages": list[JSON](messages), "count": len(messages), "unread": unread}


async def send_alert(call: Call) -> dict[str, JSON]:
    """Tell the supervisor."""
    now = call.store.now_ms()
    alert_id = call.ids.new("alert")
    answer: dict[str, JSON] = {"alert_id": alert_id, "created_at": shown_time(now)}
    known = await call.remembered()
    if known is not None:
        return known
    row: dict[str, JSON] = {
        "agent": call.caller.agent,
        "message": call.inputs["message"],
        "severity": call.inputs["severity"],
        "created_at": shown_time(now),
    }
    put = Put(scope=ALERTS, key=alert_id, value=canonical(row, call.limits))
    await call.commit(put, result=answer)
    return answer


async def list_alerts(call: Call) -> dict[str, JSON]:
    """The agent's own open alerts; an operator sees all."""
    newest_first = await _newest_first(call, ALERTS)
    alerts: list[JSON] = [
        {"alert_id": row.pop("id"), **row}
        for row in rows_of(newest_first)
        if call.caller.is_operator or row["agent"] == call.caller.agent
    ]
    return {"alerts": alerts, "count": len(alerts)}


async def health(call: Call) -> dict[str, JSON]:
    """The state of the system."""
    return await look_at_health(call)


async def create_session(call: Call) -> dict[str, JSON]:
    """Create a session for a caller without a run."""
    session_id, until = await mint(call.store, call.ids, call.caller.agent, call.limits, call.commit)
    return {"session_id": session_id, "expires_at": shown_time(until)}


async def end_session(call: Call) -> dict[str, JSON]:
    """End the caller's session; the next briefing starts where it ended."""
    session_id = call.caller.session_id
    if session_id is None:
        return {"ended": False}
    active = await activity_of(call.caller.agent, call.settings)
    return {"ended": await end(call.store, call.caller.agent, session_id, call.commit, active)}


async def list_approvals(call: Call) -> dict[str, JSON]:
    """The agent's own requests; an operator sees all."""
    wanted = call.inputs["approval_id"]
    if wanted is None:
        # A request that is decided meanwhile is in both.
        entries = {entry.key: entry for scope in (APPROVALS, DECIDED) for entry in await _newest_first(call, scope)}
    else:
        entry = await find_approval(call.store, wanted)
        entries = {} if entry is None else {wanted: entry}
    rows = sorted(rows_of(list(entries.values())), key=lambda row: (row["requested_at"], row["id"]), reverse=True)
    found: list[JSON] = []
    for row in rows:
        row.setdefault("status", "pending")
        if not call.caller.is_operator and row["agent"] != call.caller.agent:
            continue
        shown = ["capability", "agent", "status", "inputs", "result", "reason", "requested_at"]
        # The preview shown to a person may name other agents.
        shown += ["preview", "face"] if call.caller.is_operator else []
        found.append({"approval_id": row["id"], **{name: row[name] for name in shown if name in row}})
    return {"approvals": found, "count": len(found)}


async def explain_policy(call: Call) -> dict[str, JSON]:
    """Which tier another call would have."""
    asked = find_capability(call.inputs["capability"])
    if asked is None:
        name = call.inputs["capability"][:80]
        raise InvalidInput(f"There is no capability {name!r}.", {"capability": name})
    inputs = call.inputs["inputs"]
    if not isinstance(inputs, dict | None):
        raise InvalidInput("inputs is an object: a value for each input of that call.", {"capability": asked.name})
    defaults = {each.name: each.default for each in asked.inputs if not each.required}
    decision = await call.gateway.judge(call.caller, asked, defaults | cast("dict[str, JSON]", inputs or {}))
    return {"tier": decision.tier, "rule": decision.rule, "reason": decision.reason}


async def _newest_first(call: Call, scope: str) -> list[Entry]:
    entries = [entry async for entry in every_entry(call.store, scope)]
    return sorted(entries, key=lambda entry: (entry.created_at, entry.key), reverse=True)
