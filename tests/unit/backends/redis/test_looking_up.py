"""What an agent, a user and the janitor ask is looked up: nobody waits for the many other sessions in the store."""

from typing import Any

from redis.asyncio import Redis

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.contracts.usage import used
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import answer, commit, fence_of, start, suspend, waiting
from tests.support.a_life import end, live

OTHERS = 300
# What the server sends for each of the others: nothing. How long numbers are, and how new the last changes, varies.
NOISE = 100 * OTHERS


async def crowd(backend: Backend) -> None:
    """Many other sessions that used something, wait for somebody, and waited before."""
    for number in range(OTHERS):
        name, run_id, store = f"other-{number}", f"run-{number}", backend.state
        await start(store, name, run_id)
        about: dict[str, Any] = {"session_id": name, "fence": fence_of(run_id)}
        entries = tuple(used(n, name, run_id=run_id) for n in range(2))
        await commit(store, 1, **about, pending=(waiting(store, "before", name),), usage=entries)
        await store.submit_answer(answer("before", name))
        await commit(store, 2, **about, consume=("before",))
        await suspend(store, 3, waiting(store, "now", name), **about)


async def sent_in_a_life(client: Redis, backend: Backend, session_id: str) -> int:
    """How many bytes the server answered."""
    before = await client.info("stats")
    await live(backend, session_id)
    await end(backend, session_id)
    after = await client.info("stats")
    return after["total_net_output_bytes"] - before["total_net_output_bytes"]


async def test_nothing_in_a_sessions_life_goes_through_other_sessions(
    redis_service: RedisService | ForeignRedis,
) -> None:
    client = Redis.from_url(redis_service.url)
    try:
        async with await open_backend(redis_service.new_url()) as backend:
            await live(backend, "s-0")
            alone = await sent_in_a_life(client, backend, "s-1")
            await crowd(backend)
            assert await sent_in_a_life(client, backend, "s-2") - alone < NOISE
    finally:
        await client.aclose()
