"""The in-memory backend keeps every contract; its data lives in one process, so proofs with several do not apply."""

import itertools

import pytest

from helix_agents.backends.in_memory import InMemoryLockManager, InMemoryStateStore, Memory
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.entries import EntryStoreContract
from helix_agents.testing.contracts.locks import LockManagerContract, OpenLocks
from helix_agents.testing.contracts.memories import MemoryStoreContract
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract
from helix_agents.testing.contracts.usage import OpenParts, UsageStoreContract

MEMORIES = itertools.count(1)


class TestInMemoryStateStore(StateStoreContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = Memory()
        return lambda **options: InMemoryStateStore(memory, **options)


class TestInMemoryLockManager(LockManagerContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_locks(self) -> OpenLocks:
        memory = Memory()
        return lambda **options: InMemoryLockManager(memory, **options)


class TestInMemoryUsageStore(UsageStoreContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        url = f"memory://contract-{next(MEMORIES)}"
        return lambda **options: open_backend(url, **options)


class TestInMemoryMemoryStore(MemoryStoreContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        url = f"memory://contract-{next(MEMORIES)}"
        return lambda **options: open_backend(url, **options)


class TestInMemoryEntryStore(EntryStoreContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        url = f"memory://contract-{next(MEMORIES)}"
        return lambda **options: open_backend(url, **options)
