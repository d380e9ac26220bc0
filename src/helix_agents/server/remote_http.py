"""Requests to another service, made and read with distrust: time, sizes and addresses are bounded."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
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

ReadT = TypeVar("ReadT")

# Statuses that mean: try again later.
_LATER = frozenset((408, 425, 429, 500, 502, 503, 504))
_LARGE_BYTES = 200_000
# 204 is the response to a deletion.
_TAKEN = (200, 204)


OPENED = Event("open", None, b"")
"""What `events` yields before the first event of the server."""


def _check_address(subject: str, url: str) -> None:
    # Anything could have been passed.
    parts = urlsplit(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if parts is not None and (parts.username or parts.password):
        raise DefinitionError(subject, f"the address of {parts.hostname} has credentials in it; give them as token=….")
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        guess = f"http://{url}"
        is_close = parts is not None and "://" not in url and urlsplit(guess).hostname
        cure = f"write {guess!r}, or https" if is_close else "write one like 'https://example.com'"
        raise DefinitionError(subject, f"{url!r} is not an http or https address; {cure}.")


class RemoteHttp:
    """The requests of one transport or client.

    It holds no connection between two requests, so all loops and threads of a process can share it, and it does not
    need to be closed; unless `open_pool` was called. Redirects are not followed, so that a token is only sent to the
    address that was asked.
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
        answer_bytes: int,
    ) -> None:
        _check_address(subject, url)
        self._httpx2 = _httpx2(subject)
        self.url = url.rstrip("/")
        self._subject = subject
        self._headers: Headers = headers or {}
        self._token = token
        for name, value in self._sent({} if callable(self._headers) else self._headers).items():
            check_header(subject, name, value)
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._answer_bytes = answer_bytes
        self._tls: ssl.SSLContext | None = None
        self._pool: httpx2.AsyncClient | None = None

    async def open_pool(self) -> None:
        """Keep connections open from now on, for the running event loop alone."""
        limits = self._httpx2.Limits(max_connections=None)
        self._pool = self._httpx2.AsyncClient(verify=await self._verify(self.url), limits=limits)

    async def close_pool(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    async def ask(
        self,
        method: str,
        address: str,
        body: dict[str, JSON] | None,
        extra: Mapping[str, str],
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """The object that the service answers with; an empty answer is an empty object.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: there is no usable answer.
        """
        patience = seconds or self._answer_seconds
        try:
            # Limits the whole response: one that trickles in keeps every single read within its own limit.
            async with asyncio.timeout(patience):
                async with self.response(method, address, body, extra, patience) as response:
                    raw = await self.body(response)
        except TimeoutError:
            raise RemoteUnavailableError(self.url, f"no answer within {patience:g} s") from None
        if not raw.strip():
            return {}
        read = partial(self.read, lambda: read_json(raw))
        # Decoding a large response would block the event loop.
        value: Any = read() if len(raw) < _LARGE_BYTES else await asyncio.to_thread(read)
        if not isinstance(value, dict):
            raise RemoteProtocolError(self.url, "it sent an answer that is not an object")
        return cast("dict[str, Any]", value)

    @asynccontextmanager
    async def response(
        self, method: str, address: str, body: dict[str, JSON] | None, extra: Mapping[str, str], silence: float
    ) -> "AsyncGenerator[httpx2.Response, None]":
        """The response's head, with its body still to come; a refusal raises.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: there is no usable response.
        """
        httpx2 = self._httpx2
        timeout = httpx2.Timeout(silence, connect=self._connect_seconds)
        headers = {"accept-encoding": "identity", **await self._identity(), **extra}
        content = None if body is None else encode(body)
        if content is not None:
            headers["content-type"] = "application/json"
        try:
            async with (
                self._client(await self._verify(address)) as client,
                client.stream(method, address, content=content, headers=headers, timeout=timeout) as response,
            ):
                if response.status_code not in _TAKEN:
                    raise self._refusal(response.status_code, await self.body(response))
                yield response
        except httpx2.InvalidURL as problem:
            raise RemoteProtocolError(self.url, str(problem)) from None
        except httpx2.HTTPError as problem:
            reason = f"{type(problem).__name__} {problem}".strip()
            raise RemoteUnavailableError(self.url, reason) from None

    async def events(
        self, address: str, extra: Mapping[str, str], *, silence: float, most_bytes: int
    ) -> AsyncGenerator[Event, None]:
        """The server-sent events of a route, until the service ends the response. The first one, `OPENED`, says that
        it has begun to answer.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: they cannot be read.
        """
        async with self.response("GET", address, None, extra, silence) as response:
            yield OPENED
            try:
                async for event in read_events(response.aiter_raw(), most_bytes):
                    yield event
            except NotOursError as problem:
                raise RemoteProtocolError(self.url, str(problem)) from None

    def read(self, read: Callable[[], ReadT]) -> ReadT:
        """What a reader makes of an answer.

        Raises:
            RemoteProtocolError: it is not what such a service writes.
        """
        try:
            return read()
        except NotOursError as problem:
            raise RemoteProtocolError(self.url, str(problem)) from None

    @asynccontextmanager
    async def _client(self, verify: "ssl.SSLContext | bool") -> "AsyncGenerator[httpx2.AsyncClient, None]":
        if self._pool is not None:
            yield self._pool
            return
        async with self._httpx2.AsyncClient(verify=verify) as client:
            yield client

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

    async def _verify(self, address: str) -> "ssl.SSLContext | bool":
        """The TLS context, created once because reading the certificates takes a while."""
        if urlsplit(address).scheme != "https":
            return False
        tls = self._tls
        if tls is None:
            tls = self._tls = await asyncio.to_thread(
                cast("Callable[[], ssl.SSLContext]", self._httpx2.create_ssl_context)
            )
        return tls

    async def body(self, response: "httpx2.Response") -> bytes:
        """The whole body of a response, if it is not too long.

        Raises:
            RemoteProtocolError: it is.
        """
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
