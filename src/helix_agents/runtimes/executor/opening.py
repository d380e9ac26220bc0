"""Opening an executor by URL, and leaving it in good order when the process is asked to end."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helix_agents.ports.backend import open_backend

if TYPE_CHECKING:
    from helix_agents.runtimes.executor.core import ExecutorCore

DEFAULT_STORE = "sqlite:///helix.db"

ExecutorT_co = TypeVar("ExecutorT_co", bound="ExecutorCore", covariant=True)


def chosen_store(url: str | None) -> str:
    """The store that the program names, else the environment, else a file beside the process."""
    return url if url is not None else os.environ.get("HELIX_STORE") or DEFAULT_STORE


class OpeningExecutor(Generic[ExecutorT_co]):
    """The result of `Executor.open`: `async with` opens the backend and closes it again; awaiting it only opens it.

    While the block runs, SIGTERM leaves it as the end of the block does: running steps get their grace period, leases
    are released, and then the process ends as the signal would have ended it.
    """

    def __init__(self, kind: type[ExecutorT_co], url: str, namespace: str, settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self._url = url
        self._namespace = namespace
        self._settings = settings
        self._executor: ExecutorT_co | None = None
        self._listens = False
        self._terminated = False

    if not TYPE_CHECKING:  # A type checker knows the real attributes; it must not assume more.

        def __getattr__(self, name: str) -> Any:
            kind = self.__dict__["_kind"].__name__ if "_kind" in self.__dict__ else "Executor"
            raise AttributeError(
                f"{kind}.open(…) is not open yet, so it has no {name!r}; write `async with {kind}.open(…) as helix:`, "
                f"or `helix = await {kind}.open(…)`."
            )

    def __await__(self) -> Generator[Any, None, ExecutorT_co]:
        """For a notebook or a framework with its own lifespan: the caller that awaits it has to call `close()`."""
        return self._open().__await__()

    async def __aenter__(self) -> ExecutorT_co:
        self._executor = await self._open()
        self._listen_for_sigterm()
        return self._executor

    async def _open(self) -> ExecutorT_co:
        backend = await open_backend(self._url, namespace=self._namespace)
        try:
            # Every kind of executor takes the parts of a backend in addition to its own settings.
            make: Callable[..., ExecutorT_co] = self._kind
            executor = make(
                state=backend.state,
                streams=backend.streams,
                usage=backend.usage,
                locks=backend.locks,
                entries=backend.entries,
                memories=backend.memories,
                on_close=backend.close,
                **self._settings,
            )
            return await executor.__aenter__()
        except BaseException:
            await backend.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._executor is not None:
                await self._executor.close()
        finally:
            if self._listens:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            if self._terminated:
                os.kill(os.getpid(), signal.SIGTERM)

    def _listen_for_sigterm(self) -> None:
        """Only if nothing else handles the signal, and where signals are delivered at all."""
        task = asyncio.current_task()
        if task is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def leave() -> None:
            self._terminated = True
            task.cancel()

        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
            self._listens = True
