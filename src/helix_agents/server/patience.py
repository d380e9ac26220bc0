"""How long a client asks a server that does not answer: an instance may be restarting, and another one takes over."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from helix_agents.domain.errors import RemoteUnavailableError

T = TypeVar("T")

FIRST_WAIT = 0.1
LONGEST_WAIT = 3.0
STEADY_SECONDS = 10.0
"""A connection that lasted this long was not the trouble that came before it."""


class Patience:
    """The waits between attempts, which grow, until so many seconds have passed without any progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """There was progress: what comes next has all the time again."""
        self._until: float | None = None
        self._wait = FIRST_WAIT
        self._opened: float | None = None

    def connected(self) -> None:
        """The server has begun to answer."""
        self._opened = asyncio.get_running_loop().time()

    async def wait(self, problem: RemoteUnavailableError) -> None:
        """Wait before the next attempt; raises the problem if there is no time for one."""
        now = asyncio.get_running_loop().time()
        if self._opened is not None and now - self._opened > STEADY_SECONDS:
            self.renew()
        if self._until is None:
            self._until = now + self._seconds
        if now + self._wait > self._until:
            raise problem
        # Uneven, so that the clients of a server that comes back do not all come at once.
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(self._wait * 2, LONGEST_WAIT)

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request that may be repeated.

        Raises:
            RemoteUnavailableError: none came in time.
        """
        while True:
            try:
                answer = await request()
            except RemoteUnavailableError as problem:
                await self.wait(problem)
            else:
                self.renew()
                return answer
