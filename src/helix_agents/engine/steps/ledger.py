"""`once` tools, which must not run twice: announced before they run, recorded after, asked about if in doubt."""

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
from helix_agents.domain.parts import Content
from helix_agents.domain.records import JSON, decode, decode_json, encode
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import OUTCOME_UNKNOWN, RUN_STOPPED, cut_short, outcome_unknown
from helix_agents.domain.usage import UsageEntry
from helix_agents.engine.children.ends import known_of_children
from helix_agents.engine.desk import Note, RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.executing import announce, execute, settle
from helix_agents.engine.store_desk import reply_row
from helix_agents.engine.user_code import Notes, counted, tool_context
from helix_agents.ports.state_store import SessionStateStore

T = TypeVar("T")

# How long to wait before a store that did not answer is asked again, in seconds; doubled each time.
_FIRST_WAIT = 0.1
# How often to rerun a tool that itself reports an unknown outcome each time.
_MOST_RERUNS = 2
# How many leases an intent may go without a renewal, although the clock says that it still lasts; a live owner renews
# it several times in each.
_STANDS_STILL = 4


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
    """Run the tool's function; a `once` tool goes through the ledger."""
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
    """Run a `once` tool under an intent in the ledger, so that it is never run a second time unnoticed.

    The ledger's answer decides what happens. The intent is ours: the tool runs. It has a result: that result is used.
    Its outcome is unknown: the tool's policy decides. Another live attempt holds it: this one waits for the result, or
    for the lease to run out.
    """
    request = BeginEffect(
        session_id=scope.session.session_id,
        fence=scope.run.fence,
        tool_call_id=planned.tool_call_id,
        tool_name=tool.name,
        idempotency_key=scope.idempotency_key(batch.step, planned.tool_call_id),
        # A new owner for each try: two tries in one process are two owners, and one of them waits.
        owner=scope.services.ids.new("owner"),
        lease_ms=scope.services.options.effect_lease_ms,
        stage=await resting_reply(scope, batch),
        consume_answer=approved,
        rerun=rerun,
    )
    store = scope.services.store
    said: RestingResult | None = None
    runs = 0
    holder = _Holder(scope, request.lease_ms)
    while True:
        # The same try may announce itself twice: it has run nothing in between.
        try:
            announced = await _insisting(scope, partial(store.begin_effect, request))
        except (Exception, asyncio.CancelledError):
            # The intent may have been recorded all the same.
            await _leave(scope, request)
            raise
        match announced:
            case EffectBegun():
                spent = () if said is None else said.usage
                ended = await _run_begun(scope, batch, planned, tool, values, approval, request, spent)
                if isinstance(ended, CallOutcome):
                    return ended
                said, runs = ended, runs + 1
                # Ask the ledger as a new owner, as if this were a process that came after one that died.
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
                await holder.wait(effect)


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
    """Run a tool whose intent is stored, and record its result.

    If the tool itself reports that its outcome is unknown, the ledger says so from now on, and the tool's own result is
    returned. `spent` is what earlier tries used.
    """
    session_id, call_id, run, owner = scope.session.session_id, planned.tool_call_id, scope.run, request.owner
    finish: Callable[[], Awaitable[object]] | None = None
    renewing = asyncio.create_task(_keep_alive(scope, planned, owner))
    try:
        result = await execute(scope, batch, planned, tool, values, approval)
        if result is None:
            # Cut while it ran: whether it took effect is unknown, and saying "not executed" would be a guess.
            result = _of_edited(unknown_result(planned), tool, values, approval)
        result = msgspec.structs.replace(result, once=True, usage=(*spent, *result.usage))
        if _says_unknown(result):
            # A renewal after this point would keep the call leased for one more lease while no owner works on it.
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
            # Not for a function on a thread that gave no result yet: a thread cannot be cancelled, so it may still be
            # running, and the call stays leased until its lease ends.
            await _leave(scope, request, finish)
        raise
    finally:
        renewing.cancel()
    if isinstance(finished, EffectLost):
        # Too late: the process that declared the outcome unknown, or ran the tool again, now answers for the call.
        log_event("effect.late_result", tool=tool.name, tool_call_id=call_id, session_id=session_id)
        raise SupersededError(session_id, run.run_id, run.attempt, f"another try answers for call {call_id!r}")
    return result if _says_unknown(result) else await settle(scope, batch, result)


def _says_unknown(result: RestingResult) -> bool:
    """Whether the tool itself reported an unknown outcome, rather than being cut."""
    return result.ran and result.message.code == OUTCOME_UNKNOWN


async def _leave(scope: RunScope, request: BeginEffect, finish: Callable[[], Awaitable[object]] | None = None) -> None:
    """Tell the ledger once more what is known about a call that this process no longer works on: its result, or else
    that its outcome is unknown by now and the next process need not wait."""
    session_id, call_id, owner = request.session_id, request.tool_call_id, request.owner
    try:
        await (scope.services.store.renew_effect(session_id, call_id, owner, 0) if finish is None else finish())
    except HelixError as problem:
        # A call that is not in the ledger need not be released.
        if problem.retryable:
            log_exception("effect.not_left", problem, tool=request.tool_name, session_id=session_id)


class _Holder:
    """Another attempt that runs the call: either its result arrives, or its lease runs out."""

    def __init__(self, scope: RunScope, lease_ms: int) -> None:
        self._scope = scope
        self._lease_ms = lease_ms
        self._lasts_until = 0
        self._unrenewed_ms = 0

    async def wait(self, effect: Effect) -> None:
        """Wait a moment for the attempt that holds an intent. An intent whose owner died before the clock was set back
        is given up, and its outcome is unknown from then on."""
        if effect.lease_expires_at != self._lasts_until:
            self._lasts_until, self._unrenewed_ms = effect.lease_expires_at, 0
        left = effect.lease_expires_at - self._scope.services.clock.now_ms()
        # It lasts longer than one renewed now would, and nobody renews it.
        if left > self._lease_ms and self._unrenewed_ms >= _STANDS_STILL * self._lease_ms:
            await self._give_up(effect)
            return
        wait_ms = min(max(left, 10), 500)
        await self._scope.services.sleep(wait_ms / 1000)
        self._unrenewed_ms += wait_ms

    async def _give_up(self, effect: Effect) -> None:
        session_id, call_id = effect.session_id, effect.tool_call_id
        log_event("effect.given_up", tool=effect.tool_name, tool_call_id=call_id, session_id=session_id)
        give_up = self._scope.services.store.renew_effect
        await _insisting(self._scope, partial(give_up, session_id, call_id, effect.owner, 0))


async def _insisting(scope: RunScope, operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat a ledger operation until it succeeds, for about as long as a lease lasts.

    The ledger accepts a repeated report from the same owner once. A report that never arrives would leave a call with
    an unknown outcome.
    """
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
    """A call that an earlier attempt completed is not stopped: its result and its changes are kept."""
    known = await begun_result(scope, planned)
    if known is None or known.message.code == OUTCOME_UNKNOWN:
        return _stopped(planned)
    return await _settle_known(scope, batch, known)


def _stopped(planned: PlannedCall) -> CallOutcome:
    return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")


async def _settle_known(scope: RunScope, batch: Batch, result: RestingResult) -> CallOutcome:
    """Keep a result that no function of this attempt gave, and tell readers: what an earlier one told them is gone."""
    await announce(scope, batch.step, result.message, result.writes)
    return await settle(scope, batch, result)


async def _keep_alive(scope: RunScope, planned: PlannedCall, owner: str) -> None:
    """Renew the lease of the intent while the tool runs."""
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
    """Apply the tool's policy to a call whose outcome is unknown; None means: run it again. `unknown` is the result if
    the policy finds no other."""
    policy = tool.unknown_outcome or "ask"
    log_event("effect.unknown", tool=tool.name, tool_call_id=planned.tool_call_id, policy=str(policy))
    if policy == "retry":
        return None
    if policy == "fail":
        return await _settle_known(scope, batch, unknown)
    if policy != "ask":
        notes = Notes(batch.round)
        context = tool_context(scope, batch.step, planned.tool_call_id, scope.draft(), notes)
        given = Content(None)
        found: Reconciled = StillUnknown()
        with scope.stop.cutting(scope.services.options.cancel_grace_seconds) as cut:
            try:
                async with asyncio.timeout(None if tool.timeout_ms is None else tool.timeout_ms / 1000):
                    found = await tool.reconcile(context, values, in_thread=scope.services.in_thread)
                given = tool.dump(found.result) if isinstance(found, Happened) else given
            except (Exception, ControlFlow) as problem:
                log_exception("effect.reconcile_failed", problem, tool=tool.name)
                found = StillUnknown()
        if cut.happened:
            return _stopped(planned)
        match found:
            case DidNotHappen():
                return None
            case Happened():
                content, in_parts = given
                message = ToolMessage(
                    tool_call_id=planned.tool_call_id, tool_name=tool.name, content=content, in_parts=in_parts
                )
                usage = (*unknown.usage, *counted(scope, batch.step, notes))
                known = RestingResult(message=message, once=True, usage=usage)
                return await _settle_known(scope, batch, _of_edited(known, tool, values, approval))
            case StillUnknown():
                pass
    if scope.user_went_on and effect.begun_at < scope.run.started_at:
        # The user has sent a new message since: no one is asked, and the message does not wait for an answer.
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
    """What is known about calls that get no result any more, by call id: what the ledger says, and the results of the
    sessions that were started for them."""
    return await known_of_children(store, session_id, calls) | await begun_calls(store, session_id)


async def begun_calls(store: SessionStateStore, session_id: SessionId) -> dict[ToolCallId, ToolMessage]:
    """What is known about `once` calls that were begun: their results, or that the outcome is unknown. Code that gives
    up such a call must not claim that it was not executed."""
    return {call_id: known.message for call_id, known in (await begun_results(store, session_id)).items()}


async def begun_results(store: SessionStateStore, session_id: SessionId) -> dict[ToolCallId, RestingResult]:
    """What is known about such calls, with everything the result would have changed."""
    return {effect.tool_call_id: _known_of(effect) for effect in await store.list_effects(session_id)}


async def begun_result(scope: RunScope, planned: PlannedCall) -> RestingResult | None:
    """What is known about a call that was begun but can no longer run because a deploy removed its tool or changed its
    parameters; None if it was not begun."""
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
    """The result of a call that ran with an input other than the model's, with that input for the model to see."""
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
