"""Connections to a server: opened by the first call, shared by all with the same credentials, replaced when lost."""

import asyncio
import contextvars
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

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

IDLE_SECONDS = 60.0
"""How long a connection with the credentials of a run is kept for the next call that has the same."""

# How long leaving may take: the protocol's own steps to end a program take up to five seconds.
LEAVE_SECONDS = 10.0


class Connections:
    """The connections to one server from this process. Creating this opens nothing."""

    def __init__(self, server: str, connect: "Connect", connect_seconds: float) -> None:
        self._server = server
        self._connect = connect
        self._connect_seconds = connect_seconds
        self._open: dict[Place, Connection] = {}

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, JSON],
        meta: dict[str, Any],
        progress: Progress,
        *,
        repeatable: bool,
        fresh: "Fresh | None" = None,
    ) -> "types.CallToolResult":
        """The server's answer to a call. With `fresh`, its headers are the caller's own, and only calls with the same
        headers share its connection.

        A call that the server has certainly not started is sent again, over a new connection; a call that it may have
        started is sent once more if repeating it does no harm. A call whose own headers are not accepted is sent once
        more if fresh ones are others.

        Raises:
            TroubleMet: there is no answer.
            CallRefused: the answer is a refusal.
        """
        return await self._asking(
            lambda session: session.call(tool, arguments, meta, progress), repeatable=repeatable, fresh=fresh
        )

    async def read(self, ask: "Callable[[Session], Awaitable[T]]", fresh: "Fresh | None" = None) -> T:
        """The answer to a question that changes nothing at the server; raises like `call`."""
        return await self._asking(ask, repeatable=True, fresh=fresh)

    async def close(self) -> None:
        """End the connections that are not in use, and those in use with their last call; idempotent."""
        here = asyncio.get_running_loop()
        ours: list[Connection] = []
        for (loop, given), connection in list(self._open.items()):
            self._open.pop((loop, given), None)
            if loop is here:
                ours.append(connection)
            elif loop.is_running():
                leaving = asyncio.run_coroutine_threadsafe(connection.leave(), loop)
                async with asyncio.timeout(LEAVE_SECONDS):
                    await asyncio.wrap_future(leaving)
        await asyncio.gather(*(each.leave() for each in ours))

    async def _asking(
        self, ask: "Callable[[Session], Awaitable[T]]", *, repeatable: bool, fresh: "Fresh | None" = None
    ) -> T:
        waits = iter(WAITS)
        may_repeat = repeatable
        given = None if fresh is None else await fresh()
        while True:
            connection = self._connection(given)
            try:
                async with connection.session() as session:
                    return await ask(session)
            except TroubleMet as met:
                if met.trouble in ("not_sent", "session_gone", "unauthorized", "lost"):
                    self._forget(connection)
                if met.trouble == "unauthorized" and fresh is not None:
                    refused, given = given, await fresh()
                    if given == refused:
                        raise
                    log_event("mcp.credentials_again", server=self._server)
                    fresh = None
                    continue
                wait = next(waits, None)
                if wait is None or not (met.was_not_begun or (may_repeat and met.trouble == "lost")):
                    raise
                # A call that kills its server, or whose answer is too large, does so each time.
                may_repeat = may_repeat and met.was_not_begun
                log_event("mcp.connecting_again", server=self._server, reason=met.reason)
            await asyncio.sleep(wait)

    def _connection(self, given: "Given | None") -> "Connection":
        loop = asyncio.get_running_loop()
        place = loop, None if given is None else tuple(sorted(given.items()))
        found = self._open.get(place)
        if found is None or found.is_over:
            for other in [each for each in list(self._open) if each[0].is_closed()]:
                self._open.pop(other, None)
            forget = None if given is None else self._forget
            connect = partial(self._connect, given)
            found = Connection(self._server, connect, self._connect_seconds, place, forget)
            self._open[place] = found
        return found

    def _forget(self, connection: "Connection") -> None:
        """Let the next call open another one; calls that are on this one stay on it."""
        if self._open.get(connection.place) is connection:
            del self._open[connection.place]
        connection.leave_when_idle()


Given: TypeAlias = Mapping[str, str]
Fresh: TypeAlias = Callable[[], Awaitable[Given]]
"""Makes the headers of a call, once more each time."""
Place: TypeAlias = tuple[asyncio.AbstractEventLoop, tuple[tuple[str, str], ...] | None]
"""What has a connection of its own: an event loop, and the headers of a run if it has any."""

Connect: TypeAlias = Callable[[Given | None], AbstractAsyncContextManager["Session"]]
"""Opens a session with these headers, or with those of the server's definition."""


class Connection:
    """One connection, held by its own task: the caller that opened it may be cancelled while others still use it. With
    `when_idle`, that is called once nobody has used it for a while."""

    def __init__(
        self,
        server: str,
        connect: Callable[[], AbstractAsyncContextManager["Session"]],
        connect_seconds: float,
        place: Place,
        when_idle: "Callable[[Connection], None] | None" = None,
    ) -> None:
        self.place = place
        self._when_idle = when_idle
        self._idle: asyncio.TimerHandle | None = None
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
        self._stop_the_clock()
        try:
            # Shielded: a caller that stops waiting leaves it to the others.
            yield await asyncio.shield(self._session)
        finally:
            self._users -= 1
            if self._leaving and self._users == 0:
                self._left.set()
            elif self._when_idle is not None and self._users == 0:
                loop, nothing = asyncio.get_running_loop(), contextvars.Context()
                self._idle = loop.call_later(IDLE_SECONDS, self._when_idle, self, context=nothing)

    def leave_when_idle(self) -> None:
        """End it as soon as it is not in use."""
        self._leaving = True
        self._stop_the_clock()
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

    def _stop_the_clock(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

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
    async def connect(given: Given | None) -> "AsyncGenerator[Session]":
        protocol = await asyncio.to_thread(_protocol)
        there = address if given is None else replace(address, headers=given)
        async with protocol.open_session(server, there, secrets.token_hex(16)) as session:
            yield session

    return connect


def _protocol() -> ModuleType:
    try:
        import_module("mcp.client")
    except ImportError:
        raise MissingExtraError("A tool of an MCP server", "mcp") from None
    return import_module("helix_agents.mcp_tools.protocol")
