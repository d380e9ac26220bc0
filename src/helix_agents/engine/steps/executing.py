"""Running a tool's function and turning whatever happens into a result."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import msgspec

from helix_agents.agent.context import Approval, ToolContext
from helix_agents.agent.failures import ControlFlow, FailRun, OutcomeUnknown, RetryTool, ToolFailed
from helix_agents.agent.hook_events import (
    AfterToolEvent,
    AroundToolEvent,
    BeforeToolEvent,
    HookEvent,
    RanBy,
    StateChangeEvent,
)
from helix_agents.agent.surroundings import Surroundings
from helix_agents.agent.tools import Tool
from helix_agents.domain.chunks import StatePatch, ToolEnd, ToolError, ToolStart
from helix_agents.domain.errors import HelixError, InvalidStateError, StateSizeExceededError, ToolOutputError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import EDITED_INPUT, ToolCall, ToolMessage
from helix_agents.domain.parts import Content
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.texts import said_by
from helix_agents.domain.transcript import OUTCOME_UNKNOWN, PERHAPS
from helix_agents.domain.writes import NO_WRITES, StepWrites, apply_writes
from helix_agents.engine.desk import BEFORE, Note, RestingResult, StepLost
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall, in_order_of_work
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.corrections import RETRY_REQUESTED
from helix_agents.engine.steps.fitting import fit_together
from helix_agents.engine.steps.patches import json_patch
from helix_agents.engine.user_code import Notes, OfHooks, counted, fire, fire_with_draft, surrounding, tool_context

_NO_LIMIT = nullcontext()


class _TookTooLong(Exception):  # noqa: N818  # the function may be all right
    """The tool's own time limit ended the call."""


async def execute(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    approval: Approval | None = None,
) -> RestingResult | None:
    """Call the function and turn whatever happens into a result; None if a stop cut it.

    Readers are told the result, unless the tool says that its outcome is unknown: the caller decides what follows from
    that.
    """
    given = tool.dump_input(values)
    if not scope.hooks.wants("around_tool"):
        return await _execute(scope, batch, planned, tool, values, given, approval)
    about = {"tool_name": tool.name, "tool_call_id": planned.tool_call_id}
    with surrounding(scope, batch.step, AroundToolEvent(**about, input=given)) as around:
        result = await _execute(scope, batch, planned, tool, values, given, approval, around)
        if result is not None and around.begun:
            around.outcome = after_tool(result, "function")
    return result


async def _execute(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    values: Mapping[str, Any],
    given: dict[str, JSON],
    approval: Approval | None,
    around: Surroundings | None = None,
) -> RestingResult | None:
    """The body of `execute`, inside the hooks around the tool if there are any."""
    step, call_id = batch.step, planned.tool_call_id
    earlier = await _earlier_writes(scope, batch, planned)
    draft = scope.draft(*earlier)
    notes = Notes(batch.round)
    context = tool_context(scope, step, call_id, draft, notes, approval)
    beside = {EDITED_INPUT: given} if approval is not None and approval.edited else {}
    begun = scope.services.clock.now_ms()
    await scope.show(scope.chunk(ToolStart, step, tool_call_id=call_id, tool_name=tool.name, arguments=given))
    called = await _call(scope, tool, context, values, given, around)
    if called is None:
        return None
    returned, problem = called
    output: JSON = None
    content = Content(None)
    writes = NO_WRITES
    if problem is None:
        try:
            content = tool.dump(returned)
            output = scope.agent.check_output(returned, tool.name) if tool.finish_with else None
            writes = await _state_writes(scope, context, call_id)
            _check_size(scope, tool.name, content.content, beside, (*earlier, writes) if writes else ())
        except (HelixError, FailRun) as refused:
            problem, writes = refused, NO_WRITES
    await scope.emitted()
    ended = scope.services.clock.now_ms()
    took = ended - begun
    message = _message(scope, planned, content, problem)
    if beside:
        message = msgspec.structs.replace(message, metadata=beside)
    if not isinstance(problem, OutcomeUnknown):
        await announce(scope, step, message, writes)
    spent = scope.usage_entry(step, source_type="tool", source_name=tool.name, amount=took, success=problem is None)
    return RestingResult(
        message=message,
        writes=writes,
        entries=tuple(notes.entries) if problem is None else (),
        audit=tuple(notes.audit),
        usage=(spent, *counted(scope, step, notes)),
        input=given,
        duration_ms=took,
        ended_at=ended,
        ran=True,
        finishes=tool.finish_with and problem is None,
        output=output,
        fail_run=problem.reason if isinstance(problem, FailRun) else None,
    )


async def _call(
    scope: RunScope,
    tool: Tool[..., Any],
    context: ToolContext[Any, Any],
    values: Mapping[str, Any],
    given: JSON,
    around: Surroundings | None,
) -> tuple[Any, BaseException | None] | None:
    """What the function returned, or what it or a hook before it raised; None if a stop cut it."""
    returned: Any = None
    problem: BaseException | None = None
    limit = None if tool.timeout_ms is None else asyncio.timeout(tool.timeout_ms / 1000)
    with scope.stop.cutting(scope.services.options.cancel_grace_seconds) as cut:
        try:
            if scope.hooks.wants("before_tool"):
                about = {"tool_name": tool.name, "tool_call_id": context.tool_call_id}
                await fire(scope, context, BeforeToolEvent(**about, input=given))
            if around is not None:
                around.begin()
            async with limit or _NO_LIMIT:
                in_thread = scope.services.in_thread
                returned = await tool.call(context, values, in_thread=in_thread, apart=scope.keeps_tools_apart)
        except (Exception, ControlFlow) as raised:
            # A TimeoutError may also come from inside the function, which is a problem like any other.
            is_late = isinstance(raised, TimeoutError) and limit is not None and limit.expired()
            problem = _TookTooLong() if is_late else raised
    return None if cut.happened else (returned, problem)


def after_tool(result: RestingResult, ran_by: RanBy, errand: str | None = None) -> AfterToolEvent:
    """The event that tells hooks of a call that has its result."""
    message = result.message
    return AfterToolEvent(
        tool_name=message.tool_name,
        tool_call_id=message.tool_call_id,
        input=result.input,
        result=message.content,
        parts=message.parts,
        error=message.error,
        code=message.code,
        duration_ms=result.duration_ms,
        ended_at=result.ended_at,
        ran_by=ran_by,
        errand=errand,
    )


async def tell_before(scope: RunScope, batch: Batch, planned: PlannedCall, *events: HookEvent) -> None:
    """Run the hooks before a call that no function is run for; the commit takes what they change and count.

    Raises:
        FailRun: a hook wants the run to fail.
    """
    told: list[OfHooks] = []
    for event in events:
        told.append(await fire_with_draft(scope, batch.step, event, *(left.writes for left in told)))
    ops = tuple(op for left in told for op in left.writes.ops)
    usage = tuple(entry for left in told for entry in left.usage)
    if ops or usage:
        note = Note(round=batch.round, writes=StepWrites(ops=ops), usage=usage)
        await scope.note(batch.step, f"{BEFORE}{planned.tool_call_id}", note)


async def open_call(scope: RunScope, batch: Batch, planned: PlannedCall) -> ToolCall:
    """The call as the model wrote it."""
    resting = await scope.desk.find_reply(scope.step_id(batch.step))
    if resting is None and batch.round == 0:
        raise StepLost
    reply = resting.message if resting is not None else scope.last_reply()
    assert reply is not None
    return next(call for call in reply.tool_calls if call.id == planned.tool_call_id)


async def settle(scope: RunScope, batch: Batch, result: RestingResult) -> CallOutcome:
    """Keep a result until the commit."""
    if not result.ended_at:
        result = msgspec.structs.replace(result, ended_at=scope.services.clock.now_ms())
    await scope.said()
    await scope.desk.put_result(scope.step_id(batch.step), result)
    return CallOutcome(tool_call_id=result.message.tool_call_id, state="settled")


async def _earlier_writes(scope: RunScope, batch: Batch, planned: PlannedCall) -> tuple[StepWrites, ...]:
    """The writes that a tool sees: a `finish_with` tool sees those of the step's other calls, while the others start
    from the same committed state."""
    if planned.kind != "finish_with":
        return ()
    step_id = scope.step_id(batch.step)
    results = await scope.desk.results(step_id)
    reply = await scope.desk.find_reply(step_id)
    suspended = scope.session.suspension_context
    calls = reply.calls if reply is not None else suspended.calls if suspended is not None else ()
    order = in_order_of_work(calls)
    fitting = fit_together(scope, results, order, NO_WRITES if reply is None else reply.writes)
    return tuple(fitting[call_id].writes for call_id in order if call_id in fitting)


async def _state_writes(scope: RunScope, context: ToolContext[Any, Any], call_id: ToolCallId) -> StepWrites:
    writes = context.link.draft.writes(call_id)
    if writes and scope.hooks.wants("on_state_change"):
        await fire(scope, context, StateChangeEvent(tool_call_id=call_id, writes=writes))
        writes = context.link.draft.writes(call_id)
    return writes


def _check_size(scope: RunScope, tool: str, content: JSON, beside: JSON, writes: tuple[StepWrites, ...]) -> None:
    """Refuse here what the store would refuse later, so that only this call fails. The last writes are its own."""
    size, limit = len(encode(content)) + (len(encode(beside)) if beside else 0), scope.services.result_bytes
    if size > limit:
        raise ToolOutputError(tool, f"the result has {size} bytes, but at most {limit} are stored; return less")
    most = scope.services.store.limits.state_bytes
    if writes and most is not None:
        state = apply_writes(scope.custom_state, (op for each in writes for op in each.ops))
        keys = tuple(dict.fromkeys(op.key for op in writes[-1].ops))
        check_size(scope.session.session_id, "state", len(encode(state)), most, keys)


def _message(scope: RunScope, planned: PlannedCall, given: Content, problem: BaseException | None) -> ToolMessage:
    """What the model is told. A traceback goes to the log, not to the transcript."""
    code: str | None = None
    content, in_parts = given if problem is None else (None, False)
    match problem:
        case None:
            pass
        case RetryTool():
            code, content = RETRY_REQUESTED, _text_of(scope, problem)
        case ToolFailed() | FailRun():
            code, content = "tool_failed", _text_of(scope, problem)
        case OutcomeUnknown():
            code, content = OUTCOME_UNKNOWN, f"{_text_of(scope, problem).rstrip('.')}; {PERHAPS}."
        case _TookTooLong():
            code, content = "tool_timeout", f"Tool {planned.tool_name!r} did not finish in time: {PERHAPS}."
        case StateSizeExceededError():
            code, content = problem.code, str(problem)
        case ToolOutputError() | InvalidStateError():
            code, content = "tool_output_invalid", str(problem)
            _log(scope, planned, problem)
        case _:
            code, content = "tool_execution_failed", f"{type(problem).__name__}: {_text_of(scope, problem)}"
            _log(scope, planned, problem)
    return ToolMessage(
        tool_call_id=planned.tool_call_id,
        tool_name=planned.tool_name,
        content=content,
        in_parts=in_parts,
        error=problem is not None,
        code=code,
    )


def _log(scope: RunScope, planned: PlannedCall, problem: BaseException) -> None:
    """Log what is most likely a bug in the tool, for its author."""
    log_exception("tool.failed", problem, tool=planned.tool_name, session_id=scope.session.session_id)


def _text_of(scope: RunScope, problem: BaseException) -> str:
    # A control character takes six bytes when stored, and the message around the text needs room as well.
    return said_by(problem, scope.services.result_bytes // 8)


async def announce(scope: RunScope, step: int, message: ToolMessage, writes: StepWrites) -> None:
    """Tell readers the result of a call, unless they know it already."""
    about = {"tool_call_id": message.tool_call_id, "tool_name": message.tool_name}
    end = (
        scope.chunk(ToolError, step, **about, error=str(message.content), code=message.code)
        if message.error
        else scope.chunk(ToolEnd, step, **about, result=message.content, in_parts=message.in_parts)
    )
    if scope.was_told(end):
        return
    if writes:
        patch = json_patch(writes, scope.custom_state)
        await scope.show(scope.chunk(StatePatch, step, patch=patch))
    with suppress(HelixError):
        # A result that is too large for a chunk is still in the transcript.
        await scope.writer.write(end)
