"""What a reply asks for: each call is validated and given a kind, which the loop then follows."""

from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.companions import SPAWN_AGENT
from helix_agents.agent.context import RunContext
from helix_agents.agent.failures import ControlFlow, FailRun
from helix_agents.agent.output_checks import refused
from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import ToolInputError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, ToolCall, ToolMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.sessions import SessionFilter
from helix_agents.domain.texts import said_by
from helix_agents.engine.desk import Failure
from helix_agents.engine.effects import DELEGATED, CallKind, PlannedCall
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.corrections import INVALID_ARGUMENTS, RETRY_REQUESTED, UNKNOWN_TOOL
from helix_agents.engine.user_code import Notes, run_context
from helix_agents.ports.llm import FINISH_TOOL

SUB_AGENT_LIMIT = "sub_agent_limit"

_CUT_OFF = (
    "The reply was cut off at its token limit before the arguments were complete. Call again with shorter arguments."
)


class ForbiddenReply(Exception):  # noqa: N818  # a decision of the agent's author
    """The run fails with this reply, which is not kept."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class Plan:
    """The calls of a reply in the model's order, with what only the effect bodies need.

    `refused` says why a check refused the reply's text as the run's output.
    """

    def __init__(self, withheld: frozenset[str]) -> None:
        self.withheld = withheld
        self.calls: list[PlannedCall] = []
        self.rejections: dict[ToolCallId, ToolMessage] = {}
        self.previews: dict[ToolCallId, JSON] = {}
        self.refused: str | None = None
        self.children_before: int | None = None

    def add(self, call: ToolCall, kind: CallKind, child_session_id: SessionId | None = None, **limits: Any) -> None:
        about = {"tool_call_id": call.id, "tool_name": call.name, "kind": kind}
        self.calls.append(PlannedCall(**about, child_session_id=child_session_id, **limits))

    def reject(self, call: ToolCall, code: str, sentence: str) -> None:
        """Give the call an error instead of running it; the model may correct itself."""
        self.add(call, "rejected")
        self.rejections[call.id] = ToolMessage(
            tool_call_id=call.id, tool_name=call.name, content=sentence, error=True, code=code
        )


async def plan_reply(
    scope: RunScope,
    step: int,
    reply: AssistantMessage,
    context: RunContext[Any, Any],
    notes: Notes,
    withheld: frozenset[str],
) -> Plan:
    """Check every call of the reply against the agent's tools, except those that were `withheld` from the model, and
    its output against the agent's checks, which see and may change the state in this `context`; `notes` collects what
    user code counts.

    Raises:
        ForbiddenReply: a check of the output fails the run.
    """
    plan = Plan(withheld)
    for call in reply.tool_calls:
        if call is reply.tool_calls[-1] and reply.stop_reason == "length" and not _is_whole(call):
            # The reply ended before the arguments did: the call would run with arguments missing.
            plan.reject(call, INVALID_ARGUMENTS, _CUT_OFF)
        elif call.name == FINISH_TOOL and scope.agent.output_type is not None:
            await _plan_finish(scope, call, plan, context)
        else:
            await _plan_tool(scope, step, call, plan, notes)
    if not reply.tool_calls and scope.agent.output_type is None:
        plan.refused = await _refusal(scope, reply.text, context)
    return plan


def _is_whole(call: ToolCall) -> bool:
    return isinstance(call.arguments, dict) and bool(call.arguments)


async def _plan_finish(scope: RunScope, call: ToolCall, plan: Plan, context: RunContext[Any, Any]) -> None:
    assert scope.agent.output_type is not None
    try:
        output = scope.agent.output_type.parse(call.arguments)
    except ToolInputError as problem:
        plan.reject(call, INVALID_ARGUMENTS, str(problem))
        return
    if any(planned.kind == "finish" for planned in plan.calls):
        plan.reject(call, INVALID_ARGUMENTS, "The result was already handed in by this reply; hand it in only once.")
        return
    refusal = await _refusal(scope, output, context)
    if refusal is not None:
        plan.reject(call, RETRY_REQUESTED, refusal)
    else:
        plan.add(call, "finish")


async def _refusal(scope: RunScope, stored: JSON, context: RunContext[Any, Any]) -> str | None:
    """Why a check of the agent refuses this output, or None. Without its answer, no output is accepted."""
    checks = scope.agent.output_checks
    if not checks:
        return None
    services = scope.services
    try:
        output = scope.agent.load_output(stored)
        refusal = await refused(checks, context, output, in_thread=services.in_thread, apart=scope.keeps_tools_apart)
        # A state that its type refuses is a mistake of the check.
        context.link.draft.writes()
        return None if refusal is None else said_by(refusal, services.result_bytes // 8)
    except FailRun as decision:
        raise ForbiddenReply(Failure("output_refused", decision.reason)) from decision
    except (Exception, ControlFlow) as problem:
        log_exception("output_check.failed", problem, session_id=scope.session.session_id, step=context.step)
        error = f"{type(problem).__name__}: {said_by(problem)}"
        raise ForbiddenReply(Failure("output_check_failed", error, retryable=True)) from problem


async def _plan_tool(scope: RunScope, step: int, call: ToolCall, plan: Plan, notes: Notes) -> None:
    tool = scope.agent.find_tool(call.name)
    if tool is None or call.name in plan.withheld:
        wrong = f"There is no tool {call.name!r}" if tool is None else f"The tool {call.name!r} is not available now"
        offered = sorted(each.name for each in scope.agent.all_tools if each.name not in plan.withheld)
        plan.reject(call, UNKNOWN_TOOL, f"{wrong}. Available: {', '.join(offered) or 'none'}.")
        return
    try:
        values = tool.parse(call.arguments)
    except ToolInputError as problem:
        plan.reject(call, INVALID_ARGUMENTS, str(problem))
        return
    if tool.kind == "agent":
        await _plan_child(scope, call, plan, "remote" if isinstance(tool, RemoteAgentTool) else "child")
    elif tool.name == SPAWN_AGENT:
        await _plan_child(scope, call, plan, "companion")
    elif tool.kind == "handoff":
        plan.add(call, "handoff")
    elif tool.kind == "companion":
        plan.add(call, "companion", scope.services.ids.new("child"))
    elif tool.kind != "server":
        plan.add(call, "client")
    elif await _needs_approval(scope, step, tool, values, notes):
        plan.add(call, "gated", **limits_of(scope.agent, call.name, "gated"))
        if tool.preview is not None:
            plan.previews[call.id] = await _preview(scope, step, tool, values, notes)
    else:
        kind = "finish_with" if tool.finish_with else "server"
        plan.add(call, kind, **limits_of(scope.agent, call.name, kind))
        if tool.require_approval is False:
            # Only safe without a predicate: a predicate may have changed the values it was shown.
            scope.parsed[call.id] = values


def limits_of(agent: AnyAgent, tool_name: str, kind: str) -> dict[str, Any]:
    """How long a call of a function or sub-agent may take, and in how many processes it may be tried.

    A `once` tool has a single try; the ledger knows what became of it.
    """
    tool = agent.find_tool(tool_name)
    if tool is not None and kind == "child":
        return {"timeout_ms": tool.timeout_ms}
    if tool is None or tool.kind != "server" or kind not in ("server", "finish_with", "gated"):
        return {}
    once = tool.effect_of_call(approved=kind == "gated") == "once"
    return {"timeout_ms": tool.timeout_ms, "attempts": 1 if once else agent.retries_of(tool_name) + 1}


async def _plan_child(scope: RunScope, call: ToolCall, plan: Plan, kind: CallKind) -> None:
    """Plan a delegated call. The child's id is made here, recorded with the reply, and never derived, so it cannot be
    guessed or reused."""
    options = scope.services.options
    here = sum(planned.kind in DELEGATED or planned.tool_name == SPAWN_AGENT for planned in plan.calls)
    problem = None
    if scope.depth + 1 > options.max_depth:
        problem = f"sub-agents may be nested at most {options.max_depth} deep"
    elif here >= options.max_children_per_step:
        problem = f"one step may delegate at most {options.max_children_per_step} calls"
    elif await _children_of_root(scope, plan) + here >= options.max_children_per_root:
        problem = f"one conversation may have at most {options.max_children_per_root} sub-agents"
    if problem is not None:
        plan.reject(call, SUB_AGENT_LIMIT, f"This call was not delegated: {problem}. Do the work yourself.")
    else:
        plan.add(call, kind, scope.services.ids.new("child"), **limits_of(scope.agent, call.name, kind))


async def _children_of_root(scope: RunScope, plan: Plan) -> int:
    """How many sessions there are below the root, counted once per reply."""
    if plan.children_before is None:
        where = SessionFilter(root_session_id=scope.session.root_session_id)
        plan.children_before = (await scope.services.store.list_sessions(where, limit=1)).total - 1
    return plan.children_before


async def _needs_approval(
    scope: RunScope, step: int, tool: Tool[..., Any], values: dict[str, Any], notes: Notes
) -> bool:
    if isinstance(tool.require_approval, bool):
        return tool.require_approval
    context = run_context(scope, step, scope.draft(), notes)

    def report(problem: BaseException) -> None:
        log_exception("approval.predicate_failed", problem, tool=tool.name)

    return await tool.needs_approval(values, context, on_error=report)


async def _preview(scope: RunScope, step: int, tool: Tool[..., Any], values: dict[str, Any], notes: Notes) -> JSON:
    """What the person who decides is shown, made before they are asked and kept with the question."""

    def report(problem: BaseException) -> None:
        log_exception("approval.preview_failed", problem, tool=tool.name)

    return await tool.show(values, run_context(scope, step, scope.draft(), notes), on_error=report)
