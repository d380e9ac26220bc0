"""`helix mcp`: serves the state capabilities to an MCP client."""

import asyncio
import os
import signal
import socket
from contextlib import nullcontext, suppress
from typing import Any

import click

from helix_agents.cli.listening import listen
from helix_agents.cli.options import Port
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, state_options

TOKEN = "HELIX_MCP_TOKEN"


@click.command()
@click.option(
    "--http",
    "port",
    type=Port(),
    metavar="PORT",
    help="Serve streamable HTTP on this port, 0 for a free one; stdio by default.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@state_options
@click.pass_obj
def command(output: Output, port: int | None, host: str, **options: Any) -> None:
    """Serve the state capabilities of one agent over MCP. Several servers may share a store."""
    if options["acting"] == "operator":
        raise click.UsageError("Name the agent whose state is served: --agent NAME.")
    token = os.environ.get(TOKEN) or None
    if port is not None and token is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise click.UsageError(f"Anyone who can reach {host} could use the agent's state; set {TOKEN} first.")
    listening = None if port is None else listen("helix mcp", host, port)
    with listening or nullcontext():
        try:
            asyncio.run(_serve(options, host, listening, token))
        except asyncio.CancelledError:
            # Everything is written and closed; the sender of the signal sees that it worked.
            signal.raise_signal(signal.SIGTERM)


async def _serve(options: dict[str, Any], host: str, listening: socket.socket | None, token: str | None) -> None:
    try:
        from helix_agents.capabilities.mcp import serve_http, serve_stdio
    except ModuleNotFoundError as missing:
        from helix_agents.domain.errors import MissingExtraError

        raise MissingExtraError("The MCP server", "mcp") from missing

    serving = asyncio.current_task()
    assert serving is not None
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    async with operator(options, face="mcp") as state:
        if listening is None:
            await serve_stdio(state.gateway, options["acting"])
        else:
            name = f"[{host}]" if ":" in host else host
            await serve_http(
                state.gateway,
                options["acting"],
                host=host,
                listening=listening,
                token=token,
                on_ready=lambda bound: click.echo(f"Serving http://{name}:{bound}/mcp", err=True),
            )
