"""The machine's clock is set back by an hour: processes that died before that are still found, and no living one is."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from helix_agents.backends import lease_watch
from helix_agents.ports.backend import open_backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.scenes import SESSION, start

HOUR_MS = 3_600_000
TTL_MS = 15_000


class Machine:
    """A clock that somebody sets back, beside one that nobody can set."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.steady_ms = 0

    def let_pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.steady_ms += milliseconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(lease_watch, "steady_ms", lambda: machine.steady_ms, raising=False)
    return machine


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> AsyncGenerator[SessionStateStore]:
    url = f"sqlite:///{tmp_path / 'helix.db'}" if request.param == "sqlite" else "memory://"
    async with await open_backend(url, clock=machine.clock) as backend:
        yield backend.state


async def orphans(store: SessionStateStore) -> list[str]:
    return [run.run_id for run in await store.list_orphans()]


async def test_a_process_that_died_before_the_clock_was_set_back_is_found_after_one_lease(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("dead", TTL_MS)
    await start(store, owner="dead")
    machine.clock.advance(-HOUR_MS)
    assert await orphans(store) == []
    machine.let_pass(TTL_MS - 1)
    assert await orphans(store) == []
    machine.let_pass(1)
    assert await orphans(store) == ["r-1"]
    assert await store.find_lease("dead") is None


async def test_a_process_that_lives_keeps_its_runs_when_the_clock_is_set_back(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("alive", TTL_MS)
    await start(store, owner="alive")
    machine.clock.advance(-HOUR_MS)
    for _ in range(10):
        assert await orphans(store) == []
        assert await store.find_lease("alive") is not None
        machine.let_pass(TTL_MS // 3)
        assert await orphans(store) == []
        await store.renew_lease("alive", TTL_MS)


async def test_a_process_that_was_only_late_is_alive_again_with_its_next_renewal(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("late", TTL_MS)
    await start(store, owner="late")
    machine.clock.advance(-HOUR_MS)
    assert await orphans(store) == []
    machine.let_pass(TTL_MS)
    assert await orphans(store) == ["r-1"]
    await store.renew_lease("late", TTL_MS)
    assert await orphans(store) == []
    assert await store.find_lease("late") is not None


async def test_a_clock_that_is_set_back_twice_gives_a_living_process_its_whole_lease_each_time(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("alive", TTL_MS)
    await start(store, owner="alive")
    machine.clock.advance(-HOUR_MS)
    assert await orphans(store) == []
    machine.let_pass(TTL_MS - 1)
    await store.renew_lease("alive", TTL_MS)
    machine.clock.advance(-HOUR_MS)
    machine.let_pass(1)
    assert await orphans(store) == []
    machine.let_pass(TTL_MS - 1)
    assert await orphans(store) == []


async def test_whoever_asks_for_such_a_lease_is_told_a_time_that_it_can_wait_for(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("dead", TTL_MS)
    machine.clock.advance(-HOUR_MS)
    assert (await _left(store, machine)) == TTL_MS
    machine.let_pass(5_000)
    assert (await _left(store, machine)) == TTL_MS - 5_000


async def test_the_run_of_a_dead_process_is_claimed_under_a_new_fence(
    store: SessionStateStore, machine: Machine
) -> None:
    await store.renew_lease("dead", TTL_MS)
    await start(store, owner="dead")
    machine.clock.advance(-HOUR_MS)
    assert await orphans(store) == []
    machine.let_pass(TTL_MS)
    (orphan,) = await store.list_orphans()
    assert (await store.claim_run(SESSION, orphan.fence, "next")).attempt == orphan.attempt + 1


async def _left(store: SessionStateStore, machine: Machine) -> int:
    lease = await store.find_lease("dead")
    assert lease is not None
    return lease.expires_at - machine.clock.now_ms()
