"""Executors as commands open them: for what needs no run, or with agents to drive."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.stored import open_stored
from helix_agents.runtimes.in_process import Executor


@asynccontextmanager
async def open_desk(url: str, agents: AgentRegistry | None = None) -> AsyncGenerator[Executor, None]:
    """An executor for what needs no run: answers, stops, rewinds. It takes no lease and drives nothing."""
    async with open_stored(url) as backend:
        yield Executor(state=backend.state, streams=backend.streams, usage=backend.usage, agents=agents or ())


@asynccontextmanager
async def open_driving(url: str, agents: AgentRegistry) -> AsyncGenerator[Executor, None]:
    """An executor that drives the runs it begins, and leaves everybody else's alone."""
    async with Executor.open(url, agents=agents, janitor_seconds=None) as helix:
        yield helix
