"""The tool effect: take one call as far as it goes, and keep its result until the commit."""

from helix_agents.domain.errors import HelixError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.transcript import cut_short
from helix_agents.engine.children.companions import run_companion
from helix_agents.engine.children.sub_agents import hand_out_child, run_child
from helix_agents.engine.desk import RestingResult, StepLost
from helix_agents.engine.effects import Batch, CallOutcome, DriveRun, PlannedCall
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.answers import refused_input, run_answered, tool_is_gone
from helix_agents.engine.steps.executing import announce, open_call, settle
from helix_agents.engine.steps.ledger import begun_result, run_tool

TOOL_LOST = "tool_lost"


async def run_call(scope: RunScope, batch: Batch, planned: PlannedCall, *, gave_up: str | None = None) -> CallOutcome:
    """Bring one call to a result, to waiting, or to a stop. A call that already has its result is not run again.

    `gave_up` is set if processes died running the function, or if it took too long in all of them: it is then not run
    once more. For a `once` tool, the ledger decides what became of the call.
    """
    recorded = await scope.desk.results(scope.step_id(batch.step))
    if planned.tool_call_id in recorded:
        return CallOutcome(tool_call_id=planned.tool_call_id, state="settled")
    if scope.failure is not None:
        return _stopped(planned)
    if gave_up is not None and _may_repeat(scope, planned):
        return await _settle_unrun(scope, batch, _lost(planned, gave_up))
    return _unless_stopped(scope, await _run_kind(scope, batch, planned))


async def _run_kind(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    match planned.kind:
        case "rejected":
            return await _settle_unrun(scope, batch, await _rejection(scope, batch, planned))
        case "finish":
            return await _settle_unrun(scope, batch, _acknowledged(planned))
        case "client" | "gated":
            return await run_answered(scope, batch, planned)
        case "child" | "remote":
            return await run_child(scope, batch, planned)
        case "companion":
            return await run_companion(scope, batch, planned)
        case "server" | "finish_with":
            return await _run_server(scope, batch, planned)
        case "handoff":
            raise AssertionError("a handoff is settled by the commit of its step")


async def _run_server(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """Run a function of the agent, unless a person was asked about the call or a deploy made it impossible."""
    if batch.round > 0 and await _was_asked_about(scope, batch, planned):
        return await run_answered(scope, batch, planned)
    tool = scope.agent.find_tool(planned.tool_name)
    call = await open_call(scope, batch, planned)
    if tool is None:
        return await _settle_unrun(scope, batch, await begun_result(scope, planned) or tool_is_gone(call))
    try:
        values = scope.parsed.pop(call.id, None) or tool.parse(call.arguments)
    except HelixError as problem:
        known = await begun_result(scope, planned)
        return await _settle_unrun(scope, batch, known or refused_input(call, str(problem)))
    return await run_tool(scope, batch, planned, tool, values, approved=False)


async def hand_out_call(scope: RunScope, batch: Batch, planned: PlannedCall, *, driven: bool) -> CallOutcome | DriveRun:
    """Like `run_call`, for a delegated call whose child the requester drives."""
    if planned.tool_call_id in await scope.desk.results(scope.step_id(batch.step)):
        return CallOutcome(tool_call_id=planned.tool_call_id, state="settled")
    if scope.failure is not None:
        return _stopped(planned)
    handed = await hand_out_child(scope, batch, planned, driven=driven)
    return handed if isinstance(handed, DriveRun) else _unless_stopped(scope, handed)


def _unless_stopped(scope: RunScope, outcome: CallOutcome) -> CallOutcome:
    """A run that was asked to stop waits for no one."""
    if outcome.state == "waiting" and scope.stop.requested.is_set():
        return CallOutcome(tool_call_id=outcome.tool_call_id, state="stopped")
    return outcome


def _stopped(planned: PlannedCall) -> CallOutcome:
    """A hook failed the run as it resumed: none of its open calls are run."""
    return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")


def _may_repeat(scope: RunScope, planned: PlannedCall) -> bool:
    tool = scope.agent.find_tool(planned.tool_name)
    is_ours = planned.kind in ("server", "finish_with")
    return is_ours and tool is not None and tool.effect_of_call(approved=False) != "once"


def _lost(planned: PlannedCall, gave_up: str) -> RestingResult:
    lost = gave_up == TOOL_LOST
    how = "was given up, because the processes that ran it died" if lost else "did not finish in time"
    message = cut_short(planned.tool_call_id, planned.tool_name, gave_up, f"Tool {planned.tool_name!r} {how}")
    return RestingResult(message=message)


async def _was_asked_about(scope: RunScope, batch: Batch, planned: PlannedCall) -> bool:
    """Whether a person was asked about the call because its outcome was unknown; it is then handled like a gated call.
    A question about a call of the same id from before a rewind does not count."""
    row = await scope.services.store.get_pending_call(scope.session.session_id, planned.tool_call_id)
    return row is not None and row.step_id == scope.step_id(batch.step)


async def _rejection(scope: RunScope, batch: Batch, planned: PlannedCall) -> RestingResult:
    reply = await scope.desk.find_reply(scope.step_id(batch.step))
    if reply is None:
        raise StepLost
    return RestingResult(message=reply.rejections[planned.tool_call_id], told=False)


async def _settle_unrun(scope: RunScope, batch: Batch, result: RestingResult) -> CallOutcome:
    """Keep a result that no function produced, and tell readers, who see the result of every call."""
    await announce(scope, batch.step, result.message, result.writes)
    return await settle(scope, batch, result)


def _acknowledged(planned: PlannedCall) -> RestingResult:
    """The result of `__finish__`: no call is left without one."""
    message = ToolMessage(
        tool_call_id=planned.tool_call_id, tool_name=planned.tool_name, content={"acknowledged": True}
    )
    return RestingResult(message=message, told=False)
