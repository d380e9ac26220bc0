"""Runs that a process does not take up, because their tools would lack what they need there."""

import logging
from dataclasses import dataclass, field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry, deps_not_opened
from helix_agents.domain.errors import DepsNotOpenedError
from helix_agents.engine.log import log_event
from helix_agents.runtimes.executor.runtime import Runtime


@dataclass(frozen=True)
class LeftToOthers:
    """The agents whose runs are left to processes that open deps."""

    runtime: Runtime
    agents: AgentRegistry
    _told: set[str] = field(default_factory=set[str])

    def leaves(self, agent: AnyAgent) -> bool:
        """Whether a tool of the agent, or of one it delegates or hands over to, takes deps while nothing opens them
        here; logged once."""
        missing = self._missing(agent)
        if missing is not None and agent.name not in self._told:
            self._told.add(agent.name)
            log_event("agent.deps_missing", logging.WARNING, agent=agent.name, tool=missing.tool, deps=missing.deps)
        return missing is not None

    def check(self, agent: AnyAgent) -> None:
        """Reject a run that is requested here.

        Raises:
            DepsNotOpenedError: it is one of those that are left to other processes.
        """
        if (missing := self._missing(agent)) is not None:
            raise missing

    def _missing(self, agent: AnyAgent) -> DepsNotOpenedError | None:
        return None if self.runtime.opens_deps else deps_not_opened(self.agents.circle_of(agent).values())
