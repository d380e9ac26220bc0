"""Which agent works in a session.

Below another agent, it is the one which that agent means by the name, even if another registered agent has the same
name. If a session was handed over, it is the one which the session's own agent means by the name.
"""

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry, find_delegate
from helix_agents.domain.sessions import SessionState
from helix_agents.ports.state_store import SessionStateStore


async def find_agent(store: SessionStateStore, agents: AgentRegistry, session: SessionState) -> AnyAgent | None:
    """The agent that works in a session, or None if it is not known here."""
    return (await line_of(store, agents, session))[-1]


def find_holder(agents: AgentRegistry, own: AnyAgent | None, session: SessionState) -> AnyAgent | None:
    """The agent that works in a session, given the session's own one: that, or the one that it was handed over to."""
    if session.held_by is None:
        return own
    meant = None if own is None else agents.circle_of(own).get(session.held_by)
    return meant or agents.find(session.held_by)


def find_entry(agents: AgentRegistry, session: SessionState) -> AnyAgent | None:
    """The agent with which a root session continues here: its own one, which stands for whoever has it, or the one that
    has it. None if that one is not known here."""
    own = agents.find(session.agent_type)
    holder = find_holder(agents, own, session)
    return holder and (own or holder)


async def line_of(store: SessionStateStore, agents: AgentRegistry, session: SessionState) -> list[AnyAgent | None]:
    """The agents of all sessions above this one, starting with the root, followed by the one that works in it. Above,
    it is the one that delegates to the next, even if the session has been handed on since."""
    names, above_id = [session.agent_type], session.parent_session_id
    while above_id is not None and (above := await store.find_session(above_id)) is not None:
        names.append(above.agent_type)
        above_id = above.parent_session_id
    line: list[AnyAgent | None] = []
    for name in reversed(names):
        own = line[-1] if line else None
        for each in () if own is None else agents.circle_of(own).values():
            if (meant := find_delegate(each, name)) is not None:
                line[-1] = each
                break
        else:
            meant = agents.find(name)
        line.append(meant)
    return [*line[:-1], find_holder(agents, line[-1], session)]
