"""Sessions that continue without a caller: their agents are found by their stored names."""

from collections.abc import Awaitable, Callable

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.ids import SessionId
from helix_agents.engine.children.detached import resume_detached
from helix_agents.engine.children.meant_agents import find_entry
from helix_agents.engine.services import Services
from helix_agents.runtimes.executor.left_to_others import LeftToOthers


class ByName:
    """Continues sessions whose agents are known here and not left to others; `owner` has the companions' lease."""

    def __init__(
        self,
        services: Services,
        *,
        left: LeftToOthers,
        owner: Callable[[], str | None],
        resume: Callable[[AnyAgent, SessionId], Awaitable[object]],
    ) -> None:
        self._services = services
        self._left = left
        self._owner = owner
        self._resume = resume

    async def resume(self, session_id: SessionId) -> bool:
        """Continue a session; returns whether that is done here."""
        agent = await self._agent_of(session_id)
        if agent is None or self._left.leaves(agent):
            return False
        await self._resume(agent, session_id)
        return True

    async def resume_companions(self, root: SessionId) -> int:
        """Drive a tree's companions as `drive_answered` does, unless its agent is left to other processes."""
        agent = await self._agent_of(root)
        return 0 if agent is not None and self._left.leaves(agent) else await self.drive_answered(root)

    async def drive_answered(self, root: SessionId) -> int:
        """Drive companions of a tree that have the answer they waited for; returns how many."""
        return await resume_detached(self._services, root, self._owner())

    async def _agent_of(self, root: SessionId) -> AnyAgent | None:
        return find_entry(self._services.agents, await self._services.store.load_state(root))
