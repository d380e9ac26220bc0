"""One connection that many tasks share: commands that gather meanwhile go out together, in the order they came."""

import asyncio
from typing import Any, Protocol, cast

from helix_agents.backends.redis.errors import only_follows

from redis import exceptions  # isort: skip


class Connection(Protocol):
    """The small part of the driver's connection that is used here."""

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    async def read_response(self) -> Any: ...


Outgoing = tuple[bytes, bool, asyncio.Future[Any]]
# Precedes a command for a slot that a cluster node is about to receive; it gets an answer of its own.
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
# The encoded lengths of short parts, cached because a step commit has some forty parts.
_LENGTHS = tuple(b"$%d" % size for size in range(1_024))


def packed(command: tuple[Any, ...]) -> bytes:
    """A command in its wire format."""
    lines = [b"*%d" % len(command)]
    for part in command:
        data: bytes = part if type(part) is bytes else str(part).encode()
        size = len(data)
        lines += (_LENGTHS[size] if size < len(_LENGTHS) else b"$%d" % size, data)
    lines.append(b"")
    return b"\r\n".join(lines)


def _has_ended(connection: Connection) -> bool:
    """Whether the server has hung up in the meantime, as far as the connection has noticed."""
    reader: asyncio.StreamReader | None = getattr(connection, "_reader", None)
    return reader is not None and reader.at_eof()


class Line:
    """Commands are answered in the order they were given, and sent once.

    A task that finds the line free uses it directly. Meanwhile the commands of other tasks gather and then go out
    together, so many tasks share a round trip. When the connection is lost, or the task using it gives up, the commands
    under way fail and the next ones get a new connection. The same happens after a server said that it is only a
    replica, because the address may lead to another server by now.
    """

    def __init__(self, connection: Any, *, patience: float) -> None:
        self._connection = cast("Connection", connection)
        self._patience = patience
        self._waiting: list[Outgoing] = []
        self._busy = False
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection was up when it was last used."""
        return self._connection.is_connected

    async def send(self, *command: Any, asking: bool = False) -> Any:
        """Send a command after those given before; returns the server's reply.

        With `asking`, the command is for a slot that this cluster node is about to receive.
        """
        data = _ASKING + packed(command) if asking else packed(command)
        if self._busy:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting.append((data, asking, future))
            return await future
        self._busy = True
        try:
            async with asyncio.timeout(self._patience):
                await self._say(data)
                if asking:
                    await self._connection.read_response()
                return await self._connection.read_response()
        except exceptions.ResponseError as refusal:
            if only_follows(refusal):
                await self._connection.disconnect(nowait=True)
            raise
        except BaseException:
            # An answer may still be on its way, and no other command may mistake it for its own.
            await self._connection.disconnect(nowait=True)
            raise
        finally:
            self._busy = bool(self._waiting)
            if self._busy:
                self._pump = asyncio.create_task(self._work_off())

    async def close(self) -> None:
        """Close the connection; commands that still wait fail."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        _fail(self._waiting, exceptions.ConnectionError("the connection was closed"))
        self._waiting = []
        await self._connection.disconnect()

    async def _work_off(self) -> None:
        """Send what has gathered, again and again until nothing is left."""
        out: list[Outgoing] = []
        try:
            while self._waiting:
                out, self._waiting = self._waiting, []
                try:
                    async with asyncio.timeout(self._patience):
                        await self._say(*(data for data, _, _ in out))
                        follows = [await self._hear(asking, future) for _, asking, future in out]
                    if any(follows):
                        await self._connection.disconnect(nowait=True)
                except Exception as problem:
                    # Catch everything: the commands that gather meanwhile depend on this task.
                    await self._connection.disconnect(nowait=True)
                    _fail(out, problem)
        finally:
            _fail(out, exceptions.ConnectionError("the connection was closed"))
            self._busy = False
            self._pump = None

    async def _say(self, *data: bytes) -> None:
        connection = self._connection
        if _has_ended(connection):
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await connection.connect()
        await connection.send_packed_command(list(data), check_health=False)

    async def _hear(self, asking: bool, future: asyncio.Future[Any]) -> bool:
        """Pass the next answer on; returns whether the server says that it is only a replica."""
        if asking:
            await self._connection.read_response()
        try:
            reply = await self._connection.read_response()
        except exceptions.ResponseError as refusal:
            if not future.done():
                future.set_exception(refusal)
            return only_follows(refusal)
        if not future.done():
            future.set_result(reply)
        return False


def _fail(out: list[Outgoing], problem: Exception) -> None:
    for _, _, future in out:
        if not future.done():
            future.set_exception(problem)
