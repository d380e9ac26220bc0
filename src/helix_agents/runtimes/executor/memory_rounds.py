"""Lets memories finish what was left unfinished. It waits for embedders, and so has rounds apart from the janitor's."""

import asyncio

from helix_agents.domain.errors import StoreClosedError
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import Services


class MemoryRounds:
    """Rounds through the memories of all agents here, in any number of processes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, interval_seconds: float) -> None:
        """Make a round once per interval, forever."""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await self.sweep()
            except StoreClosedError:
                return

    async def sweep(self) -> None:
        """One round. A memory that fails does not keep the others from being looked after.

        Raises:
            StoreClosedError: this process is leaving, and closed its store in mid-round.
        """
        store = self._services.memories
        if store is None:
            return
        memories = {id(agent.memory): agent.memory for agent in self._services.agents.everyone()}
        for memory in memories.values():
            if memory is not None:
                try:
                    await memory.sweep(store)
                except StoreClosedError:
                    raise
                except Exception as problem:
                    log_exception("janitor.sweep_failed", problem)
