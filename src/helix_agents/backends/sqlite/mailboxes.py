"""Carries answers from a thread to the tasks that wait for them: an event loop wakes once, however many have come.

An event loop has its own pipe to be woken through, which takes several system calls and an exception each time. A
kernel counter takes one call on each side, which matters because every step of every agent waits for its commit here.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol


class Letter(Protocol):
    """A finished piece of work; `answer`, called in the task's own event loop, tells the task."""

    def answer(self) -> None: ...


class Mailbox:
    """Answers on their way to one event loop. Created in that loop's thread; `post` may be called from any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[Letter] = deque()
        # Held while posting, so that no thread writes to a closed counter, whose number may be another file's by then.
        self._door = threading.Lock()
        self._counter = _counted(loop, self._empty)

    def post(self, letters: Sequence[Letter]) -> None:
        """Have these answered in the loop; if the loop is closed, no task waits any more."""
        with self._door:
            self._letters.extend(letters)
            if self._counter is not None:
                os.eventfd_write(self._counter, 1)
                return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._empty)

    def close(self) -> None:
        """Close the counter after delivering what has arrived; later answers use the loop's own way."""
        with self._door:
            counter, self._counter = self._counter, None
        if counter is None:
            return
        if self._loop is asyncio.get_running_loop():
            self._put_away(counter)
            return
        try:
            self._loop.call_soon_threadsafe(self._put_away, counter)
        except RuntimeError:
            os.close(counter)

    def _put_away(self, counter: int) -> None:
        self._loop.remove_reader(counter)
        os.close(counter)
        self._empty()

    def _empty(self) -> None:
        # Another thread may close the mailbox now, but the counter itself is only closed in this thread.
        counter = self._counter
        if counter is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(counter)
        # Posts from now on ring again.
        while self._letters:
            self._letters.popleft().answer()


class Mailboxes:
    """The mailboxes of the event loops that use one thread."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, Mailbox] = {}

    def here(self) -> Mailbox:
        """The mailbox of the running loop."""
        loop = asyncio.get_running_loop()
        box = self._by_loop.get(loop)
        if box is None:
            over = [self._by_loop.pop(known, None) for known in list(self._by_loop) if known.is_closed()]
            for each in over:
                if each is not None:
                    each.close()
            box = self._by_loop[loop] = Mailbox(loop)
        return box

    def close(self) -> None:
        """Close all of them."""
        while self._by_loop:
            self._by_loop.popitem()[1].close()


def _counted(loop: asyncio.AbstractEventLoop, when_rung: Callable[[], None]) -> int | None:
    """A counter that wakes the loop; None if the system offers none, has none left, or the loop cannot watch it."""
    if not hasattr(os, "eventfd"):
        return None
    try:
        counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:
        return None
    try:
        loop.add_reader(counter, when_rung)
    except (NotImplementedError, OSError):
        os.close(counter)
        return None
    return counter
