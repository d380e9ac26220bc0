"""A server whose store keeps one caller waiting, so that a race is held open instead of hoped for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from helix_agents import AgentServer, Executor
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore, Memory
from helix_agents.domain.ids import SessionId
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.sessions import InterruptOutcome
from tests.server.agents import agents


class HeldStore(InMemoryStateStore):
    """A store that keeps one caller waiting at the door of a method until that is opened."""

    held: asyncio.Task[Any] | None = None

    def hold(self, method: str, caller: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.method = method
        self.is_held, self.released = asyncio.Event(), asyncio.Event()
        self.held = asyncio.create_task(caller)
        return self.held

    async def _at_the_door(self, method: str) -> None:
        if self.held is asyncio.current_task() and method == self.method:
            self.held = None
            self.is_held.set()
            await self.released.wait()

    async def set_interrupt_flag(self, *given: Any, **more: Any) -> InterruptOutcome:
        await self._at_the_door("set_interrupt_flag")
        return await super().set_interrupt_flag(*given, **more)

    async def list_queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        await self._at_the_door("list_queued")
        return await super().list_queued(session_id)


def held_server() -> tuple[HeldStore, Executor, AgentServer]:
    """The agents of these tests on such a store, for callers in this process."""
    memory = Memory()
    store = HeldStore(memory)
    streams, usage = InMemoryStreamManager(memory), InMemoryUsageStore(memory)
    executor = Executor(state=store, streams=streams, usage=usage, agents=agents, janitor_seconds=None)
    return store, executor, AgentServer(executor, allow_unauthenticated=True)
