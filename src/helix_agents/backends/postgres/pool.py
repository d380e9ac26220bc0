"""A few connections for many callers: handed out as they are, with no statement sent to fetch or return one."""

# asyncpg carries no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from helix_agents.backends.postgres.connection import LOST_CONNECTIONS

FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5


class Pool:
    """Up to `size` connections, opened when they are needed.

    A driver's own pool resets a connection on every return, which is one more round trip for each statement. Nothing
    here leaves anything behind in a session, so there is nothing to reset.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._idle: list[Any] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def acquire(self) -> Any:
        """A connection for this caller alone; waits for one while all are out."""
        while True:
            while self._idle:
                # The one used last: its caches are warm, and the others may fall idle.
                raw = self._idle.pop()
                if not raw.is_closed():
                    return raw
                self._open -= 1
            if self._open < self._size:
                return await self._opened()
            await self._turn()

    def release(self, raw: Any, *, usable: bool) -> None:
        """Take a connection back, or give it up."""
        if usable and not self._closed and not raw.is_closed():
            self._idle.append(raw)
        else:
            self._open -= 1
            raw.terminate()
        self._wake_one()

    async def close(self) -> None:
        """Close what is here; what is out is closed when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for raw in idle:
            self._open -= 1
            with contextlib.suppress(Exception):
                await raw.close(timeout=2.0)

    async def _opened(self) -> Any:
        self._open += 1
        try:
            return await self._patiently()
        except BaseException:
            self._open -= 1
            self._wake_one()
            raise

    async def _patiently(self) -> Any:
        """A new connection. A server that restarts is given a while: nothing was sent yet, so nothing is repeated."""
        loop = asyncio.get_running_loop()
        deadline, wait = loop.time() + self._patience, FIRST_WAIT
        while True:
            try:
                return await self._connect()
            except LOST_CONNECTIONS:
                if loop.time() + wait > deadline:
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
                # It was this caller's turn already: the next one takes it.
                self._wake_one()
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
