"""The HTTP client under a connection: fresh headers on each request, and errors reported only to the failing call."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import msgspec

from helix_agents.agent.headers import Headers, check_header
from helix_agents.domain.records import encode
from helix_agents.domain.texts import said_by
from helix_agents.engine.log import log_exception
from helix_agents.mcp_tools.troubles import Trouble, marked

CONNECT_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
IDLE_SECONDS = 2.0
"""After how long a connection is not reused; servers keep them for five seconds and more."""
MOST_BYTES = 16 << 20
"""The largest answer that is accepted."""

_SESSION = "mcp-session-id"
_SERVER_SIDE = 500
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class Carrier(httpx2.AsyncClient):
    """Sends the requests of the protocol's client.

    A request that fails gets an error of ours as its answer: if it were raised, it would end the connection and every
    other call on it.
    """

    def __init__(self, server: str, headers: Headers, secret: str) -> None:
        # Each call decides how long its answer may take.
        super().__init__(
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            # If the server closes a connection while a call is being sent, it is unclear whether the call arrived.
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            headers={"accept-encoding": "identity"},
        )
        self._server = server
        self._given = headers
        self._secret = secret

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            request.headers.update(await self._fresh())
        except Exception as problem:
            # What went wrong with a secret belongs only in its owner's log.
            log_exception("mcp.headers_failed", problem, server=self._server)
            return self._answer(request, "unavailable", "its request headers could not be made")
        if request.method == "DELETE":
            # The closing message: it is not worth a long wait.
            async with asyncio.timeout(GOODBYE_SECONDS):
                return await super().send(request, **options)
        if request.method != "POST":
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
            return await self._looked_at(request, response)
        except _NOT_SENT as problem:
            return self._answer(request, "not_sent", _reason(problem))
        except httpx2.HTTPError as problem:
            return self._answer(request, "lost", _reason(problem))

    async def _fresh(self) -> Mapping[str, str]:
        if not callable(self._given):
            return self._given
        headers = await self._given()
        for name, value in headers.items():
            check_header(f"MCP server {self._server!r}", name, value)
        return headers

    async def _looked_at(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        status = response.status_code
        if status < 400 and not is_json:
            return response
        body = await self._body(response)
        if body is None:
            return self._answer(request, "protocol", f"it sent an answer of more than {MOST_BYTES} bytes")
        if status == 404 and _SESSION in request.headers:
            return self._answer(request, "session_gone", "it has forgotten this connection")
        if status < 400 and not _answers(request, body):
            # If it were taken for the answer to another call, it would be believed there, and this call would wait
            # forever.
            return self._answer(request, "protocol", "its answer cannot be read")
        if status < 400 or (is_json and _is_an_error(body)):
            return _with(response, request, body)
        if status in (401, 403):
            # With 401 other credentials may help, with 403 they do not.
            trouble = "unauthorized" if status == 401 else "refused"
            return self._answer(request, trouble, f"it does not accept these credentials (status {status})")
        if status in (408, 425, 429, 503):
            return self._answer(request, "unavailable", f"it asks callers to try again later (status {status})")
        if status >= _SERVER_SIDE:
            return self._answer(request, "lost", f"it failed with status {status}")
        return self._answer(request, "refused", f"it answered with status {status}")

    async def _body(self, response: httpx2.Response) -> bytes | None:
        """The whole body; None if it is too large."""
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    return None
        finally:
            await response.aclose()
        return bytes(body)

    def _answer(self, request: httpx2.Request, trouble: Trouble, reason: str) -> httpx2.Response:
        error = marked(self._secret, trouble, reason)
        return httpx2.Response(
            _SERVER_SIDE,
            headers={"content-type": "application/json"},
            content=encode({"jsonrpc": "2.0", "id": None, "error": error}),
            request=request,
        )


def _with(response: httpx2.Response, request: httpx2.Request, body: bytes) -> httpx2.Response:
    kept = [
        (name, value) for name, value in response.headers.items() if name not in ("content-encoding", "content-length")
    ]
    return httpx2.Response(response.status_code, headers=kept, content=body, request=request)


class _Head(msgspec.Struct):
    """The fields that say which request an answer is for."""

    id: int | str | None = None


def _answers(request: httpx2.Request, body: bytes) -> bool:
    asked = msgspec.json.decode(request.content, type=_Head)
    try:
        told = msgspec.json.decode(body, type=_Head)
    except msgspec.MsgspecError:
        return False
    return asked.id is None or str(told.id) == str(asked.id)


def _is_an_error(body: bytes) -> bool:
    try:
        read = json.loads(body)
    except ValueError:
        return False
    return isinstance(read, dict) and "error" in read


def _reason(problem: Exception) -> str:
    return f"{type(problem).__name__} {said_by(problem, 300)}".strip()
