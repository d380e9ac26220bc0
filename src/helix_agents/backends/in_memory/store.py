"""The state store in memory: the contract in its shortest form."""

from helix_agents.backends.in_memory.checkpoints import InMemoryCheckpoints
from helix_agents.backends.in_memory.commits import InMemoryCommits
from helix_agents.backends.in_memory.deliveries import InMemoryDeliveries
from helix_agents.backends.in_memory.effects import InMemoryEffects
from helix_agents.backends.in_memory.flags import InMemoryFlags
from helix_agents.backends.in_memory.messages import InMemoryMessages
from helix_agents.backends.in_memory.pending import InMemoryPending
from helix_agents.backends.in_memory.queues import InMemoryQueues
from helix_agents.backends.in_memory.runs import InMemoryRuns
from helix_agents.backends.in_memory.schedules import InMemorySchedules
from helix_agents.backends.in_memory.sessions import InMemorySessions
from helix_agents.backends.in_memory.staging import InMemoryStaging
from helix_agents.backends.in_memory.sub_sessions import InMemorySubSessions
from helix_agents.domain.records import SCHEMA_VERSION
from helix_agents.ports.state_store import SessionStateStore, StoreLimits


class InMemoryStateStore(
    InMemorySessions,
    InMemoryMessages,
    InMemoryRuns,
    InMemoryCheckpoints,
    InMemorySubSessions,
    InMemoryStaging,
    InMemoryFlags,
    InMemoryPending,
    InMemoryEffects,
    InMemoryQueues,
    InMemorySchedules,
    InMemoryDeliveries,
    InMemoryCommits,
):
    """Sessions that live as long as their `Memory`; stores on the same one see the same data, from any thread."""

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def migration_version(self) -> int:
        return SCHEMA_VERSION

    async def vacuum(self) -> None:
        """Do nothing: deleted data has already left the memory."""


_: type[SessionStateStore] = InMemoryStateStore
