"""Runs that a process does not take up by itself, because their tools would not get what they need there."""

import logging
from dataclasses import dataclass, field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.engine.log import log_event
from helix_agents.runtimes.executor.runtime import Runtime


@dataclass(frozen=True)
class LeftToOthers:
    """Whose runs are left to processes that open deps. Whoever asks for such a run here gets it all the same."""

    runtime: Runtime
    _told: set[str] = field(default_factory=set[str])

    def leaves(self, agent: AnyAgent) -> bool:
        """Whether a tool of the agent, or of one that it delegates to, takes deps, and nothing opens them here; that is
        said once."""
        if self.runtime.opens_deps:
            return False
        for each in AgentRegistry([agent]).everyone():
            for tool in each.all_tools:
                if tool.wanted_deps is not None:
                    self._tell(agent, tool.name, tool.wanted_deps.__name__)
                    return True
        return False

    def _tell(self, agent: AnyAgent, tool: str, deps: str) -> None:
        if agent.name not in self._told:
            self._told.add(agent.name)
            log_event("agent.deps_missing", logging.WARNING, agent=agent.name, tool=tool, deps=deps)
