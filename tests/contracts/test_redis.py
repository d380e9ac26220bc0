"""The Redis backend keeps every contract, with one server shared by many processes."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from helix_agents.backends.redis import RedisLockManager, open_backend
from helix_agents.ports.backend import Backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.histories import HistoriesContract
from helix_agents.testing.contracts.locks import LockManagerContract, OpenLocks
from helix_agents.testing.contracts.memories import MemoryStoreContract, memories_of
from helix_agents.testing.contracts.processes import KillsContract
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract
from helix_agents.testing.contracts.usage import OpenParts, UsageStoreContract
from helix_agents.testing.redis_service import ForeignRedis, RedisService


async def open_store_at(url: str, **options: Any) -> SessionStateStore:
    """A store of its own, as another process would open it."""
    backend: Backend = await open_backend(url, **options)
    for part in (backend.streams, backend.locks, backend.usage, memories_of(backend)):
        await part.close()
    return backend.state


class OnOneServer:
    @pytest.fixture
    def store_url(self, redis_service: RedisService | ForeignRedis) -> str:
        return redis_service.new_url()

    @pytest.fixture
    def open_store(self, store_url: str) -> OpenStore:
        return lambda **options: open_store_at(store_url, **options)


class TestRedisStateStore(OnOneServer, StateStoreContract):
    backend = "redis"


class TestRedisLockManager(OnOneServer, LockManagerContract):
    backend = "redis"

    @pytest.fixture
    def open_locks(self, store_url: str) -> OpenLocks:
        async def open_locks(**options: Any) -> RedisLockManager:
            backend = await open_backend(store_url, **options)
            for part in (backend.streams, backend.state, backend.usage, memories_of(backend)):
                await part.close()
            assert isinstance(backend.locks, RedisLockManager)
            return backend.locks

        return open_locks


class TestRedisUsageStore(OnOneServer, UsageStoreContract):
    backend = "redis"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


class TestRedisMemoryStore(OnOneServer, MemoryStoreContract):
    backend = "redis"

    @pytest.fixture
    def open_parts(self, store_url: str) -> OpenParts:
        return lambda **options: open_backend(store_url, **options)


@pytest.mark.chaos
@pytest.mark.timeout(600)
class TestRedisUnderManyKills(OnOneServer, KillsContract):
    @pytest.fixture
    def kill_points(self) -> Sequence[int]:
        return [random.randint(1, 500) for _ in range(200)]


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
class TestRedisUnderManyHistories(OnOneServer, HistoriesContract):
    """As many histories as the profile of long runs asks for."""
