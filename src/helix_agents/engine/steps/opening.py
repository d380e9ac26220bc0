"""The open effect: find where a run stands, announce that it begins, and pick up what earlier effects left."""

import asyncio
from collections.abc import Iterable

import msgspec

from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AgentResumedEvent, AgentStartEvent
from helix_agents.domain.chunks import RunResumed, RunStarted, StreamChunk, SubagentEnd
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import was_taken_in
from helix_agents.engine.children.letting_go import end_chunk, end_forgotten_children, write_end
from helix_agents.engine.desk import OPENING, Failure, Note, RestingReply, RestingResult
from helix_agents.engine.effects import DELEGATED, CallKind, OpenBatch, PlannedCall, Position
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.executing import announce
from helix_agents.engine.steps.late_answers import with_late_answers
from helix_agents.engine.steps.planning import limits_of
from helix_agents.engine.steps.streaming import say_again
from helix_agents.engine.store_desk import recorded_reply
from helix_agents.engine.user_code import fire_with_draft


async def open_run(scope: RunScope) -> Position:
    """Find where the run stands, and tell readers and hooks that it begins."""
    session, run = scope.session, scope.run
    batch = _open_batch(scope)
    beginning = Note(round=0 if batch is None else batch.round)
    resting = await _pick_up(scope, batch, anew=True)
    if batch is None:
        beginning = await with_late_answers(scope, beginning)
        scope.take_note(OPENING, beginning)
        if run.previous_run_id is not None:
            going_on = resting.calls if resting is not None else ()
            # These two are independent, and the store may be a network away. Even an agent that delegates nothing may
            # have children from its version before a deploy.
            stale, refs = await asyncio.gather(
                _stale_effects(scope, going_on), scope.services.store.get_sub_session_refs(session.session_id)
            )
            if any(ref.status == "running" and ref.mode == "ephemeral" for ref in refs):
                # A run that died, perhaps before a rewind, may have told the end of a child without committing it.
                await _take_ends_of_children(scope)
            forgotten = await end_forgotten_children(scope, refs, going_on)
            beginning = msgspec.structs.replace(beginning, stale_effects=stale, forgotten=forgotten)
    if run.attempt > 1 or _is_third(scope):
        await _take_ends_of_children(scope)
    await _tell_beginning(scope, batch, beginning)
    await _say_again(scope, batch, resting)
    return Position(
        session_id=session.session_id,
        run_id=run.run_id,
        attempt=run.attempt,
        agent_type=session.worked_by,
        step=batch.step if batch is not None else session.step_count,
        open_batch=batch,
    )


async def go_on(scope: RunScope, *, joined: bool) -> None:
    """Pick up what earlier effects of the step left at the desk. If this process took over the stream instead of
    joining it, repeat what was said."""
    batch = _open_batch(scope)
    resting = await _pick_up(scope, batch, anew=False)
    if any(planned.kind in DELEGATED for planned in _calls_of(batch, resting)):
        await _take_ends_of_children(scope)
    if joined:
        # This may be a repeated effect: what it already told readers must not be told twice.
        scope.take_ends_told(await _said_in(scope, _step_of(scope, batch)))
    else:
        await _say_again(scope, batch, resting)


async def _pick_up(scope: RunScope, batch: OpenBatch | None, *, anew: bool) -> RestingReply | None:
    """Take in the notes of this step, and its reply if that is not committed yet. A run that begins `anew` skips its
    own opening note, because it writes that one again."""
    step_id = scope.step_id(_step_of(scope, batch))
    for name, note in (await scope.desk.notes(step_id)).items():
        if note.round == (0 if batch is None else batch.round) and not (anew and name == OPENING):
            scope.take_note(name, note)
    for result in (await scope.desk.results(step_id)).values():
        scope.carried.entries.extend(result.entries)
    if batch is not None:
        return None
    if not scope.desk.is_durable and scope.run.attempt > 1:
        # A reply that was paid for and recorded before a crash is not bought twice.
        resting = recorded_reply(await scope.services.store.get_staged_changes(scope.session.session_id, step_id))
        if resting is not None:
            await scope.desk.put_reply(step_id, resting)
    resting = await scope.desk.find_reply(step_id)
    if resting is not None:
        scope.carried.take_reply(resting)
    return resting


async def _say_again(scope: RunScope, batch: OpenBatch | None, resting: RestingReply | None) -> None:
    """Repeat to readers what rests at the desk: what they saw of it was discarded with the attempt that died."""
    step = _step_of(scope, batch)
    if resting is not None:
        await say_again(scope, step, resting.message)
    results = await scope.desk.results(scope.step_id(step))
    if not results:
        return
    scope.take_ends_told(await _said_in(scope, step))
    planned = {call.tool_call_id: call for call in _calls_of(batch, resting)}
    for call_id, result in results.items():
        if call_id in planned:
            await _say_end_of_child(scope, step, planned[call_id], result)
        await announce(scope, step, result.message, result.writes)


def _calls_of(batch: OpenBatch | None, resting: RestingReply | None) -> tuple[PlannedCall, ...]:
    if batch is not None:
        return batch.calls
    return resting.calls if resting is not None else ()


async def _say_end_of_child(scope: RunScope, step: int, planned: PlannedCall, result: RestingResult) -> None:
    """Readers hear of the end of a delegated call twice: the child has ended, and the call has its result."""
    ended = result.child
    if planned.kind in DELEGATED and ended is not None and ended.status is not None:
        child = await scope.services.store.load_state(ended.sub_session_id)
        content = result.message.content
        await write_end(scope, end_chunk(scope, step, planned, child.agent_type, ended.status, content))


def _is_third(scope: RunScope) -> bool:
    """Whether another run already continued the suspended step before this one, and died in it."""
    left, run = scope.session.suspension_context, scope.run
    return left is not None and left.run_id not in (run.run_id, run.previous_run_id)


async def _take_ends_of_children(scope: RunScope) -> None:
    """Record which ends of delegations readers have been told since the last commit. A delegation may outlive runs, and
    its end is told only once. What an earlier attempt of this run said in the step that is now repeated is taken back;
    what it said before that step is not."""
    session, services = scope.session, scope.services
    found = session.checkpoint_id
    last = None if found is None else await services.store.get_checkpoint(session.session_id, found)
    said = await services.streams.snapshot(scope.stream_id, after=0 if last is None else last.stream_sequence)
    if said is not None:
        stands = (each for each in said.chunks if each.run_id != scope.run.run_id or each.step <= session.step_count)
        scope.take_ends_told(chunk for chunk in stands if isinstance(chunk, SubagentEnd))


async def _said_in(scope: RunScope, step: int) -> tuple[StreamChunk, ...]:
    return await scope.services.streams.get_chunks_from_step(scope.stream_id, step, run_id=scope.run.run_id)


def _step_of(scope: RunScope, batch: OpenBatch | None) -> int:
    return scope.session.step_count + 1 if batch is None else batch.step


def _open_batch(scope: RunScope) -> OpenBatch | None:
    """The calls that a suspension left open, as a batch for the next round."""
    suspended = scope.session.suspension_context
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
                **limits_of(scope.agent, call.tool_name, call.kind),
            )
            for call in suspended.calls
        ),
        settled=tuple(call.tool_call_id for call in suspended.calls if call.settled),
    )


def _kind(name: str) -> CallKind:
    return name  # pyright: ignore[reportReturnType]


async def _stale_effects(scope: RunScope, going_on: Iterable[PlannedCall]) -> tuple[ToolCallId, ...]:
    """Ledger entries of calls of a run that died: what is known about them is in the transcript by now."""
    kept = {planned.tool_call_id for planned in going_on}
    effects = await scope.services.store.list_effects(scope.session.session_id)
    return tuple(effect.tool_call_id for effect in effects if effect.tool_call_id not in kept)


async def _tell_beginning(scope: RunScope, batch: OpenBatch | None, beginning: Note) -> None:
    """Tell readers and hooks that the run begins; what the hooks change is noted for the first commit."""
    session, run = scope.session, scope.run
    resumed = session.suspension_context is not None or session.resumed
    step, taken = session.step_count, _taken_in(scope)
    if resumed and run.previous_run_id is not None:
        chunk = scope.chunk(
            RunResumed,
            step,
            turn=run.turn,
            previous_run_id=run.previous_run_id,
            checkpoint_id=session.checkpoint_id,
            taken=taken,
        )
        event = AgentResumedEvent(
            run_id=run.run_id,
            previous_run_id=run.previous_run_id,
            session_id=session.session_id,
            resumed_from_checkpoint_id=session.checkpoint_id,
        )
    else:
        chunk = scope.chunk(RunStarted, step, turn=run.turn, attempt=run.attempt, taken=taken)
        event = AgentStartEvent(turn=run.turn, input=_turn_input(scope))
    try:
        await scope.writer.write(chunk)
    except ChunkTooLargeError:
        await scope.writer.write(msgspec.structs.replace(chunk, taken=()))
    try:
        left = await fire_with_draft(scope, step, event)
        # The entries go into the next commit, so they count for the step that it makes.
        usage = tuple(msgspec.structs.replace(entry, step=_step_of(scope, batch)) for entry in left.usage)
        noted = msgspec.structs.replace(beginning, writes=left.writes, usage=usage)
    except FailRun as decision:
        noted = msgspec.structs.replace(beginning, failure=Failure("hook_failed_run", decision.reason))
    if noted != Note(round=beginning.round):
        # This scope already took the messages; taking them twice would show them twice.
        scope.take_note(OPENING, msgspec.structs.replace(noted, notices=()))
        await scope.desk.put_note(scope.step_id(_step_of(scope, batch)), OPENING, noted)


def _taken_in(scope: RunScope) -> tuple[UserMessage, ...]:
    """Messages at the end of the transcript that were sent to a run while it was going: the start of this run took them
    in, or a run that died or was stopped before its model saw them. What this run tells the model may follow them."""
    taken: list[UserMessage] = []
    for message in reversed(scope.transcript):
        if not isinstance(message, UserMessage):
            break
        if was_taken_in(message):
            taken.append(message)
        elif not message.hidden:
            break
    return tuple(taken[::-1])


def _turn_input(scope: RunScope) -> tuple[UserMessage, ...]:
    messages: list[UserMessage] = []
    for message in reversed(scope.transcript):
        if not isinstance(message, UserMessage):
            break
        messages.append(message)
    return tuple(reversed(messages))
