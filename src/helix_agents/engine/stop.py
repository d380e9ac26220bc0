"""How a stop request reaches work that is going on: it is watched inside the effect, on every runtime alike."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.ports.state_store import SessionStateStore

# How long one wait for the flag lasts; the store wakes the watcher earlier when the flag is set.
WATCH_SECONDS = 30.0


class Cut:
    """Whether a block was cut short by a stop request."""

    happened = False


class StopSignal:
    """Whether somebody asked the run to stop; cuts the work that was put under it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._cutters: set[Callable[[], object]] = set()

    def request(self) -> None:
        """Note the request and cut what can be cut."""
        if not self.requested.is_set():
            self.requested.set()
            for cut in tuple(self._cutters):
                cut()

    @contextmanager
    def cutting(self, grace_seconds: float = 0) -> Generator[Cut]:
        """While this block runs, a request cancels it, after a grace period if one is given.

        The block ends quietly then, and `cut.happened` says so.
        """
        task = asyncio.current_task()
        assert task is not None
        cut = Cut()
        timers: list[asyncio.TimerHandle] = []

        def cancel() -> None:
            if grace_seconds:
                timers.append(asyncio.get_running_loop().call_later(grace_seconds, task.cancel))
            else:
                task.cancel()

        self._cutters.add(cancel)
        if self.requested.is_set():
            cancel()
        try:
            yield cut
        except asyncio.CancelledError:
            if not self.requested.is_set() or task.uncancel() > 0:
                raise
            cut.happened = True
        finally:
            self._cutters.discard(cancel)
            for timer in timers:
                timer.cancel()


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
