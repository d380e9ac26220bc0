"""Agents of another agent server as sub-agents: a client of its routes, and nothing more."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.durations import Duration
from helix_agents.agent.headers import Headers, check_header
from helix_agents.agent.remote_agents import RemoteAgentTool, RemoteLimits, remote_tool
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.errors import (
    DefinitionError,
    MissingExtraError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteUnavailableError,
)
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import Answer, ToolAnswer
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.traces import IN_TRACE
from helix_agents.domain.usage import SourceTotal, UsageRollup
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import DEPTH
from helix_agents.ports.remote_agents import (
    AnswerRouted,
    RemoteAgentTransport,
    RemoteAnswerRefusedError,
    RemoteSession,
    RemoteStatus,
    RemoteStop,
    Resumed,
)
from helix_agents.server.remote_wire import NotOursError, read_chunk, read_events, read_json, read_record, read_status

if TYPE_CHECKING:
    import httpx2

ON_BEHALF_OF = "x-helix-on-behalf-of"
"""The header that names a session's user, if a transport is configured to send it."""

# Statuses that mean: try again later.
_LATER = frozenset((408, 425, 429, 500, 502, 503, 504))
_REASON_CHARACTERS = 1_000
_LARGE_BYTES = 200_000
# 204 is the response to a deletion.
_TAKEN = (200, 204)


def remote_agent_tool(
    url: str | RemoteAgentTransport,
    agent: str,
    *,
    description: str,
    name: str | None = None,
    input: Any = None,
    timeout: Duration | None = 3_600,
    lost_after: Duration = 300,
    limits: RemoteLimits | None = None,
    token: str | None = None,
    headers: Headers | None = None,
    available: AvailabilityPredicate | None = None,
) -> RemoteAgentTool:
    """Let an agent delegate to an agent of another service.

    The parent's stream shows what the child does; calls that it waits for can be answered at the root.

    Args:
        url: The address of the other agent server, or a transport to it.
        agent: The agent's name on that server.
        description: When to delegate, for the parent's model.
        name: The agent's name here, if it differs: the tool is `subagent__<name>`.
        input: A type whose fields the parent's model fills in. Default: a `message`.
        timeout: How long the child may work before it is stopped. Time spent waiting for people does not count.
        lost_after: How long to retry a service that does not respond before the child counts as lost.
        limits: Limits on what is accepted from one child.
        token: Sent as `Authorization: Bearer …`.
        headers: Sent with every request.
        available: Decides before each model call whether the parent's model may delegate; see `tool`.

    Raises:
        DefinitionError: a name, an option or the input cannot be used.
    """
    if isinstance(url, str):
        transport: RemoteAgentTransport = HttpRemoteAgentTransport(url, token=token, headers=headers)
    elif token is None and headers is None:
        transport = url
    else:
        raise DefinitionError(
            f"Remote agent {agent!r}", "a transport has its own token and headers; pass them to the transport."
        )
    return remote_tool(
        transport,
        agent,
        name=name,
        description=description,
        input=input,
        timeout=timeout,
        lost_after=lost_after,
        limits=limits,
        available=available,
    )


class HttpRemoteAgentTransport:
    """Speaks to an agent server over HTTP and server-sent events.

    It holds no connection between two requests, so all loops and threads of a process can share it, and it does not
    need to be closed. The user of a session is only sent with `pass_user=True`, in the header `X-Helix-On-Behalf-Of`;
    the other server's `authenticate` has to trust it. With `pass_trace=True`, the header `X-Helix-Trace` makes the
    spans of the other server part of this conversation's trace; without it, a service cannot tell which calls belong
    together. Redirects are not followed, so that a token is only sent to one server.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Headers | None = None,
        pass_user: bool = False,
        pass_trace: bool = False,
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
        silence_seconds: float = 60.0,
        answer_bytes: int = 16_000_000,
        event_bytes: int = 4_000_000,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise DefinitionError(
                "HttpRemoteAgentTransport",
                f"{url!r} is not an http or https address without credentials; give credentials as token=….",
            )
        self._httpx2 = _httpx2()
        self._url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._headers: Headers = headers or {}
        self._token = token
        for name, value in self._sent({} if callable(self._headers) else self._headers).items():
            check_header("HttpRemoteAgentTransport", name, value)
        self._pass_user = pass_user
        self._pass_trace = pass_trace
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._answer_bytes = answer_bytes
        self._event_bytes = event_bytes
        self._tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def routes_answers(self) -> bool:
        return True

    async def start(self, session: RemoteSession, message: UserMessage, *, depth: int) -> None:
        await self._post(
            session,
            "/start",
            {
                "agentType": session.agent,
                "sessionId": session.session_id,
                "message": cast("str", message.content),
                "metadata": {DEPTH: str(depth)},
            },
        )

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        try:
            answer = await self._get(session, f"/status?sessionId={quote(session.session_id, safe='')}")
        except RemoteRefusedError as refused:
            if _is_unknown(refused):
                return None
            raise
        return self._read(lambda: read_status(answer))

    async def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        path = f"/sse?sessionId={quote(session.session_id, safe='')}&fromSequence={after}"
        async with self._response(session, "GET", path, None, self._silence_seconds) as response:
            try:
                async for event in read_events(response.aiter_raw(), self._event_bytes):
                    match event.name:
                        case "message":
                            chunk = read_chunk(event)
                            if chunk is not None:
                                yield chunk
                        case "end":
                            return
                        case "error" | "reconnect":
                            break
                        case _:
                            pass
            except NotOursError as problem:
                raise RemoteProtocolError(self._url, str(problem)) from None
        raise RemoteUnavailableError(self._url, "the stream ended before the run did")

    async def submit(
        self, session: RemoteSession, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None
    ) -> AnswerRouted:
        body: dict[str, JSON] = {"sessionId": session.session_id, "toolCallId": tool_call_id}
        if isinstance(answer, ToolAnswer):
            body["kind"] = "client-tool-result"
            body |= {"result": answer.result} if answer.error is None else {"error": answer.error}
        else:
            body |= {"kind": "approval-response", "approvalId": approval_id, "approved": answer.approved}
            if answer.reason is not None:
                body["reason"] = answer.reason
            if answer.edited_input is not None:
                body["editedInput"] = answer.edited_input
        try:
            told = await self._post(session, "/submit-tool-result", body)
        except RemoteRefusedError as refused:
            if refused.refusal in ("validation_error", "payload_too_large"):
                raise RemoteAnswerRefusedError(refused.detail) from refused
            if refused.refusal == "not_found":
                return "unknown"
            raise
        return "accepted" if told.get("outcome") == "accepted" else "already_completed"

    async def resume(self, session: RemoteSession) -> Resumed:
        try:
            await self._post(session, "/resume", {"sessionId": session.session_id})
        except RemoteRefusedError as refused:
            if refused.refusal in ("agent_already_running", "run_conflict", "state_stale"):
                return "going"
            if refused.refusal == "still_waiting":
                return "waiting"
            if refused.status == 409:
                return "over"
            raise
        return "going"

    async def interrupt(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        return await self._stop(session, "/interrupt", reason)

    async def abort(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        return await self._stop(session, "/abort", reason)

    async def snapshot(self, session: RemoteSession) -> dict[str, JSON]:
        answer = await self._get(session, f"/sessions/{quote(session.session_id, safe='')}")
        state = answer.get("state")
        if not isinstance(state, dict):
            raise RemoteProtocolError(self._url, "it sent a session without its state")
        return cast("dict[str, JSON]", state)

    async def usage(self, session: RemoteSession) -> UsageRollup:
        answer = await self._get(session, f"/sessions/{quote(session.session_id, safe='')}/usage")
        sources: Any = answer.get("sources", [])
        if not isinstance(sources, list):
            raise RemoteProtocolError(self._url, "it sent usage without sources")
        told = cast("list[Any]", sources)[:1_000]
        return UsageRollup(sources=self._read(lambda: tuple(read_record(each, SourceTotal) for each in told)))

    async def delete(self, session: RemoteSession) -> None:
        await self._ask(session, "DELETE", f"/sessions/{quote(session.session_id, safe='')}", None)

    async def _stop(self, session: RemoteSession, path: str, reason: str | None) -> RemoteStop:
        body: dict[str, JSON] = {"sessionId": session.session_id}
        if reason is not None:
            body["reason"] = reason[:_REASON_CHARACTERS]
        try:
            told = await self._post(session, path, body)
        except RemoteRefusedError as refused:
            if _is_unknown(refused):
                return "unknown"
            raise
        return "stopping" if told.get("outcome") == "interrupt_set" else "nothing_running"

    async def _get(self, session: RemoteSession, path: str) -> dict[str, Any]:
        return await self._ask(session, "GET", path, None)

    async def _post(self, session: RemoteSession, path: str, body: dict[str, JSON]) -> dict[str, Any]:
        return await self._ask(session, "POST", path, body)

    async def _ask(
        self, session: RemoteSession, method: str, path: str, body: dict[str, JSON] | None
    ) -> dict[str, Any]:
        try:
            # Limits the whole response: one that trickles in keeps every single read within its own limit.
            async with asyncio.timeout(self._answer_seconds):
                async with self._response(session, method, path, body, self._answer_seconds) as response:
                    raw = await self._body(response)
        except TimeoutError:
            raise RemoteUnavailableError(self._url, f"no answer within {self._answer_seconds:g} s") from None
        if not raw.strip():
            return {}
        read = partial(self._read, lambda: read_json(raw))
        # Decoding a large response would block the event loop.
        value = read() if len(raw) < _LARGE_BYTES else await asyncio.to_thread(read)
        if not isinstance(value, dict):
            raise RemoteProtocolError(self._url, "it sent an answer that is not an object")
        return cast("dict[str, Any]", value)

    @asynccontextmanager
    async def _response(
        self, session: RemoteSession, method: str, path: str, body: dict[str, JSON] | None, silence: float
    ) -> "AsyncGenerator[httpx2.Response, None]":
        """The response's head, with its body still to come; a refusal raises.

        Raises:
            RemoteUnavailableError, RemoteRefusedError, RemoteProtocolError: there is no usable response.
        """
        httpx2 = self._httpx2
        timeout = httpx2.Timeout(silence, connect=self._connect_seconds)
        headers = {"accept-encoding": "identity", **await self._identity(session)}
        content = None if body is None else encode(body)
        if content is not None:
            headers["content-type"] = "application/json"
        try:
            async with (
                httpx2.AsyncClient(verify=await self._verify(), timeout=timeout, headers=headers) as client,
                client.stream(method, f"{self._url}{path}", content=content) as response,
            ):
                if response.status_code not in _TAKEN:
                    raise self._refusal(response.status_code, await self._body(response))
                yield response
        except httpx2.InvalidURL as problem:
            raise RemoteProtocolError(self._url, str(problem)) from None
        except httpx2.HTTPError as problem:
            reason = f"{type(problem).__name__} {problem}".strip()
            raise RemoteUnavailableError(self._url, reason) from None

    async def _identity(self, session: RemoteSession) -> dict[str, str]:
        headers = await self._renewed(self._headers) if callable(self._headers) else self._sent(self._headers)
        if self._pass_user and session.user_id is not None:
            headers[ON_BEHALF_OF] = quote(session.user_id, safe="@.-_")
        if self._pass_trace and session.trace is not None:
            headers[IN_TRACE] = session.trace
        return headers

    async def _renewed(self, headers: Callable[[], Awaitable[Mapping[str, str]]]) -> dict[str, str]:
        """Freshly made headers. If that fails, the service counts as unreachable; the reason goes only to the log."""
        try:
            sent = self._sent(await headers())
            for name, value in sent.items():
                check_header("HttpRemoteAgentTransport", name, value)
        except Exception as problem:
            log_exception("subagent.headers_failed", problem, url=self._url)
            raise RemoteUnavailableError(self._url, "the headers for it could not be made") from None
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
                raise RemoteProtocolError(self._url, f"it sent an answer of more than {self._answer_bytes} bytes")
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
            return RemoteUnavailableError(self._url, f"{status} {code}: {detail}")
        return RemoteRefusedError(self._url, status, code, detail)

    def _read(self, read: "Callable[[], Any]") -> Any:
        try:
            return read()
        except NotOursError as problem:
            raise RemoteProtocolError(self._url, str(problem)) from None


def _is_unknown(refused: RemoteRefusedError) -> bool:
    return (refused.status, refused.refusal) == (404, "session_not_found")


def _httpx2() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtraError("A remote agent", "remote") from None
    return httpx2


_: type[RemoteAgentTransport] = HttpRemoteAgentTransport
