"""Requests to an agent server: sent with the caller's identity, and answered by records or by typed errors."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from helix_agents.agent.headers import Headers, check_header
from helix_agents.domain.errors import (
    DefinitionError,
    MissingExtraError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteUnavailableError,
)
from helix_agents.domain.records import JSON, encode
from helix_agents.engine.log import log_exception
from helix_agents.server.remote_wire import Event, NotOursError, read_events, read_json

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

# Statuses that mean: try again later.
_LATER = frozenset((408, 425, 429, 500, 502, 503, 504))
_LARGE_BYTES = 200_000
# 204 is the response to a deletion.
_TAKEN = (200, 204)

OPENED = Event("open", None, b"")


class ServerCaller:
    """Sends requests to one agent server.

    Without `pooled`, it holds no connection between two requests, so all loops and threads of a process can share it.
    Redirects are not followed, so that a token is only sent to one server.
    """

    def __init__(
        self,
        subject: str,
        url: str,
        *,
        token: str | None,
        headers: Headers | None,
        connect_seconds: float,
        answer_seconds: float,
        silence_seconds: float,
        answer_bytes: int,
        event_bytes: int,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise DefinitionError(
                subject,
                f"{url!r} is not an http or https address without credentials; give credentials as token=….",
            )
        self.url = url.rstrip("/")
        self._subject = subject
        self._httpx2 = _httpx2(subject)
        self._secure = parts.scheme == "https"
        self._headers: Headers = headers or {}
        self._token = token
        for name, value in self._sent({} if callable(self._headers) else self._headers).items():
            check_header(subject, name, value)
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._answer_bytes = answer_bytes
        self._event_bytes = event_bytes
        self._tls: ssl.SSLContext | None = None
        self._pool: httpx2.AsyncClient | None = None

    async def open_pool(self) -> None:
        """Keep connections from now on. Only the running event loop may use this object then."""
        self._pool = self._httpx2.AsyncClient(
            verify=await self._verify(), limits=self._httpx2.Limits(max_connections=None)
        )

    async def close_pool(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        waits: float = 0.0,
    ) -> dict[str, Any]:
        """The JSON object that a route answers with; empty if it answers with nothing. A route that `waits` may take so
        many seconds longer.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: there is no usable answer.
        """
        seconds = self._answer_seconds + waits
        try:
            # Limits the whole response: one that trickles in keeps every single read within its own limit.
            async with asyncio.timeout(seconds):
                async with self._response(method, path, body, seconds, headers) as response:
                    raw = await self._body(response)
        except TimeoutError:
            raise RemoteUnavailableError(self.url, f"no answer within {seconds:g} s") from None
        if not raw.strip():
            return {}
        read = partial(self.read, lambda: read_json(raw))
        # Decoding a large response would block the event loop.
        value = read() if len(raw) < _LARGE_BYTES else await asyncio.to_thread(read)
        if not isinstance(value, dict):
            raise RemoteProtocolError(self.url, "it sent an answer that is not an object")
        return cast("dict[str, Any]", value)

    async def events(self, path: str, *, headers: Mapping[str, str] | None = None) -> AsyncGenerator[Event, None]:
        """The server-sent events of a route, until the server ends the response; the first says that it has begun.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: they cannot be had, or broke off.
        """
        async with self._response("GET", path, None, self._silence_seconds, headers) as response:
            yield OPENED
            try:
                async for event in read_events(response.aiter_raw(), self._event_bytes):
                    yield event
            except NotOursError as problem:
                raise RemoteProtocolError(self.url, str(problem)) from None

    def read(self, read: Callable[[], T]) -> T:
        """What `read` makes of something that the server sent.

        Raises:
            RemoteProtocolError: it is not what an agent server sends.
        """
        try:
            return read()
        except NotOursError as problem:
            raise RemoteProtocolError(self.url, str(problem)) from None

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None,
        silence: float,
        headers: Mapping[str, str] | None,
    ) -> "AsyncGenerator[httpx2.Response, None]":
        """The response's head, with its body still to come; a refusal raises."""
        httpx2 = self._httpx2
        timeout = httpx2.Timeout(silence, connect=self._connect_seconds)
        sent = {"accept-encoding": "identity", **await self._identity(), **(headers or {})}
        content = None if body is None else encode(body)
        if content is not None:
            sent["content-type"] = "application/json"
        pool = self._pool
        try:
            async with (
                nullcontext(pool) if pool is not None else httpx2.AsyncClient(verify=await self._verify()) as client,
                client.stream(method, f"{self.url}{path}", content=content, headers=sent, timeout=timeout) as response,
            ):
                if response.status_code not in _TAKEN:
                    raise self._refusal(response.status_code, await self._body(response))
                yield response
        except httpx2.InvalidURL as problem:
            raise RemoteProtocolError(self.url, str(problem)) from None
        except httpx2.HTTPError as problem:
            reason = f"{type(problem).__name__} {problem}".strip()
            raise RemoteUnavailableError(self.url, reason) from None

    async def _identity(self) -> dict[str, str]:
        return await self._renewed(self._headers) if callable(self._headers) else self._sent(self._headers)

    async def _renewed(self, headers: Callable[[], Awaitable[Mapping[str, str]]]) -> dict[str, str]:
        """Freshly made headers. If that fails, the service counts as unreachable; the reason goes only to the log."""
        try:
            sent = self._sent(await headers())
            for name, value in sent.items():
                check_header(self._subject, name, value)
        except Exception as problem:
            log_exception("subagent.headers_failed", problem, url=self.url)
            raise RemoteUnavailableError(self.url, "the headers for it could not be made") from None
        return sent

    def _sent(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {name.lower(): value for name, value in given.items()}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        return headers

    async def _verify(self) -> "ssl.SSLContext | bool":
        """The TLS context, created once because reading the certificates takes a while."""
        if not self._secure:
            return False
        tls = self._tls
        if tls is None:
            tls = self._tls = await asyncio.to_thread(
                cast("Callable[[], ssl.SSLContext]", self._httpx2.create_ssl_context)
            )
        return tls

    async def _body(self, response: "httpx2.Response") -> bytes:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > self._answer_bytes:
                raise RemoteProtocolError(self.url, f"it sent an answer of more than {self._answer_bytes} bytes")
        return bytes(body)

    def _refusal(self, status: int, raw: bytes) -> RemoteUnavailableError | RemoteRefusedError:
        try:
            told = read_json(raw)
        except NotOursError:
            told = None
        about = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        code = str(about.get("code", f"http_{status}"))[:100]
        detail = str(about.get("detail") or about.get("error") or "no reason given")[:1_000]
        if status in _LATER:
            return RemoteUnavailableError(self.url, f"{status} {code}: {detail}")
        return RemoteRefusedError(self.url, status, code, detail)


def _httpx2(subject: str) -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtraError(subject, "remote") from None
    return httpx2
