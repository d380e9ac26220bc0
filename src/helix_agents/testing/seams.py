"""Seams that count a backend's statements, hold it after one, lose its connection at one, or kill its process.

Each lets everything pass until it is armed, so that opening a store and arranging a test are not counted.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable

HOLD_SECONDS = 30.0
"""No statement is held longer than this, whatever a test forgot."""

QUIET_SECONDS = 0.2
"""A side that has sent nothing for this long is waiting."""


class ConnectionLostError(Exception):
    """What a dying seam raises in place of every statement after the last one."""


class CountingSeam:
    """Remembers the statements that passed since it was created or reset."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def __call__(self, statement: str, /) -> None:
        self.statements.append(statement)

    @property
    def count(self) -> int:
        return len(self.statements)

    def reset(self) -> None:
        """Forget what passed so far."""
        self.statements.clear()

    async def rate_over(self, seconds: float) -> float:
        """How many statements pass in each of the given number of seconds, after those that start at once.

        The first one does not count: when the seconds start, it may just be due.
        """
        await self._quiet()
        self.reset()
        began = time.monotonic()
        await asyncio.sleep(seconds)
        return max(0, self.count - 1) / (time.monotonic() - began)

    async def _quiet(self) -> None:
        seen = -1
        async with asyncio.timeout(HOLD_SECONDS):
            while seen != self.count:
                seen = self.count
                await asyncio.sleep(QUIET_SECONDS)


class _ArmedSeam:
    """Counts down from the moment it is armed; `after=1` means the first statement that follows."""

    def __init__(self, after: int | None = None) -> None:
        self._left = after

    def arm(self, *, after: int) -> None:
        """Act at the n-th statement from now."""
        self._left = after

    def disarm(self) -> None:
        """Let everything pass again."""
        self._left = None

    def _is_due(self) -> bool:
        """Whether this statement is the n-th or a later one."""
        if self._left is None:
            return False
        self._left -= 1
        return self._left <= 0


class DyingSeam(_ArmedSeam):
    """Loses the connection at the n-th statement: it and all later ones fail."""

    def __call__(self, statement: str, /) -> None:
        if self._is_due():
            raise ConnectionLostError(f"the connection was lost at: {statement}")


class StumblingSeam(_ArmedSeam):
    """Loses the connection at the n-th statement, once: a backend that tries again gets through."""

    has_stumbled = False

    def __call__(self, statement: str, /) -> None:
        if not self.has_stumbled and self._is_due():
            self.has_stumbled = True
            raise ConnectionLostError(f"the connection was lost at: {statement}")


class KillingSeam(_ArmedSeam):
    """Kills its own process at the n-th statement, as a power cut would: nothing is flushed or rolled back."""

    def __call__(self, statement: str, /) -> None:
        if self._is_due():
            os.kill(os.getpid(), signal.SIGKILL)


class HoldingSeam(_ArmedSeam):
    """Stops its side right after the n-th statement until it is released.

    In a thread it blocks that thread; on the event loop it gives the backend something to wait for.
    """

    def __init__(self, after: int | None = None) -> None:
        super().__init__(after)
        self.has_held = False
        self._held_or_released = threading.Event()
        self._released = threading.Event()

    def __call__(self, statement: str, /) -> Awaitable[None] | None:
        if self._released.is_set() or not self._is_due():
            return None
        self.has_held = True
        self._held_or_released.set()
        if _runs_on_an_event_loop():
            return self._wait_on_the_loop()
        self._released.wait(HOLD_SECONDS)
        return None

    async def wait_until_held(self) -> None:
        """Return once a statement is being held, or when none will be because the seam was released."""
        await asyncio.to_thread(self._held_or_released.wait, HOLD_SECONDS)

    def release(self) -> None:
        """Let the held side continue; nothing is held any more."""
        self._released.set()
        self._held_or_released.set()

    async def _wait_on_the_loop(self) -> None:
        await asyncio.to_thread(self._released.wait, HOLD_SECONDS)


def _runs_on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
