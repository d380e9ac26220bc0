"""The state store on Postgres: the sum of its facets."""

from typing import Any

from helix_agents.backends.postgres.checkpoints import PostgresCheckpoints
from helix_agents.backends.postgres.commits import PostgresCommits
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.deliveries import PostgresDeliveries
from helix_agents.backends.postgres.effects import PostgresEffects
from helix_agents.backends.postgres.flags import PostgresFlags
from helix_agents.backends.postgres.messages import PostgresMessages
from helix_agents.backends.postgres.migrations import schema_version
from helix_agents.backends.postgres.pending import PostgresPending
from helix_agents.backends.postgres.queues import PostgresQueues
from helix_agents.backends.postgres.runs import PostgresRuns
from helix_agents.backends.postgres.schedules import PostgresSchedules
from helix_agents.backends.postgres.settings import parse_url
from helix_agents.backends.postgres.staging import PostgresStaging
from helix_agents.backends.postgres.sub_sessions import PostgresSubSessions
from helix_agents.domain.ids import check_id
from helix_agents.ports.backend import Migrate
from helix_agents.ports.clock import Clock
from helix_agents.ports.seam import Seam
from helix_agents.ports.state_store import SessionStateStore, StoreLimits


class PostgresStateStore(
    PostgresCommits,
    PostgresMessages,
    PostgresRuns,
    PostgresCheckpoints,
    PostgresSubSessions,
    PostgresStaging,
    PostgresFlags,
    PostgresPending,
    PostgresEffects,
    PostgresQueues,
    PostgresSchedules,
    PostgresDeliveries,
):
    """Sessions in one Postgres database that any number of processes may use at once."""

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
        super().__init__(database, namespace=namespace, limits=limits or StoreLimits(), clock=clock or database.clock)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "",
        limits: StoreLimits | None = None,
        clock: Clock | None = None,
        seam: Seam | None = None,
        migrate: Migrate = "auto",
        **options: Any,
    ) -> "PostgresStateStore":
        """Open a store with its own connections. See `Database.open` for errors and `PostgresSettings` for options."""
        settings, asked = parse_url(url, options)
        database = await Database.open(settings, seam=seam, migrate=asked.get("migrate", migrate))
        return cls(database, namespace=namespace, limits=limits, clock=clock)

    @property
    def database(self) -> Database:
        """The open database, for parts that share it."""
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
        # A plain VACUUM only marks the space of deleted rows as free; FULL rewrites each table without them.
        for table in _WITH_TEXT:
            await self._db.execute_once(f"VACUUM (FULL) {table}")


_WITH_TEXT = (
    "__agents_sessions",
    "__agents_messages",
    "__agents_state_log",
    "__agents_stream_chunks",
    "__agents_pending_calls",
    "__agents_staging",
    "__agents_effects",
    "__agents_queued_turns",
    "__agents_taken_turns",
    "__agents_runs",
    "__agents_sub_session_refs",
    "__agents_interrupt_flags",
    "__agents_usage",
    "__agents_entries",
    "__agents_entry_versions",
    "__agents_entry_events",
    "__agents_entry_staging",
    "__agents_audit",
)
_: type[SessionStateStore] = PostgresStateStore
