"""Runs that a process does not take up: it does not know their agent, or has not what their tools need."""

import logging
from dataclasses import dataclass, field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry, deps_not_opened
from helix_agents.domain.errors import DepsNotOpenedError
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.log import log_event
from helix_agents.runtimes.executor.runtime import Runtime


@dataclass(frozen=True)
class LeftToOthers:
    """The runs that are left to processes that know their agents and open deps. Each agent is logged once."""

    runtime: Runtime
    agents: AgentRegistry
    _told: set[str] = field(default_factory=set[str])
    _unknown: set[str] = field(default_factory=set[str])

    def leaves(self, agent: AnyAgent) -> bool:
        """Whether a tool of the agent, or of one it delegates or hands over to, takes deps while nothing opens them
        here."""
        missing = self._missing(agent)
        if missing is not None and agent.name not in self._told:
            self._told.add(agent.name)
            log_event("agent.deps_missing", logging.WARNING, agent=agent.name, tool=missing.tool, deps=missing.deps)
        return missing is not None

    def tell_unknown(self, session: SessionState) -> None:
        """Log that the agent at work in a session is not known here. Without a word, a program that forgot to register
        it would wait for its run forever."""
        name = session.worked_by
        if name not in self._unknown:
            self._unknown.add(name)
            reason = "the process of its run died; a process with this agent in agents=[…] continues it"
            log_event("run.unknown_agent", logging.WARNING, agent=name, session_id=session.session_id, reason=reason)

    def check(self, agent: AnyAgent) -> None:
        """Reject a run that is requested here.

        Raises:
            DepsNotOpenedError: it is one of those that are left to other processes.
        """
        if (missing := self._missing(agent)) is not None:
            raise missing

    def _missing(self, agent: AnyAgent) -> DepsNotOpenedError | None:
        return None if self.runtime.opens_deps else deps_not_opened(self.agents.circle_of(agent).values())
