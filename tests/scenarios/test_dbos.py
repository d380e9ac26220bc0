"""The DBOS runtime plays every scenario, with its system database in SQLite and in PostgreSQL."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.dbos import DBOSAgentExecutor, instance
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts
from helix_agents.testing.postgres_service import PostgresService
from tests.scenarios.test_in_process import LONG_LEASE_MS

PREFIXES = itertools.count(1)
CONFIG = {"notification_listener_polling_interval_sec": 0.01}


class OnDBOS(ExecutorContract):
    """The scenarios of one class share a DBOS, as executors of one process do; their workflows have names apart."""

    @pytest.fixture(scope="class")
    @classmethod
    def dbos(cls, system_database_url: str) -> Iterator[str]:
        asyncio.run(instance.acquire(instance.Wanted(system_database_url=system_database_url, config=CONFIG), "tests"))
        yield system_database_url
        asyncio.run(instance.release())

    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, dbos: str, clock: ManualClock) -> OpenExecutor:
        prefix = f"test-{next(PREFIXES)}"

        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[DBOSAgentExecutor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            own = {"system_database_url": dbos, "prefix": prefix, "dbos_config": CONFIG}
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with DBOSAgentExecutor(**parts, **own, **given) as executor:
                    yield executor

        return open_executor

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"


class TestDBOSOnSQLite(OnDBOS):
    backend = "sqlite"

    @pytest.fixture(scope="class")
    @classmethod
    def system_database_url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('dbos') / 'dbos.db'}"


class TestDBOSOnPostgres(OnDBOS):
    """DBOS and the sessions in one PostgreSQL server."""

    backend = "postgres"

    @pytest.fixture(scope="class")
    @classmethod
    def system_database_url(cls, postgres_service: PostgresService) -> str:
        return postgres_service.url

    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url
