"""The standing of a session when a request arrives: at rest, waiting, dead in its run, or busy."""

from dataclasses import dataclass

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    AgentMismatchError,
    NotARootSessionError,
    SessionNotFoundError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import is_overdue
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.children.sub_agents import answered_below
from helix_agents.engine.requests.settling import carry_out_late_abort
from helix_agents.engine.services import Services
from helix_agents.ports.state_store import SessionStateStore


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A session as an entry reads it; `answered` says whether something that it waits for has been answered."""

    session: SessionState
    run: RunRecord | None
    answered: bool

    @property
    def suspended(self) -> bool:
        return self.run is not None and self.run.status in SUSPENDED

    @property
    def crashed(self) -> RunRecord | None:
        """The run, if its process died while running it."""
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
    session = await find_root(store, session_id)
    if session is None:
        return None
    run = await store.get_current_run(session_id)
    # A missing run was started a moment ago, or recovery will submit it: in either case it must not be replaced.
    if run is not None and run.status == "running" and await services.inspect(run) != "dead":
        raise await _already_running(services, run)
    if run is not None and await carry_out_late_abort(services, run):
        session, run = await store.load_state(session_id), await store.get_current_run(session_id)
    return Standing(session=session, run=run, answered=await answered_below(store, session))


async def load_standing(services: Services, session_id: SessionId) -> Standing:
    """The same for a session that has to exist.

    Raises:
        SessionNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it does not exist or is not available.
    """
    standing = await read_standing(services, session_id)
    if standing is None:
        raise SessionNotFoundError(session_id)
    return standing


async def _already_running(services: Services, run: RunRecord) -> AgentAlreadyRunningError:
    """The refusal, with what is known about the process that has the run."""
    elsewhere = run.owner if not services.is_here(run) else None
    lease = None if elsewhere is None else await services.store.find_lease(elsewhere)
    left = None if lease is None else max(lease.expires_at - services.store.now_ms(), 0)
    return AgentAlreadyRunningError(run.session_id, run.run_id, left)


async def check_owner(services: Services, agent: AnyAgent, session_id: SessionId) -> None:
    """Refuse an agent that has no part in a session, before anything below the session is woken. Calls that were
    not answered in time have expired by then.

    Raises:
        SessionNotFoundError, NotARootSessionError, AgentMismatchError: it is not the agent's; nothing was written.
    """
    session = await find_root(services.store, session_id)
    if session is None:
        raise SessionNotFoundError(session_id)
    check_agent(agent, session)


def check_agent(agent: AnyAgent, session: SessionState, holder: str | None = None) -> None:
    """Refuse an agent that neither started the session nor has it now, or, at another point of its history, `holder`.

    Raises:
        AgentMismatchError: names both.
    """
    # A run finds its agent by the session, so this agent would not do the work, and its state would go to another one.
    if agent.name not in (session.agent_type, holder or session.worked_by):
        raise AgentMismatchError(session.session_id, session.agent_type, agent.name)


def agent_at_work(services: Services, agent: AnyAgent, session: SessionState, holder: str | None = None) -> AnyAgent:
    """The agent that works in the session for an entry with this one: the session's own agent stands for whichever has
    it now, or, at another point of its history, for `holder`.

    Raises:
        AgentMismatchError: the entry's agent has no part in the session.
        UnknownAgentError: the one that has it is not known here.
    """
    check_agent(agent, session, holder)
    name = holder or session.worked_by
    if agent.name == name:
        return agent
    return services.agents.circle_of(agent).get(name) or services.agents.get(name)


async def find_root(store: SessionStateStore, session_id: SessionId) -> SessionState | None:
    """The current session, with every overdue call expired; None if there is no such session.

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


def _is_overdue(session: SessionState, now_ms: int) -> bool:
    """Whether a call should have been answered by now; perhaps no process has checked since."""
    return any(is_overdue(call, now_ms) for call in session.pending_client_tool_calls.values())
