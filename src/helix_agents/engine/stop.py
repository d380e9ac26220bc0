"""How a stop request reaches work that is going on: it is watched inside the effect, on every runtime alike."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.ports.state_store import SessionStateStore

# How long one wait for the flag lasts; the store wakes the watcher earlier when the flag is set.
WATCH_SECONDS = 30.0


class StopSignal:
    """Whether somebody asked the run to stop; cuts the tasks that were put under it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._tasks: set[asyncio.Task[object]] = set()

    def request(self) -> None:
        """Note the request and cut what can be cut."""
        if not self.requested.is_set():
            self.requested.set()
            for task in self._tasks:
                task.cancel()

    @contextmanager
    def cutting(self) -> Generator["Cut"]:
        """While this block runs, a request cancels it; the block ends quietly then, and `cut.happened` says so."""
        task = asyncio.current_task()
        assert task is not None
        cut = Cut()
        if self.requested.is_set():
            cut.happened = True
            yield cut
            return
        self._tasks.add(task)
        try:
            yield cut
        except asyncio.CancelledError:
            if not self.requested.is_set() or task.uncancel() > 0:
                raise
            cut.happened = True
        finally:
            self._tasks.discard(task)


class Cut:
    """Whether a block was cut short by a stop request."""

    happened = False


@asynccontextmanager
async def watching(store: SessionStateStore, session_id: SessionId) -> AsyncGenerator[StopSignal]:
    """A signal that follows the session's interrupt flag for as long as the block lasts."""
    signal = StopSignal()
    watcher = asyncio.create_task(_watch(store, session_id, signal))
    try:
        yield signal
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


async def _watch(store: SessionStateStore, session_id: SessionId, signal: StopSignal) -> None:
    while not signal.requested.is_set():
        try:
            flag = await store.wait_for_interrupt(session_id, WATCH_SECONDS)
        except HelixError:
            # The next effect meets the same trouble and reports it; a watcher has nobody to tell.
            return
        if flag is not None:
            signal.request()
