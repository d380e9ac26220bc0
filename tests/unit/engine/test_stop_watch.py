"""The stop that a run watches for: a store that is away for a while does not make it deaf, and what it cuts is what was
put under it, and nothing else."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import InterruptFlag
from helix_agents.engine.steps.stop_watch import SETS_OUT_SECONDS, StopSignal, watching
from helix_agents.testing.scenes import SESSION, start


class AwayOnce(InMemoryStateStore):
    """A store that does not answer the first time somebody waits for a flag."""

    asked = 0

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailableError("memory", "it restarts")
        return await super().wait_for_interrupt(session_id, timeout)


async def no_time(_: float) -> None:
    await asyncio.sleep(0)


async def test_a_stop_is_noticed_after_the_store_was_away():
    store = AwayOnce()
    await start(store)
    async with asyncio.timeout(5), watching(store, SESSION, no_time) as stop:
        await store.set_interrupt_flag(SESSION, "enough")
        await stop.requested.wait()
        assert stop.flag is not None
        assert stop.flag.reason == "enough"


async def test_nobody_watches_a_session_that_is_gone():
    store = InMemoryStateStore()
    async with watching(store, "nowhere", no_time) as stop:
        await asyncio.sleep(2 * SETS_OUT_SECONDS)
        assert not stop.requested.is_set()


async def test_nothing_is_asked_for_a_run_that_is_over_at_once():
    store = AwayOnce()
    await start(store)
    async with watching(store, SESSION, no_time):
        await asyncio.sleep(0)
    await asyncio.sleep(2 * SETS_OUT_SECONDS)
    assert store.asked == 0


def _cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def _already(stop: StopSignal) -> None:
    stop.request()


def _soon(stop: StopSignal) -> None:
    asyncio.get_running_loop().call_soon(stop.request)


@pytest.mark.parametrize("when", [_already, _soon])
@pytest.mark.parametrize("grace", [0, 0.01])
async def test_a_stop_cuts_a_block_that_pauses(when: Callable[[StopSignal], None], grace: float):
    stop = StopSignal()
    when(stop)
    with stop.cutting(grace) as cut:
        await asyncio.sleep(60)
    assert cut.happened
    assert _cancellations() == 0


async def test_whoever_asks_for_the_stop_of_its_own_block_is_cut_where_it_pauses():
    stop = StopSignal()
    with stop.cutting() as cut:
        stop.request()
        await asyncio.sleep(60)
    assert cut.happened


@pytest.mark.parametrize("inside", [False, True])
async def test_a_block_that_never_pauses_is_not_cut_and_neither_is_what_follows_it(inside: bool):
    stop = StopSignal()
    if not inside:
        stop.request()
    with stop.cutting() as cut:
        if inside:
            stop.request()
    await asyncio.sleep(0.01)
    assert not cut.happened
    assert _cancellations() == 0


async def test_a_cut_that_the_block_does_not_heed_is_taken_back():
    stop = StopSignal()
    _soon(stop)
    with stop.cutting() as cut, suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    assert not cut.happened
    assert _cancellations() == 0


async def test_a_cancellation_from_elsewhere_is_no_stop():
    stop = StopSignal()

    async def work() -> None:
        with stop.cutting(60):
            stop.request()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
