"""The Postgres backend keeps every contract, with one database shared by many processes."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from helix_agents.backends.postgres import Database, PostgresLockManager, PostgresStateStore, parse_url
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.entries import EntryStoreContract
from helix_agents.testing.contracts.histories import HistoriesContract
from helix_agents.testing.contracts.locks import LockManagerContract, OpenLocks
from helix_agents.testing.contracts.memories import MemoryStoreContract
from helix_agents.testing.contracts.processes import KillsContract
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract
from helix_agents.testing.contracts.usage import OpenParts, UsageStoreContract


class OnOneDatabase:
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.fixture
    def open_store(self, store_url: str) -> OpenStore:
        return lambda **options: PostgresStateStore.open(store_url, **options)


class TestPostgresStateStore(OnOneDatabase, StateStoreContract):
    backend = "postgres"
    most_histories = 8


class TestPostgresLockManager(OnOneDatabase, LockManagerContract):
    backend = "postgres"

    @pytest.fixture
    def open_locks(self, store_url: str) -> OpenLocks:
        async def open_locks(**options: Any) -> PostgresLockManager:
            return PostgresLockManager(await Database.open(parse_url(store_url)[0]), **options)

        return open_locks


class TestPostgresUsageStore(OnOneDatabase, UsageStoreContract):
    backend = "postgres"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


class TestPostgresMemoryStore(OnOneDatabase, MemoryStoreContract):
    backend = "postgres"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


class TestPostgresEntryStore(OnOneDatabase, EntryStoreContract):
    backend = "postgres"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


@pytest.mark.chaos
@pytest.mark.timeout(600)
class TestPostgresUnderManyKills(OnOneDatabase, KillsContract):
    @pytest.fixture
    def kill_points(self) -> Sequence[int]:
        return [random.randint(1, 500) for _ in range(200)]


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
class TestPostgresUnderManyHistories(OnOneDatabase, HistoriesContract):
    """As many histories as the profile of long runs asks for."""
