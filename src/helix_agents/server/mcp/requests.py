"""A request of a client, and the agents and sessions that it may be about."""

from typing import Any, Literal
from uuid import uuid4

import msgspec
from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import SessionSummary
from helix_agents.server.a2a.tasks import Task, read_context
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError
from helix_agents.server.mcp.errors import INVALID_PARAMS, RPCError, answer
from helix_agents.server.mcp.names import Place, digest
from helix_agents.server.mcp.peers import Peer
from helix_agents.server.mcp.waiting import Plain

IDEMPOTENCY_KEY = "helix-agents/idempotency-key"
"""The field in the `_meta` of a call that our own MCP client sends: the same for every attempt of that call."""
NOTE = "mcp"
"""The key in a message's metadata under which it names the request that sent it."""
MOST_LISTED = 50
CACHED_MS = 60_000
"""How long a client may keep the list of tools."""


class RPCMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of JSON-RPC 2.0: a request, a notification, or the answer to a question of this server."""

    jsonrpc: Literal["2.0"]
    method: str | None = None
    params: dict[str, Any] = {}
    id: str | int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a request, as far as it is used here."""

    progress_token: str | int | None = msgspec.field(default=None, name="progressToken")
    key: str | None = msgspec.field(default=None, name=IDEMPOTENCY_KEY)


class Request:
    """A request of a client, and the agents that it may be about."""

    def __init__(self, call: Call, peer: Peer, message: RPCMessage, only: AnyAgent | None) -> None:
        self.call = call
        if peer.asks == "meanwhile" and not accepts_stream(call):
            # A client that takes one answer alone cannot be asked anything before it.
            peer = msgspec.structs.replace(peer, asks="never")
        self.peer = peer
        self.message = message
        self.only = only

    def answered(self, result: Plain, *, cached: bool = False) -> Response:
        if cached and self.peer.is_modern:
            result = {**result, "ttlMs": CACHED_MS, "cacheScope": "private"}
        return json_response(answer(self.message.id, self.peer.told(result)))

    @property
    def meta(self) -> Meta:
        try:
            return msgspec.convert(self.message.params.get("_meta") or {}, Meta)
        except msgspec.ValidationError as problem:
            raise RPCError(INVALID_PARAMS, f"params._meta: {problem}") from None

    @property
    def request_mark(self) -> str | None:
        """A unique name for this request; None if its client has no connection."""
        connection = self.peer.connection
        return None if connection is None else mark_of(self.call, connection, self.message.id)

    def place(self, session_id: SessionId, asked_id: str) -> Place:
        return Place(
            session_id=session_id,
            asked_id=asked_id,
            rpc_id=self.message.id,
            progress_token=self.meta.progress_token,
            follower=uuid4().hex,
        )


def accepts_stream(call: Call) -> bool:
    """Whether the client accepts a stream as an answer, as the protocol requires of all clients."""
    return "text/event-stream" in call.request.headers.get("accept", "").lower()


def mark_of(call: Call, connection: str, rpc_id: Any) -> str:
    """A unique name for a request of a connection."""
    return digest(call.principal.user_id, connection, rpc_id)


def agents_at(call: Call, only: AnyAgent | None) -> list[AnyAgent]:
    """The agents that an address offers: one, or all."""
    return [only] if only is not None else [call.executor.agents.get(name) for name in sorted(call.entry_agents)]


async def session_at(request: Request, session_id: SessionId) -> tuple[SessionSummary, AnyAgent]:
    """A session of the caller with one of the agents that are talked to here.

    Raises:
        RefusedError: there is none.
    """
    call = request.call
    try:
        session = await call.session(call.checked(session_id))
        if session.agent_type in {agent.name for agent in agents_at(call, request.only)}:
            return session, call.agent_of(session)
    except SessionNotFoundError:
        pass
    raise RefusedError(
        404,
        "session_not_found",
        f"There is no session {session_id[:80]!r} of yours here. Use a session_id that an earlier call returned.",
    )


async def _current(call: Call, session_id: SessionId) -> Task | None:
    """The current turn of a session, or its last one."""
    tasks = (await read_context(call, session_id)).tasks()
    return next((task for task in tasks if task.state != "TASK_STATE_SUBMITTED"), None)


async def turn_of(request: Request, session_id: SessionId) -> tuple[AnyAgent, Task]:
    """The turn that a session of the caller is in, or was in last.

    Raises:
        RefusedError: there is none.
    """
    session, agent = await session_at(request, session_id)
    task = await _current(request.call, session.session_id)
    if task is None:
        raise RefusedError(409, "nothing_to_resume", "Nothing was said in this session yet.")
    return agent, task
