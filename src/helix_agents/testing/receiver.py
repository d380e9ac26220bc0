"""A receiver of webhooks for tests: a real HTTP server that keeps what it was sent and answers as it is told."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self

from helix_agents.domain.records import decode_json

PATIENCE_SECONDS = 60.0


class Received(NamedTuple):
    """One message as it arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def message(self) -> dict[str, Any]:
        """The body, decoded."""
        found: Any = decode_json(self.body)
        return found

    @property
    def type(self) -> str:
        return self.message["type"]

    @property
    def data(self) -> dict[str, Any]:
        return self.message["data"]


class Receiver:
    """Listens on a free port of this machine while its block lasts.

    `answer` is the status of its answers, or a function of the message; `headers` are sent with them. While `hold` is
    cleared, messages are taken and not answered.
    """

    def __init__(self, answer: int | Callable[[Received], int] = 204) -> None:
        self.answer = answer
        self.headers: dict[str, str] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.received: list[Received] = []
        self.url = ""
        self._came = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def listen(self, port: int = 0) -> int:
        """Listen, on the port of an earlier time if one is given; returns the port."""
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/hook"
        return port

    async def stop(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._talks):
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def until(self, count: int) -> list[Received]:
        """The messages, as soon as there are this many."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._came:
            await self._came.wait_for(lambda: len(self.received) >= count)
        return self.received

    @property
    def types(self) -> list[str]:
        """The events, in the order in which they arrived."""
        return [each.type for each in self.received]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            # Cancelled when it stops; the task belongs to the event loop, which would report that as an error.
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    received = await _read(reader)
                    await self._keep(received)
                    await self.hold.wait()
                    status = self.answer if isinstance(self.answer, int) else self.answer(received)
                    more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
                    writer.write(f"HTTP/1.1 {status} Answer\r\n{more}content-length: 0\r\n\r\n".encode())
                    await writer.drain()
        finally:
            self._talks.discard(task)
            writer.close()

    async def _keep(self, received: Received) -> None:
        async with self._came:
            self.received.append(received)
            self._came.notify_all()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(head[0].split(" ")[1], headers, body)
