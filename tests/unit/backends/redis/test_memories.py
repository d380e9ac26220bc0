"""Memories on Redis: what is deleted leaves no key, and a search reads again only what has changed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from helix_agents.domain.memory_search import unit_vector
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.memories import by_words, embed, memories_of, save
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.seams import CountingSeam


async def test_deleting_memories_leaves_no_key_and_no_value_behind(redis_service: RedisService | ForeignRedis) -> None:
    secret, vector = b"xylophone", unit_vector([0.1234, 0.5678])
    async with await open_backend(redis_service.new_url()) as backend:
        memories = memories_of(backend)
        server: Any = vars(memories)["_keyspace"].server
        for entity in ("ann", "bob"):
            await save(memories, "m-1", secret.decode(), entity)
            await embed(memories, "m-1", 0.1234, 0.5678, entity=entity)

        async def left() -> list[bytes]:
            keys = await server._send("KEYS", f"{server.prefix}:*")
            dumps = [await server._send("DUMP", key) for key in keys]
            return [
                key
                for key, dump in zip(keys, dumps, strict=True)
                if b"memory/ann" in key or (dump and secret in dump and b"ann" in dump)
            ]

        assert await left()
        assert await memories.delete_memories("ann") == 1
        assert await left() == []
        assert await memories.delete_memories("bob") == 1
        keys = await server._send("KEYS", f"{server.prefix}:*")
        dumps = [await server._send("DUMP", key) for key in keys]
        assert not any(dump and (secret in dump or vector in dump) for dump in dumps)


async def test_a_search_reads_again_only_what_has_changed(redis_service: RedisService | ForeignRedis) -> None:
    url, seam = redis_service.new_url(), CountingSeam()
    async with await open_backend(url, seam=seam) as backend, await open_backend(url) as other:
        memories = memories_of(backend)
        await save(memories, "m-1", "Has a cat")
        counts: list[int] = []
        for change in (False, False, True, False):
            if change:
                await save(memories_of(other), "m-2", "Has two cats")
            seam.reset()
            found = await by_words(memories, "cats")
            counts.append(seam.count)
        assert counts == [1, 1, 2, 1]
        assert sorted(found) == ["m-1", "m-2"]


async def test_who_searches_may_lose_what_was_remembered_meanwhile(
    redis_service: RedisService | ForeignRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helix_agents.backends.redis.memories.MOST_REMEMBERED", 1)
    async with await open_backend(redis_service.new_url()) as backend:
        memories = memories_of(backend)
        entities = ["ann", "bob", "cid"]
        for entity in entities:
            await save(memories, "m-1", "Has a cat", entity)
        for _ in range(5):
            found = await asyncio.gather(*(by_words(memories, "cats", entity) for entity in entities * 2))
            assert found == [["m-1"]] * 6
        assert len(vars(memories)["_known"]) == 1


@pytest.fixture
def cluster_url() -> Iterator[str]:
    with RedisService(cluster=True) as service:
        yield f"{service.url}?cluster=true"


async def test_memories_of_many_entities_spread_over_a_cluster(cluster_url: str) -> None:
    async with await open_backend(cluster_url) as backend:
        memories = memories_of(backend)
        for n in range(20):
            await save(memories, "m-1", "Has a cat", f"user-{n}")
            await embed(memories, "m-1", 1.0, entity=f"user-{n}")
            assert await by_words(memories, "cats", f"user-{n}") == ["m-1"]
        assert (await memories.list_entities()).total == 20
        assert await memories.delete_memories("user-7") == 1
        assert (await memories.list_entities()).total == 19
