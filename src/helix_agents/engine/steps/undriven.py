"""Hooks hear of every failed run, even of one that no driver could bring to a commit."""

from typing import Any

from helix_agents.agent.context import RunContext, RunLink
from helix_agents.agent.failures import ControlFlow, FailRun
from helix_agents.agent.hook_events import AgentFailEvent
from helix_agents.agent.hooks import HookFailure, HookOrder, ordered
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.state_type import NoState
from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import about_run
from helix_agents.engine.services import Services
from helix_agents.engine.steps.taking import who_works


async def tell_failed(services: Services, session_id: SessionId, fence: Fence, code: str, error: str) -> None:
    """Tell hooks that a run has failed for good, as the store has it. What they change in the state is dropped, because
    no further commit could store it."""
    try:
        session, run = await services.store.load_state(session_id), await services.store.get_run(fence.run_id)
        if run is not None:
            await _tell(services, session, run, code, error)
    except (Exception, ControlFlow) as problem:
        # The failure is stored; telling hooks about it is secondary.
        log_exception("hook.not_told", problem, session_id=session_id, run_id=fence.run_id)


async def _tell(services: Services, session: SessionState, run: RunRecord, code: str, error: str) -> None:
    order, draft = await _who_hears(services, session)
    if not order.wants("on_agent_fail"):
        return

    def report(failure: HookFailure) -> None:
        about = {"hook": failure.hook, "function": failure.function, "run_id": run.run_id}
        log_exception("hook.failed", failure.error, session_id=session.session_id, **about)

    context: RunContext[Any, Any] = RunContext(
        **about_run(session, run, session.worked_by, session.step_count),
        link=RunLink(draft=draft),
        deps=None,
    )
    took = (run.ended_at or services.clock.now_ms()) - run.started_at
    event = AgentFailEvent(code=code, error=error, retryable=False, step_count=session.step_count, duration_ms=took)
    try:
        await order.fire(context, event, report)
    except FailRun:
        return


async def _who_hears(services: Services, session: SessionState) -> tuple[HookOrder, StateDraft[Any]]:
    """The hooks of the run, and the state as they see it. If the agent is unknown or its state cannot be read, which
    may be why the run failed, only the executor's hooks are told. User code may raise anything here."""
    try:
        agent, above = await who_works(services, session, None)
        state = services.present_state(agent, session.custom_state, session.agent_version).custom_state
    except (Exception, ControlFlow):
        return ordered(executor=services.hooks), StateDraft.holding(NoState())
    return ordered(parent=above, executor=services.hooks, agent=agent.hooks), agent.draft(state)
