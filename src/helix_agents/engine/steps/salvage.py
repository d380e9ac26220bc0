"""What is kept of a step that will not be continued, because its process died or because it was left waiting."""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import StateSchemaChangedError, StateSizeExceededError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import RUN_STOPPED, cut_short, heal, held_results, not_executed, open_tail
from helix_agents.domain.writes import NO_WRITES, AppendToNonListError, StepWrites, apply_writes
from helix_agents.engine.children.ends import known_of_children
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.log import log_event
from helix_agents.engine.requests.snapshot import take_snapshot
from helix_agents.engine.scope import step_id_of
from helix_agents.engine.services import Services
from helix_agents.engine.steps.answers import answered_message
from helix_agents.engine.steps.ledger import begun_results
from helix_agents.engine.store_desk import recorded_reply, recorded_results
from helix_agents.ports.state_store import SessionStateStore


class StepEnd(NamedTuple):
    """What is kept of a step that will not be continued: its messages for the transcript, and the state changes of
    those calls that have a result on record. Both go into one commit."""

    messages: tuple[Message, ...]
    writes: StepWrites = NO_WRITES


async def salvage(services: Services, session: SessionState, run: RunRecord) -> tuple[Message, ...]:
    """What the transcript keeps of a dead run's last step: the words readers saw, the recorded results, and for every
    other call a result that says it may or may not have taken effect."""
    found = await _find_reply(services.store, session, run)
    if found is not None:
        reply, staged = found
        begun = await begun_results(services.store, session.session_id)
        known = await _known_of(services.store, session.session_id, reply.tool_calls, begun)
        return _with_results(reply, staged, known)
    snapshot = await take_snapshot(services.store, services.streams, session.session_id)
    reply = next((message for message in snapshot.partial if isinstance(message, AssistantMessage)), None)
    if reply is None:
        return heal(snapshot.messages)
    step_id = step_id_of(run.run_id, session.step_count + 1)
    kept = msgspec.structs.replace(reply, id=step_id, thinking=(), interrupted="crash")
    return (kept, *map(_cut_short, kept.tool_calls))


async def salvaged_state(
    services: Services, agent: AnyAgent, session: SessionState, run: RunRecord | None
) -> Mapping[str, JSON]:
    """The session's state, including the changes of those calls of a dead run whose results `salvage` keeps. The
    changes are left out if the agent could not read the resulting state."""
    found = None if run is None else await _find_reply(services.store, session, run)
    if found is None:
        return session.custom_state
    reply, staged = found
    done = recorded_results(staged) | await begun_results(services.store, session.session_id)
    writes = _writes_that_fit(services.store, session, _writes_of(reply.tool_calls, done))
    state = apply_writes(session.custom_state, writes.ops)
    try:
        services.present_state(agent, state, session.agent_version)
    except StateSchemaChangedError as refused:
        _log_refused(session, refused)
        return session.custom_state
    return state


def _writes_of(calls: Iterable[ToolCall], done: Mapping[ToolCallId, RestingResult]) -> StepWrites:
    return StepWrites(ops=tuple(op for call in calls if call.id in done for op in done[call.id].writes.ops))


def _writes_that_fit(store: SessionStateStore, session: SessionState, writes: StepWrites) -> StepWrites:
    """These writes, or none if the store would refuse them, so that the rest of the step is not lost with them."""
    try:
        state = apply_writes(session.custom_state, writes.ops)
        check_size(session.session_id, "state", len(encode(state)), store.limits.state_bytes)
    except (AppendToNonListError, StateSizeExceededError) as refused:
        _log_refused(session, refused)
        return NO_WRITES
    return writes


def _log_refused(session: SessionState, refused: Exception) -> None:
    log_event("state.write_refused", logging.WARNING, session_id=session.session_id, reason=str(refused))


async def is_on_record(services: Services, session: SessionState, run: RunRecord) -> bool:
    """Whether the step that a run died in has its reply on record, as it does if its calls leave lasting traces."""
    return await _find_reply(services.store, session, run) is not None


async def check_readable(store: SessionStateStore, session: SessionState, run: RunRecord) -> None:
    """Read what a dead run left, before it is taken from those who can continue it.

    Raises:
        RecordTooNewError: newer code left something of it.
    """
    held = session.suspension_context
    step_id = step_id_of(run.run_id, session.step_count + 1) if held is None else held.step_id
    recorded_results(await store.get_staged_changes(session.session_id, step_id))
    await store.load_transcript(session.session_id)


async def end_of_last_step(store: SessionStateStore, session: SessionState, run: RunRecord | None) -> StepEnd:
    """What must be written before anything new if a session's last run is not continued.

    This is either an uncommitted step that began something which cannot be undone, or the results of calls that a
    suspension left open.
    """
    if run is not None and session.suspension_context is None:
        found = await _find_reply(store, session, run)
        if found is not None:
            reply, staged = found
            begun = await begun_results(store, session.session_id)
            known = await _known_of(store, session.session_id, reply.tool_calls, begun)
            if known:
                writes = _writes_of(reply.tool_calls, recorded_results(staged) | begun)
                return StepEnd(_with_results(reply, staged, known), _writes_that_fit(store, session, writes))
    return await end_of_open_calls(store, session)


async def end_of_open_calls(store: SessionStateStore, session: SessionState) -> StepEnd:
    """What ends a suspended step that is not continued: the results that were kept, what clients answered, "unknown"
    for `once` calls that were begun, "cut short" for calls that a session below works on, "not executed" for the
    others, and then what the user said while they were open."""
    page = await store.get_messages(session.session_id, limit=200)
    newest_first = [stored.message for stored in page.items]
    calls = open_tail(newest_first)
    entered = session.suspension_context.entry_messages if session.suspension_context is not None else ()
    if not calls:
        return StepEnd(entered)
    begun = await begun_results(store, session.session_id)
    known = await _known_results(store, session, newest_first, calls, begun)
    results = (known.get(call.id) or not_executed((call,), RUN_STOPPED)[0] for call in calls)
    # If the result came from a client or was kept earlier, the state changes in the ledger do not belong to it.
    used = {call_id: result for call_id, result in begun.items() if known[call_id] is result.message}
    return StepEnd((*results, *entered), _writes_that_fit(store, session, _writes_of(calls, used)))


async def _known_results(
    store: SessionStateStore,
    session: SessionState,
    newest_first: Iterable[Message],
    calls: tuple[ToolCall, ...],
    begun: Mapping[ToolCallId, RestingResult],
) -> dict[ToolCallId, ToolMessage]:
    known = await _known_of(store, session.session_id, calls, begun)
    # A session that was settled together with its parent no longer records which step was open; its reply does.
    reply = next(message for message in newest_first if isinstance(message, AssistantMessage))
    for call in calls:
        row = await store.get_pending_call(session.session_id, call.id)
        # A call of the same id may have been answered before a rewind.
        if row is not None and isinstance(row.answer, ToolAnswer) and reply.id in (None, row.step_id):
            known[call.id] = answered_message(row, row.answer)
    held = await store.get_staged_changes(session.session_id, reply.id) if reply.id is not None else ()
    return known | held_results(held)


async def _known_of(
    store: SessionStateStore,
    session_id: SessionId,
    calls: Iterable[ToolCall],
    begun: Mapping[ToolCallId, RestingResult],
) -> dict[ToolCallId, ToolMessage]:
    """The results of sessions started for these calls, and what the ledger knows about calls that were `begun`."""
    below = await known_of_children(store, session_id, {call.id: call.name for call in calls})
    return below | {call_id: result.message for call_id, result in begun.items()}


def _with_results(
    reply: AssistantMessage, staged: tuple[StagedChange, ...], known: dict[ToolCallId, ToolMessage]
) -> tuple[Message, ...]:
    """A step whose reply was recorded because its calls leave lasting traces, with what is known about those calls."""
    done = {call_id: result.message for call_id, result in recorded_results(staged).items()} | known
    results = (done.get(call.id) or _cut_short(call) for call in reply.tool_calls)
    return (msgspec.structs.replace(reply, interrupted="crash"), *results)


def _cut_short(call: ToolCall) -> ToolMessage:
    """A process that died may have begun any call in its model's reply."""
    return cut_short(call.id, call.name, RUN_STOPPED)


async def _find_reply(
    store: SessionStateStore, session: SessionState, run: RunRecord
) -> tuple[AssistantMessage, tuple[StagedChange, ...]] | None:
    """The recorded reply of the step that a run died in, with everything stored beside it."""
    step_id = step_id_of(run.run_id, session.step_count + 1)
    staged = await store.get_staged_changes(session.session_id, step_id)
    resting = recorded_reply(staged)
    return None if resting is None else (resting.message, staged)
