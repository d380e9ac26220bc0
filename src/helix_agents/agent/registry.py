"""The agents a process knows, by name: a stored session names its agent, and any process that knows it can continue."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.handoffs import HandoffTool, check_handoffs, circle_of
from helix_agents.agent.sub_agents import DelegationTool, SubAgentTool
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError, DepsNotOpenedError, UnknownAgentError
from helix_agents.domain.sessions import SessionState

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
        """The agent with this name, or None. Includes agents that a registered agent delegates or hands over to."""
        known = self._agents.get(name)
        if known is not None:
            return known
        return next((agent for agent in self.everyone() if agent.name == name), None)

    def everyone(self) -> list[AnyAgent]:
        """The registered agents, followed by those they delegate or hand over to, at any depth."""
        return _with_delegates(self._agents.values())

    def circle_of(self, agent: AnyAgent) -> dict[str, AnyAgent]:
        """The agent and all that its conversations may be handed over to, by name."""
        return circle_of(agent, self.find)

    def speakers_of(self, agent_type: str) -> tuple[AnyAgent, ...]:
        """The agents known here that may have worked in the sessions of this one, which comes first."""
        agent = self.find(agent_type)
        return () if agent is None else tuple(self.circle_of(agent).values())

    def speakers(self) -> tuple[AnyAgent, ...]:
        """The agents known here that may work in a root session: the registered ones, and those that take over from
        them."""
        found = {id(each): each for agent in self for each in self.circle_of(agent).values()}
        return tuple(found.values())

    def check_handoffs(self, *more: AnyAgent) -> None:
        """Reject handoffs of these agents, or else of all, to agents that are only named and that nobody here knows, or
        that do not fit.

        Raises:
            DefinitionError: says which, and what to do.
        """
        given = _with_delegates(more or self._agents.values())
        named = {agent.name: agent for agent in reversed(given)}
        for agent in given:
            check_handoffs(agent, lambda name: named.get(name) or self.find(name))

    def of_session(self, session: SessionState) -> AnyAgent | None:
        """The agent that a root session belongs to; if only the one that it was handed over to is known here, that
        one. None if neither is."""
        return self.find(session.agent_type) or self.find(session.worked_by)

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
    """Whether an agent, or one it delegates or hands over to at any depth, may have companions."""
    return any(each.persistent_agents for each in _with_delegates((agent,)))


def may_act_once(agent: AnyAgent, called: Collection[str] | None = None) -> bool:
    """Whether an agent, or one it delegates or hands over to at any depth, may have done something that must not happen
    twice, if these tools were `called`. What agents of other services do, and those that are only named, is not known
    here."""
    tools = (tool for each in _with_delegates((agent,)) for tool in each.all_tools)
    return any(_acts_once(tool) for tool in tools if called is None or tool.name in called)


def _acts_once(tool: Tool[..., Any]) -> bool:
    if isinstance(tool, HandoffTool):
        return isinstance(tool.handoff.to, str)
    if isinstance(tool, DelegationTool):
        return not isinstance(tool, SubAgentTool)
    return tool.effect_of_call(approved=tool.require_approval is not False) == "once"


def deps_not_opened(agents: Iterable[AnyAgent]) -> DepsNotOpenedError | None:
    """The error for an executor that opens no deps: names the first tool that needs them, among these agents and those
    they delegate or hand over to. None if no tool does."""
    for agent in _with_delegates(agents):
        for tool in agent.all_tools:
            if tool.wanted_deps is not None:
                return DepsNotOpenedError(agent.name, tool.name, tool.wanted_deps.__name__)
    return None


def find_tool(agents: Iterable[AnyAgent], name: str) -> Tool[..., Any] | None:
    """The tool that one of these agents has under this name; the first one's if several have it."""
    return next((tool for agent in agents if (tool := agent.find_tool(name)) is not None), None)


def find_delegate(agent: AnyAgent, name: str) -> AnyAgent | None:
    """The agent that this agent means by this name; another agent may delegate to a different one of the same name."""
    return next((below for below in _delegates(agent) if below.name == name), None)


def _with_delegates(agents: Iterable[AnyAgent]) -> list[AnyAgent]:
    ahead = list(agents)
    seen = {id(agent) for agent in ahead}
    for agent in ahead:
        below = [below for below in (*_delegates(agent), *_heirs(agent)) if id(below) not in seen]
        seen.update(map(id, below))
        ahead.extend(below)
    return ahead


def _delegates(agent: AnyAgent) -> list[AnyAgent]:
    """The agents that calls of this agent may start."""
    tools = [tool.agent for tool in agent.tools if isinstance(tool, SubAgentTool)]
    return [*tools, *(each.agent for each in agent.persistent_agents)]


def _heirs(agent: AnyAgent) -> list[AnyAgent]:
    """The agents that this one hands over to, except those that it only names."""
    return [tool.handoff.to for tool in agent.handoff_tools if not isinstance(tool.handoff.to, str)]
