"""Handing a conversation over: the commit of a step gives the session to another agent, which does the next step."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.agent.handoffs import Handoff, HandoffTool
from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.chunks import StatePatch
from helix_agents.domain.errors import InvalidWriteError, ToolInputError, UnknownAgentError
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import ToolCall, ToolMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.session_changes import held_by, holders_before
from helix_agents.domain.sessions import Holder, SessionState
from helix_agents.domain.texts import said_by
from helix_agents.domain.writes import NO_WRITES, AppendToNonListError, apply_writes, difference
from helix_agents.engine.desk import Failure, RestingResult
from helix_agents.engine.effects import PlannedCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.answers import refused_input, tool_is_gone
from helix_agents.engine.steps.executing import announce
from helix_agents.engine.steps.patches import values_patch
from helix_agents.engine.steps.step_work import Heir, StepWork
from helix_agents.engine.steps.taking import who_works

NOT_HANDED_OVER = "not_handed_over"
"""The code of a handoff that another call of the same reply made impossible."""

HANDOFF_FAILED = "handoff_failed"
"""Why a run failed whose conversation could not be handed over."""


async def settle_handoffs(scope: RunScope, work: StepWork) -> None:
    """Give the handoffs of a step their results, once all other calls have theirs: the first one that is possible is
    carried out by this commit."""
    for call in tuple(each for each in work.batch.unsettled if each.kind == "handoff"):
        work.settle(call, await _settled(scope, work, call))


async def _settled(scope: RunScope, work: StepWork, planned: PlannedCall) -> RestingResult:
    call = next(each for each in work.open_reply.tool_calls if each.id == planned.tool_call_id)
    tool = scope.agent.find_tool(planned.tool_name)
    if not isinstance(tool, HandoffTool):
        return tool_is_gone(call)
    if work.heir is not None:
        return _refused(call, f"{work.heir.agent.name} has the conversation already: only the first handoff counts.")
    if _finishes(work):
        return _refused(call, "The conversation was not handed over, because this reply ends the turn.")
    try:
        given = tool.parse(call.arguments)
        agent, above = await _taking_over(scope, tool.handoff)
    except ToolInputError as problem:
        return refused_input(call, str(problem))
    except UnknownAgentError as problem:
        log_event("handoff.unknown_agent", session_id=scope.session.session_id, agent=tool.handoff.agent_name)
        return _refused(call, f"The conversation was not handed over: {problem}")
    left_by = await _left_by(scope, agent) if tool.handoff.state is None else None
    work.heir = Heir(agent=agent, above=above, handoff=tool.handoff, tool_call_id=call.id, input=given, left_by=left_by)
    said = f"{agent.name} has the conversation from here on."
    return RestingResult(message=ToolMessage(tool_call_id=call.id, tool_name=call.name, content=said), told=False)


async def _taking_over(scope: RunScope, handoff: Handoff) -> tuple[AnyAgent, SomeHooks]:
    """The agent that takes over: the same as any process would find in the session afterwards."""
    return await _in_hands_of(scope, handoff.agent_name)


async def _in_hands_of(scope: RunScope, name: str) -> tuple[AnyAgent, SomeHooks]:
    session = scope.session
    there = msgspec.structs.replace(session, held_by=None if name == session.agent_type else name)
    return await who_works(scope.services, there, scope.parent)


async def _left_by(scope: RunScope, to: AnyAgent) -> tuple[AnyAgent, int] | None:
    """Who wrote the state last, and the version of it that the state has, if the agent at work has none and leaves it
    to the next one: there may have been a deploy since."""
    if scope.agent.state is not None or to.state is None:
        return None
    for holder in holders_before(scope.session):
        try:
            agent, _ = await _in_hands_of(scope, holder.agent)
        except UnknownAgentError:
            return None
        if agent.state is not None:
            return agent, holder.version
    return None


def _finishes(work: StepWork) -> bool:
    if any(result.finishes for result in work.results.values()):
        return True
    ends = (call for call in work.batch.calls if call.kind in ("finish", "finish_with"))
    return any(not work.result_of(call).error for call in ends)


def _refused(call: ToolCall, sentence: str) -> RestingResult:
    message = ToolMessage(tool_call_id=call.id, tool_name=call.name, content=sentence, error=True, code=NOT_HANDED_OVER)
    return RestingResult(message=message, told=False)


async def carry_over(scope: RunScope, work: StepWork) -> None:
    """Work out the state that the next agent starts with, and tell readers what became of the handoffs. One that is
    not possible fails the run, and the session stays where it is."""
    failure = await bring_over(scope, work)
    if failure is not None:
        work.fail(failure)
    for call in (each for each in work.batch.calls if each.kind == "handoff" and each.tool_call_id in work.results):
        await announce(scope, work.batch.step, work.results[call.tool_call_id].message, NO_WRITES)


async def bring_over(scope: RunScope, work: StepWork) -> Failure | None:
    """Turn the state into the next agent's, with everything that was written from outside, and tell readers; returns
    why it is not possible."""
    heir, failure = work.heir, None
    if heir is None:
        return None
    if heir.handoff.state is not None or heir.left_by is not None:
        stored = await scope.services.store.load_state(scope.session.session_id)
        scope.take_state(stored.custom_state)
        work.carried_from, work.carried_over, work.carried_after = stored.version, NO_WRITES, None
    # What does not fit the state is refused with the commit, which then tries again without it.
    with suppress(InvalidWriteError):
        failure = bring_state(scope, work, heir)
    if work.carried_over:
        state = apply_writes(scope.custom_state, work.ops)
        # Readers may not know of what was written from outside.
        patch = values_patch(state, (op.key for op in work.carried_over.ops))
        await scope.show(scope.chunk(StatePatch, work.batch.step, patch=patch))
    return failure


def bring_state(scope: RunScope, work: StepWork, heir: Heir) -> Failure | None:
    """Turn the state that the step leaves into the next agent's, unless that is done; returns why it is not possible.

    Raises:
        InvalidWriteError: what the step writes does not fit the state in the first place.
    """
    ops = work.ops_of_calls
    if work.carried_after == ops:
        return None
    session_id, name, to = scope.session.session_id, scope.agent.name, heir.agent
    try:
        state = apply_writes(scope.custom_state, ops)
    except AppendToNonListError as problem:
        raise InvalidWriteError(session_id, problem.key, str(problem)) from problem
    try:
        wanted = _state_for(scope, heir, state)
        present = scope.services.present_state(to, wanted, to.version).custom_state
        if present != state:
            check_size(session_id, "state", len(encode(present)), scope.services.store.limits.state_bytes)
    except (Exception, ControlFlow) as problem:
        log_exception("handoff.failed", problem, session_id=session_id, agent=to.name)
        why = f"{name!r} could not hand over to {to.name!r}: {type(problem).__name__}: {said_by(problem)}"
        work.stay(why, HANDOFF_FAILED)
        return Failure(HANDOFF_FAILED, why)
    work.carried_over, work.carried_after = difference(state, present), ops
    return None


def in_hands_of(session: SessionState, heir: Heir) -> dict[str, Any]:
    """The session fields that say who has it from now on."""
    to = heir.agent
    after = held_by(session, Holder(to.name, to.version), until=session.version)
    return {name: getattr(after, name) for name in ("held_by", "agent_version", "earlier_versions")}


def _state_for(scope: RunScope, heir: Heir, state: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The state that the next agent starts with."""
    make = heir.handoff.state
    if make is not None:
        with Contained(f"The state function of the handoff to {heir.agent.name!r}"):
            made = make(scope.agent.state_type.load(state), heir.input)
        return heir.agent.initial_state(made)
    if heir.left_by is None:
        return state
    left_by, version = heir.left_by
    return scope.services.present_state(left_by, state, version).custom_state
