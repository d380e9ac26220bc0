"""Tasks that wait for a topic, and the rings that wake them from any thread."""

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager


class Waiter:
    """One listening task. A ring is remembered until the task waits for it, so none is missed in between."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._scheduled = False

    async def wait(self, timeout: float) -> bool:
        """Return as soon as there was a ring since the last wait; False if there was none for `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        # In this order, a ring that arrives now is either scheduled again or seen by the caller when it looks after the
        # wait.
        self._rung.clear()
        self._scheduled = False
        return True

    def ring(self) -> None:
        """Wake the task; callable from any thread."""
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            # The loop was closed, along with every task that waited on it.
            return


class Wakeups:
    """The listeners of one process, by topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, set[Waiter]] = {}

    @contextmanager
    def listen(self, topic: str) -> Generator[Waiter]:
        """Listen to a topic; rings are remembered from here on."""
        waiter = Waiter()
        with self._lock:
            self._waiters.setdefault(topic, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters[topic].discard(waiter)
                if not self._waiters[topic]:
                    del self._waiters[topic]

    def anybody(self) -> bool:
        """Whether anybody listens to anything. A listener that starts a moment later looks for itself."""
        return bool(self._waiters)

    def ring(self, topics: Iterable[str]) -> None:
        """Wake every listener of these topics; callable from any thread, never waits."""
        with self._lock:
            waiters = [waiter for topic in topics for waiter in self._waiters.get(topic, ())]
        for waiter in waiters:
            waiter.ring()

    def ring_everybody(self) -> None:
        """Wake all listeners, whatever they listen to."""
        self.ring(tuple(self._waiters))
