"""Which agent works in a session.

Below another agent, it is the one which that agent means by the name, even if another registered agent has the same
name.
"""

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry, find_delegate
from helix_agents.domain.sessions import SessionState, SessionSummary
from helix_agents.ports.state_store import SessionStateStore


async def find_agent(
    store: SessionStateStore, agents: AgentRegistry, session: SessionState | SessionSummary
) -> AnyAgent | None:
    """The agent of a session, or None if it is not known here."""
    return (await line_of(store, agents, session))[-1]


async def line_of(
    store: SessionStateStore, agents: AgentRegistry, session: SessionState | SessionSummary
) -> list[AnyAgent | None]:
    """The agents of all sessions above this one, starting with the root, followed by its own."""
    names, above_id = [session.agent_type], session.parent_session_id
    while above_id is not None and (above := await store.find_session(above_id)) is not None:
        names.append(above.agent_type)
        above_id = above.parent_session_id
    line: list[AnyAgent | None] = []
    for name in reversed(names):
        parent = line[-1] if line else None
        line.append((find_delegate(parent, name) if parent is not None else None) or agents.find(name))
    return line
