"""The store's row for a call that waits for an answer."""

from typing import Any

from helix_agents.agent.tools import Tool, ToolKind
from helix_agents.domain.errors import ToolInputError
from helix_agents.domain.messages import AssistantMessage, ToolCall
from helix_agents.domain.pending import UNKNOWN_OUTCOME, OnDeadline, PendingCall, PendingKind
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SuspensionKind
from helix_agents.engine.effects import PlannedCall
from helix_agents.engine.scope import RunScope

_KINDS: dict[ToolKind, PendingKind] = {
    "server": "approval",
    "client": "client_tool",
    "question": "question",
    "agent": "approval",
}


def suspension_kind(*, settled: bool, only_children: bool) -> SuspensionKind:
    """The name of a suspension: only children wait, part of the step is done, or all of it waits."""
    if only_children:
        return "suspended_awaiting_children"
    return "suspended_step_partial" if settled else "suspended_client_tool"


def pending_for(
    scope: RunScope, step_id: str, reply: AssistantMessage, planned: PlannedCall, preview: JSON = None
) -> PendingCall:
    """The row of a call that waits; its input is shown to whoever answers, in full and as validated."""
    tool = scope.agent.find_tool(planned.tool_name)
    call = next(call for call in reply.tool_calls if call.id == planned.tool_call_id)
    now = scope.services.clock.now_ms()
    deadline = _deadline_ms(scope, tool)
    # A server call that waits without being gated ran in a process that died, and its outcome is unknown.
    begun = scope.carried.unknown.get(planned.tool_call_id)
    unknown = planned.kind in ("server", "finish_with") or begun is not None
    kind: PendingKind = "approval" if tool is None or unknown else _KINDS[tool.kind]
    return PendingCall(
        tool_call_id=planned.tool_call_id,
        kind=kind,
        session_id=scope.session.session_id,
        root_session_id=scope.session.root_session_id,
        run_id=scope.run.run_id,
        step_id=step_id,
        tool_name=planned.tool_name,
        # The input it was begun with: approving another run must not allow any other input.
        input=_input(tool, call) if begun is None or begun.input is None else begun.input,
        edited=begun is not None and begun.edited,
        preview=None if unknown else preview,
        approval_id=scope.services.ids.new("approval") if kind == "approval" else None,
        reason=UNKNOWN_OUTCOME if unknown else None,
        created_at=now,
        deadline=None if deadline is None else now + deadline,
        on_deadline=tool.on_deadline if tool is not None else OnDeadline(),
    )


def _input(tool: Tool[..., Any] | None, call: ToolCall) -> JSON:
    """The input as validated, or as is if a deploy removed the tool or changed its parameters while the call waited."""
    if tool is None:
        return call.arguments
    try:
        return tool.dump_input(tool.parse(call.arguments))
    except ToolInputError:
        return call.arguments


def _deadline_ms(scope: RunScope, tool: Tool[..., Any] | None) -> int | None:
    """The tool's own deadline, else the agent's, else the executor's."""
    for level in (tool.deadline_ms if tool is not None else "inherit", scope.agent.pending_deadline_ms):
        if level != "inherit":
            return level
    return scope.services.options.pending_deadline_ms
