"""The contract of locks: one holder at a time, a lease, and a token by which a late holder is recognised."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, ClassVar, Protocol

import pytest

from helix_agents.domain.errors import InvalidIdError, LockHeldError, LockLostError
from helix_agents.domain.locks import Lock
from helix_agents.ports.locks import LockManager
from helix_agents.testing import jobs
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.contracts.processes import answers_of, job, processes_for
from helix_agents.testing.requirements.locks import LOCKS
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import IMPOSSIBLE_IDS
from helix_agents.testing.workers import Processes

PATIENCE = 30.0
A_MONTH_MS = 30 * 24 * 60 * 60 * 1000


class OpenLocks(Protocol):
    """Opens one more handle onto the same locks, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`.
    """

    def __call__(self, **options: Any) -> LockManager | Awaitable[LockManager]: ...


class LockManagerContract(Contract):
    """Everything a lock manager has to guarantee: inherit it and provide the fixtures `open_locks` and `store_url`."""

    port: ClassVar[str] = "lock manager"
    requirements = LOCKS

    @pytest.fixture
    def open_locks(self) -> OpenLocks:
        """For you to implement: see `OpenLocks`."""
        raise NotImplementedError("a concrete class gives the fixture open_locks")

    @pytest.fixture
    async def handles(self, open_locks: OpenLocks, clock: ManualClock) -> AsyncIterator[Handles[LockManager]]:
        handles = Handles[LockManager](open_locks, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def locks(self, handles: Handles[LockManager]) -> LockManager:
        return await handles.open()

    @pytest.fixture
    def processes(self, store_url: str) -> Iterator[Processes]:
        with processes_for(store_url, jobs.MODULE) as processes:
            yield processes

    @proves("locks.one-holder")
    async def test_of_many_that_acquire_one_holds(self, handles: Handles[LockManager]) -> None:
        managers = [await handles.open() for _ in range(3)]
        outcomes = await asyncio.gather(
            *(manager.acquire("door", ttl_ms=1_000) for manager in managers * 3), return_exceptions=True
        )
        assert sum(isinstance(each, Lock) for each in outcomes) == 1
        assert sum(isinstance(each, LockHeldError) for each in outcomes) == 8

    @proves("locks.says-who-and-until-when")
    async def test_a_lock_tells_who_holds_it_until_when(self, locks: LockManager, clock: ManualClock) -> None:
        named = await locks.acquire("door", ttl_ms=1_000, owner="ann")
        assert (named.key, named.owner, named.expires_at) == ("door", "ann", clock.now_ms() + 1_000)
        first, second = await locks.acquire("gate", ttl_ms=1), await locks.acquire("window", ttl_ms=1)
        assert first.owner != second.owner

    @proves("locks.tokens-grow")
    async def test_each_acquisition_has_a_higher_token(self, handles: Handles[LockManager], clock: ManualClock) -> None:
        tokens: list[int] = []
        for number in range(6):
            manager = await handles.open()
            lock = await manager.acquire("door", ttl_ms=1_000)
            tokens.append(lock.token)
            if number % 2:
                await manager.release(lock)
            else:
                clock.advance(1_000)
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0

    @proves("locks.tokens-grow", "locks.loser-is-told")
    async def test_a_token_is_higher_after_however_long_a_time(
        self, handles: Handles[LockManager], clock: ManualClock
    ) -> None:
        one, two = await handles.open(), await handles.open()
        for _ in range(3):
            await one.release(await one.acquire("door", ttl_ms=1_000))
        stopped = await one.acquire("door", ttl_ms=1_000)
        for _ in range(3):
            clock.advance(A_MONTH_MS)
            await two.acquire("gate", ttl_ms=1_000)
        taken = await two.acquire("door", ttl_ms=1_000)
        assert taken.token > stopped.token
        with pytest.raises(LockLostError):
            await one.release(stopped)

    @proves("locks.lease-runs-out", "locks.loser-is-told", "locks.tokens-grow")
    async def test_a_holder_stopped_past_its_lease_loses_the_lock(
        self, handles: Handles[LockManager], clock: ManualClock
    ) -> None:
        one, two = await handles.open(), await handles.open()
        stopped = await one.acquire("door", ttl_ms=1_000)
        clock.advance(999)
        with pytest.raises(LockHeldError):
            await two.acquire("door", ttl_ms=1_000)
        clock.advance(1)
        taken = await two.acquire("door", ttl_ms=1_000)
        assert taken.token > stopped.token
        for use in (lambda: one.renew(stopped, ttl_ms=1_000), lambda: one.release(stopped)):
            with pytest.raises(LockLostError) as loss:
                await use()
            assert (loss.value.key, loss.value.token) == ("door", stopped.token)
        await two.renew(taken, ttl_ms=1_000)
        await two.release(taken)

    @proves("locks.renewed")
    async def test_renewing_prolongs_the_lease(self, handles: Handles[LockManager], clock: ManualClock) -> None:
        one, two = await handles.open(), await handles.open()
        lock = await one.acquire("door", ttl_ms=1_000)
        clock.advance(900)
        renewed = await one.renew(lock, ttl_ms=1_000)
        assert (renewed.token, renewed.owner, renewed.expires_at) == (lock.token, lock.owner, clock.now_ms() + 1_000)
        clock.advance(999)
        with pytest.raises(LockHeldError):
            await two.acquire("door", ttl_ms=1)
        await one.release(renewed)

    @proves("locks.released")
    async def test_a_released_lock_is_free_at_once(self, handles: Handles[LockManager]) -> None:
        one, two = await handles.open(), await handles.open()
        lock = await one.acquire("door", ttl_ms=1_000)
        await one.release(lock)
        for use in (lambda: one.release(lock), lambda: one.renew(lock, ttl_ms=1_000)):
            with pytest.raises(LockLostError):
                await use()
        await two.acquire("door", ttl_ms=1_000)

    @proves("locks.waiter-is-served")
    async def test_a_waiter_gets_the_lock_when_it_is_released(self, handles: Handles[LockManager]) -> None:
        one, two = await handles.open(), await handles.open()
        lock = await one.acquire("door", ttl_ms=60_000)
        waiter = asyncio.ensure_future(two.acquire("door", ttl_ms=1_000, owner="bob", timeout=PATIENCE))
        # Long enough to be waiting; a waiter that is not waiting yet finds the lock free at its first try.
        await asyncio.sleep(0.02)
        await one.release(lock)
        assert (await asyncio.wait_for(waiter, PATIENCE)).owner == "bob"

    @proves("locks.waiter-gives-up")
    async def test_a_waiter_is_told_after_its_timeout(self, handles: Handles[LockManager]) -> None:
        one, two = await handles.open(), await handles.open()
        await one.acquire("door", ttl_ms=60_000)
        with pytest.raises(LockHeldError) as refusal:
            await asyncio.wait_for(two.acquire("door", ttl_ms=1_000, timeout=0.02), PATIENCE)
        assert refusal.value.key == "door"

    @proves("locks.keys-apart")
    async def test_keys_and_namespaces_are_apart(self, handles: Handles[LockManager]) -> None:
        here, there = await handles.open(), await handles.open(namespace="there")
        for key in ("door", "Door", "d%", "d_or", "door:1", "it's"):
            await here.acquire(key, ttl_ms=1_000)
        await there.acquire("door", ttl_ms=1_000)

    @proves("locks.bad-key-refused")
    async def test_a_key_that_can_never_be_is_refused(self, locks: LockManager) -> None:
        for key in IMPOSSIBLE_IDS:
            with pytest.raises(InvalidIdError):
                await locks.acquire(key, ttl_ms=1_000)
            with pytest.raises(InvalidIdError):
                await locks.acquire("door", ttl_ms=1_000, owner=key)

    @proves("locks.one-holder-across-processes")
    async def test_of_many_processes_one_holds_at_a_time(self, store_url: str, processes: Processes) -> None:
        outcomes = await processes.run(job("take_turns"), [{"url": store_url, "times": 15}] * 4)
        turns = sorted(turn for value in answers_of(outcomes) for turn in value)
        assert len({token for token, _, _ in turns}) == len(turns) == 60
        ends = 0
        for _, begin, end in turns:
            assert ends <= begin <= end, "two processes held the lock at once"
            ends = end
