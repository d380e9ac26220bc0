"""A session with a server, on the official SDK: the calls we make, and what its errors mean to us."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pydantic import TypeAdapter, ValidationError

from helix_agents import __version__
from helix_agents.domain.records import JSON
from helix_agents.mcp_tools.carrier import MOST_BYTES, Carrier
from helix_agents.mcp_tools.child_process import child_process
from helix_agents.mcp_tools.connections import Address, Progress
from helix_agents.mcp_tools.troubles import CallRefused, Trouble, TroubleMet, first_in, in_words, trouble_in
from helix_agents.mcp_tools.watched import Watched

T = TypeVar("T")

MOST_PAGES = 100
MOST_COMPLAINTS = 3
"""How many of a program's last lines are shown if it could not be reached."""
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class Session:
    """An open session. `ended` is set when nothing more can come from the server."""

    def __init__(self, session: ClientSession, ended: asyncio.Event, secret: str) -> None:
        self._session = session
        self._secret = secret
        self.ended = ended

    async def call(
        self, tool: str, arguments: Mapping[str, JSON], meta: dict[str, Any], progress: Progress
    ) -> types.CallToolResult:
        """The server's answer to a call. Cancelling the caller cancels the call at the server.

        Raises:
            TroubleMet: there is no answer.
            CallRefused: the answer is a refusal.
        """
        about = cast("types.RequestParamsMeta", meta)
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=about)
        request = types.CallToolRequest(params=params)

        async def send() -> types.CallToolResult | types.InputRequiredResult:
            return await self._session.send_request(request, _ANSWER, progress_callback=progress)

        try:
            answer = await self._asking(send)
        except CallRefused as refused:
            if refused.code != types.HEADER_MISMATCH:
                raise
            # It wants some arguments as headers as well; its list says which. It has not started the call.
            await self.list()
            answer = await self._asking(send)
        if isinstance(answer, types.InputRequiredResult):
            raise TroubleMet("refused", "it asks for input during the call, which cannot be given here")
        return answer

    async def list(self) -> list[dict[str, Any]]:
        """Everything that the server offers; raises like `call`."""
        found: dict[str, dict[str, Any]] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            asked = types.PaginatedRequestParams(cursor=cursor)
            page = await self._asking(lambda asked=asked: self._session.list_tools(params=asked))
            for tool in page.tools:
                found[tool.name] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
            cursor = page.next_cursor
            if cursor is None:
                return list(found.values())
        raise TroubleMet("protocol", f"its list of tools does not end after {MOST_PAGES} pages")

    async def resources(self, cursor: str | None) -> tuple[types.ListResourcesResult, Sequence[types.ResourceTemplate]]:
        """A page of the server's resources, and with the first page its templates; raises like `call`."""
        asked = types.PaginatedRequestParams(cursor=cursor)
        page = await self._asking(lambda: self._session.list_resources(params=asked))
        if cursor is not None:
            return page, ()
        try:
            found = await self._asking(self._session.list_resource_templates)
        except CallRefused:
            # A server may have resources, and know no templates.
            return page, ()
        return page, found.resource_templates

    async def read(self, uri: str) -> types.ReadResourceResult:
        """The contents of a resource; raises like `call`."""
        return await self._asking(lambda: self._session.read_resource(uri))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> types.GetPromptResult:
        """A prompt, filled in; raises like `call`."""
        return await self._asking(lambda: self._session.get_prompt(name, dict(arguments)))

    async def _asking(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self.ended.is_set():
            raise TroubleMet("not_sent", "the connection is closed")
        try:
            return await ask()
        except MCPError as problem:
            met = trouble_in(self._secret, problem.data, problem.message)
            if met is not None:
                raise met from None
            if problem.code == types.CONNECTION_CLOSED:
                raise TroubleMet("lost", "the connection was closed during the call") from problem
            if problem.code == types.PARSE_ERROR:
                raise TroubleMet("protocol", "its answer cannot be read") from problem
            raise CallRefused(problem.code, problem.message) from problem
        except (ValidationError, RuntimeError) as problem:
            raise TroubleMet("protocol", in_words(problem).partition("\n")[0]) from problem


@asynccontextmanager
async def open_session(server: str, address: Address, secret: str) -> AsyncGenerator[Session]:
    """A session with a server at an address.

    Raises:
        TroubleMet: it cannot be opened; says why.
    """
    opened = False
    complaints: deque[str] = deque(maxlen=MOST_COMPLAINTS)
    try:
        async with _streams(server, address, secret, complaints) as (reading, writing):
            watched = Watched(server, reading, writing, secret)
            about = types.Implementation(name="helix-agents", version=__version__)
            async with Client(_held(watched.reading, watched.writing), client_info=about, cache=None) as client:
                opened = True
                yield Session(client.session, watched.ended, secret)
    except (Exception, BaseExceptionGroup) as problem:
        if opened:
            raise
        first = first_in(problem)
        if isinstance(first, TimeoutError):
            raise
        aside = f"it said: {' / '.join(complaints)}" if complaints else ""
        raise TroubleMet(*_why_not(first, secret), early=True, aside=aside) from problem


@asynccontextmanager
async def _streams(server: str, address: Address, secret: str, complaints: deque[str]) -> AsyncGenerator[Any]:
    if address.url is None:
        async with child_process(server, address.command, address.env, address.cwd, complaints) as streams:
            yield streams
        return
    # Reading the certificates takes a while.
    carrier = await asyncio.to_thread(Carrier, server, address.headers, secret)
    async with (
        carrier,
        streamable_http_client(address.url, http_client=carrier, max_sse_event_size=MOST_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _held(reading: Any, writing: Any) -> AsyncGenerator[Any]:
    yield reading, writing


def _why_not(problem: BaseException, secret: str) -> tuple[Trouble, str]:
    """Why there is no session, as far as known."""
    match problem:
        case TroubleMet():
            return problem.trouble, problem.reason
        case MCPError():
            met = trouble_in(secret, problem.data, problem.message)
            if met is not None:
                # No call was on its way yet that could be lost.
                return "unavailable" if met.trouble == "lost" else met.trouble, met.reason
            if problem.code == types.UNSUPPORTED_PROTOCOL_VERSION:
                return "protocol", "it speaks no version of the protocol that is supported here"
            if problem.code == types.CONNECTION_CLOSED:
                return "unavailable", "it ended before it was ready"
            return "refused", problem.message
        case FileNotFoundError() | PermissionError():
            return "unavailable", f"its program cannot be started: {problem.strerror}"
        case RuntimeError() | ValidationError():
            return "protocol", in_words(problem).partition("\n")[0]
        case _:
            return "unavailable", in_words(problem)
