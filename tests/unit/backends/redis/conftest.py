"""A state store on a Redis of the tests' own, and a client that looks at what lies there."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from helix_agents.backends.redis import RedisStateStore
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import RedisService


@pytest.fixture
async def client(redis_service: RedisService) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_service.url)
    yield client
    await client.aclose()


@pytest.fixture
async def store(redis_service: RedisService) -> AsyncIterator[RedisStateStore]:
    async with await open_backend(redis_service.new_url()) as backend:
        assert isinstance(backend.state, RedisStateStore)
        yield backend.state
