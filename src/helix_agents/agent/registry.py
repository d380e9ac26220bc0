"""The agents a process knows, by name: a stored session names its agent, and any process that knows it can continue."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.sub_agents import SubAgentTool
from helix_agents.domain.errors import DefinitionError, DepsNotOpenedError, UnknownAgentError

AgentT = TypeVar("AgentT", bound=AnyAgent)


class AgentRegistry:
    """Agents by name. Every process that runs or recovers a session has to know its agent under the same name."""

    def __init__(self, agents: Iterable[AnyAgent] = ()) -> None:
        self._agents: dict[str, AnyAgent] = {}
        for agent in agents:
            self.register(agent)

    def register(self, agent: AgentT) -> AgentT:
        """Register the agent and return it. Registering the same agent again changes nothing.

        Raises:
            DefinitionError: another agent has this name.
        """
        known = self._agents.setdefault(agent.name, agent)
        if known is not agent:
            raise DefinitionError(
                f"Agent {agent.name!r}",
                "another agent with this name is registered; rename one, or use replace(agent).",
            )
        return agent

    def replace(self, agent: AgentT) -> AgentT:
        """Register the agent in place of any other with its name.

        Other processes still have the old one: a run that moves between them meets both.
        """
        self._agents[agent.name] = agent
        return agent

    def register_if_new(self, agent: AnyAgent) -> None:
        """Register the agent unless another one has its name."""
        self._agents.setdefault(agent.name, agent)

    def find(self, name: str) -> AnyAgent | None:
        """The agent with this name, or None. Includes agents that a registered agent delegates to."""
        known = self._agents.get(name)
        if known is not None:
            return known
        return next((agent for agent in self.everyone() if agent.name == name), None)

    def everyone(self) -> list[AnyAgent]:
        """The registered agents, followed by those they delegate to, at any depth."""
        return _with_delegates(self._agents.values())

    def get(self, name: str) -> AnyAgent:
        """The agent with this name.

        Raises:
            UnknownAgentError: there is none; the message lists the known names.
        """
        agent = self.find(name)
        if agent is None:
            raise UnknownAgentError(name, tuple(sorted(self._agents)))
        return agent

    def __iter__(self) -> Iterator[AnyAgent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, agent: object) -> bool:
        return (agent.name if isinstance(agent, Agent) else agent) in self._agents


def keeps_companions(agent: AnyAgent) -> bool:
    """Whether an agent, or one it delegates to at any depth, may have companions."""
    return any(each.persistent_agents for each in _with_delegates((agent,)))


def deps_not_opened(agents: Iterable[AnyAgent]) -> DepsNotOpenedError | None:
    """The error for an executor that opens no deps: names the first tool that needs them, among these agents and those
    they delegate to. None if no tool does."""
    for agent in _with_delegates(agents):
        for tool in agent.all_tools:
            if tool.wanted_deps is not None:
                return DepsNotOpenedError(agent.name, tool.name, tool.wanted_deps.__name__)
    return None


def find_delegate(agent: AnyAgent, name: str) -> AnyAgent | None:
    """The agent that this agent means by this name; another agent may delegate to a different one of the same name."""
    return next((below for below in _delegates(agent) if below.name == name), None)


def _with_delegates(agents: Iterable[AnyAgent]) -> list[AnyAgent]:
    ahead = list(agents)
    seen = {id(agent) for agent in ahead}
    for agent in ahead:
        below = [below for below in _delegates(agent) if id(below) not in seen]
        seen.update(map(id, below))
        ahead.extend(below)
    return ahead


def _delegates(agent: AnyAgent) -> list[AnyAgent]:
    """The agents that calls of this agent may start."""
    tools = [tool.agent for tool in agent.tools if isinstance(tool, SubAgentTool)]
    return [*tools, *(each.agent for each in agent.persistent_agents)]
