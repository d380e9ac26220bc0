"""What execute, resume, retry, a rewind and news make of a session as they find it: the start of a run, planned."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.tools import Wakeup
from helix_agents.domain.budgets import Budget
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    AgentMismatchError,
    NotARootSessionError,
    NothingToResumeError,
    NothingToRetryError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.ids import CheckpointId, RunId, SessionId
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.pending import is_overdue
from helix_agents.domain.queued import QueuedTurn, keeps_others_waiting
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.session_changes import version_at
from helix_agents.domain.sessions import (
    BranchPoint,
    CreateSession,
    SessionState,
    SuspensionContext,
    TracingContext,
)
from helix_agents.domain.traces import TRACE, read_trace_place, span_id_of_run, trace_id_of
from helix_agents.domain.transcript import heal
from helix_agents.domain.writes import StepWrites, difference
from helix_agents.engine.children.detached import untold_at
from helix_agents.engine.children.sub_agents import answered_below
from helix_agents.engine.requests.cleanup import EXPIRED
from helix_agents.engine.requests.settling import carry_out_late_abort
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ledger import known_of_open_calls
from helix_agents.engine.steps.news import news_message
from helix_agents.engine.steps.salvage import is_on_record, salvage, salvaged_state
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.state_store import SessionStateStore

ResumeMode: TypeAlias = Literal["continue", "with_message", "from_checkpoint"]

_CONTINUE = UserMessage(content="Continue.", hidden=True, metadata={"helix": "continue"})


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """What an entry says of a session that may not exist yet; `required` if it must not."""

    branch: BranchPoint | None = None
    state: Any = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A session as an entry reads it; `answered` says whether something it waits for was."""

    session: SessionState
    run: RunRecord | None
    answered: bool

    @property
    def suspended(self) -> bool:
        return self.run is not None and self.run.status in SUSPENDED

    @property
    def crashed(self) -> RunRecord | None:
        """The run, if its process died in it."""
        return self.run if self.run is not None and self.run.status == "running" else None

    @property
    def waiting(self) -> tuple[str, ...]:
        calls = self.session.pending_client_tool_calls.values()
        return tuple(call.tool_call_id for call in calls if call.state == "waiting")


async def read_standing(services: Services, session_id: SessionId) -> Standing | None:
    """The session and its current run; None when there is no such session.

    Raises:
        AgentAlreadyRunningError: a live process drives its run.
        NotARootSessionError: its parent drives it.
    """
    store = services.store
    session = await _find_root(store, session_id)
    if session is None:
        return None
    run = await store.get_current_run(session_id)
    # One that is missing was begun a moment ago, or will be submitted by recovery: it is nobody's to replace.
    if run is not None and run.status == "running" and await services.inspect(run) != "dead":
        raise await _already_running(services, run)
    if run is not None and await carry_out_late_abort(services, run):
        session, run = await store.load_state(session_id), await store.get_current_run(session_id)
    return Standing(session=session, run=run, answered=await answered_below(store, session))


async def _already_running(services: Services, run: RunRecord) -> AgentAlreadyRunningError:
    """The refusal, with what is known of the process that has the run."""
    elsewhere = run.owner if not services.is_here(run) else None
    lease = None if elsewhere is None else await services.store.find_lease(elsewhere)
    left = None if lease is None else max(lease.expires_at - services.store.now_ms(), 0)
    return AgentAlreadyRunningError(run.session_id, run.run_id, left)


async def check_owner(services: Services, agent: AnyAgent, session_id: SessionId) -> None:
    """Refuse whom a session does not belong to before anything below it is woken; what nobody answered in time has
    expired by then.

    Raises:
        SessionNotFoundError, NotARootSessionError, AgentMismatchError: it is not the agent's; nothing was written.
    """
    session = await _find_root(services.store, session_id)
    if session is None:
        raise SessionNotFoundError(session_id)
    _check_agent(agent, session)


async def _find_root(store: SessionStateStore, session_id: SessionId) -> SessionState | None:
    """The session as it is now, with every call expired whose time is over; None when there is none.

    Raises:
        NotARootSessionError: its parent drives it.
    """
    try:
        session = await store.load_state(session_id)
        if _is_overdue(session, store.now_ms()):
            while await store.expire_pending(session_id=session_id):
                pass
            session = await store.load_state(session_id)
    except SessionNotFoundError:
        return None
    if session.parent_session_id is not None:
        raise NotARootSessionError(session_id, session.root_session_id)
    return session


async def began_with(store: SessionStateStore, session_id: SessionId, key: str) -> bool:
    """Whether the session's last turn began with a message of this id, which may still wait behind open calls."""
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
            if isinstance(message, UserMessage) and (message.id == key or not message.hidden):
                return message.id == key
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
    budget: Budget | None = None,
) -> StartRun:
    """Begin a turn with these messages, whatever the session did before; one that is `queued` leaves its queue for it.

    Raises:
        AgentAlreadyRunningError: the session is busy.
        AgentMismatchError: it, or what it is to be a branch of, was begun with another agent.
        SessionAlreadyExistsError: it was to be a new one, or a branch, and is there already.
        StateSchemaChangedError: its stored state, or that of the branch, no longer fits the agent.
    """
    standing = await read_standing(services, session_id)
    expires_at = _expiry(services, agent, expires_in_ms)
    if standing is None:
        start = _first_turn(services, agent, session_id, messages, new, expires_at, run_id, budget)
        return start if new.branch is None else await _on_branch(services, agent, start, new.branch, new.state)
    if new.required or new.branch is not None:
        raise SessionAlreadyExistsError(session_id)
    _check_agent(agent, standing.session)
    writes = await _checked_state(services, agent, standing, new.state)
    return await _next_turn(
        services, agent, standing, expires_at, messages, writes=writes, run_id=run_id, queued=queued, budget=budget
    )


async def waiting_turn(services: Services, agent: AnyAgent, turn: QueuedTurn) -> QueuedTurn | None:
    """A turn that disturbs nobody, as it has to wait: behind one that goes on, waits for somebody, or died and is to be
    gone on with; or behind others that came before it, in a session that somebody stopped. None where it may begin.

    Raises:
        NotARootSessionError, AgentMismatchError: it cannot begin at all.
    """
    session = await _find_root(services.store, turn.session_id)
    if session is None:
        return None
    _check_agent(agent, session)
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
    state: Any,
    expires_in_ms: int | None,
    run_id: RunId | None,
    budget: Budget | None,
) -> QueuedTurn:
    """A turn that is to wait, with everything that whoever begins it needs."""
    return QueuedTurn(
        session_id=session_id,
        run_id=run_id or services.ids.new("run"),
        messages=messages,
        state=None if state is None else _given_state(agent, state),
        expires_in_ms=expires_in_ms,
        budget=budget,
    )


async def plan_queued(services: Services, agent: AnyAgent, waiting: Sequence[QueuedTurn]) -> StartRun | None:
    """Begin the first of the turns that wait in a session; its start takes it from the queue.

    None while it has to wait: for a turn that waits for somebody or whose process died, and in a session that somebody
    stopped, until somebody goes on, be it with a message that waits with it.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError, AgentMismatchError,
        StateSchemaChangedError: it cannot begin; nothing was written.
    """
    turn = waiting[0]
    standing = await _known(services, turn.session_id)
    session = standing.session
    if standing.crashed is not None or standing.suspended or _is_held(session, waiting):
        return None
    _check_agent(agent, session)
    writes = await _checked_state(services, agent, standing, turn.state)
    expires_at = _expiry(services, agent, turn.expires_in_ms)
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
    )


def _is_held(session: SessionState, waiting: Iterable[QueuedTurn]) -> bool:
    """Whether somebody stopped what the session did, or its time was over, and nobody went on since."""
    is_stopped = session.status in ("interrupted", "paused") or session.failure_reason in (CANCELLED, EXPIRED)
    return is_stopped and all(turn.after_stop_of != session.current_run_id for turn in waiting)


async def plan_wake(services: Services, agent: AnyAgent, wakeup: Wakeup) -> StartRun | None:
    """Begin a turn with news in a session that does nothing; the news and what remembers them are one commit.

    None where nobody may be woken: the session was stopped or has failed, or waits and is to go on waiting.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError, StateSchemaChangedError: it cannot;
        nothing was written.
    """
    standing = await _known(services, wakeup.session_id)
    waits = standing.suspended and standing.session.status == "active"
    if standing.session.status != "completed" and not (waits and wakeup.gives_up_waiting):
        return None
    messages = tuple(news_message(text) for text in wakeup.texts)
    writes = await _checked_state(services, agent, standing)
    # Nobody has come back to the session: it expires when it would have.
    return await _next_turn(services, agent, standing, None, messages, writes=writes, entries=wakeup.changes)


async def plan_resume(
    services: Services,
    agent: AnyAgent,
    session_id: SessionId,
    mode: ResumeMode,
    *,
    messages: tuple[UserMessage, ...] = (),
    checkpoint_id: CheckpointId | None = None,
) -> StartRun | RunRecord:
    """Go on with what a session left open: in a new run, or in the one whose process died.

    It is the latter where a step has begun what cannot be undone. Its reply and its intents are on record, so going on
    means the next attempt of that run, which asks what has to be asked; nobody said that the step is to be given up.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, AgentMismatchError, NothingToResumeError, StillWaitingError,
        StateSchemaChangedError: it cannot be gone on with; nothing was written.
    """
    standing = await _known(services, session_id)
    session = standing.session
    _check_agent(agent, session)
    common = await _common(services, agent, standing, _expiry(services, agent, None))
    goes_back = mode == "from_checkpoint"
    if not messages and (checkpoint_id == BEGINNING if goes_back else _has_no_words(session)):
        # No provider answers an empty conversation.
        raise NothingToResumeError(session_id, "at its beginning nothing was said yet; give it a message")
    if goes_back:
        point = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint_id)
        state, from_version = await _state_at(services.store, session, point)
        if state is not None:
            services.present_state(agent, state, from_version)
        return _start(
            services,
            standing,
            # The session is of the version again that it was of there, until the run makes it its own.
            {**common, "agent_version": None},
            rewind_to=checkpoint_id,
            append_messages=messages,
            count_resume=True,
            budget=session.budget,
            ref_updates=await untold_at(services.store, session_id, checkpoint_id),
        )
    writes = await _checked_state(services, agent, standing)
    if session.suspension_context is not None:
        return _resume_suspended(services, standing, common, mode, messages, writes)
    if standing.crashed is None and session.status not in ("interrupted", "paused"):
        raise NothingToResumeError(session_id, _why_not(session))
    dead = standing.crashed if mode == "continue" and not messages else None
    if dead is not None and await is_on_record(services, session, dead):
        return dead
    healed = await _healed(services, standing)
    follow = messages or ((_CONTINUE,) if await _ends_in_reply(services, session_id, healed) else ())
    fields: dict[str, Any] = {"writes": writes, "count_resume": True, "budget": session.budget}
    return _start(services, standing, common, append_messages=(*healed, *follow), **fields)


async def plan_rewind(services: Services, session_id: SessionId, checkpoint_id: CheckpointId) -> StartRun:
    """Go back to a checkpoint; what happens from there is not said here.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot; nothing was written.
    """
    standing = await _known(services, session_id)
    start_sequence = await _latest_sequence(services, standing.session)
    return _start(
        services,
        standing,
        {"start_sequence": start_sequence},
        rewind_to=checkpoint_id,
        ref_updates=await untold_at(services.store, session_id, checkpoint_id),
    )


async def plan_retry(
    services: Services, agent: AnyAgent, session_id: SessionId, *, budget: Budget | None = None
) -> StartRun:
    """Go on from the last commit of a run that failed, with a fresh budget: this one, or one like the run had.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, AgentMismatchError, NothingToRetryError,
        StateSchemaChangedError: nothing to retry.
    """
    standing = await _known(services, session_id)
    session = standing.session
    _check_agent(agent, session)
    if session.status != "failed" or standing.suspended or session.failure_reason == CANCELLED:
        raise NothingToRetryError(session_id, f"its last run is {standing.run.status if standing.run else 'missing'}")
    common = await _common(services, agent, standing, _expiry(services, agent, None))
    healed = await _healed(services, standing)
    writes = await _checked_state(services, agent, standing)
    return _start(services, standing, common, append_messages=healed, writes=writes, budget=budget or session.budget)


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
        common = await _common(services, agent, standing, expires_at)
        # Calls are open: the message waits behind them, and what nobody answered is given up.
        return _start(
            services,
            standing,
            common,
            keep_suspension=True,
            suspension_context=_entering(suspended, messages, new_turn=True),
            drop_unanswered=True,
            **fields,
        )
    # Neither needs the other, and a store may be a network away.
    common, healed = await asyncio.gather(_common(services, agent, standing, expires_at), _healed(services, standing))
    return _start(services, standing, common, append_messages=(*healed, *messages), **fields)


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
    )


def _tracing_context(services: Services, run_id: RunId, metadata: Mapping[str, str]) -> TracingContext:
    """A trace of its own; one that another service began goes on in that one's trace."""
    above = read_trace_place(metadata.get(TRACE))
    if above is None:
        return TracingContext(trace_id=trace_id_of(services.ids.new("trace")), root_span_id=span_id_of_run(run_id))
    return TracingContext(trace_id=above.trace_id, root_span_id=span_id_of_run(run_id), parent_span_id=above.span_id)


async def _on_branch(services: Services, agent: AnyAgent, start: StartRun, point: BranchPoint, given: Any) -> StartRun:
    """The first turn of a branch, with what the entry sets in the state that it finds there."""
    source = await services.store.load_state(point.from_session_id)
    _check_agent(agent, source)
    state, from_version = await _state_at(services.store, source, point)
    if given is None:
        if state is not None:
            services.present_state(agent, state, from_version)
        return start
    if state is None:
        return msgspec.structs.replace(start, writes=difference({}, _given_state(agent, given)))
    loaded = agent.load_state(state, from_version)
    writes = difference(state, {**loaded.custom_state, **_given_state(agent, given)})
    return msgspec.structs.replace(start, writes=writes, agent_version=agent.version)


async def _state_at(
    store: SessionStateStore, session: SessionState, point: BranchPoint
) -> tuple[dict[str, JSON] | None, int]:
    """The state that a rewind or a branch finds, as far as it can be looked at before, and the version it is of.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint.
    """
    if point.checkpoint_id is None and point.message_count is None:
        return session.custom_state, session.agent_version
    if point.checkpoint_id in (None, BEGINNING):
        return None, session.agent_version
    state = await store.load_checkpoint_state(session.session_id, point.checkpoint_id)
    checkpoint = await store.get_checkpoint(session.session_id, point.checkpoint_id)
    return state, session.agent_version if checkpoint is None else version_at(session, checkpoint.version)


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
    return _start(
        services,
        standing,
        common,
        keep_suspension=True,
        keep_step_count=not abandons,
        suspension_context=_entering(session.suspension_context, messages, new_turn=abandons),
        drop_unanswered=abandons,
        writes=writes,
        count_resume=True,
        budget=session.budget,
    )


def _entering(suspended: SuspensionContext, messages: tuple[UserMessage, ...], *, new_turn: bool) -> SuspensionContext:
    """The open step with messages that follow it. In a new turn it comes before the first step and costs nothing."""
    return msgspec.structs.replace(
        suspended,
        step=0 if new_turn else suspended.step,
        entry_messages=(*suspended.entry_messages, *messages),
    )


async def _known(services: Services, session_id: SessionId) -> Standing:
    standing = await read_standing(services, session_id)
    if standing is None:
        raise SessionNotFoundError(session_id)
    return standing


def _check_agent(agent: AnyAgent, session: SessionState) -> None:
    # A run finds its agent by the session, so this one would not do the work, and its state would land in another's.
    if session.agent_type != agent.name:
        raise AgentMismatchError(session.session_id, session.agent_type, agent.name)


def _is_overdue(session: SessionState, now_ms: int) -> bool:
    """Whether somebody was to answer by now; nobody may have looked since."""
    return any(is_overdue(call, now_ms) for call in session.pending_client_tool_calls.values())


async def _common(services: Services, agent: AnyAgent, standing: Standing, expires_at: int | None) -> dict[str, Any]:
    session, run = standing.session, standing.run
    turn = 1 if run is None else run.turn + 1
    return {
        "workflow_id": services.name_workflow(agent.name, session.session_id, turn),
        "agent_version": agent.version,
        "expires_at": expires_at,
        "start_sequence": await _latest_sequence(services, session),
        "stream": services.claim_stream(session.stream_id or session.session_id, session.agent_type),
    }


async def _latest_sequence(services: Services, session: SessionState) -> int:
    info = await services.streams.get_stream_info(session.stream_id or session.session_id)
    return info.latest_sequence if info is not None else 0


def _start(
    services: Services, standing: Standing, common: dict[str, Any], *, run_id: RunId | None = None, **fields: Any
) -> StartRun:
    run = standing.run
    return StartRun(
        session_id=standing.session.session_id,
        run_id=run_id or services.ids.new("run"),
        expected_version=standing.session.version,
        expected_run=run.fence if run is not None else None,
        previous_run_id=run.run_id if run is not None else None,
        replaced_status="interrupted",
        replaced_reason="crashed",
        **common,
        **fields,
    )


async def _checked_state(services: Services, agent: AnyAgent, standing: Standing, given: Any = None) -> StepWrites:
    """Refuse stored state that no longer fits before anything is written; then what the entry itself sets. What is
    known of a dead run's last step stands in both."""
    session = standing.session
    state = await salvaged_state(services, agent, session, standing.crashed)
    if given is None:
        present = services.present_state(agent, state, session.agent_version).custom_state
    else:
        present = {**agent.load_state(state, session.agent_version).custom_state, **_given_state(agent, given)}
    return difference(session.custom_state, present)


def _given_state(agent: AnyAgent, given: Any) -> dict[str, JSON]:
    whole = agent.initial_state(given)
    if not isinstance(given, Mapping):
        return whole
    return {key: whole[key] for key in cast("Mapping[str, JSON]", given)}


async def _healed(services: Services, standing: Standing) -> tuple[Message, ...]:
    """What has to stand in the transcript before anything new: a dead run's words, and results for open calls."""
    if standing.crashed is not None:
        return await salvage(services, standing.session, standing.crashed)
    session_id = standing.session.session_id
    page = await services.store.get_messages(session_id, limit=200)
    healed = heal([stored.message for stored in reversed(page.items)])
    names = {each.tool_call_id: each.tool_name for each in healed}
    known = await known_of_open_calls(services.store, session_id, names) if healed else {}
    return tuple(known.get(each.tool_call_id, each) for each in healed)


async def _ends_in_reply(services: Services, session_id: SessionId, healed: tuple[Message, ...]) -> bool:
    """Whether the model spoke last, so that it has to be asked to go on."""
    if healed:
        return isinstance(healed[-1], AssistantMessage)
    page = await services.store.get_messages(session_id, limit=1)
    return bool(page.items) and isinstance(page.items[0].message, AssistantMessage)


def _expiry(services: Services, agent: AnyAgent, expires_in_ms: int | None) -> int | None:
    ttl = expires_in_ms if expires_in_ms is not None else agent.session_ttl_ms
    return None if ttl is None else services.store.now_ms() + ttl


def _has_no_words(session: SessionState) -> bool:
    """Whether somebody brought the session back to before its first message, and said nothing since."""
    return session.status == "interrupted" and session.message_count == 0 and session.suspension_context is None


def _why_not(session: SessionState) -> str:
    if session.current_run_id is None:
        return "it never had a run; a new message starts its first turn"
    if session.status == "failed" and session.failure_reason == CANCELLED:
        return "it was aborted; a new message starts the next turn"
    if session.status == "failed":
        return "its last run failed; use retry"
    return f"it is {session.status}; a new message starts the next turn"
