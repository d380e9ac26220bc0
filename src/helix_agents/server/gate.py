"""What an instance lets in: streams and runs, not too many for everybody and each user, and nothing when it leaves."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from starlette.types import Receive, Scope, Send

from helix_agents.server.auth import Principal
from helix_agents.server.errors import RefusedError, draining
from helix_agents.server.hosting import HostedSessions
from helix_agents.server.limits import ServerLimits
from helix_agents.server.sse import Leaving


class Gate:
    """Counts, refuses what is too much, and closes when the instance is told to leave."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.leaving = Leaving()
        self._streams: Counter[str | None] = Counter()
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watching: set[asyncio.Task[None]] = set()

    @property
    def open_streams(self) -> int:
        return self._streams.total()

    def check_open(self) -> None:
        """Let a request pass that begins something, unless the instance is leaving."""
        if self.leaving.is_set():
            raise draining(self.limits.retry_after_seconds)

    @asynccontextmanager
    async def room(self, principal: Principal, sessions: HostedSessions) -> AsyncGenerator[None]:
        """Let a run begin inside, if its user does not have too many already; runs of one user begin one by one.

        Raises:
            RefusedError: there are too many, or the instance is leaving.
        """
        self.check_open()
        lock = self._starting.setdefault(principal.user_id or "", asyncio.Lock())
        async with lock:
            most = self.limits.running_runs_per_user
            if await sessions.count_running(principal.user_id) >= most:
                raise self._too_many(429, "too_many_runs", f"This user has {most} runs going.")
            yield

    def check_stream(self, principal: Principal) -> None:
        """Let a stream open, if there are not too many already."""
        self.check_open()
        if self.open_streams >= self.limits.open_streams:
            raise self._too_many(503, "too_many_streams", f"This instance has {self.open_streams} open streams.")
        most = self.limits.open_streams_per_user
        if principal.user_id is not None and self._streams[principal.user_id] >= most:
            raise self._too_many(429, "too_many_streams", f"This user has {most} open streams on this instance.")

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Work of the instance itself, which ends with it."""
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def counted(self, principal: Principal, response: Callable[[Scope, Receive, Send], Any]) -> "CountedResponse":
        """The response of a stream, counted while it is open."""
        return CountedResponse(self._streams, principal.user_id, response)

    async def close(self) -> None:
        """End what was watched."""
        self.leaving.set()
        for task in tuple(self._watching):
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _too_many(self, status: int, code: str, detail: str) -> RefusedError:
        return RefusedError(
            status, code, detail, retryable=True, headers={"retry-after": str(self.limits.retry_after_seconds)}
        )


class CountedResponse:
    """A response that holds a place among the open streams from before it is sent until it has ended."""

    def __init__(self, streams: Counter[str | None], user_id: str | None, response: Callable[..., Any]) -> None:
        self._streams = streams
        self._user_id = user_id
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams[self._user_id] += 1
        try:
            await self._response(scope, receive, send)
        finally:
            self._streams[self._user_id] -= 1
