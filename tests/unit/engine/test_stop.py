"""The stop that a run watches for: a store that is away for a while does not make it deaf."""

import asyncio

from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import InterruptFlag
from helix_agents.engine.stop import watching
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
        await asyncio.sleep(0.01)
        assert not stop.requested.is_set()
