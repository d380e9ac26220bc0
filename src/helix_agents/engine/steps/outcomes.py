"""What becomes of a step: it is whole, waits for an answer, was stopped, or cannot be done."""

import msgspec

from helix_agents.agent.registry import keeps_companions
from helix_agents.agent.sub_agents import DelegationTool
from helix_agents.domain.messages import AssistantMessage, Message
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.runs import SuspensionKind
from helix_agents.domain.session_changes import has_changed_hands
from helix_agents.domain.sessions import ChildWait, InterruptContext, OpenCall, SuspensionContext
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import RUN_STOPPED, not_executed
from helix_agents.domain.usage import TokenCount
from helix_agents.engine.desk import Failure
from helix_agents.engine.effects import DELEGATED, Advance, Announce, Fail, PlannedCall, StepOutcome, Stop, Suspend
from helix_agents.engine.requests.stopping import stop_companions
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.ledger import known_of_open_calls
from helix_agents.engine.steps.step_work import CANCELLED, NOT_SUSPENDED, StepWork
from helix_agents.engine.steps.verdicts import Finished, GoOn, WholeStep, failed_by, judge, refusal_of
from helix_agents.engine.steps.waits import pending_for, suspension_kind


async def work_out(scope: RunScope, outcome: StepOutcome, work: StepWork) -> None:
    """Fill in what the commit says about the step."""
    match outcome:
        case Advance():
            _advance(scope, work)
        case Announce() | Suspend():
            await _hold_or_fail(scope, outcome, work)
        case Stop():
            await _stop(scope, work)
        case Fail(code=code):
            work.messages = list(scope.carried.notices)
            work.fail(scope.failure or Failure(code, code))


async def end_batch(scope: RunScope, work: StepWork) -> None:
    """Give every call a result, so that the transcript is legal however the run ends; then add new user messages."""
    if not work.batch.calls and work.reply is not None:
        # The reply was cut before its calls were planned.
        work.messages.extend(not_executed(work.reply.message.tool_calls, RUN_STOPPED))
    if work.batch.unsettled:
        names = {call.tool_call_id: call.tool_name for call in work.batch.unsettled}
        work.begun = await known_of_open_calls(scope.services.store, scope.session.session_id, names)
    work.messages.extend(map(work.result_of, work.batch.calls))
    work.messages.extend(scope.entered_meanwhile)


def _advance(scope: RunScope, work: StepWork) -> None:
    """All calls have their results. They follow in the model's order, then messages that came while calls were open."""
    work.messages.extend((*map(work.result_of, work.batch.calls), *scope.entered_meanwhile))
    decide(scope, work)


def decide(scope: RunScope, work: StepWork) -> None:
    """Decide what the results of a whole step mean for the run."""
    work.ended = work.reason = None
    work.record = dict(NOT_SUSPENDED)
    step = WholeStep(
        batch=work.batch,
        reply=work.open_reply,
        results=tuple(map(work.result_of, work.batch.calls)),
        new=work.new,
        writes=tuple(work.writes[len(scope.carried.writes) :]),
        tokens=_tokens(scope, work),
        refused=None if work.reply is None else work.reply.refused,
        max_steps=(scope.agent if work.heir is None else work.heir.agent).max_steps,
    )
    verdict = judge(scope, step)
    if scope.entered_meanwhile and isinstance(verdict, Finished):
        # The user sent a new message while these calls were open: the answer to that message is still to come.
        verdict = GoOn()
    match verdict:
        case Finished(output=output, reason=reason):
            work.ended, work.reason = "completed", reason
            work.record |= {"status": "completed", "output": output}
        case GoOn(reminder=reminder):
            work.messages.extend(() if reminder is None else (reminder,))
        case Failure() as failure:
            work.messages.extend(() if (said := refusal_of(step)) is None else (said,))
            work.fail(failure)


def _announce(scope: RunScope, work: StepWork) -> None:
    """Make the step durable as far as it came. Its companions are spoken to in the next round; calls beside them that
    wait for an answer can be answered from now on."""
    work.announced = True
    work.pending = _pending(scope, work)
    work.record = {"suspension_context": _hold(scope, work, "suspended_step_partial", ())}


async def _hold_or_fail(scope: RunScope, outcome: Announce | Suspend, work: StepWork) -> None:
    """A result that makes the run fail does not wait for calls that are still open."""
    failure = failed_by(scope, work.new, work.known)
    if failure is not None:
        await end_batch(scope, work)
        work.fail(failure)
    elif isinstance(outcome, Suspend):
        _suspend(scope, work)
    else:
        _announce(scope, work)


def _suspend(scope: RunScope, work: StepWork) -> None:
    """Record what a suspended run needs: the rows to be answered, the results so far, and what it takes to resume."""
    children = tuple(wait for call in work.batch.unsettled if (wait := _child_wait(scope, call)) is not None)
    work.pending = _pending(scope, work)
    kind = suspension_kind(settled=bool(work.batch.settled), only_children=not work.pending)
    work.suspended = True
    work.ended, work.reason = kind, kind
    work.record = {
        "suspension_context": _hold(scope, work, kind, children),
        "suspended_step_id": work.step_id,
        "suspended_awaiting_children": {wait.tool_call_id: wait for wait in children},
    }


def _pending(scope: RunScope, work: StepWork) -> tuple[PendingCall, ...]:
    """The rows of calls that wait for an answer. A `finish_with` tool comes after all others, so it has not begun,
    unless its outcome is unknown and a person must say what became of it."""
    previews = work.reply.previews if work.reply is not None else {}
    return tuple(
        pending_for(scope, work.step_id, work.open_reply, call, previews.get(call.tool_call_id))
        for call in work.batch.unsettled
        if call.kind not in (*DELEGATED, "companion", "handoff", "finish_with")
        or call.tool_call_id in scope.carried.unknown
    )


def _hold(scope: RunScope, work: StepWork, kind: SuspensionKind, children: tuple[ChildWait, ...]) -> SuspensionContext:
    """Keep this round's results in rows, and describe what it takes to resume the open batch."""
    batch = work.batch
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
    return SuspensionContext(
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
                child_session_id=call.child_session_id,
                settled=call.tool_call_id in batch.settled,
            )
            for call in batch.calls
        ),
        children=children,
        remaining_steps=max(0, scope.agent.max_steps - batch.step),
        agent_version=scope.agent.version,
        entry_messages=scope.entered_meanwhile,
        tokens=_tokens(scope, work),
    )


def _tokens(scope: RunScope, work: StepWork) -> TokenCount:
    """What the step's reply used; for a reply that an earlier round committed, the suspension has the count."""
    suspended = scope.session.suspension_context
    if work.reply is None:
        return suspended.tokens if suspended is not None else TokenCount()
    return next((entry.tokens for entry in work.reply.usage if entry.tokens), None) or TokenCount()


async def _stop(scope: RunScope, work: StepWork) -> None:
    """Keep what readers saw. Calls that did not run get a result that says so, which keeps the transcript legal."""
    if scope.failure is not None:
        await end_batch(scope, work)
        work.fail(scope.failure)
        return
    flag, stored = scope.stop.flag, await scope.services.store.find_interrupt_flag(scope.session.session_id)
    if flag is None or (stored is not None and stored.kind == "abort"):
        # An abort that arrives after an interrupt, while the run is still stopping, takes precedence.
        flag = stored
    reason = flag.reason if flag is not None else None
    work.stopped = True
    if keeps_companions(scope.agent) or has_changed_hands(scope.session):
        kind = flag.kind if flag is not None else "interrupt"
        await stop_companions(scope.services, scope.session.session_id, kind, reason)
    await end_batch(scope, work)
    if flag is not None and flag.kind == "abort":
        work.messages = [_aborted(message) for message in work.messages]
        work.fail(Failure(CANCELLED, reason or "The run was aborted."))
        return
    paused = scope.session.status == "paused"
    now = scope.services.clock.now_ms()
    context = InterruptContext(reason=reason, run_id=scope.run.run_id, step_count=work.batch.step, at=now)
    work.ended, work.reason = "interrupted", "paused" if paused else "interrupted"
    work.record = {
        **NOT_SUSPENDED,
        "status": "paused" if paused else "interrupted",
        "interrupt_context": context,
    }


def _aborted(message: Message) -> Message:
    """A reply that was cut records that an abort cut it."""
    if isinstance(message, AssistantMessage) and message.interrupted is not None:
        return msgspec.structs.replace(message, interrupted="abort")
    return message


def _child_wait(scope: RunScope, call: PlannedCall) -> ChildWait | None:
    """The child that a call waits for, if any."""
    if call.kind == "companion":
        return scope.companion_waits.get(call.tool_call_id)
    tool = scope.agent.find_tool(call.tool_name)
    if call.kind not in DELEGATED or not isinstance(tool, DelegationTool):
        return None
    return ChildWait(
        tool_call_id=call.tool_call_id, child_session_id=call.child_session_id or "", agent_type=tool.child_type
    )
