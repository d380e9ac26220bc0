"""Opening a run: read where it stands in the store, and take in hand what its attempt needs."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from helix_agents.agent.agent import Agent
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AgentResumedEvent, AgentStartEvent
from helix_agents.agent.hooks import SomeHooks, each_hooks, ordered
from helix_agents.agent.registry import find_delegate
from helix_agents.domain.chunks import RunResumed, RunStarted, StreamChunk
from helix_agents.domain.errors import SupersededError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import Message, ToolMessage, UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import ApprovalAnswer, KnownAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.records import encode
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.session_changes import of_version
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamPlace
from helix_agents.domain.transcript import NOT_EXECUTED
from helix_agents.engine.coming_writer import ComingWriter
from helix_agents.engine.delegated_writer import DelegatedWriter
from helix_agents.engine.desk import ASKING, OPENING, Desk, Failure, Note, RestingReply, RestingResult
from helix_agents.engine.effects import DELEGATED, CallKind, OpenBatch, PlannedCall, Position
from helix_agents.engine.executing import announce
from helix_agents.engine.letting_go import end_chunk, end_forgotten_children, write_end
from helix_agents.engine.meant_agents import line_of
from helix_agents.engine.planning import limits_of
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.stop import StopSignal
from helix_agents.engine.store_desk import recorded_reply
from helix_agents.engine.streaming import say_again
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamWriter


class Made(NamedTuple):
    """A session that was made a moment ago: what a look at the store would find."""

    session: SessionState
    messages: tuple[Message, ...]


class Begun(NamedTuple):
    """A turn that this process began: its place in its stream, if it has one, and its session, if it made that too."""

    run: RunRecord
    stream: StreamPlace | None
    made: Made | None


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
    join: bool = False,
    shared: bool = False,
    begun: Begun | None = None,
) -> RunScope | Position:
    """Take a run in hand; where it has ended, or belongs to somebody else, only its position.

    `hooks` and `model` are those of one call, which live in the process that made it. A child's run is opened for the
    call of its `parent` that delegated to it. Whoever does one effect beside others of the same step has to `join`
    them in the stream; what `shared` runs said may be looked at by an effect that is done for the second time. What is
    known of a turn that has `begun` a moment ago is not asked for.
    """
    # None of these needs another, and a store may be a network away. Nobody else writes what a run of this fence reads.
    reading = _reading(services.store, session_id, begun)
    try:
        session, run = await _standing(services.store, session_id, begun)
        if run is None or run.fence != fence or run.status != "running":
            return _elsewhere(session, run, fence)
        agent, above = await _who(services, session, parent)
        loaded = agent.load_state(session.custom_state, session.agent_version)
        if begun is not None and begun.stream is not None:
            writer = services.streams.writer_at(session.stream_id or session.session_id, run.run_id, begun.stream)
        else:
            writer = await _writer(services, session, run, parent, join=join, repeats=shared or run.attempt > 1)
        transcript = await reading
    finally:
        await _let_go_of(reading)
    scope = RunScope(
        services,
        agent,
        # Where the state had to be migrated, the commit that stores it says from now on for which version.
        session=of_version(session, agent.version, until=session.version),
        run=run,
        transcript=transcript,
        writer=writer,
        desk=desk,
        stop=stop,
        model=model or services.model_of(agent),
        hooks=ordered(parent=above, executor=services.hooks, agent=agent.hooks, call=hooks),
        deps=deps,
        parent=parent,
        delegated_by=delegated_by,
    )
    scope.migration = loaded.writes
    if session.interrupt_flag is not None or session.status == "paused":
        stop.request(session.interrupt_flag)
    return scope


async def _who(
    services: Services, session: SessionState, parent: RunScope | None
) -> tuple[Agent[Any, Any, Any], SomeHooks]:
    """Who does the work, and the hooks it has from above: a child runs its parent's before its own. A companion that
    stands on its own is driven without its parent, and has them all the same."""
    if parent is not None:
        meant = find_delegate(parent.agent, session.agent_type)
        everywhere = {id(each) for each in each_hooks(services.hooks)}
        above = [each for each in parent.hooks.hooks if id(each) not in everywhere]
        return meant or services.agents.get(session.agent_type), above
    *line, agent = await line_of(services.store, services.agents, session)
    above = [each for one in line if one is not None for each in each_hooks(one.hooks)]
    return agent or services.agents.get(session.agent_type), above


async def _standing(
    store: SessionStateStore, session_id: SessionId, begun: Begun | None
) -> tuple[SessionState, RunRecord | None]:
    if begun is not None and begun.made is not None:
        return begun.made.session, begun.run
    return await asyncio.gather(store.load_state(session_id), store.get_current_run(session_id))


def _reading(store: SessionStateStore, session_id: SessionId, begun: Begun | None) -> asyncio.Future[list[Message]]:
    """The transcript on its way; that of a session made a moment ago is there, and takes no task."""
    if begun is None or begun.made is None:
        return asyncio.ensure_future(_transcript(store, session_id))
    there: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
    there.set_result(list(begun.made.messages))
    return there


async def _transcript(store: SessionStateStore, session_id: SessionId) -> list[Message]:
    return [each.message for each in await store.load_transcript(session_id)]


async def _let_go_of(reading: asyncio.Future[list[Message]]) -> None:
    """What was read is here, or nobody needs it any more."""
    if not reading.done():
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    elif not reading.cancelled():
        reading.exception()


async def take_writer(scope: RunScope, *, join: bool) -> None:
    """Have the stream's present writer in hand: while others ran effects of the run, it may have changed."""
    before, scope.writer = (
        scope.writer,
        await _writer(scope.services, scope.session, scope.run, scope.parent, join=join, repeats=True),
    )
    with suppress(SupersededError):
        await before.close()


async def take_notes_of_calls(scope: RunScope, batch: OpenBatch) -> None:
    """Have in hand what calls noted that ran elsewhere."""
    for name, note in (await scope.desk.notes(scope.step_id(batch.step))).items():
        if note.round == batch.round and name not in (OPENING, ASKING):
            scope.take_note(name, note)


async def _writer(
    services: Services, session: SessionState, run: RunRecord, parent: RunScope | None, *, join: bool, repeats: bool
) -> StreamWriter:
    """A root writes its own stream; a child speaks through its parent, after forgetting what a dead attempt said, or
    an effect of the same attempt that is repeated."""
    step = _first_unsaid_step(session)
    after = await _said_for_good(services, session) if repeats else 0
    if parent is not None:
        if not join and repeats:
            await parent.writer.flush()
            await services.streams.cleanup_to_step(parent.stream_id, run.run_id, step - 1, after=after)
        return DelegatedWriter(parent)
    coming = services.streams.create_writer(
        session.stream_id or session.session_id,
        run.run_id,
        session.agent_type,
        turn=run.turn,
        attempt=run.attempt,
        step=None if join else step,
        after=after,
        join=join,
    )
    if repeats:
        # Who comes later looks at what its predecessor said, and that has to be without what is discarded.
        return await coming
    writer = ComingWriter(coming)
    # It sets out now, and not when the run waits for the first time, which would be for its first commit.
    await services.sleep(0)
    return writer


def _first_unsaid_step(session: SessionState) -> int:
    """What an attempt that died left in the stream is of this step or of a later one."""
    suspended = session.suspension_context
    return suspended.step if suspended is not None else session.step_count + 1


async def _said_for_good(services: Services, session: SessionState) -> int:
    """The last number of the stream that a commit answers for: of a step that is open, some rounds are committed."""
    if session.checkpoint_id is None:
        return 0
    checkpoint = await services.store.get_checkpoint(session.session_id, session.checkpoint_id)
    return checkpoint.stream_sequence if checkpoint is not None else 0


async def open_run(scope: RunScope) -> Position:
    """Where the run stands; the first time it is asked, readers and hooks are told that it begins."""
    session, run = scope.session, scope.run
    batch = _open_batch(scope)
    beginning = Note(round=0 if batch is None else batch.round)
    resting = await _pick_up(scope, batch, anew=True)
    if batch is None:
        beginning = msgspec.structs.replace(beginning, **await _late_answers(scope))
        scope.take_note(OPENING, beginning)
        if run.previous_run_id is not None:
            going_on = resting.calls if resting is not None else ()
            # Neither needs the other, and a store may be a network away. An agent that delegates nothing may have
            # children of its version before a deploy.
            stale, refs = await asyncio.gather(
                _stale_effects(scope, going_on), scope.services.store.get_sub_session_refs(session.session_id)
            )
            await end_forgotten_children(scope, refs, going_on)
            beginning = msgspec.structs.replace(beginning, stale_effects=stale)
    await _tell_beginning(scope, batch, beginning)
    await _say_again(scope, batch, resting)
    return Position(
        session_id=session.session_id,
        run_id=run.run_id,
        attempt=run.attempt,
        agent_type=session.agent_type,
        step=batch.step if batch is not None else session.step_count,
        open_batch=batch,
    )


async def go_on(scope: RunScope, *, joined: bool) -> None:
    """Have in hand what earlier effects of the step left at the desk; who took the stream over says it again."""
    batch = _open_batch(scope)
    resting = await _pick_up(scope, batch, anew=False)
    if joined:
        # It may be an effect that is repeated: what it said before stays said.
        scope.take_ends_told(await _said_in(scope, _step_of(scope, batch)))
    else:
        await _say_again(scope, batch, resting)


async def _pick_up(scope: RunScope, batch: OpenBatch | None, *, anew: bool) -> RestingReply | None:
    """The notes of this step, and its reply if it is not committed yet; a run that begins `anew` takes its own first
    note once more."""
    step_id = scope.step_id(_step_of(scope, batch))
    for name, note in (await scope.desk.notes(step_id)).items():
        if note.round == (0 if batch is None else batch.round) and not (anew and name == OPENING):
            scope.take_note(name, note)
    for result in (await scope.desk.results(step_id)).values():
        scope.take_entries(result.entries)
    if batch is not None:
        return None
    if not scope.desk.is_durable and scope.run.attempt > 1:
        # A reply that was paid for and recorded before a crash is not bought twice.
        resting = recorded_reply(await scope.services.store.get_staged_changes(scope.session.session_id, step_id))
        if resting is not None:
            await scope.desk.put_reply(step_id, resting)
    resting = await scope.desk.find_reply(step_id)
    if resting is not None:
        scope.tell(resting.notices)
        scope.settled_companions = resting.companions
        scope.news_told, scope.news_changes = True, resting.entries
        scope.take_entries(resting.entries)
    return resting


async def _say_again(scope: RunScope, batch: OpenBatch | None, resting: RestingReply | None) -> None:
    """Tell readers what rests: what they saw of it went with the attempt that died."""
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
    """A delegated call ends twice for readers: what the child said is over, and the call has its result."""
    ended = result.child
    if planned.kind in DELEGATED and ended is not None and ended.status is not None:
        child = await scope.services.store.load_state(ended.sub_session_id)
        content = result.message.content
        await write_end(scope, end_chunk(scope, step, planned, child.agent_type, ended.status, content))


async def _said_in(scope: RunScope, step: int) -> tuple[StreamChunk, ...]:
    return await scope.services.streams.get_chunks_from_step(scope.stream_id, step, run_id=scope.run.run_id)


def _step_of(scope: RunScope, batch: OpenBatch | None) -> int:
    return scope.session.step_count + 1 if batch is None else batch.step


def _elsewhere(session: SessionState, run: RunRecord | None, fence: Fence) -> Position:
    has_ended = run is not None and run.run_id == fence.run_id and run.status != "running"
    return Position(
        session_id=session.session_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        agent_type=session.agent_type,
        step=session.step_count,
        ended=run.status if run is not None and has_ended else "superseded",
    )


def _open_batch(scope: RunScope) -> OpenBatch | None:
    """The calls a suspension left, to be looked at once more."""
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
    """Entries of the ledger for calls of a run that died: what is known of them stands in the transcript by now."""
    kept = {planned.tool_call_id for planned in going_on}
    effects = await scope.services.store.list_effects(scope.session.session_id)
    return tuple(effect.tool_call_id for effect in effects if effect.tool_call_id not in kept)


async def _late_answers(scope: RunScope) -> dict[str, Any]:
    """Answers that came after a run had given up on them reach the model once, as a hidden message.

    Its transcript says what it was told: who goes back to before a notice gets it again, and before the call none.
    """
    is_root = scope.session.root_session_id == scope.session.session_id
    # Only a root knows by itself whether anything was ever answered or timed out.
    if is_root and not scope.session.completed_client_tool_calls:
        return {}
    given_up = {
        message.tool_call_id
        for message in scope.transcript
        if isinstance(message, ToolMessage) and message.code != NOT_EXECUTED
    }
    if not given_up:
        return {}
    where, store = PendingFilter(session_id=scope.session.session_id, states=("consumed",)), scope.services.store
    done_with = await whole_list(lambda offset: store.list_pending(where, offset=offset, limit=MAX_LIMIT))
    late = {call.tool_call_id: _late_notice(call) for call in done_with if call.late_answer is not None}
    told = {message.content for message in scope.transcript if isinstance(message, UserMessage) and message.hidden}
    due = {call_id: notice for call_id, notice in late.items() if call_id in given_up and notice.content not in told}
    return {"notices": tuple(due.values()), "late_answers": tuple(due)}


def _late_notice(call: PendingCall) -> UserMessage:
    text = f"A late answer to call {call.tool_call_id} of {call.tool_name} has come: {_in_words(call.late_answer)}"
    return UserMessage(content=text, hidden=True, metadata={"helix": "late_answer"})


def _in_words(answer: KnownAnswer | None) -> str:
    match answer:
        case ToolAnswer(error=str() as error):
            return f"it failed: {error}"
        case ToolAnswer(result=str() as text):
            return text
        case ToolAnswer(result=result):
            return encode(result).decode()
        case ApprovalAnswer(approved=approved, reason=reason):
            decided = "it was approved" if approved else "it was not approved"
            return f"{decided}; it was not carried out" + (f" ({reason})" if reason else "")
        case _:
            return "it was given elsewhere"


async def _tell_beginning(scope: RunScope, batch: OpenBatch | None, beginning: Note) -> None:
    """Readers and hooks hear of the beginning; what hooks make of it is noted for the first commit."""
    session, run = scope.session, scope.run
    resumed = session.suspension_context is not None or session.resumed
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
        left = await scope.fire_with_draft(step, event)
        # They are part of the next commit, and so of the step that it makes.
        usage = tuple(msgspec.structs.replace(entry, step=_step_of(scope, batch)) for entry in left.usage)
        noted = msgspec.structs.replace(beginning, writes=left.writes, usage=usage)
    except FailRun as decision:
        noted = msgspec.structs.replace(beginning, failure=Failure("hook_failed_run", decision.reason))
    if noted != Note(round=beginning.round):
        # The messages are in hand already; taking them twice would show them twice.
        scope.take_note(OPENING, msgspec.structs.replace(noted, notices=()))
        await scope.desk.put_note(scope.step_id(_step_of(scope, batch)), OPENING, noted)


def _turn_input(scope: RunScope) -> tuple[UserMessage, ...]:
    messages: list[UserMessage] = []
    for message in reversed(scope.transcript):
        if not isinstance(message, UserMessage):
            break
        messages.append(message)
    return tuple(reversed(messages))
