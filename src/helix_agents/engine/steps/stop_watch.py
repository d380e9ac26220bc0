"""How a stop request reaches work that is going on: it is watched inside the effect, on every runtime alike."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self
from weakref import WeakSet

from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import InterruptFlag
from helix_agents.ports.state_store import SessionStateStore

# A run that is over sooner was not worth watching for; until then a stop waits, too short for anybody to see.
SETS_OUT_SECONDS = 0.02
# How long one wait for the flag lasts; the store wakes the watcher earlier when the flag is set.
WATCH_SECONDS = 30.0
# How long after a store did not answer it is asked again.
LOOK_AGAIN_SECONDS = 0.5


class StopSignal:
    """Whether somebody asked the run to stop; cuts the work that was put under it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.flag: InterruptFlag | None = None
        self._cuttings: set[Cutting] = set()
        self._below: WeakSet[StopSignal] = WeakSet()

    def request(self, flag: InterruptFlag | None = None) -> None:
        """Note the request and cut what can be cut; without a flag it is an operator's pause."""
        if not self.requested.is_set():
            self.flag = flag
            self.requested.set()
            for cutting in tuple(self._cuttings):
                cutting.cut()
            for signal in tuple(self._below):
                signal.request(flag)

    def below(self) -> "StopSignal":
        """A signal for a child's run: it is stopped with this one, and can be stopped alone."""
        signal = StopSignal()
        if self.requested.is_set():
            signal.request(self.flag)
        else:
            self._below.add(signal)
        return signal

    def cutting(self, grace_seconds: float = 0) -> "Cutting":
        """A block that a request cancels while it runs, after a grace period if one is given.

        The block ends quietly then, and `happened` says so.
        """
        return Cutting(self.requested, self._cuttings, grace_seconds)


class Cutting:
    """A `with` block that a stop request cuts short; every model call and every tool is in one."""

    __slots__ = ("_all", "_cancelled", "_grace_seconds", "_requested", "_task", "_timer", "happened")

    def __init__(self, requested: asyncio.Event, all_cuttings: "set[Cutting]", grace_seconds: float) -> None:
        self._requested = requested
        self._all = all_cuttings
        self._grace_seconds = grace_seconds
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self.happened = False

    def cut(self) -> None:
        """Cancel the block, now or after its grace."""
        # A task that cancels itself goes on until it next pauses, and that may be behind the block: the event loop does
        # it instead, which gets its turn while the block pauses, or not at all.
        if self._grace_seconds or asyncio.current_task() is self._task:
            self._timer = asyncio.get_running_loop().call_later(self._grace_seconds, self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        assert self._task is not None
        self._cancelled = True
        self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._all.add(self)
        if self._requested.is_set():
            self.cut()
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> bool:
        assert self._task is not None
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._cancelled:
            # Taken back also where the block did not heed it; what others cancel stays cancelled.
            is_ours = self._task.uncancel() == 0
            self.happened = is_ours and isinstance(problem, asyncio.CancelledError)
        return self.happened


async def look_for_stop(store: SessionStateStore, session_id: SessionId, signal: StopSignal) -> None:
    """Hear of a stop now, instead of when the watcher does."""
    if not signal.requested.is_set():
        flag = await store.find_interrupt_flag(session_id)
        if flag is not None:
            signal.request(flag)


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do work that must not stop half-way: a cancellation that comes meanwhile takes effect when it is done."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


@asynccontextmanager
async def watching(
    store: SessionStateStore,
    session_id: SessionId,
    sleep: Callable[[float], Awaitable[None]],
    signal: StopSignal | None = None,
) -> AsyncGenerator[StopSignal]:
    """A signal, the given one or a new one, that follows the session's interrupt flag while the block lasts."""
    signal = signal or StopSignal()
    watchers: list[asyncio.Task[None]] = []

    def set_out() -> None:
        watchers.append(asyncio.create_task(_watch(store, session_id, sleep, signal)))

    timer = asyncio.get_running_loop().call_later(SETS_OUT_SECONDS, set_out)
    try:
        yield signal
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()
            # Not awaited itself: a cancellation of whoever leaves the block here must not pass for the watcher's own.
            await asyncio.wait((watcher,))


async def _watch(
    store: SessionStateStore, session_id: SessionId, sleep: Callable[[float], Awaitable[None]], signal: StopSignal
) -> None:
    """A store that is away for a while does not make the run deaf: it may go on without meeting the same trouble."""
    while not signal.requested.is_set():
        try:
            flag = await store.wait_for_interrupt(session_id, WATCH_SECONDS)
        except HelixError as problem:
            if not problem.retryable:
                # The session or the store is gone; the next effect finds that out and says so.
                return
            await sleep(LOOK_AGAIN_SECONDS)
            continue
        if flag is not None:
            signal.request(flag)
