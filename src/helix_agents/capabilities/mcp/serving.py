"""Serves the capabilities to MCP clients over stdio or streamable HTTP, on the official SDK."""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from helix_agents import __version__
from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.catalogue import find_capability
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.housekeeping import sweeping
from helix_agents.capabilities.mcp.resources import Resources
from helix_agents.capabilities.mcp.standard_input import standard_input
from helix_agents.capabilities.mcp.tools import call_tool, tool_definitions
from helix_agents.capabilities.mcp.unreadable import Answered

INSTRUCTIONS = (
    "State that outlives a conversation: session, persistent and shared values, snapshots, briefings and backups. Call"
    " session__create first if you need session state. Errors say what to do next."
)

GRACE_SECONDS = 5

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def server_for(gateway: Gateway, resources: Resources, agent: str) -> "Server[Any]":
    """A server for one agent; the agent's name is bound here and is not an argument of any tool."""

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool.model_validate(each) for each in tool_definitions(gateway, agent)]
        )

    async def call(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if find_capability(params.name) is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"There is no tool {params.name[:80]!r}.")
        caller = Caller(agent=agent, face="mcp")
        done, answer = await call_tool(gateway, caller, params.name, params.arguments or {})
        text = msgspec.json.encode(answer).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=answer, is_error=not done
        )

    return Server(
        "helix-agents-state",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read,
        on_subscriptions_listen=resources.listen,
    )


async def serve_stdio(gateway: Gateway, agent: str) -> None:
    """Serve the client on standard input and output until it closes them."""
    server = server_for(gateway, Resources(gateway, agent), agent)
    async with (
        sweeping(gateway),
        standard_input() as lines,
        stdio_server(stdin=cast("Any", lines)) as (reading, writing),
    ):
        await server.run(Answered(reading, writing), writing, server.create_initialization_options())


async def serve_http(
    gateway: Gateway,
    agent: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    listening: socket.socket | None = None,
    token: str | None = None,
    on_ready: Callable[[int], object] | None = None,
) -> None:
    """Serve clients over streamable HTTP at `/mcp`, on a port of this host or on a socket that is already `listening`;
    with a token, only clients that send it."""
    import uvicorn

    resources = Resources(gateway, agent)
    app: App = server_for(gateway, resources, agent).streamable_http_app(host=host)
    if token is not None:
        app = _only_with(token, app)

    class Leaving(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Listeners would keep the server running for as long as they like.
            resources.hang_up()
            await super().shutdown(sockets)

    server = Leaving(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=GRACE_SECONDS))
    listening = listening or await asyncio.to_thread(socket.create_server, (host, port))
    # Its connections inherit this; without it, the body of an answer waits until the client has confirmed the head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listening:
        async with sweeping(gateway):
            if on_ready is not None:
                on_ready(listening.getsockname()[1])
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                # Clients are told before the server closes.
                server.should_exit = True
                await serving
                raise


def _only_with(token: str, app: App) -> App:
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, expected):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    return guarded
