"""Streams on Redis keep the whole contract, with one server shared by many processes."""

from typing import Any

import pytest

from helix_agents.backends.redis import open_backend
from helix_agents.ports.streams import StreamManager
from helix_agents.testing.contracts.memories import memories_of
from helix_agents.testing.contracts.streams import OpenStreams, StreamManagerContract
from helix_agents.testing.redis_service import ForeignRedis, RedisService


async def open_streams_at(url: str, *, limits: Any = None, **options: Any) -> StreamManager:
    """A manager of its own, as another process would open it."""
    backend = await open_backend(url, stream_limits=limits, **options)
    for part in (backend.state, backend.locks, backend.usage, memories_of(backend)):
        await part.close()
    return backend.streams


class TestRedisStreamManager(StreamManagerContract):
    backend = "redis"

    @pytest.fixture
    def store_url(self, redis_service: RedisService | ForeignRedis) -> str:
        return redis_service.new_url()

    @pytest.fixture
    def open_streams(self, store_url: str) -> OpenStreams:
        return lambda **options: open_streams_at(store_url, **options)
