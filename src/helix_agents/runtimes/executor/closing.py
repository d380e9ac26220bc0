"""Closes what agents hold open in a process when the process leaves."""

from collections.abc import Iterable

from helix_agents.agent.agent import AnyAgent
from helix_agents.engine.log import log_exception


async def close_all_of(agents: Iterable[AnyAgent]) -> None:
    """Close the tools, memories and workspaces of agents. A failure to close one of them is logged, and the others are
    closed all the same."""
    for agent in agents:
        for tool in agent.all_tools:
            try:
                await tool.close()
            except Exception as problem:
                log_exception("tool.not_closed", problem, tool=tool.name)
        if agent.memory is not None:
            try:
                await agent.memory.close()
            except Exception as problem:
                log_exception("memory.not_closed", problem, agent=agent.name)
        if agent.workspace is not None:
            try:
                await agent.workspace.provider.close()
            except Exception as problem:
                log_exception("workspace.not_closed", problem, agent=agent.name)
