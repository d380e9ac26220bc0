"""The contract of stop requests: durable, aimed at one run, taken once."""

import asyncio

import pytest

from helix_agents.domain.runs import RunStatus
from helix_agents.domain.sessions import InterruptFlag, InterruptSet, NothingRunning, StopKind
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, start
from helix_agents.testing.seams import CountingSeam

SOON = 10.0
"""How many seconds a waiter gets that should be woken at once."""


class FlagsContract(StoreContract):
    """Setting, taking and waiting for stop requests."""

    @proves("flags.aimed-at-the-current-run")
    async def test_a_stop_is_aimed_at_the_run_that_is_going(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        assert await store.set_interrupt_flag(SESSION, "genug") == InterruptSet(run_id="r-1")
        flag = InterruptFlag(run_id="r-1", kind="interrupt", reason="genug", set_at=clock.now_ms())
        assert await store.find_interrupt_flag(SESSION) == flag
        assert (await store.load_state(SESSION)).interrupt_flag == flag
        assert await store.check_interrupt_flag(SESSION) == flag

    @proves("flags.nothing-running")
    @pytest.mark.parametrize("status", ["completed", "failed", "interrupted", "suspended_client_tool"])
    async def test_without_a_running_run_nothing_is_stored(self, store: SessionStateStore, status: RunStatus) -> None:
        await store.create_session(SESSION)
        assert await store.set_interrupt_flag(SESSION) == NothingRunning()
        await start(store)
        await store.update_run_status("r-1", status)
        assert await store.set_interrupt_flag(SESSION, kind="abort") == NothingRunning()
        assert await store.find_interrupt_flag(SESSION) is None
        assert await store.check_interrupt_flag(SESSION) is None
        assert (await store.load_state(SESSION)).interrupt_flag is None

    @proves("flags.taken-once")
    async def test_of_many_callers_one_takes_the_flag(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0])
        await stores[0].set_interrupt_flag(SESSION, "stop")
        taken = await asyncio.gather(*(store.check_interrupt_flag(SESSION) for store in stores for _ in range(4)))
        assert len([flag for flag in taken if flag]) == 1
        assert await stores[1].find_interrupt_flag(SESSION) is None

    @proves("flags.never-hit-the-next-run")
    async def test_a_stop_for_one_run_is_not_seen_by_the_next(self, store: SessionStateStore) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "stop")
        await start(store, run_id="r-2")
        assert await store.find_interrupt_flag(SESSION) is None
        assert await store.check_interrupt_flag(SESSION) is None
        assert await store.wait_for_interrupt(SESSION, 0) is None
        assert (await store.load_state(SESSION)).interrupt_flag is None

    @proves("flags.never-hit-the-next-run")
    async def test_a_stop_for_a_run_that_was_recorded_over_is_gone(self, store: SessionStateStore) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "stop")
        await store.create_run(SESSION, "r-2")
        assert await store.check_interrupt_flag(SESSION) is None
        assert await store.set_interrupt_flag(SESSION, "again") == InterruptSet(run_id="r-2")

    @proves("flags.never-hit-the-next-run")
    async def test_a_stop_that_is_meant_for_one_run_leaves_every_other_alone(self, store: SessionStateStore) -> None:
        await start(store)
        await start(store, run_id="r-2")
        assert await store.set_interrupt_flag(SESSION, "late", run_id="r-1") == NothingRunning()
        assert await store.find_interrupt_flag(SESSION) is None
        assert await store.set_interrupt_flag(SESSION, "stop", run_id="r-2") == InterruptSet(run_id="r-2")
        assert await store.find_interrupt_flag(SESSION) is not None

    @proves("flags.abort-outranks-interrupt")
    async def test_an_abort_outranks_an_interrupt(self, store: SessionStateStore) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "soft")
        await store.set_interrupt_flag(SESSION, "hard", kind="abort")
        assert await store.set_interrupt_flag(SESSION, "soft again") == InterruptSet(run_id="r-1")
        flag = await store.check_interrupt_flag(SESSION)
        assert flag is not None
        assert (flag.kind, flag.reason) == ("abort", "hard")

    @proves("flags.abort-outranks-interrupt")
    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_the_same_stop_again_has_the_newer_reason(self, store: SessionStateStore, kind: StopKind) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "first", kind=kind)
        await store.set_interrupt_flag(SESSION, "second", kind=kind)
        flag = await store.find_interrupt_flag(SESSION)
        assert flag is not None
        assert (flag.kind, flag.reason) == (kind, "second")

    @proves("flags.looking-leaves-it")
    async def test_looking_leaves_the_flag_and_clearing_removes_it(self, store: SessionStateStore) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION)
        assert await store.find_interrupt_flag(SESSION) == await store.find_interrupt_flag(SESSION) is not None
        await store.clear_interrupt_flag(SESSION)
        await store.clear_interrupt_flag(SESSION)
        assert await store.find_interrupt_flag(SESSION) is None

    @proves("flags.seen-by-others")
    async def test_every_other_handle_sees_the_flag(self, handles: StoreHandles) -> None:
        one, two = await handles.open(), await handles.open()
        await start(one)
        await one.set_interrupt_flag(SESSION, "stop")
        assert await two.find_interrupt_flag(SESSION) == await one.find_interrupt_flag(SESSION) is not None
        assert await two.check_interrupt_flag(SESSION) is not None
        assert await one.check_interrupt_flag(SESSION) is None

    @proves("flags.waiter-is-woken")
    async def test_a_waiter_is_woken_by_another_handle(self, handles: StoreHandles) -> None:
        one, two = await handles.open(), await handles.open()
        await start(one)
        waiter = asyncio.create_task(one.wait_for_interrupt(SESSION, SOON))
        # Long enough to be waiting; a waiter that is not waiting yet finds the flag at its first look.
        await asyncio.sleep(0.02)
        await two.set_interrupt_flag(SESSION, "stop")
        flag = await asyncio.wait_for(waiter, SOON)
        assert flag == await two.find_interrupt_flag(SESSION) is not None
        assert await asyncio.wait_for(one.wait_for_interrupt(SESSION, SOON), SOON) == flag

    @proves("flags.waiter-times-out")
    async def test_a_waiter_gives_up_after_its_timeout(self, store: SessionStateStore) -> None:
        await start(store)
        assert await asyncio.wait_for(store.wait_for_interrupt(SESSION, 0.05), SOON) is None

    @proves("flags.waiting-is-cheap")
    async def test_waiting_costs_at_most_two_statements_a_second(self, handles: StoreHandles) -> None:
        seam = CountingSeam()
        store = await handles.open(seam=seam)
        await start(store)
        seam.reset()
        assert await store.wait_for_interrupt(SESSION, 1.0) is None
        # One look before the wait and one after it are not waiting.
        assert seam.count <= 2 + 2
