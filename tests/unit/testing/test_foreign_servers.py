"""A server that somebody lends to the tests is given back as it was."""

import asyncio

import pytest
from redis.asyncio import Redis

from helix_agents.ports.backend import open_backend
from helix_agents.testing.postgres_service import ForeignPostgres, PostgresService
from helix_agents.testing.redis_service import ForeignRedis, RedisService

asyncpg = pytest.importorskip("asyncpg")


async def used(url: str) -> None:
    async with await open_backend(url) as backend:
        await backend.state.create_session("s-1")


async def test_no_schema_is_left_on_a_postgres_server_of_somebody_else(
    postgres_service: PostgresService | ForeignPostgres,
) -> None:
    raw = await asyncpg.connect(postgres_service.url)
    try:
        await raw.execute("CREATE SCHEMA test_of_somebody_else")
        before = await raw.fetch("SELECT nspname FROM pg_namespace ORDER BY 1")
        foreign = ForeignPostgres(postgres_service.url)
        for url in (foreign.new_url(), foreign.new_url(pool_size=2)):
            await used(url)
        foreign.new_url()
        assert len(await raw.fetch("SELECT nspname FROM pg_namespace")) == len(before) + 2
        await asyncio.to_thread(foreign.close)
        assert await raw.fetch("SELECT nspname FROM pg_namespace ORDER BY 1") == before
    finally:
        await raw.execute("DROP SCHEMA test_of_somebody_else")
        await raw.close()


async def test_no_key_is_left_on_a_redis_server_of_somebody_else() -> None:
    service = RedisService()
    await asyncio.to_thread(service.start)
    client = Redis.from_url(service.url)
    try:
        await client.set("helix:of somebody else", 1)
        foreign = ForeignRedis(service.url)
        await used(foreign.new_url())
        assert await client.dbsize() > 1
        await asyncio.to_thread(foreign.close)
        assert await client.keys() == [b"helix:of somebody else"]
    finally:
        await client.aclose()
        await asyncio.to_thread(service.close)
