"""Tools that must not run twice: announced before they run, recorded after, and asked about when nobody knows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from helix_agents.agent.context import Approval
from helix_agents.agent.failures import ControlFlow
from helix_agents.agent.outcomes import DidNotHappen, Happened, Reconciled, StillUnknown
from helix_agents.agent.tools import Tool
from helix_agents.domain.effects import (
    BeginEffect,
    Effect,
    EffectBegun,
    EffectBusy,
    EffectFinished,
    EffectLost,
    EffectUnknown,
)
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import EDITED_INPUT, ToolMessage
from helix_agents.domain.records import JSON, decode, decode_json, encode
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import OUTCOME_UNKNOWN, RUN_STOPPED, cut_short, outcome_unknown
from helix_agents.domain.usage import UsageEntry
from helix_agents.engine.children.ends import known_of_children
from helix_agents.engine.desk import Note, RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import Notes, RunScope
from helix_agents.engine.steps.executing import announce, execute, settle
from helix_agents.engine.store_desk import reply_row
from helix_agents.ports.state_store import SessionStateStore

T = TypeVar("T")

# How long after a store did not answer it is asked again, in seconds; twice as long each time.
_FIRST_WAIT = 0.1
# How often a tool is run again that says itself, each time, that nobody knows what happened.
_MOST_RERUNS = 2


async def run_tool(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    *,
    approved: bool = False,
    approval: Approval | None = None,
    rerun: bool = False,
) -> CallOutcome:
    """Run our function; one that must not run twice goes through the ledger."""
    is_once = tool.effect_of_call(approved=approved) == "once"
    if scope.stop.requested.is_set():
        return await _settle_done(scope, batch, planned) if is_once else _stopped(planned)
    if is_once:
        return await _run_once(scope, batch, planned, tool, values, approved=approved, approval=approval, rerun=rerun)
    result = await execute(scope, batch, planned, tool, values, approval)
    if result is None:
        cut = cut_short(planned.tool_call_id, tool.name, RUN_STOPPED)
        await settle(scope, batch, _of_edited(RestingResult(message=cut, told=False), tool, values, approval))
        return _stopped(planned)
    result = msgspec.structs.replace(result, consumes=True) if approved else result
    return await (_settle_known if _says_unknown(result) else settle)(scope, batch, result)


async def _run_once(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    *,
    approved: bool,
    approval: Approval | None,
    rerun: bool,
) -> CallOutcome:
    request = BeginEffect(
        session_id=scope.session.session_id,
        fence=scope.run.fence,
        tool_call_id=planned.tool_call_id,
        tool_name=tool.name,
        idempotency_key=scope.idempotency_key(batch.step, planned.tool_call_id),
        # A name of its own for each try: two tries in one process are two owners, and one of them waits.
        owner=scope.services.ids.new("owner"),
        lease_ms=scope.services.options.effect_lease_ms,
        stage=await resting_reply(scope, batch),
        consume_answer=approved,
        rerun=rerun,
    )
    store = scope.services.store
    said: RestingResult | None = None
    runs = 0
    while True:
        # The same try may announce itself twice: it has run nothing in between.
        try:
            announced = await _insisting(scope, partial(store.begin_effect, request))
        except (Exception, asyncio.CancelledError):
            # It may have been taken down all the same.
            await _leave(scope, request)
            raise
        match announced:
            case EffectBegun():
                spent = () if said is None else said.usage
                ended = await _run_begun(scope, batch, planned, tool, values, approval, request, spent)
                if isinstance(ended, CallOutcome):
                    return ended
                said, runs = ended, runs + 1
                # Another name for whoever asks the ledger now, as if it had come after a process that died.
                request = msgspec.structs.replace(request, owner=scope.services.ids.new("owner"), rerun=False)
            case EffectFinished(effect=effect):
                return await _settle_known(scope, batch, decode(encode(effect.result), RestingResult))
            case EffectUnknown(effect=effect):
                unknown = said or _of_edited(unknown_result(planned), tool, values, approval)
                unknown = msgspec.structs.replace(unknown, once=True)
                outcome = await _resolve_unknown(scope, batch, planned, tool, values, effect, approval, unknown)
                if outcome is not None:
                    return outcome
                if runs > _MOST_RERUNS:
                    return await _settle_known(scope, batch, unknown)
                if scope.stop.requested.is_set():
                    return _stopped(planned)
                request = msgspec.structs.replace(request, rerun=True)
            case EffectBusy() if scope.stop.requested.is_set():
                return _stopped(planned)
            case EffectBusy(effect=effect):
                # Another live attempt runs it: its result is on its way, or its lease will run out.
                left = effect.lease_expires_at - scope.services.clock.now_ms()
                await scope.services.sleep(min(max(left, 10), 500) / 1000)


async def _run_begun(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    approval: Approval | None,
    request: BeginEffect,
    spent: tuple[UsageEntry, ...],
) -> CallOutcome | RestingResult:
    """Run a tool whose intent is stored, and record what it came to. Where the tool itself says that nobody knows, that
    is what the ledger says from now on, and the answer is how it was said. `spent` was used by earlier tries."""
    session_id, call_id, run, owner = scope.session.session_id, planned.tool_call_id, scope.run, request.owner
    finish: Callable[[], Awaitable[object]] | None = None
    renewing = asyncio.create_task(_keep_alive(scope, planned, owner))
    try:
        result = await execute(scope, batch, planned, tool, values, approval)
        if result is None:
            # Cut while it ran: whether it took effect is not known, and saying "not executed" would be a guess.
            result = _of_edited(unknown_result(planned), tool, values, approval)
        result = msgspec.structs.replace(result, once=True, usage=(*spent, *result.usage))
        if _says_unknown(result):
            # A renewal that comes after this would have the call be taken, by nobody, for one more lease.
            renewing.cancel()
            await asyncio.wait((renewing,))
            finish = partial(scope.services.store.renew_effect, session_id, call_id, owner, 0)
        else:
            rested = decode_json(encode(result))
            finish = partial(scope.services.store.finish_effect, session_id, call_id, owner, rested)
        finished = await _insisting(scope, finish)
    except (Exception, asyncio.CancelledError):
        renewing.cancel()
        await asyncio.wait((renewing,))
        if finish is not None or not tool.runs_on_thread:
            # Nobody can call a thread back: what runs on one may go on, and the call stays taken until its lease ends.
            await _leave(scope, request, finish)
        raise
    finally:
        renewing.cancel()
    if isinstance(finished, EffectLost):
        # It is too late: whoever declared the outcome unknown, or ran it again, answers for the call.
        log_event("effect.late_result", tool=tool.name, tool_call_id=call_id, session_id=session_id)
        raise SupersededError(session_id, run.run_id, run.attempt, f"another try answers for call {call_id!r}")
    return result if _says_unknown(result) else await settle(scope, batch, result)


def _says_unknown(result: RestingResult) -> bool:
    """Whether the tool itself said that nobody knows what happened, and was not merely cut."""
    return result.ran and result.message.code == OUTCOME_UNKNOWN


async def _leave(scope: RunScope, request: BeginEffect, finish: Callable[[], Awaitable[object]] | None = None) -> None:
    """Tell the ledger once more what is known of a call that nobody here works on any more: its result, else that
    whoever comes next need not wait, because its outcome is unknown by now."""
    session_id, call_id, owner = request.session_id, request.tool_call_id, request.owner
    try:
        await (scope.services.store.renew_effect(session_id, call_id, owner, 0) if finish is None else finish())
    except HelixError as problem:
        # What the ledger does not know of need not be left.
        if problem.retryable:
            log_exception("effect.not_left", problem, tool=request.tool_name, session_id=session_id)


async def _insisting(scope: RunScope, operation: Callable[[], Awaitable[T]]) -> T:
    """Ask the ledger until it answers, for about as long as a lease lasts: what it is told twice by the same owner it
    takes once, and whoever does not get to tell it leaves a call behind that nobody knows the outcome of."""
    left, wait = scope.services.options.effect_lease_ms / 1000, _FIRST_WAIT
    while True:
        try:
            return await operation()
        except HelixError as problem:
            if not problem.retryable or left <= 0:
                raise
            log_exception("effect.ledger_away", problem, session_id=scope.session.session_id)
        await scope.services.sleep(wait)
        left, wait = left - wait, wait * 2


async def _settle_done(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """A call that an earlier attempt has done is not stopped any more; all that it changed stands."""
    known = await begun_result(scope, planned)
    if known is None or known.message.code == OUTCOME_UNKNOWN:
        return _stopped(planned)
    return await _settle_known(scope, batch, known)


def _stopped(planned: PlannedCall) -> CallOutcome:
    return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")


async def _settle_known(scope: RunScope, batch: Batch, result: RestingResult) -> CallOutcome:
    """Keep a result that no function of this attempt gave; readers are told, as what an earlier one said is gone."""
    await announce(scope, batch.step, result.message, result.writes)
    return await settle(scope, batch, result)


async def _keep_alive(scope: RunScope, planned: PlannedCall, owner: str) -> None:
    lease_ms = scope.services.options.effect_lease_ms
    while True:
        await scope.services.sleep(lease_ms / 3000)
        try:
            await scope.services.store.renew_effect(scope.session.session_id, planned.tool_call_id, owner, lease_ms)
        except Exception as problem:
            log_exception("effect.renewal_failed", problem, tool=planned.tool_name)


async def _resolve_unknown(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    effect: Effect,
    approval: Approval | None,
    unknown: RestingResult,
) -> CallOutcome | None:
    """What the tool's policy makes of a call nobody knows the outcome of; None means: run it again. `unknown` is its
    result where the policy finds no other."""
    policy = tool.unknown_outcome or "ask"
    log_event("effect.unknown", tool=tool.name, tool_call_id=planned.tool_call_id, policy=str(policy))
    if policy == "retry":
        return None
    if policy == "fail":
        return await _settle_known(scope, batch, unknown)
    if policy != "ask":
        notes = Notes(batch.round)
        context = scope.tool_context(batch.step, planned.tool_call_id, scope.draft(), notes)
        content: JSON = None
        found: Reconciled = StillUnknown()
        with scope.stop.cutting(scope.services.options.cancel_grace_seconds) as cut:
            try:
                async with asyncio.timeout(None if tool.timeout_ms is None else tool.timeout_ms / 1000):
                    found = await tool.reconcile(context, values, in_thread=scope.services.in_thread)
                content = tool.dump(found.result) if isinstance(found, Happened) else None
            except (Exception, ControlFlow) as problem:
                log_exception("effect.reconcile_failed", problem, tool=tool.name)
                found = StillUnknown()
        if cut.happened:
            return _stopped(planned)
        match found:
            case DidNotHappen():
                return None
            case Happened():
                message = ToolMessage(tool_call_id=planned.tool_call_id, tool_name=tool.name, content=content)
                usage = (*unknown.usage, *scope.counted(batch.step, notes))
                known = RestingResult(message=message, once=True, usage=usage)
                return await _settle_known(scope, batch, _of_edited(known, tool, values, approval))
            case StillUnknown():
                pass
    if scope.user_went_on and effect.begun_at < scope.run.started_at:
        # The user has gone on since: nobody is asked, and the message does not wait for an answer.
        return await _settle_known(scope, batch, unknown)
    asked = Note(
        round=batch.round,
        usage=unknown.usage,
        unknown=True,
        input=tool.dump_input(values),
        edited=approval is not None and approval.edited,
    )
    await scope.note(batch.step, planned.tool_call_id, asked)
    return CallOutcome(tool_call_id=planned.tool_call_id, state="waiting")


async def known_of_open_calls(
    store: SessionStateStore, session_id: SessionId, calls: Mapping[ToolCallId, str]
) -> dict[ToolCallId, ToolMessage]:
    """What is known of calls that get no result any more, given by name: what the ledger says, and what the sessions
    came to that were begun for them."""
    return await known_of_children(store, session_id, calls) | await begun_calls(store, session_id)


async def begun_calls(store: SessionStateStore, session_id: SessionId) -> dict[ToolCallId, ToolMessage]:
    """What is known of calls that must not run twice and were begun: their results, or that nobody knows. Whoever gives
    such a call up may not say that it was not executed."""
    return {call_id: known.message for call_id, known in (await begun_results(store, session_id)).items()}


async def begun_results(store: SessionStateStore, session_id: SessionId) -> dict[ToolCallId, RestingResult]:
    """What is known of such calls, with all that it would have changed."""
    return {effect.tool_call_id: _known_of(effect) for effect in await store.list_effects(session_id)}


async def begun_result(scope: RunScope, planned: PlannedCall) -> RestingResult | None:
    """What is known of a call that was begun, for whoever cannot run it because a deploy took its tool away, or changed
    what that accepts; None where it was not begun."""
    effects = await scope.services.store.list_effects(scope.session.session_id)
    known = next((_known_of(effect) for effect in effects if effect.tool_call_id == planned.tool_call_id), None)
    return None if known is None else msgspec.structs.replace(known, once=True)


def _known_of(effect: Effect) -> RestingResult:
    if effect.state == "done":
        return decode(encode(effect.result), RestingResult)
    return RestingResult(message=outcome_unknown(effect.tool_call_id, effect.tool_name))


def _of_edited(
    result: RestingResult, tool: Tool[..., Any], values: Mapping[str, Any], approval: Approval | None
) -> RestingResult:
    is_edited = approval is not None and approval.edited
    return ran_with(result, tool.dump_input(values)) if is_edited else result


def ran_with(result: RestingResult, edited: JSON) -> RestingResult:
    """The result of a call that was begun with another input than the model's, which it is told of."""
    message = msgspec.structs.replace(result.message, metadata={EDITED_INPUT: edited})
    return msgspec.structs.replace(result, message=message)


def unknown_result(planned: PlannedCall) -> RestingResult:
    """The result of a call whose outcome is unknown."""
    return RestingResult(message=outcome_unknown(planned.tool_call_id, planned.tool_name))


async def resting_reply(scope: RunScope, batch: Batch) -> tuple[StagedChange, ...]:
    """The reply that asked for the call, to be stored with its intent; later rounds have it in the transcript."""
    if batch.round > 0 or scope.desk.is_durable:
        return ()
    step_id = scope.step_id(batch.step)
    reply = await scope.desk.find_reply(step_id)
    return () if reply is None else (reply_row(step_id, reply),)
