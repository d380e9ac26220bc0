"""Which agent works in a session, and which agents are above it, where sessions were handed over."""

import pytest

from helix_agents import Agent, Handoff, PersistentAgent, ScriptedModel
from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.session_changes import held_by
from helix_agents.domain.sessions import CreateSession, Holder, SessionState
from helix_agents.engine.children.meant_agents import find_agent, line_of

MODEL = ScriptedModel([])


def agent(name: str, *handoffs: AnyAgent | Handoff, keeps: AnyAgent | None = None) -> AnyAgent:
    kept = () if keeps is None else (PersistentAgent(keeps),)
    return Agent(name=name, description=name, model=MODEL, handoffs=handoffs, persistent_agents=kept)


THEIRS, OURS = agent("helper"), agent("helper")
BILLING = agent("billing", Handoff("desk", description="Back."), keeps=OURS)
DESK = agent("desk", BILLING)


@pytest.fixture
async def child() -> tuple[InMemoryStateStore, SessionState]:
    store = InMemoryStateStore()
    await store.create_session("s-1", CreateSession(agent_type="desk"))
    child = await store.create_session("s-2", CreateSession(agent_type="helper", parent_session_id="s-1"))
    return store, child


async def test_a_companion_is_the_one_that_its_keeper_means_whoever_has_the_conversation(
    child: tuple[InMemoryStateStore, SessionState],
) -> None:
    store, session = child
    agents = AgentRegistry([THEIRS, DESK])
    assert await find_agent(store, agents, session) is OURS
    assert await line_of(store, agents, session) == [BILLING, OURS]


async def test_a_session_that_was_handed_over_is_worked_in_by_the_one_that_its_own_agent_means() -> None:
    store = InMemoryStateStore()
    session = await store.create_session("s-1", CreateSession(agent_type="desk"))
    handed = held_by(session, Holder("billing", 1), until=1)
    other = agent("billing")
    assert await find_agent(store, AgentRegistry([other, DESK]), handed) is BILLING
    assert await find_agent(store, AgentRegistry([other]), handed) is other
    assert await find_agent(store, AgentRegistry([agent("desk")]), handed) is None
    assert await find_agent(store, AgentRegistry([agent("desk"), other]), handed) is other
