"""Locks that keep nobody out."""

import pytest

from helix_agents.backends.noop_lock import NoOpLockManager
from helix_agents.domain.errors import InvalidIdError
from helix_agents.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_everybody_is_granted_the_lock_with_a_higher_token():
    locks = NoOpLockManager()
    first, second = await locks.acquire("k", ttl_ms=1), await locks.acquire("k", ttl_ms=1)
    assert second.token > first.token


async def test_a_lock_is_never_lost():
    clock = ManualClock()
    locks = NoOpLockManager(clock=clock)
    lock = await locks.acquire("k", ttl_ms=10, owner="ada")
    clock.advance(1_000)
    renewed = await locks.renew(lock, ttl_ms=10)
    assert renewed.expires_at == clock.now_ms() + 10
    await locks.release(renewed)
    await locks.release(renewed)
    await locks.close()


async def test_an_impossible_key_is_refused():
    with pytest.raises(InvalidIdError):
        await NoOpLockManager().acquire("", ttl_ms=1)
