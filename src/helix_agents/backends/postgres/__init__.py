"""Sessions, streams, locks, usage, entries and memories in one Postgres database, for any number of processes."""

from importlib.util import find_spec
from typing import Any

from helix_agents.domain.errors import MissingExtraError

if find_spec("asyncpg") is None:
    raise MissingExtraError("The Postgres backend", "postgres")

from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.entries import PostgresEntryStore
from helix_agents.backends.postgres.locks import PostgresLockManager
from helix_agents.backends.postgres.memories import PostgresMemoryStore
from helix_agents.backends.postgres.settings import PostgresSettings, parse_url
from helix_agents.backends.postgres.store import PostgresStateStore
from helix_agents.backends.postgres.streams import PostgresStreamManager
from helix_agents.backends.postgres.usage import PostgresUsageStore
from helix_agents.ports.backend import Backend, Migrate

__all__ = [
    "Connection",
    "Database",
    "PostgresEntryStore",
    "PostgresLockManager",
    "PostgresMemoryStore",
    "PostgresSettings",
    "PostgresStateStore",
    "PostgresStreamManager",
    "PostgresUsageStore",
    "open_backend",
    "parse_url",
]


async def open_backend(url: str, *, namespace: str = "", migrate: Migrate = "auto", **options: Any) -> Backend:
    """Open a database: `postgresql://user:password@host/database?schema=helix&pool_size=20`.

    `PostgresSettings` lists the options of the URL; keyword arguments of the same names are accepted as well.
    """
    settings, asked = parse_url(url, options)
    clock, seam = options.pop("clock", None), options.pop("seam", None)
    limits, stream_limits = options.pop("limits", None), options.pop("stream_limits", None)
    database = await Database.open(settings, migrate=asked.get("migrate", migrate), seam=seam)
    return Backend(
        url=url,
        state=PostgresStateStore(database, namespace=namespace, limits=limits, clock=clock),
        streams=PostgresStreamManager(database, namespace=namespace, clock=clock, limits=stream_limits, **options),
        locks=PostgresLockManager(database, namespace=namespace, clock=clock),
        usage=PostgresUsageStore(database, namespace=namespace, clock=clock),
        entries=PostgresEntryStore(database, namespace=namespace, clock=clock),
        memories=PostgresMemoryStore(database, namespace=namespace, clock=clock),
    )
