"""Continuing what a session left open, or rewinding it: plans for what resume, retry and a rewind start."""

from typing import Any, Literal, TypeAlias

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.budgets import Budget
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import NothingToResumeError, NothingToRetryError, StillWaitingError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import BranchPoint, SessionState
from helix_agents.domain.writes import StepWrites
from helix_agents.engine.children.detached import untold_at
from helix_agents.engine.requests.standing import Standing, agent_at_work, load_standing
from helix_agents.engine.requests.start_fields import (
    checked_state,
    common_fields,
    entering,
    expiry,
    healed_words,
    latest_sequence,
    start_after,
    state_at,
)
from helix_agents.engine.services import Services
from helix_agents.engine.steps.corrections import CONTINUE
from helix_agents.engine.steps.salvage import is_on_record
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.llm import replays_turns

ResumeMode: TypeAlias = Literal["continue", "with_message", "from_checkpoint"]

_CONTINUE = UserMessage(content="Continue.", hidden=True, metadata={"helix": CONTINUE})


async def plan_resume(
    services: Services,
    agent: AnyAgent,
    session_id: SessionId,
    mode: ResumeMode,
    *,
    messages: tuple[UserMessage, ...] = (),
    checkpoint_id: CheckpointId | None = None,
) -> StartRun | RunRecord:
    """Continue what a session left open: in a new run, or in the run whose process died.

    It is the latter if a step has started something that cannot be undone. The step's reply and its intents are on
    record, so to continue means the next attempt of that run, which asks what has to be asked; no caller said that the
    step is to be given up.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, AgentMismatchError, NothingToResumeError, StillWaitingError,
        StateSchemaChangedError: it cannot be continued; nothing was written.
    """
    standing = await load_standing(services, session_id)
    session = standing.session
    goes_back = mode == "from_checkpoint"
    if not goes_back:
        agent = agent_at_work(services, agent, session)
    common = await common_fields(services, agent, standing, expiry(services, agent, None))
    if not messages and (checkpoint_id == BEGINNING if goes_back else _has_no_words(session)):
        # No provider answers an empty conversation.
        raise NothingToResumeError(session_id, "nothing was said yet at its beginning; give it a message")
    if goes_back:
        point = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint_id)
        state, holder = await state_at(services.store, session, point)
        assert holder is not None
        agent = agent_at_work(services, agent, session, holder.agent)
        if state is not None:
            services.present_state(agent, state, holder.version)
        return start_after(
            services,
            standing,
            # The session returns to the agent, and its version, that it had there, until the run adopts a later one.
            {**common, "agent_version": None},
            rewind_to=checkpoint_id,
            append_messages=messages,
            count_resume=True,
            budget=session.budget,
            ref_updates=await untold_at(services.store, session_id, checkpoint_id),
        )
    writes = await checked_state(services, agent, standing)
    if session.suspension_context is not None:
        return _resume_suspended(services, standing, common, mode, messages, writes)
    if standing.crashed is None and session.status not in ("interrupted", "paused"):
        raise NothingToResumeError(session_id, _why_not(session))
    dead = standing.crashed if mode == "continue" and not messages else None
    if dead is not None and await is_on_record(services, session, dead):
        return dead
    healed = await healed_words(services, standing)
    follow = messages or ((_CONTINUE,) if await _ends_in_reply(services, session_id, healed) else ())
    fields: dict[str, Any] = {"writes": writes, "count_resume": True, "budget": session.budget}
    takes = not messages and not replays_turns(agent.model)
    return start_after(services, standing, common, append_messages=(*healed, *follow), takes_messages=takes, **fields)


async def plan_rewind(services: Services, session_id: SessionId, checkpoint_id: CheckpointId) -> StartRun:
    """Rewind to a checkpoint, without saying what happens from there.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot be rewound; nothing was written.
    """
    standing = await load_standing(services, session_id)
    start_sequence = await latest_sequence(services, standing.session)
    return start_after(
        services,
        standing,
        {"start_sequence": start_sequence},
        rewind_to=checkpoint_id,
        ref_updates=await untold_at(services.store, session_id, checkpoint_id),
    )


async def plan_retry(
    services: Services, agent: AnyAgent, session_id: SessionId, *, budget: Budget | None = None
) -> StartRun:
    """Continue from the last commit of a failed run, with a fresh budget: the given one, or one like the run's.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, AgentMismatchError, NothingToRetryError,
        StateSchemaChangedError: there is nothing to retry, or it cannot be retried.
    """
    standing = await load_standing(services, session_id)
    session = standing.session
    agent = agent_at_work(services, agent, session)
    if session.status != "failed" or standing.suspended or session.failure_reason == CANCELLED:
        raise NothingToRetryError(session_id, f"its last run is {standing.run.status if standing.run else 'missing'}")
    common = await common_fields(services, agent, standing, expiry(services, agent, None))
    healed = await healed_words(services, standing)
    writes = await checked_state(services, agent, standing)
    return start_after(
        services,
        standing,
        common,
        append_messages=healed,
        takes_messages=not replays_turns(agent.model),
        writes=writes,
        budget=budget or session.budget,
    )


def _resume_suspended(
    services: Services,
    standing: Standing,
    common: dict[str, Any],
    mode: ResumeMode,
    messages: tuple[UserMessage, ...],
    writes: StepWrites,
) -> StartRun:
    session = standing.session
    assert session.suspension_context is not None
    with_message = mode == "with_message"
    if not standing.answered and standing.crashed is None and not with_message:
        raise StillWaitingError(session.session_id, standing.waiting)
    abandons = with_message and not standing.answered
    return start_after(
        services,
        standing,
        common,
        keep_suspension=True,
        keep_step_count=not abandons,
        suspension_context=entering(session.suspension_context, messages, new_turn=abandons),
        drop_unanswered=abandons,
        writes=writes,
        count_resume=True,
        budget=session.budget,
    )


async def _ends_in_reply(services: Services, session_id: SessionId, healed: tuple[Message, ...]) -> bool:
    """Whether the model spoke last, so that it has to be asked to continue."""
    if healed:
        return isinstance(healed[-1], AssistantMessage)
    page = await services.store.get_messages(session_id, limit=1)
    return bool(page.items) and isinstance(page.items[0].message, AssistantMessage)


def _has_no_words(session: SessionState) -> bool:
    """Whether the session was rewound to before its first message, and nothing was said since."""
    return session.status == "interrupted" and session.message_count == 0 and session.suspension_context is None


def _why_not(session: SessionState) -> str:
    if session.current_run_id is None:
        return "it never had a run; a new message starts its first turn"
    if session.status == "failed" and session.failure_reason == CANCELLED:
        return "it was aborted; a new message starts the next turn"
    if session.status == "failed":
        return "its last run failed; use retry"
    return f"it is {session.status}; a new message starts the next turn"
