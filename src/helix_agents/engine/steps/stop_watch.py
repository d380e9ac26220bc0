"""How a stop request reaches work in progress: it is watched for inside the effect, on every runtime alike."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self
from weakref import WeakSet

from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import InterruptFlag
from helix_agents.ports.state_store import SessionStateStore

# A run that ends sooner is not worth watching; the delay this adds to a stop is too short to notice.
SETS_OUT_SECONDS = 0.02
# How long one wait for the flag lasts; the store wakes the watcher earlier when the flag is set.
WATCH_SECONDS = 30.0
# How long to wait before a store that did not answer is asked again.
LOOK_AGAIN_SECONDS = 0.5


class StopSignal:
    """Whether the run was asked to stop; cuts the work that was put under it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.flag: InterruptFlag | None = None
        self._cuttings: set[Cutting] = set()
        self._below: WeakSet[StopSignal] = WeakSet()

    def request(self, flag: InterruptFlag | None = None) -> None:
        """Record the request and cut what can be cut; without a flag it is an operator's pause."""
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

        The block then ends without an exception, and `happened` is true.
        """
        return Cutting(self.requested, self._cuttings, grace_seconds)


class Cutting:
    """A `with` block that a stop request cuts short; every model call and every tool runs in one."""

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
        # A task that cancels itself continues until it next awaits, which may be after the block. So the event loop
        # cancels it instead: it gets its turn while the block awaits, or not at all.
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
            # Taken back even if the block ignored it; a cancellation by others stays in effect.
            is_ours = self._task.uncancel() == 0
            self.happened = is_ours and isinstance(problem, asyncio.CancelledError)
        return self.happened


async def look_for_stop(store: SessionStateStore, session_id: SessionId, signal: StopSignal) -> None:
    """Look for a stop request now, rather than when the watcher finds it."""
    if not signal.requested.is_set():
        flag = await store.find_interrupt_flag(session_id)
        if flag is not None:
            signal.request(flag)


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do work that must not stop half-way: a cancellation that arrives meanwhile takes effect when it is done."""
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
    """A signal, given or new, that follows the session's interrupt flag while the block lasts."""
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
            # Not awaited directly: a cancellation of the task that leaves the block must not pass for the watcher's.
            await asyncio.wait((watcher,))


async def _watch(
    store: SessionStateStore, session_id: SessionId, sleep: Callable[[float], Awaitable[None]], signal: StopSignal
) -> None:
    """Watch for the flag, through times in which the store is unavailable: the run itself may not need it then."""
    while not signal.requested.is_set():
        try:
            flag = await store.wait_for_interrupt(session_id, WATCH_SECONDS)
        except HelixError as problem:
            if not problem.retryable:
                # The session or the store is gone; the next effect finds that out and reports it.
                return
            await sleep(LOOK_AGAIN_SECONDS)
            continue
        if flag is not None:
            signal.request(flag)
