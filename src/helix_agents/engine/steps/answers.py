"""Calls that are answered from outside: what an answer, a refusal, a timeout or a new message makes of them."""

from contextlib import suppress
from typing import Any

import msgspec

from helix_agents.agent.context import Approval
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import HelixError
from helix_agents.domain.messages import ToolCall, ToolMessage
from helix_agents.domain.parts import Content
from helix_agents.domain.pending import UNKNOWN_OUTCOME, ApprovalAnswer, PendingCall, ToolAnswer
from helix_agents.domain.records import JSON
from helix_agents.domain.usage import UsageEntry
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall
from helix_agents.engine.log import log_event
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.executing import announce, settle
from helix_agents.engine.steps.ledger import begun_result, ran_with, run_tool, unknown_result

NOT_APPROVED = "not_approved"
ABANDONED = "client_tool_abandoned"
TIMED_OUT = "client_tool_timeout"
DENIAL = "Tool call was not approved by the user"
NOT_IN_TIME = "nobody decided in time"


async def run_answered(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """Continue a call that waits for an answer, as far as the answer allows."""
    waiting = CallOutcome(tool_call_id=planned.tool_call_id, state="waiting")
    if batch.round == 0:
        return waiting
    row = await scope.services.store.get_pending_call(scope.session.session_id, planned.tool_call_id)
    if row is None or row.state == "waiting":
        return waiting
    tool = scope.agent.find_tool(planned.tool_name)
    if tool is None:
        return await _settle(scope, batch, await begun_result(scope, planned) or tool_is_gone(_named(planned)))
    match row.state, row.answer:
        case "dropped", _:
            return await _settle(scope, batch, _given_up(planned, row), row)
        case "expired", _:
            log_event("client_tool.timeout", tool=tool.name, tool_call_id=planned.tool_call_id)
            return await _settle(scope, batch, _after_deadline(planned, tool, row), row)
        case _, ApprovalAnswer(approved=True, edited_input=edited):
            return await _run_approved(scope, batch, planned, tool, row, edited)
        case _, ApprovalAnswer() as denial:
            return await _settle(scope, batch, _denied(planned, row, denial.reason), row)
        case _, ToolAnswer() as given:
            return await _settle(scope, batch, _answered(planned, tool, row, given), row)
        case _:
            return waiting


async def _run_approved(
    scope: RunScope,
    batch: Batch,
    planned: PlannedCall,
    tool: Tool[..., Any],
    row: PendingCall,
    edited: dict[str, JSON] | None,
) -> CallOutcome:
    """Run an approved call. The approval is for exactly this input; the transaction that starts the tool consumes
    it."""
    try:
        values = tool.parse(row.input if edited is None else edited)
    except HelixError as problem:
        known = await begun_result(scope, planned)
        return await _settle(scope, batch, known or refused_input(_named(planned), str(problem)))
    # A consumed approval allows no second run: if a process died in the first one, a new question must be answered.
    rerun = row.reason == UNKNOWN_OUTCOME and row.state == "answered"
    # With an edited input it is a different call, and the preview of the original does not apply to it.
    preview = row.preview if edited is None else None
    is_edited = edited is not None or row.edited
    approval = Approval(approval_id=row.approval_id or "", preview=preview, edited=is_edited)
    return await run_tool(scope, batch, planned, tool, values, approved=True, approval=approval, rerun=rerun)


async def _settle(scope: RunScope, batch: Batch, result: RestingResult, row: PendingCall | None = None) -> CallOutcome:
    if row is not None and row.edited:
        result = ran_with(result, row.input)
    await announce(scope, batch.step, result.message, result.writes)
    waited = () if row is None else _waited(scope, batch.step, row)
    was_begun = result.once or (row is not None and row.reason == UNKNOWN_OUTCOME)
    usage = (*result.usage, *waited)
    return await settle(scope, batch, msgspec.structs.replace(result, consumes=True, once=was_begun, usage=usage))


def _waited(scope: RunScope, step: int, row: PendingCall) -> tuple[UsageEntry, ...]:
    """How long the call waited, from the commit that suspended it to the answer or the deadline."""
    until = row.answered_at if row.answered_at is not None else row.expired_at
    if until is None:
        return ()
    return (
        scope.usage_entry(
            step,
            source_type="client_tool_wait_ms",
            source_name=row.tool_name,
            amount=until - row.created_at,
            success=row.state != "expired",
        ),
    )


def _answered(planned: PlannedCall, tool: Tool[..., Any], row: PendingCall, given: ToolAnswer) -> RestingResult:
    if given.error is not None or given.in_parts:
        return RestingResult(message=answered_message(row, given), input=row.input or {})
    try:
        result = tool.check_output(given.result, row.input) if tool.kind != "server" else Content(given.result)
    except HelixError as problem:
        return _result(planned, row, str(problem), error=True, code="client_tool_result_invalid")
    return _given(planned, row, result)


def answered_message(row: PendingCall, given: ToolAnswer) -> ToolMessage:
    """The result that a client gave, or a person who knows what became of the call."""
    failed = given.error is not None
    return ToolMessage(
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        content=given.error if failed else given.result,
        in_parts=given.in_parts,
        error=failed,
        code="client_tool_error" if failed else None,
    )


def decision_on(row: PendingCall) -> ApprovalAnswer | None:
    """The decision on an approval, by a person or by its deadline; None if the call ended in another way."""
    if row.state == "dropped":
        return None
    decision = row.answer if isinstance(row.answer, ApprovalAnswer) else None
    if row.state == "consumed" and row.answer is None and row.on_deadline.action == "deny":
        decision = ApprovalAnswer(approved=False, reason=NOT_IN_TIME)
    settles_nothing = decision is not None and not decision.approved and row.reason == UNKNOWN_OUTCOME
    return None if settles_nothing else decision


def _denied(planned: PlannedCall, row: PendingCall, reason: str | None) -> RestingResult:
    if row.reason == UNKNOWN_OUTCOME:
        return unknown_result(planned)
    text = f"{DENIAL}: {reason}" if reason else DENIAL
    return msgspec.structs.replace(_result(planned, row, text, error=True, code=NOT_APPROVED), told=False)


def _after_deadline(planned: PlannedCall, tool: Tool[..., Any], row: PendingCall) -> RestingResult:
    match row.on_deadline.action:
        case "deny":
            return _denied(planned, row, NOT_IN_TIME)
        case "default":
            return _given(planned, row, _default_of(tool, row))
        case "timeout" if row.reason == UNKNOWN_OUTCOME:
            return unknown_result(planned)
        case "timeout":
            return _result(planned, row, "Nobody answered this call in time.", error=True, code=TIMED_OUT)


def _default_of(tool: Tool[..., Any], row: PendingCall) -> Content:
    """The default answer. It was checked when the tool was defined, and is not refused if the tool changed since."""
    with suppress(HelixError):
        return tool.check_output(row.on_deadline.default, row.input)
    return Content(row.on_deadline.default)


def _given_up(planned: PlannedCall, row: PendingCall) -> RestingResult:
    if row.reason == UNKNOWN_OUTCOME:
        return unknown_result(planned)
    return RestingResult(message=abandoned(planned), told=False)


def abandoned(planned: PlannedCall) -> ToolMessage:
    """What the model is told about a call that the user abandoned by sending a new message."""
    return ToolMessage(
        tool_call_id=planned.tool_call_id,
        tool_name=planned.tool_name,
        content="This call was abandoned and not executed: the user went on with a new message.",
        error=True,
        code=ABANDONED,
    )


def tool_is_gone(call: ToolCall) -> RestingResult:
    """The tool existed when the call was made; a deploy removed it."""
    return _error(call, f"Tool {call.name!r} is no longer available.", "unknown_tool_since_deploy")


def refused_input(call: ToolCall, sentence: str) -> RestingResult:
    """The tool accepted this input when the call was made; a deploy changed its parameters."""
    return _error(call, sentence, "input_refused_since_deploy")


def _error(call: ToolCall, sentence: str, code: str) -> RestingResult:
    message = ToolMessage(tool_call_id=call.id, tool_name=call.name, content=sentence, error=True, code=code)
    return RestingResult(message=message, told=False)


def _named(planned: PlannedCall) -> ToolCall:
    return ToolCall(id=planned.tool_call_id, name=planned.tool_name)


def _given(planned: PlannedCall, row: PendingCall, given: Content) -> RestingResult:
    result = _result(planned, row, given.content)
    if not given.in_parts:
        return result
    return msgspec.structs.replace(result, message=msgspec.structs.replace(result.message, in_parts=True))


def _result(
    planned: PlannedCall, row: PendingCall, content: JSON, *, error: bool = False, code: str | None = None
) -> RestingResult:
    message = ToolMessage(
        tool_call_id=planned.tool_call_id, tool_name=planned.tool_name, content=content, error=error, code=code
    )
    return RestingResult(message=message, input=row.input or {})
