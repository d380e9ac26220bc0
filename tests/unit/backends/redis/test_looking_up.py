"""What an agent, a user and the janitor ask is looked up: nobody waits for the many other sessions in the store."""

from redis.asyncio import Redis

from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.contracts.usage import used
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from tests.support.a_life import end, live

OTHERS = 300
# What the server sends for each of the others: nothing. How long numbers are, and how new the last changes, varies.
NOISE = 100 * OTHERS


async def crowd(backend: Backend) -> None:
    """Many other sessions, each with an owner of its own, and all of which used something."""
    for number in range(OTHERS):
        name = f"other-{number}"
        await backend.state.create_session(name, CreateSession(user_id=f"owner-{number}"))
        await backend.usage.record_usage([used(n, name, run_id=f"run-{number}") for n in range(2)])


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
