"""The waiters of a process, and the connection on which Postgres announces changes."""

# asyncpg carries no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from helix_agents.backends.postgres.pool import uninterrupted
from helix_agents.backends.wakeups import Waiter, Wakeups

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0


class Listener:
    """Wakes the waiters of one process.

    The connection is opened for the first waiter and reopened whenever it is lost. Notifications are hints and never
    the truth: waiters look again by themselves after a while, so a lost notification, or a pooler that cannot carry
    any, only costs time.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]] | None, channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._wakeups = Wakeups()
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def listen(self, topic: str) -> AsyncGenerator[Waiter]:
        """Listen to a topic for as long as the block lasts; rings are remembered from its start."""
        with self._wakeups.listen(topic) as waiter:
            await self._start()
            yield waiter

    def wake_everybody(self) -> None:
        """Make every waiter look again, whatever its topic."""
        self._wakeups.ring_everybody()

    async def close(self) -> None:
        """Close the connection; idempotent."""
        self.wake_everybody()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _start(self) -> None:
        """Have the connection listen before the first look if possible; an unreachable server must not block it."""
        if self._connect is None or asyncio.get_running_loop() is not self._loop:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening())
        if not self._listening.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT):
                    await self._listening.wait()

    async def _keep_listening(self) -> None:
        wait = FIRST_WAIT
        while True:
            try:
                await self._listen_until_lost()
                wait = FIRST_WAIT
            except Exception:
                # In the meantime the waiters look by themselves.
                wait = min(wait * 2, LONGEST_WAIT)
            finally:
                self._listening.clear()
            await asyncio.sleep(wait)

    async def _listen_until_lost(self) -> None:
        assert self._connect is not None
        raw = await uninterrupted(self._connect())
        lost = asyncio.Event()

        def lost_at(_raw: Any) -> None:
            lost.set()

        try:
            raw.add_termination_listener(lost_at)
            await raw.add_listener(self._channel, self._heard)
            self._listening.set()
            # Changes announced while nobody listened are found by looking.
            self.wake_everybody()
            await lost.wait()
        finally:
            raw.terminate()

    def _heard(self, _raw: Any, _process: int, _channel: str, topic: object) -> None:
        self._wakeups.ring((str(topic),))
