"""Shutdown signals: the application hears them before the HTTP server around it stops accepting requests."""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hearing_signals(drain: Callable[[], None]) -> Generator[None]:
    """Call `drain` when the process is asked to end, and then the original signal handler.

    An HTTP server waits for its open responses before it ends the application's lifespan, and open streams end only
    when the application says so; without this, the two would wait for each other. Signals without a handler are left
    alone, as are all signals outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    earlier = {
        number: handler
        for number in SIGNALS
        if callable(handler := signal.getsignal(number)) and handler is not signal.default_int_handler
    }

    def hear(number: int, stack: FrameType | None) -> None:
        loop.call_soon_threadsafe(drain)
        earlier[signal.Signals(number)](number, stack)

    for number in earlier:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            if signal.getsignal(number) is hear:
                signal.signal(number, handler)
