"""How waiting tasks learn of changes: one subscription per process, however many wait, and a channel per topic."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from helix_agents.backends.redis.line import Connection, packed
from helix_agents.backends.wakeups import Waiter, Wakeups
from helix_agents.system import jitter

from redis import exceptions  # isort: skip

log = logging.getLogger(__name__)

CONFIRMED_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 2.0


class Bell:
    """Rings are hints. Waiters also look by themselves, so a lost ring costs time and never a change."""

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        self._connect = connect
        self._name = name
        self._wakeups = Wakeups()
        self._wanted: Counter[str] = Counter()
        self._confirmed: dict[str, asyncio.Event] = {}
        self._connection: Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Waiter]:
        """Wake the waiter when the channel rings, from here on."""
        with self._wakeups.listen(channel) as waiter:
            self._wanted[channel] += 1
            try:
                await self._subscribe(channel)
                yield waiter
            finally:
                self._wanted[channel] -= 1
                if not self._wanted[channel]:
                    del self._wanted[channel]
                    self._confirmed.pop(channel, None)
                    await self._tell("UNSUBSCRIBE", channel)

    def wake_everybody(self) -> None:
        """Make all waiting tasks look again."""
        self._wakeups.ring_everybody()

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self.wake_everybody()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _subscribe(self, channel: str) -> None:
        if self._closed:
            return
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        elif self._wanted[channel] == 1:
            await self._tell("SUBSCRIBE", channel)
        try:
            async with asyncio.timeout(CONFIRMED_SECONDS):
                await confirmed.wait()
        except TimeoutError:
            # Looking twice a second is slower, not wrong.
            log.info("%s: a subscription was not confirmed; waiting callers poll instead", self._name)

    async def _tell(self, *command: str) -> None:
        """Send a change to the server; without a connection, the next one starts with everything that is wanted."""
        # A lost connection is not used again: the driver would connect it once more, behind the listening task's back.
        if self._connection is None or not self._connection.is_connected:
            return
        try:
            await self._connection.send_packed_command([packed(command)], check_health=False)
        except (exceptions.RedisError, OSError):
            log.debug("%s: the subscription is lost", self._name)

    async def _listen(self) -> None:
        """Hold one connection, and open a new one whenever it is lost."""
        wait = FIRST_RETRY_SECONDS
        while not self._closed:
            connection = cast("Connection", self._connect())
            try:
                await connection.connect()
                # From here on, changes are sent as they come.
                self._connection = connection
                if self._wanted:
                    await self._tell("SUBSCRIBE", *self._wanted)
                wait = FIRST_RETRY_SECONDS
                while connection.is_connected:
                    self._hear(await connection.read_response())
            except (exceptions.RedisError, OSError) as problem:
                log.info("%s: lost the subscription (%s); waiting callers poll instead", self._name, problem)
            finally:
                self._connection = None
                await connection.disconnect(nowait=True)
            self.wake_everybody()
            await asyncio.sleep(wait * jitter())
            wait = min(wait * 2, LAST_RETRY_SECONDS)

    def _hear(self, message: list[Any]) -> None:
        kind, channel = message[0], message[1]
        if kind not in (b"subscribe", b"message") or channel is None:
            return
        name = channel.decode()
        if kind == b"subscribe" and name in self._confirmed:
            self._confirmed[name].set()
        self._wakeups.ring((name,))
