"""Agents of another agent server as sub-agents: a client of its routes, and nothing more."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, cast
from urllib.parse import quote

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.durations import Duration
from helix_agents.agent.headers import Headers
from helix_agents.agent.remote_agents import RemoteAgentTool, RemoteLimits, remote_tool
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.errors import (
    DefinitionError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteUnavailableError,
)
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import Answer, ToolAnswer
from helix_agents.domain.records import JSON
from helix_agents.domain.traces import IN_TRACE
from helix_agents.domain.usage import SourceTotal, UsageRollup
from helix_agents.engine.scope import DEPTH
from helix_agents.ports.remote_agents import (
    AnswerRouted,
    RemoteAgentTransport,
    RemoteAnswerRefusedError,
    RemoteSession,
    RemoteStart,
    RemoteStatus,
    RemoteStop,
    Resumed,
)
from helix_agents.server.remote_http import RemoteHttp
from helix_agents.server.remote_wire import read_chunk, read_record, read_status

ON_BEHALF_OF = "x-helix-on-behalf-of"
"""The header that names a session's user, if a transport is configured to send it."""

_REASON_CHARACTERS = 1_000


def remote_agent_tool(
    url: str | RemoteAgentTransport,
    agent: str,
    *,
    description: str,
    name: str | None = None,
    input: Any = None,
    output: Any = None,
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
        output: The type that the child's result must have; otherwise the call fails with `tool_output_invalid`.
        timeout: How long the child may work before it is stopped. Time spent waiting for people does not count.
        lost_after: How long to retry a service that does not respond before the child counts as lost.
        limits: Limits on what is accepted from one child.
        token: Sent as `Authorization: Bearer …`.
        headers: Sent with every request.
        available: Decides before each model call whether the parent's model may delegate; see `tool`.

    Raises:
        DefinitionError: a name, an option, the input or the output cannot be used.
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
        output=output,
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
        self._http = RemoteHttp(
            "HttpRemoteAgentTransport",
            url,
            token=token,
            headers=headers,
            connect_seconds=connect_seconds,
            answer_seconds=answer_seconds,
            answer_bytes=answer_bytes,
        )
        self._pass_user = pass_user
        self._pass_trace = pass_trace
        self._silence_seconds = silence_seconds
        self._event_bytes = event_bytes

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def routes_answers(self) -> bool:
        return True

    @property
    def keeps_deadlines(self) -> bool:
        return True

    async def start(
        self, session: RemoteSession, message: UserMessage, *, depth: int, again: bool = False
    ) -> RemoteStart:
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
        return RemoteStart()

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        try:
            answer = await self._get(session, f"/status?sessionId={quote(session.session_id, safe='')}")
        except RemoteRefusedError as refused:
            if _is_unknown(refused):
                return None
            raise
        return self._http.read(lambda: read_status(answer))

    async def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        address = f"{self.url}/sse?sessionId={quote(session.session_id, safe='')}&fromSequence={after}"
        following = self._http.events(
            address, self._identity(session), silence=self._silence_seconds, most_bytes=self._event_bytes
        )
        async with aclosing(following) as events:
            async for event in events:
                match event.name:
                    case "message":
                        chunk = self._http.read(partial(read_chunk, event))
                        if chunk is not None:
                            yield chunk
                    case "end":
                        return
                    case "error" | "reconnect":
                        break
                    case _:
                        pass
        raise RemoteUnavailableError(self.url, "the stream ended before the run did")

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
            raise RemoteProtocolError(self.url, "it sent a session without its state")
        return cast("dict[str, JSON]", state)

    async def usage(self, session: RemoteSession) -> UsageRollup:
        answer = await self._get(session, f"/sessions/{quote(session.session_id, safe='')}/usage")
        sources: Any = answer.get("sources", [])
        if not isinstance(sources, list):
            raise RemoteProtocolError(self.url, "it sent usage without sources")
        told = cast("list[Any]", sources)[:1_000]
        return UsageRollup(sources=self._http.read(lambda: tuple(read_record(each, SourceTotal) for each in told)))

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
        return await self._http.ask(method, f"{self.url}{path}", body, self._identity(session))

    def _identity(self, session: RemoteSession) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._pass_user and session.user_id is not None:
            headers[ON_BEHALF_OF] = quote(session.user_id, safe="@.-_")
        if self._pass_trace and session.trace is not None:
            headers[IN_TRACE] = session.trace
        return headers


def _is_unknown(refused: RemoteRefusedError) -> bool:
    return (refused.status, refused.refusal) == (404, "session_not_found")


_: type[RemoteAgentTransport] = HttpRemoteAgentTransport
