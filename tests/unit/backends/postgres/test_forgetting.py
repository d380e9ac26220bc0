"""What nobody asks for any more goes by itself: leases of processes that died, locks that nobody holds."""

import asyncio

from helix_agents.backends.postgres import Database, PostgresLockManager, parse_url
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.locks import FORGET
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS
from helix_agents.domain.runs import DEAD_LEASES_LAST_MS
from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock

PATIENCE = 10.0


async def rows(url: str, table: str) -> int:
    database = (await Database.open(parse_url(url)[0])).use()
    try:
        found = await database.one(f"SELECT count(*) FROM {table} WHERE namespace = 'here'")
        assert found is not None
        return found[0]
    finally:
        await database.close()


async def test_leases_of_the_dead_go_when_a_living_one_is_renewed(postgres_url: str) -> None:
    clock = ManualClock()
    async with await open_backend(postgres_url, namespace="here", clock=clock) as backend:
        for number in range(20):
            await backend.state.renew_lease(f"dead-{number}", 1_000)
        clock.advance(DEAD_LEASES_LAST_MS + 1_000)
        await backend.state.renew_lease("living", 1_000)
        assert await rows(postgres_url, "__agents_leases") == 21
        clock.advance(1)
        # Some of them are back at the same moment, themselves among what is to go.
        await asyncio.gather(*(backend.state.renew_lease(name, 1_000) for name in ("living", "dead-1", "dead-2")))
        assert await rows(postgres_url, "__agents_leases") == 3


async def test_locks_that_nobody_has_held_for_long_go_with_the_next_one(postgres_url: str) -> None:
    clock = ManualClock(FORGOTTEN_AFTER_MS)
    async with await open_backend(postgres_url, namespace="here", clock=clock) as backend:
        for number in range(20):
            lock = await backend.locks.acquire(f"key-{number}", ttl_ms=1_000)
            if number % 2:
                await backend.locks.release(lock)
        kept = await backend.locks.acquire("kept", ttl_ms=2 * FORGOTTEN_AFTER_MS)
        clock.advance(FORGOTTEN_AFTER_MS + 1_001)
        await backend.locks.acquire("new", ttl_ms=1_000)
        # Those two, and the highest token of the others.
        assert await rows(postgres_url, "__agents_locks") == 3
        await backend.locks.release(kept)


async def test_who_takes_a_lock_while_it_is_forgotten_gets_a_higher_token(postgres_url: str) -> None:
    database = (await Database.open(parse_url(postgres_url)[0])).use()
    locks, forgotten, go_on = PostgresLockManager(database), asyncio.Event(), asyncio.Event()
    for _ in range(5):
        lock = await locks.acquire("door", ttl_ms=60_000)
        await locks.release(lock)

    async def forget(connection: Connection) -> None:
        await connection.execute(FORGET, ("", 1))
        forgotten.set()
        await go_on.wait()

    forgetting = asyncio.create_task(database.write(forget))
    await asyncio.wait_for(forgotten.wait(), PATIENCE)
    taking = asyncio.create_task(locks.acquire("door", ttl_ms=60_000))
    await asyncio.sleep(0.05)
    assert not taking.done()
    go_on.set()
    await forgetting
    assert (await asyncio.wait_for(taking, PATIENCE)).token == lock.token + 1
    await locks.close()
    await database.close()
