"""Opening a run: read where it stands in the store, and take in hand what its attempt needs."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AgentResumedEvent, AgentStartEvent
from helix_agents.agent.hooks import HookOrder, SomeHooks, ordered
from helix_agents.domain.chunks import RunResumed, RunStarted
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.coming_writer import ComingWriter
from helix_agents.engine.delegated_writer import DelegatedWriter
from helix_agents.engine.desk import Desk, RestingReply
from helix_agents.engine.effects import CallKind, OpenBatch, PlannedCall, Position
from helix_agents.engine.ledger import REPLY, resting_reply_of
from helix_agents.engine.letting_go import end_forgotten_children
from helix_agents.engine.scope import Failure, RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.stop import StopSignal
from helix_agents.engine.streaming import say_again
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.streams import StreamWriter


async def open_scope(
    services: Services,
    session_id: SessionId,
    fence: Fence,
    *,
    desk: Desk,
    stop: StopSignal,
    deps: Any = None,
    hooks: SomeHooks = None,
    model: LLMAdapter | None = None,
    parent: RunScope | None = None,
    delegated_by: ToolCallId | None = None,
) -> RunScope | Position:
    """Take a run in hand; where it has ended, or belongs to somebody else, only its position.

    `hooks` and `model` are those of one call, which live in the process that made it. A child's run is opened for the
    call of its `parent` that delegated to it.
    """
    store = services.store
    # None of these needs another, and a store may be a network away. Nobody else writes what a run of this fence reads.
    session, run, stored = await asyncio.gather(
        store.load_state(session_id), store.get_current_run(session_id), store.load_transcript(session_id)
    )
    if run is None or run.fence != fence or run.status != "running":
        return _elsewhere(session, run, fence)
    agent = services.agents.get(session.agent_type)
    loaded = agent.load_state(session.custom_state, session.agent_version)
    writer = await _writer(services, session, run, parent)
    transcript: list[Message] = [each.message for each in stored]
    scope = RunScope(
        services,
        agent,
        # Where the state had to be migrated, the commit that stores it says from now on for which version.
        session=msgspec.structs.replace(session, agent_version=agent.version),
        run=run,
        transcript=transcript,
        writer=writer,
        desk=desk,
        stop=stop,
        model=model or services.model_of(agent),
        hooks=_hooks(services, agent.hooks, hooks, parent),
        deps=deps,
        parent=parent,
        delegated_by=delegated_by,
    )
    if loaded.writes:
        scope.carried.append(loaded.writes)
    if session.status == "paused":
        stop.request()
    return scope


async def _writer(services: Services, session: SessionState, run: RunRecord, parent: RunScope | None) -> StreamWriter:
    """A root writes its own stream; a child speaks through its parent, after forgetting what a dead attempt said."""
    step, after = _first_unsaid_step(session), await _said_for_good(services, session, run)
    if parent is not None:
        if run.attempt > 1:
            await parent.writer.flush()
            await services.streams.cleanup_to_step(parent.stream_id, run.run_id, step - 1, after=after)
        return DelegatedWriter(parent)
    coming = services.streams.create_writer(
        session.stream_id or session.session_id,
        run.run_id,
        session.agent_type,
        turn=run.turn,
        attempt=run.attempt,
        step=step,
        after=after,
    )
    # A later attempt looks at what its predecessor said, and that has to be without what is discarded.
    return ComingWriter(coming) if run.attempt == 1 else await coming


def _first_unsaid_step(session: SessionState) -> int:
    """What an attempt that died left in the stream is of this step or of a later one."""
    suspended = session.suspension_context
    return suspended.step if suspended is not None else session.step_count + 1


async def _said_for_good(services: Services, session: SessionState, run: RunRecord) -> int:
    """The last number of the stream that a commit answers for: of a step that is open, some rounds are committed."""
    if run.attempt == 1 or session.checkpoint_id is None:
        return 0
    checkpoint = await services.store.get_checkpoint(session.session_id, session.checkpoint_id)
    return checkpoint.stream_sequence if checkpoint is not None else 0


def _hooks(services: Services, own: SomeHooks, call: SomeHooks, parent: RunScope | None) -> HookOrder:
    """A child runs its parent's hooks, which have the executor's among them, and then its own."""
    if parent is not None:
        return ordered(parent=parent.hooks.hooks, agent=own)
    return ordered(executor=services.hooks, agent=own, call=call)


async def open_run(scope: RunScope) -> Position:
    """Where the run stands; the first time it is asked, readers and hooks are told that it begins."""
    session, run = scope.session, scope.run
    batch = _open_batch(session)
    resting = None
    if batch is None:
        resting = await _find_resting_reply(scope)
        await _tell_late_answers(scope)
        if run.previous_run_id is not None:
            going_on = resting.calls if resting is not None else ()
            await end_forgotten_children(scope, going_on)
            scope.stale_effects = await _stale_effects(scope, going_on)
            await _drop_stale_reply(scope)
    await _tell_beginning(scope)
    if resting is not None:
        await say_again(scope, session.step_count + 1, resting.message)
    return Position(
        session_id=session.session_id,
        run_id=run.run_id,
        attempt=run.attempt,
        agent_type=session.agent_type,
        step=batch.step if batch is not None else session.step_count,
        open_batch=batch,
    )


def _elsewhere(session: SessionState, run: RunRecord | None, fence: Fence) -> Position:
    return Position(
        session_id=session.session_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        agent_type=session.agent_type,
        step=session.step_count,
        ended=run.status if run is not None and run.run_id == fence.run_id and run.status != "running" else "failed",
    )


def _open_batch(session: SessionState) -> OpenBatch | None:
    """The calls a suspension left, to be looked at once more."""
    suspended = session.suspension_context
    if suspended is None:
        return None
    return OpenBatch(
        step=suspended.step,
        round=suspended.round + 1,
        calls=tuple(
            PlannedCall(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                kind=_kind(call.kind),
                child_session_id=call.child_session_id,
            )
            for call in suspended.calls
        ),
        settled=tuple(call.tool_call_id for call in suspended.calls if call.settled),
    )


def _kind(name: str) -> CallKind:
    return name  # pyright: ignore[reportReturnType]


async def _find_resting_reply(scope: RunScope) -> RestingReply | None:
    """A reply that was paid for and recorded before a crash is not bought twice."""
    if scope.run.attempt == 1:
        # It rests under the name of this run, which nobody has driven before.
        return None
    step = scope.session.step_count + 1
    staged = await scope.services.store.get_staged_changes(scope.session.session_id, scope.step_id(step))
    change = next((change for change in staged if change.tool_call_id == REPLY), None)
    if change is None:
        return None
    resting = resting_reply_of(change)
    await scope.desk.put_reply(step, resting)
    return resting


async def _stale_effects(scope: RunScope, going_on: Iterable[PlannedCall]) -> tuple[ToolCallId, ...]:
    """Entries of the ledger for calls of a run that died: what is known of them stands in the transcript by now."""
    kept = {planned.tool_call_id for planned in going_on}
    effects = await scope.services.store.list_effects(scope.session.session_id)
    return tuple(effect.tool_call_id for effect in effects if effect.tool_call_id not in kept)


async def _drop_stale_reply(scope: RunScope) -> None:
    """A reply that rested for a step nobody goes on with. A later attempt may have one of its own, so it looks away."""
    store, session_id = scope.services.store, scope.session.session_id
    if scope.run.attempt == 1 and await store.has_staged_changes(session_id):
        await store.discard_staging(session_id)


async def _tell_late_answers(scope: RunScope) -> None:
    """Answers that came after a run had given up on them reach the model once, as a hidden message."""
    if not scope.session.completed_client_tool_calls:
        return
    page = await scope.services.store.list_pending(
        PendingFilter(session_id=scope.session.session_id, states=("consumed",)), limit=200
    )
    late = [call for call in page.items if call.late_answer is not None and not call.late_answer_delivered]
    for call in late:
        text = f"A late answer to call {call.tool_call_id} of {call.tool_name} has come: {call.late_answer}"
        scope.notices.append(UserMessage(content=text, hidden=True, metadata={"helix": "late_answer"}))
    scope.late_answers = tuple(call.tool_call_id for call in late)
    scope.transcript.extend(scope.notices)


async def _tell_beginning(scope: RunScope) -> None:
    session, run = scope.session, scope.run
    resumed = session.suspension_context is not None or (session.resume_count > 0 and run.previous_run_id is not None)
    step = session.step_count
    if resumed and run.previous_run_id is not None:
        chunk = scope.chunk(
            RunResumed,
            step,
            turn=run.turn,
            previous_run_id=run.previous_run_id,
            checkpoint_id=session.checkpoint_id,
        )
        event = AgentResumedEvent(
            run_id=run.run_id,
            previous_run_id=run.previous_run_id,
            session_id=session.session_id,
            resumed_from_checkpoint_id=session.checkpoint_id,
        )
    else:
        chunk = scope.chunk(RunStarted, step, turn=run.turn, attempt=run.attempt)
        event = AgentStartEvent(turn=run.turn, input=_turn_input(scope))
    await scope.writer.write(chunk)
    try:
        written = await scope.fire_with_draft(step, event)
    except FailRun as decision:
        scope.failure = Failure("hook_failed_run", decision.reason)
        return
    if written:
        scope.carried.append(written)


def _turn_input(scope: RunScope) -> tuple[UserMessage, ...]:
    messages: list[UserMessage] = []
    for message in reversed(scope.transcript):
        if not isinstance(message, UserMessage):
            break
        messages.append(message)
    return tuple(reversed(messages))
