"""Locks with leases and tokens that only grow."""

import asyncio

import pytest

from helix_agents.backends.in_memory import InMemoryLockManager, Memory
from helix_agents.domain.errors import InvalidIdError, LockHeldError, LockLostError
from helix_agents.domain.locks import FORGOTTEN_AFTER_MS
from helix_agents.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

SECONDS = 10.0


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def one(memory: Memory, clock: ManualClock) -> InMemoryLockManager:
    return InMemoryLockManager(memory, clock=clock)


@pytest.fixture
def other(memory: Memory, clock: ManualClock) -> InMemoryLockManager:
    return InMemoryLockManager(memory, clock=clock)


async def test_a_lock_is_granted_to_one_at_a_time(one: InMemoryLockManager, other: InMemoryLockManager):
    lock = await one.acquire("k", ttl_ms=1_000, owner="ada")
    assert (lock.key, lock.owner) == ("k", "ada")
    with pytest.raises(LockHeldError):
        await other.acquire("k", ttl_ms=1_000)
    assert (await other.acquire("another", ttl_ms=1_000)).key == "another"
    await one.release(lock)
    assert (await other.acquire("k", ttl_ms=1_000)).token > lock.token


async def test_a_holder_stopped_past_its_lease_has_lost_the_lock(
    one: InMemoryLockManager, other: InMemoryLockManager, clock: ManualClock
):
    stopped = await one.acquire("k", ttl_ms=1_000)
    clock.advance(1_000)
    taken = await other.acquire("k", ttl_ms=1_000)
    assert taken.token > stopped.token
    with pytest.raises(LockLostError):
        await one.renew(stopped, ttl_ms=1_000)
    with pytest.raises(LockLostError):
        await one.release(stopped)
    await other.release(taken)


async def test_a_renewed_lease_keeps_others_out(
    one: InMemoryLockManager, other: InMemoryLockManager, clock: ManualClock
):
    lock = await one.acquire("k", ttl_ms=1_000)
    clock.advance(900)
    renewed = await one.renew(lock, ttl_ms=1_000)
    assert (renewed.token, renewed.expires_at) == (lock.token, clock.now_ms() + 1_000)
    clock.advance(900)
    with pytest.raises(LockHeldError):
        await other.acquire("k", ttl_ms=1_000)


async def test_a_lease_that_ran_out_can_be_renewed_while_nobody_took_the_lock(
    one: InMemoryLockManager, clock: ManualClock
):
    lock = await one.acquire("k", ttl_ms=1_000)
    clock.advance(5_000)
    await one.release(await one.renew(lock, ttl_ms=1_000))


async def test_a_released_lock_cannot_be_released_again(one: InMemoryLockManager):
    lock = await one.acquire("k", ttl_ms=1_000)
    await one.release(lock)
    with pytest.raises(LockLostError):
        await one.release(lock)


async def test_who_waits_gets_the_lock_when_it_is_released(one: InMemoryLockManager, other: InMemoryLockManager):
    lock = await one.acquire("k", ttl_ms=60_000)
    waiting = asyncio.create_task(other.acquire("k", ttl_ms=1_000, timeout=SECONDS))
    await one.release(lock)
    assert (await asyncio.wait_for(waiting, SECONDS)).token > lock.token


async def test_who_waits_gets_the_lock_when_its_lease_runs_out(
    one: InMemoryLockManager, other: InMemoryLockManager, clock: ManualClock
):
    lock = await one.acquire("k", ttl_ms=60_000)
    waiting = asyncio.create_task(other.acquire("k", ttl_ms=1_000, timeout=SECONDS))
    clock.advance(60_000)
    assert (await asyncio.wait_for(waiting, SECONDS)).token > lock.token


async def test_who_waits_in_vain_is_told_so(one: InMemoryLockManager, other: InMemoryLockManager):
    await one.acquire("k", ttl_ms=60_000)
    with pytest.raises(LockHeldError):
        await asyncio.wait_for(other.acquire("k", ttl_ms=1_000, timeout=0.01), SECONDS)


async def test_an_impossible_key_is_refused(one: InMemoryLockManager):
    with pytest.raises(InvalidIdError):
        await one.acquire("", ttl_ms=1)


async def test_locks_that_nobody_has_held_for_long_go_with_the_next_one(
    memory: Memory, one: InMemoryLockManager, clock: ManualClock
):
    clock.advance(FORGOTTEN_AFTER_MS)
    for number in range(20):
        lock = await one.acquire(f"key-{number}", ttl_ms=1_000)
        if number % 2:
            await one.release(lock)
    kept = await one.acquire("kept", ttl_ms=2 * FORGOTTEN_AFTER_MS)
    clock.advance(FORGOTTEN_AFTER_MS + 1_001)
    latest = await one.acquire("new", ttl_ms=1_000)
    tables = memory.tables("")
    assert set(tables.locks) == {"kept", "new"}
    await one.release(kept)
    assert (await one.acquire("key-1", ttl_ms=1_000)).token > latest.token
