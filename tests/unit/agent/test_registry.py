"""A process finds its agents by name."""

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.errors import DefinitionError, UnknownAgentError


def agent(name: str) -> Agent:
    return Agent(name=name, model="openai:gpt-5")


def test_a_registered_agent_is_found_by_its_name() -> None:
    writer, reader = agent("writer"), agent("reader")
    registry = AgentRegistry([writer])
    assert registry.register(reader) is reader
    assert registry.get("writer") is writer
    assert registry.find("reader") is reader
    assert registry.find("nobody") is None
    assert list(registry) == [writer, reader]
    assert len(registry) == 2
    assert "writer" in registry
    assert reader in registry
    assert "nobody" not in registry


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownAgentError, match="No agent named 'writr' is registered here; known: reader, writer"):
        AgentRegistry([agent("writer"), agent("reader")]).get("writr")
    with pytest.raises(UnknownAgentError, match="known: none"):
        AgentRegistry().get("writer")


def test_the_same_agent_may_be_registered_again_but_not_another_of_its_name() -> None:
    writer = agent("writer")
    registry = AgentRegistry([writer, writer])
    with pytest.raises(DefinitionError, match=r"use replace\(agent\)"):
        registry.register(agent("writer"))
    assert registry.get("writer") is writer


def test_replacing_takes_the_place_of_whatever_had_the_name() -> None:
    registry = AgentRegistry([agent("writer")])
    newer = registry.replace(agent("writer"))
    assert registry.get("writer") is newer
    assert len(registry) == 1
