"""The state store on SQLite: the sum of its facets."""

from pathlib import Path

from helix_agents.backends.sqlite.checkpoints import SQLiteCheckpoints
from helix_agents.backends.sqlite.commits import SQLiteCommits
from helix_agents.backends.sqlite.connection import Synchronous
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.deliveries import SQLiteDeliveries
from helix_agents.backends.sqlite.effects import SQLiteEffects
from helix_agents.backends.sqlite.flags import SQLiteFlags
from helix_agents.backends.sqlite.messages import SQLiteMessages
from helix_agents.backends.sqlite.migrations import schema_version
from helix_agents.backends.sqlite.pending import SQLitePending
from helix_agents.backends.sqlite.queues import SQLiteQueues
from helix_agents.backends.sqlite.runs import SQLiteRuns
from helix_agents.backends.sqlite.schedules import SQLiteSchedules
from helix_agents.backends.sqlite.staging import SQLiteStaging
from helix_agents.backends.sqlite.sub_sessions import SQLiteSubSessions
from helix_agents.domain.ids import check_id
from helix_agents.ports.backend import Migrate
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.state_store import SessionStateStore, StoreLimits
from helix_agents.system import SystemClock


class SQLiteStateStore(
    SQLiteCommits,
    SQLiteMessages,
    SQLiteRuns,
    SQLiteCheckpoints,
    SQLiteSubSessions,
    SQLiteStaging,
    SQLiteFlags,
    SQLitePending,
    SQLiteEffects,
    SQLiteQueues,
    SQLiteSchedules,
    SQLiteDeliveries,
):
    """Sessions in one SQLite file that several processes may use at once."""

    def __init__(
        self,
        database: Database,
        *,
        namespace: str = "",
        limits: StoreLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if namespace:
            check_id(namespace, "namespace")
        super().__init__(database, namespace=namespace, limits=limits or StoreLimits(), clock=clock or SystemClock())

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        namespace: str = "",
        limits: StoreLimits | None = None,
        clock: Clock | None = None,
        seam: Seam | None = None,
        synchronous: Synchronous = "FULL",
        migrate: Migrate = "auto",
    ) -> "SQLiteStateStore":
        """Open a store with its own connection to a file; `Database.open` lists what can go wrong."""
        database = await Database.open(path, synchronous=synchronous, migrate=migrate, seam=seam)
        return cls(database, namespace=namespace, limits=limits, clock=clock)

    @property
    def database(self) -> Database:
        """The open file, for parts that share it."""
        return self._database

    @property
    def namespace(self) -> str:
        """The tenant; no call can reach beyond it."""
        return self._namespace

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def migration_version(self) -> int:
        return await self._db.read(schema_version)

    async def vacuum(self) -> None:
        await self._db.vacuum()


_: type[SessionStateStore] = SQLiteStateStore
