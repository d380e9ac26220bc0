"""What is kept of a step that nobody goes on with, because its process died or it waited for somebody."""

import msgspec

from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.transcript import heal, not_executed, open_tail
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.ledger import unknown_message
from helix_agents.engine.scope import step_id_of
from helix_agents.engine.services import Services
from helix_agents.engine.snapshot import take_snapshot
from helix_agents.engine.step_work import RUN_STOPPED
from helix_agents.engine.store_desk import recorded_reply, recorded_results
from helix_agents.ports.state_store import SessionStateStore


async def salvage(services: Services, session: SessionState, run: RunRecord) -> tuple[Message, ...]:
    """The words a reader saw, the results that were recorded, and "not executed" for the rest."""
    recorded = await _recorded_step(services, session, run)
    if recorded is not None:
        return recorded
    snapshot = await take_snapshot(services.store, services.streams, session.session_id)
    seen = snapshot.render()[len(snapshot.messages) :]
    reply = next((message for message in seen if isinstance(message, AssistantMessage)), None)
    if reply is None:
        return heal(snapshot.messages)
    step_id = f"{run.run_id}.{session.step_count + 1}"
    kept = msgspec.structs.replace(reply, id=step_id, thinking=(), interrupted="crash")
    return (kept, *not_executed(kept.tool_calls, RUN_STOPPED))


async def results_of_open_calls(store: SessionStateStore, session: SessionState) -> tuple[Message, ...]:
    """What ends a suspended step that nobody goes on with: results that were held, "not executed" for the other calls,
    and then what the user said while they were open."""
    page = await store.get_messages(session.session_id, limit=200)
    calls = open_tail(stored.message for stored in page.items)
    open_step = session.suspension_context
    staged = await store.get_staged_changes(session.session_id, open_step.step_id) if open_step is not None else ()
    held = {change.tool_call_id: change.message for change in staged if isinstance(change.message, ToolMessage)}
    results = (held.get(call.id) or not_executed((call,), RUN_STOPPED)[0] for call in calls)
    entered = open_step.entry_messages if open_step is not None else ()
    return (*results, *entered)


async def _recorded_step(services: Services, session: SessionState, run: RunRecord) -> tuple[Message, ...] | None:
    """A step whose reply was recorded because its tools leave traces: their results are kept."""
    step_id = step_id_of(run.run_id, session.step_count + 1)
    staged = await services.store.get_staged_changes(session.session_id, step_id)
    resting = recorded_reply(staged)
    if resting is None:
        return None
    reply = resting.message
    done = {call_id: result.message for call_id, result in recorded_results(staged).items()}
    for effect in await services.store.list_effects(session.session_id):
        if effect.state == "done":
            done[effect.tool_call_id] = decode(encode(effect.result), RestingResult).message
        else:
            done[effect.tool_call_id] = unknown_message(effect.tool_call_id, effect.tool_name)
    results = (done.get(call.id) or not_executed((call,), RUN_STOPPED)[0] for call in reply.tool_calls)
    return (msgspec.structs.replace(reply, interrupted="crash"), *results)
