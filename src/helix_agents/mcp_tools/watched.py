"""Watches the streams to and from a server: their end is noticed, and an unreadable answer reaches its caller."""

import asyncio
import logging
import re
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.texts import storable
from helix_agents.engine.log import log_event
from helix_agents.mcp_tools.troubles import marked

_LONGEST = 300
_IS_ANSWER = re.compile(r'^\s*\{.*"jsonrpc"', re.DOTALL)
_ID = re.compile(r'"id"\s*:\s*(\d+|"[^"]*")')


class Watched:
    """What comes from a server and what goes to it. `ended` is set when nothing more can come.

    What a server prints outside the protocol is ignored. What looks like an answer but cannot be read is the answer to
    the request that it names, or to the only open one: it becomes an error of ours for that call alone, which would
    otherwise wait for it until its time is up.
    """

    def __init__(self, server: str, reading: Any, writing: Any, secret: str) -> None:
        self._server = server
        self._secret = secret
        self._open: set[int | str] = set()
        self.ended = asyncio.Event()
        self.reading = _Reading(reading, self)
        self.writing = _Writing(writing, self)

    def goes(self, sent: SessionMessage) -> None:
        """Remember a request."""
        if isinstance(sent.message, types.JSONRPCRequest):
            self._open.add(sent.message.id)

    def comes(self, item: Any) -> Any:
        """What the protocol's client should see of what came."""
        if isinstance(item, SessionMessage):
            if isinstance(item.message, (types.JSONRPCResponse, types.JSONRPCError)) and item.message.id is not None:
                self._open.discard(item.message.id)
            return item
        line = _line_of(item)
        asked = self._asked_by(line)
        if asked is None:
            return item
        self._open.discard(asked)
        came = storable(line.strip(), _LONGEST)
        log_event("mcp.unreadable", logging.WARNING, server=self._server, line=came)
        error = types.ErrorData(**marked(self._secret, "protocol", f"its answer cannot be read: {came}"))
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=asked, error=error))

    def _asked_by(self, line: str) -> int | str | None:
        """The open request that an unreadable line answers, if it is an answer."""
        if not _IS_ANSWER.match(line):
            return None
        named = [decode_json(each.encode()) for each in _ID.findall(line)]
        meant = next((each for each in named if each in self._open), None)
        if meant is None and not named and len(self._open) == 1:
            return next(iter(self._open))
        return meant


class _Reading:
    """What comes, with a signal at its end."""

    def __init__(self, stream: Any, watched: Watched) -> None:
        self._stream = stream
        self._watched = watched

    async def receive(self) -> Any:
        try:
            return self._watched.comes(await self._stream.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._watched.ended.set()
            raise

    async def aclose(self) -> None:
        self._watched.ended.set()
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Writing:
    """What goes."""

    def __init__(self, stream: Any, watched: Watched) -> None:
        self._stream = stream
        self._watched = watched

    async def send(self, item: SessionMessage) -> None:
        self._watched.goes(item)
        await self._stream.send(item)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _line_of(item: object) -> str:
    """What came instead of a message, as far as the library tells."""
    if not isinstance(item, ValidationError):
        return ""
    given = item.errors(include_url=False, include_context=False)[0]["input"]
    return given if isinstance(given, str) else encode(given).decode()
