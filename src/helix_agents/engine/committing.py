"""The commit effect: hooks of the settled batch, the verdict, and then one write that makes the step durable."""

from dataclasses import dataclass
from typing import Any

import msgspec

from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import (
    AfterToolEvent,
    AgentCompleteEvent,
    AgentFailEvent,
    AgentSuspendedEvent,
    MessageEvent,
)
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.chunks import (
    CheckpointCreated,
    ErrorChunk,
    Output,
    RunInterrupted,
    RunPaused,
    StepCommitted,
    ToolApprovalRequest,
    ToolStart,
)
from helix_agents.domain.commits import Committed, StepCommit
from helix_agents.domain.errors import StateSizeExceededError, SupersededError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.runs import RunStatus, RunUpdate
from helix_agents.domain.sessions import InterruptContext, OpenCall, SessionState, SuspensionContext
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import not_executed
from helix_agents.domain.usage import TokenCount, UsageEntry
from helix_agents.domain.writes import StepWrites, WriteOp, apply_writes
from helix_agents.engine.desk import RestingReply, RestingResult
from helix_agents.engine.effects import (
    Advance,
    CommitAck,
    CommitRequest,
    Fail,
    OpenBatch,
    PlannedCall,
    Stop,
    Suspend,
)
from helix_agents.engine.log import log_event
from helix_agents.engine.scope import Failure, RunScope
from helix_agents.engine.verdicts import Finished, GoOn, WholeStep, judge
from helix_agents.engine.waits import pending_for, suspension_kind

RUN_STOPPED = "run_stopped"
CANCELLED = "framework_cancelled"

_NOT_SUSPENDED: dict[str, Any] = {
    "suspension_context": None,
    "suspended_step_id": None,
    "suspended_awaiting_children": {},
}


async def commit_step(scope: RunScope, request: CommitRequest) -> CommitAck:
    """Make a step durable and tell readers; says how the run goes on."""
    work = await _gather(scope, request)
    try:
        await _decide(scope, request, work)
    except FailRun as decision:
        work.fail(Failure("hook_failed_run", decision.reason))
    if work.ended is not None:
        await _tell_end_hooks(scope, work)
    try:
        committed = await _store(scope, work)
    except StateSizeExceededError as refused:
        work.drop_writes(refused)
        committed = await _store(scope, work)
    except SupersededError:
        return CommitAck(next="superseded")
    await _follow(scope, work, committed)
    if committed.again:
        return CommitAck(next="again")
    if work.ended is None:
        return CommitAck(next="continue")
    return CommitAck(next="ended", status=work.ended)


@dataclass
class _Work:
    """A commit in the making."""

    batch: OpenBatch
    step_id: str
    reply: RestingReply | None
    results: dict[str, RestingResult]
    held: dict[str, ToolMessage]
    writes: list[StepWrites]
    messages: list[Message]
    record: dict[str, Any]
    pending: tuple[PendingCall, ...] = ()
    stage: tuple[StagedChange, ...] = ()
    suspended: bool = False
    stopped: bool = False
    ended: RunStatus | None = None
    reason: str | None = None
    failure: Failure | None = None

    @property
    def new(self) -> tuple[RestingResult, ...]:
        """This round's results, in the model's order."""
        return tuple(self.results[call.tool_call_id] for call in self.batch.calls if call.tool_call_id in self.results)

    def fail(self, failure: Failure) -> None:
        """The run ends here, as failed."""
        self.failure = failure
        self.ended = "failed"
        self.suspended = False
        self.pending = self.stage = ()
        self.reason = failure.code
        self.record |= {
            **_NOT_SUSPENDED,
            "status": "failed",
            "error": failure.error,
            "failure_reason": failure.code,
        }

    def drop_writes(self, refused: StateSizeExceededError) -> None:
        """A state write was too large for the store: it is dropped, and the call's result says so."""
        for result in self.new:
            if any(op.key in refused.keys or not refused.keys for op in result.writes.ops):
                self.writes.remove(result.writes)
                place = self.messages.index(result.message)
                self.messages[place] = msgspec.structs.replace(
                    result.message, content=str(refused), error=True, code=refused.code
                )


async def _gather(scope: RunScope, request: CommitRequest) -> _Work:
    batch = request.batch
    step_id = scope.step_id(batch.step)
    held: dict[str, ToolMessage] = {}
    if batch.round > 0:
        for change in await scope.services.store.get_staged_changes(scope.session.session_id, step_id):
            if isinstance(change.message, ToolMessage):
                held[change.tool_call_id] = change.message
    reply = await scope.desk.find_reply(batch.step) if batch.round == 0 else None
    work = _Work(
        batch=batch,
        step_id=step_id,
        reply=reply,
        results=await scope.desk.results(batch.step),
        held=held,
        writes=[*scope.carried, *((reply.writes,) if reply is not None else ())],
        messages=[*scope.notices, *((reply.message,) if reply is not None else ())],
        record={},
    )
    work.writes.extend(result.writes for result in work.new)
    return work


async def _decide(scope: RunScope, request: CommitRequest, work: _Work) -> None:
    """Fire the hooks that waited for the batch to settle, then work out what the commit says."""
    await _tell_hooks(scope, work)
    match request.outcome:
        case Suspend():
            _suspend(scope, work)
        case Stop():
            await _stop(scope, work)
        case Fail(code=code):
            work.messages = list(scope.notices)
            work.fail(scope.failure or Failure(code, code))
        case Advance():
            _advance(scope, work)


async def _tell_hooks(scope: RunScope, work: _Work) -> None:
    if work.reply is not None:
        await _tell(scope, work, MessageEvent(message=work.reply.message))
    for result in work.new:
        message = result.message
        await _tell(scope, work, MessageEvent(message=message))
        if result.told:
            await _tell(
                scope,
                work,
                AfterToolEvent(
                    tool_name=message.tool_name,
                    tool_call_id=message.tool_call_id,
                    input=result.input,
                    result=message.content,
                    error=message.error,
                    code=message.code,
                    duration_ms=result.duration_ms,
                ),
            )


async def _tell(scope: RunScope, work: _Work, event: Any) -> None:
    written = await scope.fire_with_draft(work.batch.step, event, *work.writes[len(scope.carried) :])
    if written:
        work.writes.append(written)


def _advance(scope: RunScope, work: _Work) -> None:
    results = tuple(_result(work, call) for call in work.batch.calls)
    work.messages.extend(results)
    suspended = scope.session.suspension_context
    if suspended is not None:
        work.messages.extend(suspended.entry_messages)
    work.record = dict(_NOT_SUSPENDED)
    reply = work.reply.message if work.reply is not None else _open_reply(scope)
    tokens = next((entry.tokens for entry in work.reply.usage if entry.tokens), None) if work.reply else None
    whole = WholeStep(
        batch=work.batch,
        reply=reply,
        results=results,
        new=work.new,
        writes=tuple(work.writes[len(scope.carried) :]),
        tokens=tokens or TokenCount(),
    )
    verdict = judge(scope, whole)
    if suspended is not None and suspended.entry_messages and isinstance(verdict, Finished):
        # The user went on with a new message while these calls were open: the answer to that is still to come.
        verdict = GoOn()
    match verdict:
        case Finished(output=output, reason=reason):
            work.ended, work.reason = "completed", reason
            work.record |= {"status": "completed", "output": output}
        case Failure() as failure:
            work.fail(failure)
        case GoOn(reminder=reminder):
            if reminder is not None:
                work.messages.append(reminder)


def _result(work: _Work, call: PlannedCall) -> ToolMessage:
    result = work.results.get(call.tool_call_id)
    if result is not None:
        return result.message
    held = work.held.get(call.tool_call_id)
    return held if held is not None else _not_executed(call, RUN_STOPPED)


def _not_executed(call: PlannedCall, code: str) -> ToolMessage:
    return ToolMessage(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        content="This call was not executed.",
        error=True,
        code=code,
    )


def _open_reply(scope: RunScope) -> AssistantMessage:
    return next(message for message in reversed(scope.transcript) if isinstance(message, AssistantMessage))


def _suspend(scope: RunScope, work: _Work) -> None:
    batch = work.batch
    waiting = tuple(call for call in batch.unsettled if call.kind != "finish_with")
    kind = suspension_kind(settled=bool(batch.settled))
    reply = work.reply.message if work.reply is not None else _open_reply(scope)
    work.pending = tuple(pending_for(scope, work.step_id, reply, call) for call in waiting)
    place = {call.tool_call_id: index for index, call in enumerate(batch.calls)}
    work.stage = tuple(
        StagedChange(
            step_id=work.step_id,
            tool_call_id=result.message.tool_call_id,
            index=place[result.message.tool_call_id],
            message=result.message,
        )
        for result in work.new
    )
    before = scope.session.suspension_context
    context = SuspensionContext(
        kind=kind,
        run_id=scope.run.run_id,
        step_id=work.step_id,
        step=batch.step,
        round=batch.round,
        calls=tuple(
            OpenCall(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                kind=call.kind,
                settled=call.tool_call_id in batch.settled,
            )
            for call in batch.calls
        ),
        remaining_steps=max(0, scope.agent.max_steps - batch.step),
        agent_version=scope.agent.version,
        entry_messages=before.entry_messages if before is not None else (),
    )
    work.suspended, work.ended, work.reason = True, kind, kind
    work.record = {"suspension_context": context, "suspended_step_id": work.step_id}


async def _stop(scope: RunScope, work: _Work) -> None:
    """Keep what readers saw; calls that did not run are answered as such, so the transcript stays legal."""
    flag = await scope.services.store.find_interrupt_flag(scope.session.session_id)
    work.stopped = True
    if work.batch.calls:
        work.messages.extend(_result(work, call) for call in work.batch.calls)
    elif work.reply is not None:
        work.messages.extend(not_executed(work.reply.message.tool_calls, RUN_STOPPED))
    suspended = scope.session.suspension_context
    if suspended is not None:
        work.messages.extend(suspended.entry_messages)
    reason = flag.reason if flag is not None else None
    if flag is not None and flag.kind == "abort":
        work.fail(Failure(CANCELLED, reason or "The run was aborted."))
        work.record |= {**_NOT_SUSPENDED, "output": None}
        return
    paused = scope.session.status == "paused"
    context = InterruptContext(
        reason=reason, run_id=scope.run.run_id, step_count=work.batch.step, at=scope.services.clock.now_ms()
    )
    work.ended, work.reason = "interrupted", "paused" if paused else "interrupted"
    work.record = _NOT_SUSPENDED | {"status": "paused" if paused else "interrupted", "interrupt_context": context}


async def _tell_end_hooks(scope: RunScope, work: _Work) -> None:
    """The last hooks of a run, whose writes are part of its last commit; they cannot change how it ends any more."""
    step = work.batch.step
    took = scope.services.clock.now_ms() - scope.run.started_at
    event: Any = None
    if work.ended == "completed":
        event = AgentCompleteEvent(output=work.record["output"], step_count=step, duration_ms=took)
    elif work.failure is not None:
        event = AgentFailEvent(
            code=work.failure.code,
            error=work.failure.error,
            retryable=work.failure.retryable,
            step_count=step,
            duration_ms=took,
        )
    elif work.suspended:
        event = AgentSuspendedEvent(
            run_id=scope.run.run_id,
            reason="client_tool",
            tool_call_ids=tuple(call.tool_call_id for call in work.pending),
        )
    if event is not None:
        try:
            await _tell(scope, work, event)
        except FailRun as decision:
            log_event("hook.too_late", reason=decision.reason, session_id=scope.session.session_id)


async def _store(scope: RunScope, work: _Work) -> Committed:
    services, batch = scope.services, work.batch
    await _say_before(scope, work)
    ops: tuple[WriteOp, ...] = tuple(op for writes in work.writes for op in writes.ops)
    update = RunUpdate(
        status=work.ended, completion_reason=work.reason, error=work.failure.error if work.failure else None
    )
    commit = StepCommit(
        fence=scope.run.fence,
        step=batch.step,
        round=batch.round,
        writes=StepWrites(ops=ops),
        stage=work.stage,
        promote_staging=not work.suspended,
        pending=work.pending,
        consume=tuple(result.message.tool_call_id for result in work.new if result.consumes),
        deliver_late_answers=scope.late_answers,
        drop_pending=work.ended == "failed" or work.stopped,
        forget_effects=tuple(result.message.tool_call_id for result in work.new if result.once and not work.suspended),
        run=update if work.ended is not None else None,
        suspend=work.suspended,
        take_stop=work.stopped,
        usage=_usage(scope, work),
    )
    record: SessionState = msgspec.structs.replace(scope.session, step_count=batch.step, custom_state={}, **work.record)
    meta = CheckpointMeta(step_id=work.step_id, step_count=batch.step)
    session_id = scope.session.session_id
    await scope.emitted()
    if services.streams.shares_transactions_with(services.store):
        async with scope.writer.take() as stream:
            return await services.store.save_state_and_promote_staging(
                session_id, record, work.messages, meta, commit=msgspec.structs.replace(commit, stream=stream)
            )
    meta = msgspec.structs.replace(meta, stream_sequence=await scope.writer.flush())
    return await services.store.save_state_and_promote_staging(session_id, record, work.messages, meta, commit=commit)


def _usage(scope: RunScope, work: _Work) -> tuple[UsageEntry, ...]:
    entries = [*(work.reply.usage if work.reply is not None else ())]
    for result in work.new:
        entries.extend(result.usage)
    # Rounds of one step count in ranges of their own, so that none overwrites another.
    first = work.batch.round * 10_000
    return tuple(msgspec.structs.replace(entry, n=first + n) for n, entry in enumerate(entries))


async def _say_before(scope: RunScope, work: _Work) -> None:
    """Chunks that become visible with the commit or just before it."""
    step = work.batch.step
    if work.suspended:
        for call in work.pending if work.batch.round == 0 else ():
            await scope.writer.write(_waiting_chunk(scope, step, call))
        ids = tuple(call.tool_call_id for call in work.pending)
        await scope.writer.write(scope.chunk(RunPaused, step, reason=work.reason or "", tool_call_ids=ids))
    elif work.ended == "completed":
        await scope.writer.write(scope.chunk(Output, step, output=work.record["output"]))
    elif work.ended == "interrupted":
        await scope.writer.write(scope.chunk(RunInterrupted, step, reason=work.reason))
    elif work.failure is not None and work.failure.code != CANCELLED:
        failure = work.failure
        await scope.writer.write(
            scope.chunk(ErrorChunk, step, error=failure.error, code=failure.code, retryable=failure.retryable)
        )


def _waiting_chunk(scope: RunScope, step: int, call: PendingCall) -> Any:
    about = {"tool_call_id": call.tool_call_id, "tool_name": call.tool_name}
    if call.kind == "approval":
        return scope.chunk(
            ToolApprovalRequest, step, **about, approval_id=call.approval_id or "", input=call.input, reason=call.reason
        )
    return scope.chunk(ToolStart, step, **about, arguments=call.input)


async def _follow(scope: RunScope, work: _Work, committed: Committed) -> None:
    """Bring what the scope holds in line with the store, and announce the commit."""
    for warning in committed.warnings:
        log_event("state.merge_conflict", key=warning.key, tool_call_ids=warning.tool_call_ids)
    if work.suspended:
        log_event("client_tool.suspended", session_id=scope.session.session_id, run_id=scope.run.run_id)
    ops = [op for writes in work.writes for op in writes.ops]
    scope.custom_state = apply_writes(scope.custom_state, ops)
    # The model has seen the notices already; they are in the transcript in hand.
    scope.transcript.extend(work.messages[len(scope.notices) :])
    for message in work.messages:
        if isinstance(message, ToolMessage):
            scope.corrections.note(message)
    scope.corrections.reminders += sum(
        1 for message in work.messages if getattr(message, "metadata", {}).get("helix") == "output_reminder"
    )
    scope.session = msgspec.structs.replace(
        scope.session,
        version=committed.new_version,
        message_count=committed.message_count,
        checkpoint_id=committed.checkpoint_id,
        step_count=work.batch.step,
        **{"status": committed.status, **{key: value for key, value in work.record.items() if key != "status"}},
    )
    if committed.status == "paused" and work.ended is None:
        scope.stop.request()
    scope.carried.clear()
    scope.notices.clear()
    scope.late_answers = ()
    scope.desk.clear()
    step = work.batch.step
    await scope.writer.write(
        scope.chunk(
            StepCommitted,
            step,
            step_id=work.step_id,
            checkpoint_id=committed.checkpoint_id,
            message_count=committed.message_count,
            warnings=committed.warnings,
        )
    )
    await scope.writer.write(scope.chunk(CheckpointCreated, step, checkpoint_id=committed.checkpoint_id))
