"""The commit effect: run the hooks of the settled batch, work out the outcome, and store the step in one write."""

import logging
from collections.abc import Collection, Mapping

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import (
    AgentCompleteEvent,
    AgentFailEvent,
    AgentInterruptedEvent,
    AgentSuspendedEvent,
    HandoffEvent,
    HookEvent,
    MessageEvent,
    RanBy,
    ToolRefusedEvent,
    ToolUnsettledEvent,
)
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, StepCommit
from helix_agents.domain.errors import (
    InvalidWriteError,
    StaleStateError,
    StateSizeExceededError,
    SupersededError,
    ToolInputError,
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunUpdate, updated
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamAppend, StreamEnd
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.transcript import RUN_STOPPED, held_results
from helix_agents.domain.usage import ENTRIES_PER_ROUND, UsageEntry
from helix_agents.domain.writes import (
    NO_WRITES,
    AppendToNonListError,
    MergeWarning,
    StepWrites,
    apply_writes,
    merge_warnings,
)
from helix_agents.engine.children.errands import errand_of_call
from helix_agents.engine.children.letting_go import end_children
from helix_agents.engine.coming_writer import ComingWriter
from helix_agents.engine.desk import Failure, RestingResult, StepLost
from helix_agents.engine.effects import (
    ANSWERED_BY_SOMEBODY,
    DELEGATED,
    Advance,
    CommitAck,
    CommitRequest,
    Fail,
    OpenBatch,
    PlannedCall,
    Stop,
    in_order_of_work,
)
from helix_agents.engine.log import log_event
from helix_agents.engine.scope import RunScope, step_id_of
from helix_agents.engine.steps.announcing import announce_commit, announce_end, announce_merges, commit_markers
from helix_agents.engine.steps.answers import refused_input, tool_is_gone
from helix_agents.engine.steps.ending import rest_of
from helix_agents.engine.steps.executing import after_tool
from helix_agents.engine.steps.fitting import fit_together
from helix_agents.engine.steps.handing_over import bring_over, bring_state, carry_over, in_hands_of, settle_handoffs
from helix_agents.engine.steps.news import tell_rest
from helix_agents.engine.steps.outcomes import decide, end_batch, work_out
from helix_agents.engine.steps.remembering import learn
from helix_agents.engine.steps.spending import spent_after
from helix_agents.engine.steps.step_work import StepWork
from helix_agents.engine.steps.stop_watch import look_for_stop
from helix_agents.engine.steps.workspaces import keep_files
from helix_agents.engine.user_code import fire_with_draft
from helix_agents.ports.llm import replays_turns

_NO_REPLY = AssistantMessage()


async def commit_step(scope: RunScope, request: CommitRequest) -> CommitAck:
    """Make a step durable and tell readers; says how the run continues."""
    work = await _gather(scope, request)
    # Handoffs are what is left of a batch that is otherwise settled.
    hands_over = isinstance(request.outcome, Advance) and len(request.batch.settled) < len(request.batch.calls)
    if hands_over:
        await settle_handoffs(scope, work)
    try:
        await _tell_batch_hooks(scope, work)
        await work_out(scope, request.outcome, work)
    except FailRun as decision:
        await end_batch(scope, work)
        work.fail(Failure("hook_failed_run", decision.reason))
    if work.ended in ("failed", "interrupted"):
        await end_children(scope, request.batch)
    await _check_finish(scope, work)
    if hands_over:
        await carry_over(scope, work)
    await announce_merges(scope, work)
    await _tell_end(scope, work)
    try:
        committed = await _store_what_fits(scope, work)
    except SupersededError:
        return CommitAck(next="superseded")
    await _follow(scope, work, committed)
    if committed.again or work.announced:
        return CommitAck(next="again")
    if work.ended is not None:
        scope.run = updated(scope.run, _run_update(work), scope.services.clock.now_ms())
        return CommitAck(next="ended", status=work.ended)
    return CommitAck(next="continue")


async def _gather(scope: RunScope, request: CommitRequest) -> StepWork:
    """Collect what the step produced; in a later round also the results that earlier rounds kept."""
    batch = request.batch
    step_id = scope.step_id(batch.step)
    reply = await scope.desk.find_reply(step_id) if batch.round == 0 else None
    if reply is not None:
        scope.carried.take_reply(reply)
    results = await scope.desk.results(step_id)
    if scope.is_shared and reply is not None:
        results = results | _refused_outputs(scope.agent, reply.message, batch, results.keys())
    order = in_order_of_work(batch.calls)
    work = StepWork(
        batch=batch,
        step_id=step_id,
        open_reply=reply.message if reply is not None else scope.last_reply() or _NO_REPLY,
        reply=reply,
        results=fit_together(scope, results, order, NO_WRITES if reply is None else reply.writes),
        held=await _held(scope, batch, step_id) if batch.round > 0 else {},
        writes=[*scope.carried.writes, *(() if reply is None else (reply.writes,))],
        messages=[*scope.carried.notices, *(() if reply is None else (reply.message,))],
        record={},
    )
    _check_whole(request, work)
    work.writes.extend(work.results[call_id].writes for call_id in order if call_id in work.results)
    return work


def _check_whole(request: CommitRequest, work: StepWork) -> None:
    """Check that everything the loop was told of is here. A run that was stopped or failed may have no reply.

    Raises:
        StepLost: something is missing.
    """
    needs_reply = request.batch.round == 0 and not isinstance(request.outcome, Stop | Fail)
    if needs_reply and work.reply is None:
        raise StepLost
    if any(call_id not in work.results and call_id not in work.held for call_id in request.batch.settled):
        raise StepLost


async def _held(scope: RunScope, batch: OpenBatch, step_id: str) -> dict[ToolCallId, ToolMessage]:
    """Results of earlier rounds."""
    staged = await scope.services.store.get_staged_changes(scope.session.session_id, step_id)
    held = held_results(staged)
    refused = _refused_outputs(scope.agent, scope.last_reply() or _NO_REPLY, batch, held.keys())
    return held | {call_id: result.message for call_id, result in refused.items()}


def _refused_outputs(
    agent: AnyAgent, reply: AssistantMessage, batch: OpenBatch, settled: Collection[ToolCallId]
) -> dict[ToolCallId, RestingResult]:
    """The outputs among these results that are none any more: a deploy may have changed the output type since they were
    handed in."""
    handed_in = {each.tool_call_id for each in batch.calls if each.kind == "finish" and each.tool_call_id in settled}
    refused = {call.id: _refused_output(agent, call) for call in reply.tool_calls if call.id in handed_in}
    return {call_id: result for call_id, result in refused.items() if result is not None}


def _refused_output(agent: AnyAgent, call: ToolCall) -> RestingResult | None:
    """Why the arguments of a `__finish__` call are not a valid output of the agent; None if they are."""
    if agent.output_type is None:
        return tool_is_gone(call)
    try:
        agent.output_type.parse(call.arguments)
    except ToolInputError as problem:
        return refused_input(call, str(problem))
    return None


async def _tell_batch_hooks(scope: RunScope, work: StepWork) -> None:
    """Run the hooks that waited for the whole batch, in call order; what they write is part of this commit."""
    wants = scope.hooks.wants
    if work.heir is None and not (wants("on_message") or wants("after_tool") or wants("on_tool_refused")):
        return
    if work.reply is not None:
        await _tell(scope, work, MessageEvent(message=work.reply.message))
    planned = {call.tool_call_id: call for call in work.batch.calls}
    for result in work.new:
        message = result.message
        await _tell(scope, work, MessageEvent(message=message))
        if result.told:
            call = planned[message.tool_call_id]
            ran_by = _ran_by(call, ran=result.ran, answered=result.consumes)
            await _tell(scope, work, after_tool(result, ran_by, _errand(scope, work, call)))
        elif message.code is not None and message.code != RUN_STOPPED:
            about = {"tool_name": message.tool_name, "tool_call_id": message.tool_call_id}
            await _tell(scope, work, ToolRefusedEvent(**about, code=message.code, error=message.content))
    if (heir := work.heir) is not None:
        told = HandoffEvent(tool_call_id=heir.tool_call_id, to=heir.agent.name, input=heir.input)
        await _tell(scope, work, told)


def _ran_by(call: PlannedCall, *, ran: bool, answered: bool) -> RanBy:
    if call.kind in DELEGATED:
        return "agent"
    if call.kind == "companion":
        return "companion"
    if ran:
        return "function"
    return "client" if answered or call.kind in ANSWERED_BY_SOMEBODY else "nobody"


def _errand(scope: RunScope, work: StepWork, call: PlannedCall) -> str | None:
    result, wait = work.results.get(call.tool_call_id), scope.companion_waits.get(call.tool_call_id)
    update = None if result is None else result.child
    companion = update.sub_session_id if update is not None else wait.child_session_id if wait is not None else None
    begun_here = work.step_id == step_id_of(scope.run.run_id, work.batch.step)
    return errand_of_call(scope.run, call, begun_here=begun_here, companion=companion)


async def _check_finish(scope: RunScope, work: StepWork) -> None:
    """Undo the end of a run whose `finish_with` tool made state changes that do not fit what others have written
    meanwhile.

    This is checked before hooks and readers hear of the end. The commit itself catches what others write after this.
    """
    while work.ended == "completed" and any(result.finishes and result.writes for result in work.new):
        stored = await scope.services.store.load_state(scope.session.session_id)
        refused = _refusal(scope, work, stored.custom_state)
        if refused is None:
            return
        if _drop_writes(scope, work, refused, stored.custom_state):
            decide(scope, work)


def _refusal(
    scope: RunScope, work: StepWork, state: Mapping[str, JSON]
) -> StateSizeExceededError | InvalidWriteError | None:
    """Why the store would refuse the step's writes to this state; None if it would not."""
    session_id, most = scope.session.session_id, scope.services.store.limits.state_bytes
    keys = tuple(dict.fromkeys(op.key for op in work.ops))
    try:
        check_size(session_id, "state", len(encode(apply_writes(state, work.ops))), most, keys)
    except AppendToNonListError as problem:
        return InvalidWriteError(session_id, problem.key, str(problem))
    except StateSizeExceededError as refused:
        return refused
    return None


async def _tell_end(scope: RunScope, work: StepWork) -> None:
    """Tell hooks and capabilities how the run ends before the commit; readers learn it with the commit."""
    await _tell_end_hooks(scope, work)
    if scope.agent.memory is not None and work.ended == "completed":
        await learn(scope, work)
    comes_to_rest = work.ended == "completed" or work.suspended
    work.entries = await tell_rest(scope, work.batch.step) if comes_to_rest else ()
    await announce_end(scope, work)


async def _tell_end_hooks(scope: RunScope, work: StepWork) -> None:
    """Run the last hooks of a run. Their writes join its last commit, but they can no longer change how it ends."""
    counted = {"step_count": work.batch.step, "duration_ms": scope.services.clock.now_ms() - scope.run.started_at}
    event: HookEvent | None = None
    if work.ended == "completed":
        event = AgentCompleteEvent(output=work.record["output"], **counted)
    elif work.failure is not None:
        code, error, retryable = work.failure
        event = AgentFailEvent(code=code, error=error, retryable=retryable, **counted)
    elif work.suspended:
        ids = tuple(call.tool_call_id for call in work.pending)
        reason = "client_tool" if ids else "awaiting_children"
        event = AgentSuspendedEvent(run_id=scope.run.run_id, reason=reason, tool_call_ids=ids, **counted)
    elif work.ended == "interrupted":
        event = AgentInterruptedEvent(reason=work.record["interrupt_context"].reason, **counted)
    if event is None:
        return
    try:
        if scope.hooks.wants("on_tool_unsettled"):
            # A call that was cut while it ran is left out: the hooks around it have seen it end.
            for call in (each for each in work.batch.unsettled if each.tool_call_id not in work.results):
                await _tell(scope, work, _unsettled(scope, work, call))
        await _tell(scope, work, event)
    except FailRun as decision:
        log_event("hook.too_late", reason=decision.reason, session_id=scope.session.session_id)


def _unsettled(scope: RunScope, work: StepWork, call: PlannedCall) -> ToolUnsettledEvent:
    """The event for a call that the run leaves without a result. Its duration counts from the model's reply, or from
    the start of the run if that is later."""
    spent = (
        None if work.reply is None else next((entry for entry in work.reply.usage if entry.tokens is not None), None)
    )
    since = scope.run.started_at
    if work.reply is not None and spent is not None:
        since = max(since, work.reply.begun_at + int(spent.amount))
    return ToolUnsettledEvent(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        waits=work.suspended,
        duration_ms=scope.services.clock.now_ms() - since,
        ran_by=_ran_by(call, ran=call.kind in ("server", "finish_with"), answered=False),
        errand=_errand(scope, work, call),
    )


async def _tell(scope: RunScope, work: StepWork, event: HookEvent) -> None:
    """Run hooks on the state with this commit's writes so far; what they change and count joins the commit."""
    left = await fire_with_draft(scope, work.batch.step, event, *work.writes[len(scope.carried.writes) :])
    if left.writes:
        work.writes.append(left.writes)
    work.usage.extend(left.usage)


async def _store_what_fits(scope: RunScope, work: StepWork) -> Committed:
    """Store the step, without the state writes that the store refuses, if there are any."""
    try:
        return await _store(scope, work)
    except StaleStateError:
        # Somebody changed the state that is handed over after it was looked at.
        failure = await bring_over(scope, work)
        if failure is not None:
            work.fail(failure)
            await _tell_end(scope, work)
        return await _store_what_fits(scope, work)
    except (StateSizeExceededError, InvalidWriteError) as refused:
        if isinstance(refused, StateSizeExceededError) and refused.operation != "state":
            raise
        stored = await scope.services.store.load_state(scope.session.session_id)
        if not _drop_writes(scope, work, refused, stored.custom_state):
            return await _store(scope, work)
    # The tool that was to finish the run lost its writes and with them its success, so the run does not end that way.
    decide(scope, work)
    await _tell_end(scope, work)
    return await _store_what_fits(scope, work)


def _drop_writes(
    scope: RunScope,
    work: StepWork,
    refused: StateSizeExceededError | InvalidWriteError,
    stored: dict[str, JSON],
) -> bool:
    """Drop the writes that do not fit the stored state; returns whether the run's end was dropped with them."""
    # The stored state may differ from the one this run holds: others may change it as well.
    scope.take_state(stored)
    finished_nothing = work.drop_writes(refused, stored)
    if scope.carried.migration and scope.carried.migration not in work.writes:
        # The session would claim a version that its state does not have.
        raise refused
    return finished_nothing and work.ended == "completed"


async def _store(scope: RunScope, work: StepWork) -> Committed:
    """The one write. If stream and state share a backend, the step's chunks are part of it."""
    if work.heir is not None and (failure := bring_state(scope, work, work.heir)) is not None:
        # What hooks wrote at the end of the run, or what the store refused, changed what is to be brought over.
        work.fail(failure)
        await _tell_end(scope, work)
    if work.heir is not None:
        work.record |= in_hands_of(scope.session, work.heir)
    store = scope.services.store
    session_id = scope.session.session_id
    step = work.batch.step
    expected = work.carried_from
    await keep_files(scope, work)
    usage = _usage(scope, work)
    work.record["spent"] = spent_after(scope, usage, step_is_whole=not (work.suspended or work.announced))
    record: SessionState = msgspec.structs.replace(scope.session, step_count=step, custom_state={}, **work.record)
    await scope.emitted()
    if scope.services.chunks_ride_in_commits:
        async with scope.writer.take() as stream:
            # If every chunk was already stored, none rides along; the checkpoint still covers the stream up to here.
            meta = CheckpointMeta(step_id=work.step_id, step_count=step, stream_sequence=scope.writer.sequence)
            end = _stream_end(scope, work)
            last = stream if end is None else stream or _nothing_more(scope)
            commit = _commit(scope, work, usage, last, end)
            return await store.save_state_and_promote_staging(
                session_id, record, work.messages, meta, expected_version=expected, commit=commit
            )
    meta = CheckpointMeta(step_id=work.step_id, step_count=step, stream_sequence=await scope.writer.flush())
    commit = _commit(scope, work, usage)
    return await store.save_state_and_promote_staging(
        session_id, record, work.messages, meta, expected_version=expected, commit=commit
    )


def _stream_end(scope: RunScope, work: StepWork) -> StreamEnd | None:
    """The end of a run is the end of its stream. A child writes to its root's stream, which continues."""
    if work.ended is None or scope.parent is not None:
        return None
    run = updated(scope.run, _run_update(work), scope.services.clock.now_ms())
    return StreamEnd(rest=rest_of(run), markers=commit_markers(scope, work))


def _nothing_more(scope: RunScope) -> StreamAppend:
    """Every chunk was already stored: the stream ends without another one."""
    run = scope.run
    return StreamAppend(
        stream_id=scope.stream_id, run_id=run.run_id, attempt=run.attempt, writer=scope.writer.writer, chunks=()
    )


def _commit(
    scope: RunScope,
    work: StepWork,
    usage: tuple[UsageEntry, ...],
    stream: StreamAppend | None = None,
    stream_end: StreamEnd | None = None,
) -> StepCommit:
    gives_up = work.stopped or work.failure is not None
    # An answer to a call that will no longer run is consumed with it, because nothing else will.
    left = work.batch.unsettled if gives_up else ()
    return StepCommit(
        fence=scope.run.fence,
        step=work.batch.step,
        round=work.batch.round,
        writes=StepWrites(ops=work.ops),
        stage=work.stage,
        promote_staging=not (work.suspended or work.announced),
        pending=work.pending,
        consume=(
            *(result.message.tool_call_id for result in work.new if result.consumes),
            *(call.tool_call_id for call in left),
        ),
        deliver_late_answers=scope.carried.late_answers,
        drop_pending=gives_up,
        ref_updates=_ref_updates(scope, work),
        forget_effects=(*scope.carried.stale_effects, *_recorded_once(work)),
        run=_run_update(work) if work.ended is not None else None,
        suspend=work.suspended,
        takes_messages=work.ended is None and not work.announced and not replays_turns(scope.agent.model),
        take_stop=work.stopped,
        usage=usage,
        entries=(
            *scope.carried.news_changes,
            *(change for result in work.new for change in result.entries),
            *work.entries,
        ),
        audit=tuple(line for result in work.new for line in result.audit),
        stream=stream,
        stream_end=stream_end,
    )


def _run_update(work: StepWork) -> RunUpdate:
    return RunUpdate(
        status=work.ended,
        completion_reason=work.reason,
        output=work.record.get("output"),
        error=work.failure.error if work.failure is not None else None,
    )


def _recorded_once(work: StepWork) -> tuple[ToolCallId, ...]:
    """Calls whose ledger entries are no longer needed, because this commit stores their results."""
    return tuple(result.message.tool_call_id for result in work.new if result.once)


def _ref_updates(scope: RunScope, work: StepWork) -> tuple[SubSessionRefUpdate, ...]:
    """The children that are over with this commit: the reference's end and the call's result are one write."""
    results = (result.child for result in work.new if result.child is not None)
    left = work.batch.unsettled if work.ended in ("failed", "interrupted") else ()
    let_go = (
        SubSessionRefUpdate(sub_session_id=child, status="interrupted")
        for call in left
        if (child := _child_left(scope, call)) is not None
    )
    return (*scope.carried.forgotten_children, *scope.carried.settled_companions, *results, *let_go)


def _child_left(scope: RunScope, call: PlannedCall) -> SessionId | None:
    """The child that worked or waited for a call which now gets no result from it."""
    if call.tool_call_id in scope.companion_waits:
        return scope.companion_waits[call.tool_call_id].child_session_id
    return call.child_session_id if call.kind in DELEGATED else None


def _usage(scope: RunScope, work: StepWork) -> tuple[UsageEntry, ...]:
    entries = [*(work.reply.usage if work.reply is not None else ())]
    for result in work.new:
        entries.extend(result.usage)
    entries.extend((*scope.carried.usage, *work.usage))
    first = work.batch.round * ENTRIES_PER_ROUND
    return tuple(msgspec.structs.replace(entry, n=n) if n else entry for n, entry in enumerate(entries, first))


def _conflicts(work: StepWork) -> tuple[MergeWarning, ...]:
    """Changes that another call of the step overwrote. `finish_with` tools are left out: they have seen the changes of
    all others and overwrite them knowingly."""
    finishing = {call.tool_call_id for call in work.batch.calls if call.kind == "finish_with"}
    return merge_warnings([op for op in work.ops if op.tool_call_id not in finishing])


async def _follow(scope: RunScope, work: StepWork, committed: Committed) -> None:
    """Bring the scope in line with the store, and announce the commit."""
    for warning in _conflicts(work) if committed.warnings else ():
        about = {"session_id": scope.session.session_id, "key": warning.key, "tool_call_ids": warning.tool_call_ids}
        log_event("state.merge_conflict", logging.WARNING, **about)
    if work.suspended:
        log_event("client_tool.suspended", session_id=scope.session.session_id, run_id=scope.run.run_id)
    # What the commit added to its own messages follows from its count, also if its first answer was lost.
    own, count = scope.session.message_count + len(work.messages), committed.message_count
    taken = await _taken_in(scope, own, count) if count > own else ()
    # The model has already seen the notices, so they are in this scope's transcript.
    fresh = work.messages[len(scope.carried.notices) :]
    scope.transcript.extend((*fresh, *taken))
    scope.session = msgspec.structs.replace(
        scope.session,
        version=committed.new_version,
        message_count=committed.message_count,
        checkpoint_id=committed.checkpoint_id,
        step_count=work.batch.step,
        **{**work.record, "status": committed.status},
    )
    if committed.status == "paused" and work.ended is None:
        # An operator paused the session during the step: the run stops before its next one.
        scope.stop.request()
    if committed.again:
        # Either an answer or a stop request kept the run from suspending.
        await look_for_stop(scope.services.store, scope.session.session_id, scope.stop)
    scope.step_done(work.ops)
    if isinstance(scope.writer, ComingWriter):
        # This commit took its chunks, so the writer has arrived.
        scope.writer = await scope.writer.arrived()
    if (work.ended is not None or work.suspended) and not committed.again:
        scope.services.run_ended()
    scope.stream_ended = committed.stream_ended
    if not committed.stream_ended:
        await announce_commit(scope, work, committed, taken)
    if work.heir is not None:
        scope.given = scope.given._replace(above=work.heir.above)
        scope.work_as(work.heir.agent)


async def _taken_in(scope: RunScope, first: int, last: int) -> tuple[UserMessage, ...]:
    """The messages of the transcript after the `first` so many: they were sent to this run while it was going."""
    session_id = scope.session.session_id
    stored = await scope.services.store.load_transcript(session_id, after=first)
    said = (each.message for each in stored[: last - first])
    taken = tuple(message for message in said if isinstance(message, UserMessage))
    log_event("turn.steered", session_id=session_id, run_id=scope.run.run_id, messages=len(taken))
    return taken
