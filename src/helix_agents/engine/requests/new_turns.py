"""Turns that start with a message or with news, at once or from the queue: plans for the start of their runs."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.tools import Wakeup
from helix_agents.domain.budgets import Budget
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    InvalidInputError,
    NotTheOwnerError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import QueuedTurn, asks_for_a_turn, keeps_others_waiting
from helix_agents.domain.session_changes import has_changed_hands
from helix_agents.domain.sessions import BranchPoint, CreateSession, SessionState, TracingContext
from helix_agents.domain.traces import TRACE, read_trace_place, span_id_of_run, trace_id_of
from helix_agents.domain.writes import difference
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.requests.cleanup import EXPIRED
from helix_agents.engine.requests.standing import (
    Standing,
    agent_at_work,
    check_agent,
    find_root,
    load_standing,
    read_standing,
)
from helix_agents.engine.requests.start_fields import (
    checked_state,
    common_fields,
    entering,
    expiry,
    given_state,
    healed_words,
    start_after,
    state_at,
)
from helix_agents.engine.services import Services
from helix_agents.engine.steps.corrections import WAKEUP
from helix_agents.engine.steps.news import news_message
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.llm import replays_turns
from helix_agents.ports.state_store import SessionStateStore


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """What an entry specifies for a session that may not exist yet; `required` if it must not exist, `only_own` if one
    that exists has to belong to `user_id`."""

    branch: BranchPoint | None = None
    state: Any = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    required: bool = False
    only_own: bool = False

    def check_user(self, session: SessionState) -> None:
        """Refuse a session of another user, or of none, to an entry that may only use its own user's.

        Raises:
            NotTheOwnerError: it is not the user's.
        """
        if self.only_own and self.user_id is not None and session.user_id != self.user_id:
            raise NotTheOwnerError("session", session.session_id, self.user_id)


async def began_with(store: SessionStateStore, session_id: SessionId, key: str) -> bool:
    """Whether the session's last turn started with a message of this id, which may still wait behind open calls, or
    took it in."""
    try:
        session = await store.load_state(session_id)
    except SessionNotFoundError:
        return False
    suspended = session.suspension_context
    if suspended is not None and suspended.entry_messages:
        return any(message.id == key for message in suspended.entry_messages)
    seen = 0
    while True:
        page = await store.get_messages(session_id, offset=seen, limit=200)
        for message in (stored.message for stored in page.items):
            if not isinstance(message, UserMessage):
                continue
            if message.id == key:
                return True
            # The message that started the turn is before those that its run took in.
            if asks_for_a_turn(message):
                return False
        if not page.has_more:
            return False
        seen += len(page.items)


async def plan_execute(
    services: Services,
    agent: AnyAgent,
    session_id: SessionId,
    messages: tuple[UserMessage, ...],
    new: NewSession,
    *,
    expires_in_ms: int | None = None,
    run_id: RunId | None = None,
    queued: bool = False,
    queued_revision: int = 0,
    budget: Budget | None = None,
) -> StartRun:
    """Start a turn with these messages, whatever the session did before; a `queued` turn leaves its queue for it.

    Raises:
        AgentAlreadyRunningError: the session is busy.
        AgentMismatchError: the agent has no part in the session, or in the session that it is to be a branch of.
        UnknownAgentError: the session was handed over to an agent that is not known here.
        NotTheOwnerError: the session belongs to another user, and only the user's own may be used.
        SessionAlreadyExistsError: it was to be a new session, or a branch, and exists already.
        StateSchemaChangedError: its stored state, or the branch's, no longer fits the agent.
    """
    standing = await read_standing(services, session_id)
    expires_at = expiry(services, agent, expires_in_ms)
    if standing is None:
        start = _first_turn(services, agent, session_id, messages, new, expires_at, run_id, budget)
        return start if new.branch is None else await _on_branch(services, agent, start, new.branch, new.state)
    if new.required or new.branch is not None:
        raise SessionAlreadyExistsError(session_id)
    new.check_user(standing.session)
    agent = agent_at_work(services, agent, standing.session)
    writes = await checked_state(services, agent, standing, new.state)
    return await _next_turn(
        services,
        agent,
        standing,
        expires_at,
        messages,
        writes=writes,
        run_id=run_id,
        queued=queued,
        queued_revision=queued_revision,
        budget=budget,
    )


async def waiting_turn(services: Services, agent: AnyAgent, turn: QueuedTurn, new: NewSession) -> QueuedTurn | None:
    """The turn, with the state that it is to set, if it has to wait so that it disturbs no other: behind a turn that is
    running, waits for an answer, or died and is to be continued; or behind turns that came before it, in a session that
    was stopped. None if it may start.

    Raises:
        NotARootSessionError, AgentMismatchError, NotTheOwnerError: it cannot start at all.
        InvalidStateError, UnknownAgentError: the agent that has the session could not take that state, or is not known
            here.
    """
    session = await find_root(services.store, turn.session_id)
    if session is None:
        return None
    new.check_user(session)
    check_agent(agent, session)
    if new.state is not None:
        wanted = given_state(agent_at_work(services, agent, session), new.state)
        turn = msgspec.structs.replace(turn, state=wanted)
    run = await services.store.get_current_run(turn.session_id)
    if keeps_others_waiting(run):
        return turn
    if not await services.store.list_queued(turn.session_id):
        return None
    return turn if run is None else msgspec.structs.replace(turn, after_stop_of=run.run_id)


def queued_turn(
    services: Services,
    agent: AnyAgent,
    session_id: SessionId,
    messages: tuple[UserMessage, ...],
    *,
    expires_in_ms: int | None,
    run_id: RunId | None,
    budget: Budget | None,
    steers: bool = False,
) -> QueuedTurn:
    """A turn that is to wait, with everything that is needed to start it later, except the state that it is to set."""
    return QueuedTurn(
        session_id=session_id,
        run_id=run_id or services.ids.new("run"),
        messages=messages,
        expires_in_ms=agent.session_ttl_ms if expires_in_ms is None else expires_in_ms,
        budget=budget,
        steers=steers,
    )


async def plan_queued(services: Services, agent: AnyAgent, waiting: Sequence[QueuedTurn]) -> StartRun | None:
    """Start the first of the turns that wait in a session; the start takes it out of the queue.

    None while it has to wait: behind a turn that waits for an answer or whose process died, or, in a session that was
    stopped, until the session is continued, if only by a message that waits behind it.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError, AgentMismatchError,
        StateSchemaChangedError: it cannot start; nothing was written.
    """
    turn = waiting[0]
    standing = await load_standing(services, turn.session_id)
    session = standing.session
    if standing.crashed is not None or standing.suspended or _is_held(session, waiting):
        return None
    agent = agent_at_work(services, agent, session)
    writes = await checked_state(services, agent, standing, turn.state)
    expires_at = expiry(services, agent, turn.expires_in_ms)
    return await _next_turn(
        services,
        agent,
        standing,
        expires_at,
        turn.messages,
        writes=writes,
        run_id=turn.run_id,
        budget=turn.budget,
        queued=True,
        queued_at=turn.queued_at,
        queued_revision=turn.revision,
        takes_messages=turn.steers and not replays_turns(agent.model),
    )


async def plan_wake(services: Services, agent: AnyAgent, wakeup: Wakeup) -> StartRun | None:
    """Start a turn with news in a session that is idle; the news and the record of it are one commit.

    None if the session must not be woken: it was stopped or has failed, or it waits and is to keep waiting, or nobody
    here knows the agent that has it.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError, StateSchemaChangedError: it cannot start;
        nothing was written.
    """
    standing = await load_standing(services, wakeup.session_id)
    waits = standing.suspended and standing.session.status == "active"
    if standing.session.status != "completed" and not (waits and wakeup.gives_up_waiting):
        return None
    known = await find_agent(services.store, services.agents, standing.session)
    if known is None and standing.session.held_by is not None:
        return None
    agent = known or agent
    messages = tuple(news_message(text, WAKEUP) for text in wakeup.texts)
    writes = await checked_state(services, agent, standing)
    # News does not count as use of the session: it still expires when it would have.
    return await _next_turn(services, agent, standing, None, messages, writes=writes, entries=wakeup.changes)


def _is_held(session: SessionState, waiting: Iterable[QueuedTurn]) -> bool:
    """Whether the session was stopped, or expired, and has not been continued since."""
    is_stopped = session.status in ("interrupted", "paused") or session.failure_reason in (CANCELLED, EXPIRED)
    return is_stopped and all(turn.after_stop_of != session.current_run_id for turn in waiting)


async def _next_turn(
    services: Services,
    agent: AnyAgent,
    standing: Standing,
    expires_at: int | None,
    messages: tuple[UserMessage, ...],
    **fields: Any,
) -> StartRun:
    suspended = standing.session.suspension_context
    if suspended is not None:
        common = await common_fields(services, agent, standing, expires_at)
        # Calls are open: the message waits behind them, and unanswered calls are given up.
        return start_after(
            services,
            standing,
            common,
            keep_suspension=True,
            suspension_context=entering(suspended, messages, new_turn=True),
            drop_unanswered=True,
            **fields,
        )
    # The two do not depend on each other, and a store may be a network away.
    common, healed = await asyncio.gather(
        common_fields(services, agent, standing, expires_at), healed_words(services, standing)
    )
    return start_after(services, standing, common, append_messages=(*healed, *messages), **fields)


def _first_turn(
    services: Services,
    agent: AnyAgent,
    session_id: SessionId,
    messages: tuple[UserMessage, ...],
    new: NewSession,
    expires_at: int | None,
    run_id: RunId | None,
    budget: Budget | None,
) -> StartRun:
    run_id = run_id or services.ids.new("run")
    return StartRun(
        session_id=session_id,
        run_id=run_id,
        create=CreateSession(
            agent_type=agent.name,
            agent_version=agent.version,
            custom_state={} if new.branch is not None else agent.initial_state(new.state),
            user_id=new.user_id,
            tags=new.tags,
            metadata=new.metadata or {},
            expires_at=expires_at,
            tracing_context=_tracing_context(services, run_id, new.metadata or {}),
            branch=new.branch,
        ),
        append_messages=messages,
        stream=services.claim_stream(session_id, agent.name),
        workflow_id=services.name_workflow(agent.name, session_id, 1),
        budget=budget,
        tell=services.tells(),
    )


def _tracing_context(services: Services, run_id: RunId, metadata: Mapping[str, str]) -> TracingContext:
    """A new trace; or, if another service started one, a continuation of that trace."""
    above = read_trace_place(metadata.get(TRACE))
    if above is None:
        return TracingContext(trace_id=trace_id_of(services.ids.new("trace")), root_span_id=span_id_of_run(run_id))
    return TracingContext(trace_id=above.trace_id, root_span_id=span_id_of_run(run_id), parent_span_id=above.span_id)


async def _on_branch(services: Services, agent: AnyAgent, start: StartRun, point: BranchPoint, given: Any) -> StartRun:
    """The first turn of a branch, with what the entry sets in the state that it finds there."""
    source = await services.store.load_state(point.from_session_id)
    state, holder = await state_at(services.store, source, point)
    if holder is None:
        check_agent(agent, source, source.agent_type)
        if given is not None and has_changed_hands(source):
            problem = "who has the conversation at that message is not known in advance; name a checkpoint instead"
            raise InvalidInputError("state", problem)
    else:
        agent = agent_at_work(services, agent, source, holder.agent)
    if given is None:
        if state is not None and holder is not None:
            services.present_state(agent, state, holder.version)
        return start
    if state is None or holder is None:
        return msgspec.structs.replace(start, writes=difference({}, given_state(agent, given)))
    loaded = agent.load_state(state, holder.version)
    writes = difference(state, {**loaded.custom_state, **given_state(agent, given)})
    return msgspec.structs.replace(start, writes=writes, agent_version=agent.version)
