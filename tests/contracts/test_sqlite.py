"""The SQLite backend keeps every contract, with one file shared by many processes."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from helix_agents.backends.sqlite import Database, SQLiteLockManager, SQLiteStateStore
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.entries import EntryStoreContract
from helix_agents.testing.contracts.histories import HistoriesContract
from helix_agents.testing.contracts.locks import LockManagerContract, OpenLocks
from helix_agents.testing.contracts.memories import MemoryStoreContract
from helix_agents.testing.contracts.processes import KillsContract
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract
from helix_agents.testing.contracts.usage import OpenParts, UsageStoreContract


def assert_integrity(path: Path) -> None:
    connection = apsw.Connection(str(path))
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


class OnOneFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "helix.db"

    @pytest.fixture
    def open_store(self, path: Path) -> OpenStore:
        return lambda **options: SQLiteStateStore.open(path, **options)

    @pytest.fixture
    def store_url(self, path: Path) -> str:
        return f"sqlite:///{path}"

    @pytest.fixture
    def check_data(self, path: Path) -> Callable[[], Awaitable[None]]:
        return lambda: asyncio.to_thread(assert_integrity, path)


class TestSQLiteStateStore(OnOneFile, StateStoreContract):
    backend = "sqlite"


class TestSQLiteLockManager(OnOneFile, LockManagerContract):
    backend = "sqlite"

    @pytest.fixture
    def open_locks(self, path: Path) -> OpenLocks:
        async def open_locks(**options: Any) -> SQLiteLockManager:
            return SQLiteLockManager(await Database.open(path), **options)

        return open_locks


class TestSQLiteUsageStore(OnOneFile, UsageStoreContract):
    backend = "sqlite"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


class TestSQLiteMemoryStore(OnOneFile, MemoryStoreContract):
    backend = "sqlite"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


class TestSQLiteEntryStore(OnOneFile, EntryStoreContract):
    backend = "sqlite"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


@pytest.mark.chaos
@pytest.mark.timeout(600)
class TestSQLiteUnderManyKills(OnOneFile, KillsContract):
    @pytest.fixture
    def kill_points(self) -> Sequence[int]:
        return [random.randint(1, 500) for _ in range(200)]


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
class TestSQLiteUnderManyHistories(OnOneFile, HistoriesContract):
    """As many histories as the profile of long runs asks for."""
