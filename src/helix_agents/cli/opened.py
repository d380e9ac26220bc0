"""Stores as commands open them: looked at without changing their schema, or with agents to drive."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_agents.agent.registry import AgentRegistry
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor


@asynccontextmanager
async def open_stored(url: str) -> AsyncGenerator[Backend, None]:
    """What is stored at a URL. A store that is not there is not created, one of another schema not migrated."""
    async with await open_backend(url, migrate="check") as backend:
        yield backend


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
