"""Connections to a server: one for each event loop, opened by the first call, shared by all, replaced when lost."""

import asyncio
import contextvars
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from helix_agents.domain.errors import MissingExtraError
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_event, log_exception
from helix_agents.mcp_tools.troubles import TroubleMet, first_in, in_words

if TYPE_CHECKING:
    import mcp_types as types

    from helix_agents.mcp_tools.protocol import Session

T = TypeVar("T")


class Progress(Protocol):
    """Receives the progress of a call."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


WAITS = (0.0, 0.3, 1.0)
"""How long to wait before a call is sent once more, in seconds: a service that is restarted is back soon."""

# How long leaving may take: the protocol's own steps to end a program take up to five seconds.
LEAVE_SECONDS = 10.0


class Connections:
    """The connections to one server from this process. Creating this opens nothing."""

    def __init__(self, server: str, connect: "Connect", connect_seconds: float) -> None:
        self._server = server
        self._connect = connect
        self._connect_seconds = connect_seconds
        self._open: dict[asyncio.AbstractEventLoop, Connection] = {}

    async def call(
        self, tool: str, arguments: Mapping[str, JSON], meta: dict[str, Any], progress: Progress, *, repeatable: bool
    ) -> "types.CallToolResult":
        """The server's answer to a call.

        A call that the server has certainly not started is sent again, over a new connection; a call that it may have
        started is sent once more if repeating it does no harm.

        Raises:
            TroubleMet: there is no answer.
            CallRefused: the answer is a refusal.
        """
        return await self._asking(lambda session: session.call(tool, arguments, meta, progress), repeatable=repeatable)

    async def list(self) -> list[dict[str, Any]]:
        """Everything that the server offers; raises like `call`."""
        return await self._asking(lambda session: session.list(), repeatable=True)

    async def close(self) -> None:
        """End the connections that are not in use, and those in use with their last call; idempotent."""
        here = asyncio.get_running_loop()
        for loop, connection in list(self._open.items()):
            self._open.pop(loop, None)
            if loop is here:
                await connection.leave()
            elif loop.is_running():
                leaving = asyncio.run_coroutine_threadsafe(connection.leave(), loop)
                async with asyncio.timeout(LEAVE_SECONDS):
                    await asyncio.wrap_future(leaving)

    async def _asking(self, ask: "Callable[[Session], Awaitable[T]]", *, repeatable: bool) -> T:
        waits = iter(WAITS)
        may_repeat = repeatable
        while True:
            connection = self._connection()
            try:
                async with connection.session() as session:
                    return await ask(session)
            except TroubleMet as met:
                if met.trouble in ("not_sent", "session_gone", "lost"):
                    self._forget(connection)
                wait = next(waits, None)
                if wait is None or not (met.was_not_begun or (may_repeat and met.trouble == "lost")):
                    raise
                # A call that kills its server, or whose answer is too large, does so each time.
                may_repeat = may_repeat and met.was_not_begun
                log_event("mcp.connecting_again", server=self._server, reason=met.reason)
            await asyncio.sleep(wait)

    def _connection(self) -> "Connection":
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None or found.is_over:
            for other in [each for each in list(self._open) if each.is_closed()]:
                self._open.pop(other, None)
            found = self._open[loop] = Connection(self._server, self._connect, self._connect_seconds)
        return found

    def _forget(self, connection: "Connection") -> None:
        """Let the next call open another one; calls that are on this one stay on it."""
        loop = asyncio.get_running_loop()
        if self._open.get(loop) is connection:
            del self._open[loop]
        connection.leave_when_idle()


Connect = Callable[[], AbstractAsyncContextManager["Session"]]


class Connection:
    """One connection, held by its own task: the caller that opened it may be cancelled while others still use it."""

    def __init__(self, server: str, connect: Connect, connect_seconds: float) -> None:
        self._server = server
        self._connect = connect
        self._connect_seconds = connect_seconds
        self._session: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._left = asyncio.Event()
        self._leaving = False
        self._users = 0
        # Not in the context of a caller: it outlives each of them.
        self._holder = asyncio.create_task(self._hold(), name=f"mcp {server}", context=contextvars.Context())

    @property
    def is_over(self) -> bool:
        """Whether a call would have to open another connection."""
        if self._holder.done() or self._leaving:
            return True
        has_session = self._session.done() and not self._session.cancelled() and self._session.exception() is None
        return has_session and self._session.result().ended.is_set()

    @asynccontextmanager
    async def session(self) -> "AsyncGenerator[Session]":
        """The open session, for as long as the block lasts.

        Raises:
            TroubleMet: it could not be opened.
        """
        self._users += 1
        try:
            # Shielded: a caller that stops waiting leaves it to the others.
            yield await asyncio.shield(self._session)
        finally:
            self._users -= 1
            if self._leaving and self._users == 0:
                self._left.set()

    def leave_when_idle(self) -> None:
        """End it as soon as it is not in use."""
        self._leaving = True
        if self._users == 0:
            self._left.set()

    async def leave(self) -> None:
        """End it; if it is still in use, with the last call."""
        self.leave_when_idle()
        if self._left.is_set():
            _, late = await asyncio.wait((self._holder,), timeout=LEAVE_SECONDS)
            for holder in late:
                log_event("mcp.not_left", logging.WARNING, server=self._server)
                holder.cancel()

    async def _hold(self) -> None:
        try:
            async with asyncio.timeout(self._connect_seconds) as limit, self._connect() as session:
                limit.reschedule(None)
                self._session.set_result(session)
                await _first_of(self._left, session.ended)
        except asyncio.CancelledError:
            self._ended_by(TroubleMet("unavailable", "this process is shutting down", early=True))
            raise
        except (Exception, BaseExceptionGroup) as problem:
            self._ended_by(first_in(problem))

    def _ended_by(self, problem: BaseException) -> None:
        if self._session.done():
            if isinstance(problem, TroubleMet):
                return
            # Only the log can report this: calls that were on it have met their own errors.
            log_exception("mcp.connection_failed", problem, server=self._server)
            return
        met = problem
        if isinstance(problem, TimeoutError):
            met = TroubleMet("unavailable", f"no connection within {self._connect_seconds:g} s", early=True)
        elif not isinstance(problem, (TroubleMet, MissingExtraError)):
            met = TroubleMet("unavailable", in_words(problem), early=True)
        self._session.set_exception(met)
        # Retrieved, so that it is not reported as unhandled if nothing waited for it.
        self._session.exception()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


@dataclass(frozen=True, kw_only=True, repr=False)
class Address:
    """Where a server is: at a URL, or behind a command. The values may be secret, and are never shown."""

    url: str | None
    command: tuple[str, ...]
    headers: Any
    env: Mapping[str, str]
    cwd: str | None


def connecting(server: str, address: Address) -> Connect:
    """How to open a session with a server; the first one loads the protocol's library, outside the event loop."""

    @asynccontextmanager
    async def connect() -> "AsyncGenerator[Session]":
        protocol = await asyncio.to_thread(_protocol)
        async with protocol.open_session(server, address, secrets.token_hex(16)) as session:
            yield session

    return connect


def _protocol() -> ModuleType:
    try:
        import_module("mcp.client")
    except ImportError:
        raise MissingExtraError("A tool of an MCP server", "mcp") from None
    return import_module("helix_agents.mcp_tools.protocol")
