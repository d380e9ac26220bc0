"""A few connections for many callers, handed out without sending a statement to fetch or return one."""

# asyncpg carries no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from helix_agents.backends.postgres.connection import LOST_CONNECTIONS, ConnectionGoneError

FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5
CLOSING_SECONDS = 5.0


class Pool:
    """Up to `size` connections, opened on demand.

    A driver's own pool resets a connection on every return, which adds a round trip to each statement. Nothing here
    leaves anything behind in a session, so there is nothing to reset.
    """

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Any]], *, size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._idle: list[Any] = []
        self._out: set[Any] = set()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def acquire(self) -> Any:
        """A connection for this caller alone; waits if all are in use."""
        while not self._closed:
            while self._idle:
                # The one used last: its caches are warm, and the others may become idle.
                raw = self._idle.pop()
                if not raw.is_closed():
                    self._out.add(raw)
                    return raw
            if len(self._out) + len(self._connecting) < self._size:
                raw = await self._opened()
                self._out.add(raw)
                return raw
            await self._turn()
        raise ConnectionGoneError("the store was closed")

    def release(self, raw: Any, *, usable: bool) -> None:
        """Take a connection back, or drop it if it is not usable."""
        self._out.discard(raw)
        if usable and not self._closed and not raw.is_closed():
            self._idle.append(raw)
        else:
            raw.terminate()
        self._wake_one()

    def let_idle_ones_go(self) -> None:
        """Drop the connections that are not in use."""
        idle, self._idle = self._idle, []
        for raw in idle:
            raw.terminate()

    async def close(self) -> None:
        """Close every connection; those in use may first finish their work."""
        self._closed = True
        while self._waiting:
            self._wake_one()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                while self._out:
                    await self._turn()
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for raw in self._out:
            raw.terminate()
        idle, self._idle = self._idle, []
        for raw in idle:
            with contextlib.suppress(Exception):
                await raw.close(timeout=2.0)

    async def _opened(self) -> Any:
        task = asyncio.create_task(self._patiently())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_given_up():
                raise ConnectionGoneError("the store was closed") from None
            # A caller that gives up leaves the connection to the next one.
            task.add_done_callback(self._adopt)
            raise
        except BaseException:
            self._connecting.discard(task)
            self._wake_one()
            raise

    def _adopt(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.release(task.result(), usable=True)
        else:
            self._wake_one()

    async def _patiently(self) -> Any:
        """Open a connection, waiting a while for a restarting server; nothing was sent yet, so nothing is repeated."""
        loop = asyncio.get_running_loop()
        deadline, wait = loop.time() + self._patience, FIRST_WAIT
        while True:
            try:
                return await uninterrupted(self._connect())
            except LOST_CONNECTIONS:
                if self._closed or loop.time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # This caller's turn had already come, so pass it on.
                self._wake_one()
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _is_given_up() -> bool:
    """Whether the current task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def uninterrupted(connecting: Awaitable[Any]) -> Any:
    """Await the connection. The driver leaks its socket if cancelled while connecting, so it finishes first."""
    task = asyncio.ensure_future(connecting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        raw = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(raw, BaseException):
            raw.terminate()
        raise
