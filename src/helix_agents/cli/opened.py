"""Executors as commands open them: without agents for what needs no run, or with agents to drive."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.stored import open_stored
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor


def desk_of(backend: Backend, agents: AgentRegistry | None = None) -> Executor:
    """An executor for what needs no run: answers, stops, rewinds. It takes no lease and drives nothing."""
    return Executor(state=backend.state, streams=backend.streams, usage=backend.usage, agents=agents or ())


@asynccontextmanager
async def open_desk(url: str) -> AsyncGenerator[Executor, None]:
    """The same for the store at a URL."""
    async with open_stored(url) as backend:
        yield desk_of(backend)


@asynccontextmanager
async def open_driving(url: str, agents: AgentRegistry, deps: OpenDeps | None) -> AsyncGenerator[Executor, None]:
    """An executor that drives the runs it starts, and leaves all others alone."""
    async with Executor.open(url, agents=agents, deps=deps, janitor_seconds=None) as helix:
        yield helix
