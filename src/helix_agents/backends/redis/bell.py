"""How waiting tasks hear of changes: one subscription per process, however many wait, and a channel per topic."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from helix_agents.backends.wakeups import Waiter, Wakeups

from redis import exceptions  # isort: skip

log = logging.getLogger(__name__)

CONFIRMED_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 2.0


class Bell:
    """Rings are hints. Whoever waits also looks by itself, so a lost ring costs time and never a change."""

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        self._connect = connect
        self._name = name
        self._wakeups = Wakeups()
        self._wanted: Counter[str] = Counter()
        self._confirmed: dict[str, asyncio.Event] = {}
        self._client: Any = None
        self._subscription: Any = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Waiter]:
        """Rings of the channel from here on wake the waiter."""
        with self._wakeups.listen(channel) as waiter:
            self._wanted[channel] += 1
            try:
                await self._subscribe(channel)
                yield waiter
            finally:
                self._wanted[channel] -= 1
                if not self._wanted[channel]:
                    await self._unsubscribe(channel)

    def wake_everybody(self) -> None:
        """Have whoever waits here look again."""
        self._wakeups.ring_everybody()

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self.wake_everybody()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        await self._hang_up()

    async def _subscribe(self, channel: str) -> None:
        if self._closed:
            return
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        elif self._subscription is not None and self._wanted[channel] == 1:
            try:
                await self._subscription.subscribe(channel)
            except (exceptions.RedisError, OSError):
                log.debug("%s: could not subscribe, will be done on reconnect", self._name)
        try:
            async with asyncio.timeout(CONFIRMED_SECONDS):
                await confirmed.wait()
        except TimeoutError:
            # Looking twice a second is slower, not wrong.
            log.warning("%s: no confirmation of a subscription; waiting readers look by themselves", self._name)

    async def _unsubscribe(self, channel: str) -> None:
        del self._wanted[channel]
        self._confirmed.pop(channel, None)
        if self._subscription is not None and not self._closed:
            try:
                await self._subscription.unsubscribe(channel)
            except (exceptions.RedisError, OSError):
                log.debug("%s: could not unsubscribe", self._name)

    async def _listen(self) -> None:
        wait = FIRST_RETRY_SECONDS
        while not self._closed:
            try:
                self._client = self._connect()
                self._subscription = self._client.pubsub()
                # An empty subscription cannot be listened to; nobody rings this one.
                await self._subscription.subscribe("", *self._wanted)
                wait = FIRST_RETRY_SECONDS
                async for message in self._subscription.listen():
                    self._hear(message)
            except (exceptions.RedisError, OSError) as problem:
                log.info("%s: lost the subscription (%s); waiting readers look by themselves", self._name, problem)
            await self._hang_up()
            self.wake_everybody()
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY_SECONDS)

    def _hear(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        match message["type"]:
            case "subscribe":
                if channel in self._confirmed:
                    self._confirmed[channel].set()
                self._wakeups.ring((channel,))
            case "message":
                self._wakeups.ring((channel,))
            case _:
                pass

    async def _hang_up(self) -> None:
        subscription, client = self._subscription, self._client
        self._subscription = self._client = None
        for part in (subscription, client):
            if part is not None:
                try:
                    await part.aclose()
                except (exceptions.RedisError, OSError):
                    log.debug("%s: a connection was gone before it was closed", self._name)
