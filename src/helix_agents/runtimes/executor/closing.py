"""How a process leaves: it says what it waits for, and closes what agents hold open."""

import asyncio
import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from helix_agents.agent.agent import AnyAgent
from helix_agents.engine.log import log_event, log_exception

UNNOTICED_SECONDS = 1.0
"""How long a process may take to leave without saying why: most running steps end sooner."""


@contextmanager
def told_if_it_takes_long(grace: float) -> Generator[None]:
    """Log what a process waits for while it leaves. Otherwise a person who pressed Ctrl-C sees a program that hangs."""
    reason = (
        f"waiting up to {grace:g} s for running steps; a second Ctrl-C leaves at once, unless a sync function is "
        "running, and loses nothing committed"
    )
    loop = asyncio.get_running_loop()
    notice = loop.call_later(
        UNNOTICED_SECONDS, lambda: log_event("executor.leaving", logging.WARNING, grace=grace, reason=reason)
    )
    try:
        yield
    finally:
        notice.cancel()


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
