"""An event loop on its own thread, so that the main thread is free for the keyboard and for Ctrl-C."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for a thread that itself waits for something else."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="helix chat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start something without waiting for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and wait for it."""
        return self.start(work).result()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        await self._end.wait()
