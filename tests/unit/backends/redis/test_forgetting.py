"""What nobody asks for any more goes by itself: locks that nobody holds."""

import asyncio
from typing import Any

from redis.asyncio import Redis

from helix_agents.domain.locks import FORGOTTEN_AFTER_MS
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import RedisService

LEASE_MS = 600_000
SLOWLY_MS = 60_000


async def lock_keys(client: Any, backend: Any) -> list[bytes]:
    return [key async for key in client.scan_iter(match=f"{backend.state.server.prefix}:*lock*", count=10_000)]


async def test_a_lock_is_kept_for_its_lease_and_a_day(redis_service: RedisService) -> None:
    client: Any = Redis.from_url(redis_service.url)
    async with await open_backend(redis_service.new_url()) as backend:

        async def is_kept_for(lease_ms: int) -> bool:
            (key,) = await lock_keys(client, backend)
            left = lease_ms + FORGOTTEN_AFTER_MS - await client.pttl(key)
            return 0 <= left < SLOWLY_MS

        lock = await backend.locks.acquire("door", ttl_ms=LEASE_MS)
        assert await is_kept_for(LEASE_MS)
        lock = await backend.locks.renew(lock, ttl_ms=2 * LEASE_MS)
        assert await is_kept_for(2 * LEASE_MS)
        # More than Redis could add to its clock, were it not for the limit.
        lock = await backend.locks.renew(lock, ttl_ms=2**62)
        await backend.locks.release(lock)
        assert await is_kept_for(0)
    await client.aclose()


async def test_tokens_grow_over_a_key_that_was_forgotten(redis_service: RedisService) -> None:
    client: Any = Redis.from_url(redis_service.url)
    url = redis_service.new_url()
    tokens: list[int] = []
    async with await open_backend(url) as one, await open_backend(url) as two:
        for backend in (one, two, one, one, two):
            lock = await backend.locks.acquire("door", ttl_ms=LEASE_MS)
            tokens.append(lock.token)
            await backend.locks.release(lock)
            await client.delete(*await lock_keys(client, backend))
            # In truth a day: time that the server's clock goes on in.
            await asyncio.sleep(0.005)
    await client.aclose()
    assert tokens == sorted(set(tokens))
