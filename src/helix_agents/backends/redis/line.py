"""One connection that many tasks share: what they send meanwhile goes out together, in the order it came."""

import asyncio
from typing import Any, Protocol, cast

from redis import exceptions  # isort: skip


class Connection(Protocol):
    """The little of the driver's connection that is used here."""

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    async def read_response(self) -> Any: ...


Outgoing = tuple[bytes, asyncio.Future[Any]]


def packed(command: tuple[Any, ...]) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(command)]
    for part in command:
        data: bytes = part if type(part) is bytes else str(part).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _has_ended(connection: Connection) -> bool:
    """Whether the server hung up while nobody looked, as far as the connection has noticed."""
    reader: asyncio.StreamReader | None = getattr(connection, "_reader", None)
    return reader is not None and reader.at_eof()


class Line:
    """Commands are answered in the order they were given. A caller that gives up does not disturb the others.

    While answers are awaited new commands gather, so many tasks share a round trip, and one task waits for nobody. A
    command is sent once: when the connection is lost, those that were out fail, and the next ones get a new one.
    """

    def __init__(self, connection: Any, *, patience: float) -> None:
        self._connection = cast("Connection", connection)
        self._patience = patience
        self._waiting: list[Outgoing] = []
        self._pump: asyncio.Task[None] | None = None

    def send(self, *command: Any) -> asyncio.Future[Any]:
        """Send a command behind those given before; the future has its answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((packed(command), future))
        if self._pump is None:
            self._pump = asyncio.create_task(self._work_off())
        return future

    async def close(self) -> None:
        """Hang up; what still waits fails."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        self._fail(self._waiting, exceptions.ConnectionError("the connection was closed"))
        self._waiting = []
        await self._connection.disconnect()

    async def _work_off(self) -> None:
        connection = self._connection
        out: list[Outgoing] = []
        try:
            while self._waiting:
                out, self._waiting = self._waiting, []
                try:
                    async with asyncio.timeout(self._patience):
                        await self._talk(connection, out)
                except (exceptions.RedisError, OSError) as problem:
                    await connection.disconnect(nowait=True)
                    self._fail(out, problem)
        except BaseException as problem:
            await connection.disconnect(nowait=True)
            self._fail(out, exceptions.ConnectionError(str(problem)))
            raise
        finally:
            self._pump = None

    async def _talk(self, connection: Connection, out: list[Outgoing]) -> None:
        if _has_ended(connection):
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await connection.connect()
        await connection.send_packed_command([data for data, _ in out], check_health=False)
        for _, future in out:
            try:
                reply = await connection.read_response()
            except exceptions.ResponseError as refusal:
                if not future.done():
                    future.set_exception(refusal)
            else:
                if not future.done():
                    future.set_result(reply)

    def _fail(self, out: list[Outgoing], problem: Exception) -> None:
        for _, future in out:
            if not future.done():
                future.set_exception(problem)
