"""The routes of MCP: one that takes every message of a client, and one that continues a stream that broke."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import HelixError
from helix_agents.server.bodies import read_body
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError, invalid, refusal_of
from helix_agents.server.executor_routes import entry_agent
from helix_agents.server.local_names import is_local
from helix_agents.server.mcp.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RPCError,
    answer,
    failure,
)
from helix_agents.server.mcp.hearing import cancel, continue_call, take_answer
from helix_agents.server.mcp.names import read_place
from helix_agents.server.mcp.peers import MODERN, SERVER, SESSION_HEADER, WITH_HANDSHAKE, introduced, peer_of
from helix_agents.server.mcp.requests import Request, RPCMessage, agents_at, session_at
from helix_agents.server.mcp.results import refused_result
from helix_agents.server.mcp.saying import COMPANIONS, say
from helix_agents.server.mcp.serving import followed_again
from helix_agents.server.mcp.tools import ANSWER, Said, definitions
from helix_agents.server.mcp.waiting import Plain

INSTRUCTIONS = (
    "Each tool is an agent, except those whose names start with session__. An agent remembers its conversation: pass "
    "the session_id of an earlier result to continue it. A result with status waiting needs an answer from the user "
    f"before the agent goes on: give it with {ANSWER}."
)
# Refusals that a client's model can do something about, so they are results of its call.
_FOR_THE_MODEL = frozenset((400, 404, 409, 413, 429))


class RPCAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or an error."""

    jsonrpc: str
    id: str | int | None = None
    result: Any = None
    error: dict[str, Any] | None = None


class CallParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `tools/call`."""

    name: str
    arguments: dict[str, Any] | None = None
    request_state: str | None = msgspec.field(default=None, name="requestState")
    input_responses: dict[str, dict[str, Any]] | None = msgspec.field(default=None, name="inputResponses")


async def talk_to_agents(call: Call) -> Any:
    """Talk to all agents as an MCP client: each is a tool.

    A call of a tool is answered with a stream of server-sent events if the client accepts one.
    """
    return await _talk(call, None)


async def talk_to_agent(call: Call) -> Any:
    """Talk to one agent as an MCP client: it is the only agent among the tools."""
    return await _talk(call, entry_agent(call, call.request.path_params["agent"]))


async def continue_stream(call: Call) -> Any:
    """Continue the stream of a call from the event that `Last-Event-ID` names, on any instance."""
    return await _come_back(call, None)


async def continue_stream_of_agent(call: Call) -> Any:
    """Continue the stream of a call of one agent."""
    return await _come_back(call, entry_agent(call, call.request.path_params["agent"]))


# -- messages


async def _talk(call: Call, only: AnyAgent | None) -> Any:
    _check_origin(call)
    rpc_id: Any = None
    is_modern = True
    try:
        message = await _message(call)
        rpc_id = message.id
        if message.method == "initialize" and message.id is not None:
            return _initialize(message)
        request = Request(call, peer_of(call, message.method, message.params), message, only)
        is_modern = request.peer.is_modern
        if message.method is None:
            await take_answer(request)
            return Response(status_code=202)
        if message.id is None:
            if message.method == "notifications/cancelled" and not is_modern:
                await cancel(request)
            return Response(status_code=202)
        method = _METHODS.get(message.method)
        if method is None:
            names = ", ".join(_METHODS)
            raise RPCError(
                METHOD_NOT_FOUND, f"Unknown method {message.method[:80]!r}. This server has {names}.", status=404
            )
        return await method(request)
    except RPCError as problem:
        # To an older client, a 404 says that its connection is gone.
        is_envelope = problem.code in (PARSE_ERROR, INVALID_REQUEST)
        status = problem.status if is_modern or is_envelope else 200
        return json_response(failure(rpc_id, problem), status)


async def _message(call: Call) -> RPCMessage:
    try:
        given = await call.json()
    except RefusedError as refusal:
        if refusal.status != 400:
            raise
        raise RPCError(PARSE_ERROR, refusal.detail) from None
    try:
        message = msgspec.convert(given, RPCMessage)
    except msgspec.ValidationError as problem:
        raise RPCError(INVALID_REQUEST, f"This is not one message of JSON-RPC 2.0: {problem}") from None
    is_answer = message.id is not None and (message.result is not None or message.error is not None)
    if message.method is None and not is_answer:
        raise RPCError(INVALID_REQUEST, "A message of JSON-RPC 2.0 has a method, or an id and a result or an error.")
    return message


def _check_origin(call: Call) -> None:
    """Refuse pages that were not allowed to call. A page of another site can reach a server on its reader's machine by
    giving its own name that machine's address; then only this header still says where the page came from.

    Raises:
        RefusedError: the page's site is not allowed.
    """
    origin = call.request.headers.get("origin")
    if origin is None or "*" in call.origins or origin in call.origins:
        return
    host, is_here = _host_in(origin)
    if not is_here and (call.open_to_all or host != call.request.headers.get("host")):
        raise RefusedError(403, "forbidden", f"Pages of {origin[:200]} may not call; see cors_origins of the server.")


def _host_in(origin: str) -> tuple[str, bool]:
    """The host of a site with its port, empty if there is none, and whether it is this machine."""
    try:
        site = urlsplit(origin)
        return site.netloc, is_local(site.hostname)
    except ValueError:
        return "", False


def _initialize(message: RPCMessage) -> Response:
    peer = introduced(message.params)
    about = {"protocolVersion": peer.version, "serverInfo": SERVER, **_about()}
    return json_response(answer(message.id, about), headers={SESSION_HEADER: peer.connection or ""})


def _about() -> Plain:
    return {
        "capabilities": {"tools": {"listChanged": False}},
        "instructions": INSTRUCTIONS,
    }


async def _ping(request: Request) -> Response:
    return request.answered({})


async def _discover(request: Request) -> Response:
    return request.answered({"supportedVersions": [MODERN, *reversed(WITH_HANDSHAKE)], **_about()}, cached=True)


async def _list(request: Request) -> Response:
    return request.answered({"tools": definitions(agents_at(request.call, request.only))}, cached=True)


async def _call(request: Request) -> Any:
    try:
        params = msgspec.convert(request.message.params, CallParams)
    except msgspec.ValidationError as problem:
        raise RPCError(INVALID_PARAMS, f"params: {problem}") from None
    call = request.call
    agents = {agent.name: agent for agent in agents_at(call, request.only)}
    if params.name not in agents and params.name not in COMPANIONS:
        names = ", ".join([*agents, *COMPANIONS][:40])
        raise RPCError(INVALID_PARAMS, f"Unknown tool {params.name[:80]!r}. This server has {names}.")
    try:
        if params.request_state is not None:
            return await continue_call(request, params.request_state, params.input_responses or {})
        arguments = params.arguments or {}
        agent = agents.get(params.name)
        if agent is not None:
            return await say(request, agent, read_body(arguments, Said))
        return await COMPANIONS[params.name](request, arguments)
    except (RefusedError, HelixError) as met:
        refusal = met if isinstance(met, RefusedError) else refusal_of(met, call.gate.limits.retry_after_seconds)
        if refusal.status not in _FOR_THE_MODEL:
            raise
        return request.answered(refused_result(refusal))


_METHODS: dict[str, Callable[[Request], Awaitable[Any]]] = {
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list,
    "tools/call": _call,
}


async def _come_back(call: Call, only: AnyAgent | None) -> Any:
    _check_origin(call)
    last = call.request.headers.get("last-event-id")
    if not last:
        raise RefusedError(
            405,
            "method_not_allowed",
            "This server sends nothing outside of calls; GET continues a stream, with its Last-Event-ID.",
            headers={"allow": "POST"},
        )
    place = read_place(last)
    if place is None:
        raise invalid("Last-Event-ID is not the id of an event of this server.")
    try:
        peer = peer_of(call, None, {})
    except RPCError as problem:
        raise invalid(problem.message) from None
    call.gate.check_stream(call.principal)
    request = Request(call, peer, RPCMessage(jsonrpc="2.0", id=place.rpc_id), only)
    _, agent = await session_at(request, place.session_id)
    return await followed_again(request, agent, place)
