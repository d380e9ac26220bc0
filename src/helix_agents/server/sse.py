"""Server-sent events: frames with ids, and a response that no reader can use to hold up a run."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Protocol

from starlette.types import Receive, Scope, Send

from helix_agents.engine.log import log_exception
from helix_agents.server.limits import ServerLimits

KEEP_ALIVE = b": keep-alive\n\n"
FAREWELL_SECONDS = 1.0
BATCH_BYTES = 65_536


def frame(data: bytes, *, id: int | str | None = None, event: str | None = None) -> bytes:
    """One event. `data` is JSON without line breaks, which JSON encoders never write outside of strings."""
    head = b"" if id is None else b"id: %s\n" % str(id).encode()
    named = b"" if event is None else b"event: %s\n" % event.encode()
    return b"%s%sdata: %s\n\n" % (head, named, data)


class EventSource(Protocol):
    """What a stream response sends."""

    def frames(self) -> AsyncGenerator[bytes, None]:
        """The frames; the end of the iteration is the end of the response."""
        ...

    def farewell(self) -> bytes:
        """What a reader is told when the server has to leave before the end."""
        ...


class EventStreamResponse:
    """An ASGI response that follows an event source.

    It reads on once the network has taken what was read, so a slow reader buffers no more than a batch and slows nobody
    else. During silence it sends keep-alive comments. It ends when the source does, when the client leaves, when the
    client accepts no bytes for too long, or when `leaving` is set, with a farewell after everything that was read.
    `when_cut` is called if the source's end was not sent.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        limits: ServerLimits,
        leaving: "Leaving",
        headers: dict[str, str] | None = None,
        when_cut: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._limits = limits
        self._leaving = leaving
        self._headers = headers or {}
        self._when_cut = when_cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **self._headers,
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        batch = _Batch()
        # Created first, before the tasks that watch over the stream, because a reader waits for it.
        collecting = asyncio.create_task(batch.collect(self._source.frames()))
        pump = asyncio.create_task(self._pump(batch, send))
        gone = asyncio.create_task(disconnected(receive))
        tasks = (pump, collecting, gone)
        try:
            await asyncio.wait((pump, gone, self._leaving.future()), return_when=asyncio.FIRST_COMPLETED)
            if not pump.done() and not gone.done():
                # What was read goes out before the farewell, which says how far that is.
                collecting.cancel()
                await asyncio.wait((pump, gone), timeout=FAREWELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A client that left during the last send may not have received it, because a server accepts bytes for a
            # client that is gone.
            has_left = gone.done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            is_whole = _succeeded(pump) and _succeeded(collecting)
            if self._when_cut is not None and (has_left or not is_whole):
                self._when_cut()
        if has_left:
            return
        for task in (pump, collecting):
            problem = None if task.cancelled() else task.exception()
            if problem is not None and not isinstance(problem, TimeoutError):
                log_exception("stream.failed", problem, path=scope.get("path"))
        if not _succeeded(pump):
            # The reader lacks some of what was read. A broken connection says so, a farewell would not.
            return
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if not is_whole:
                    await send({"type": "http.response.body", "body": self._source.farewell(), "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, batch: "_Batch", send: Send) -> None:
        """Send everything that is available at once, so that a lagging reader catches up in a few large pieces."""
        while (body := await self._next(batch)) is not None:
            async with asyncio.timeout(self._limits.stalled_reader_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _next(self, batch: "_Batch") -> bytes | None:
        """The next bytes to send; after a silence a comment, so that no proxy takes the silence for the end."""
        if not batch.is_filled:
            try:
                async with asyncio.timeout(self._limits.keep_alive_seconds):
                    await batch.wait()
            except TimeoutError:
                return KEEP_ALIVE
        return batch.take()


class Leaving:
    """Whether the instance is shutting down; all its streams wait for one future."""

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def future(self) -> asyncio.Future[None]:
        """Done when the instance shuts down."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._is_set:
                self._future.set_result(None)
        return self._future


class _Batch:
    """Frames to be sent: as many as come without waiting, up to a bound.

    The bound starts low, so that the first frame does not wait for those after it, and doubles each time.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._bytes = 0
        self._most = 512
        self._ended = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    async def collect(self, frames: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(frames):
                async for body in frames:
                    self._frames.append(body)
                    self._bytes += len(body)
                    self._filled.set()
                    if self._bytes >= self._most:
                        self._taken.clear()
                        await self._taken.wait()
        finally:
            self._ended = True
            self._filled.set()

    @property
    def is_filled(self) -> bool:
        """Whether there is something to take, or the end was reached."""
        return self._filled.is_set()

    async def wait(self) -> None:
        """Wait until there is something to take, or the end was reached."""
        await self._filled.wait()

    def take(self) -> bytes | None:
        """What was collected since the last call; None at the end."""
        if not self._frames:
            return None
        body = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        self._most = min(self._most * 2, BATCH_BYTES)
        if not self._ended:
            self._filled.clear()
        self._taken.set()
        return body


def _succeeded(task: asyncio.Task[None]) -> bool:
    """Whether a finished task ended by itself, without an error."""
    return not task.cancelled() and task.exception() is None


async def disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
