"""`helix serve`: the agents of a module behind HTTP, on one store, until somebody says stop."""

import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import store_option
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from helix_agents.agent.agent import Agent

DEFAULT_USER = "helix"


@click.command()
@click.argument("target", metavar="MODULE:AGENTS")
@store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--token",
    envvar="HELIX_TOKEN",
    show_envvar=True,
    help="What callers send as `Authorization: Bearer …`. Better in the environment than on a command line.",
)
@click.option("--user", default=DEFAULT_USER, show_default=True, help="Whose sessions the token opens.")
@click.option("--allow-unauthenticated", is_flag=True, help="Let everybody who reaches the port do everything.")
@click.option("--cors-origin", "origins", multiple=True, help="A site whose pages may call this server.")
@click.option("--grace", default=20.0, show_default=True, help="Seconds that running steps get when it ends.")
@click.option("--lease", default=15.0, show_default=True, help="Seconds after which a dead instance is noticed.")
@click.option(
    "--janitor", default=15.0, show_default=True, help="Seconds between two rounds of the janitor; 0 for none."
)
@click.pass_obj
def command(
    output: Output,
    target: str,
    store_url: str,
    host: str,
    port: int,
    token: str | None,
    user: str,
    allow_unauthenticated: bool,
    origins: tuple[str, ...],
    grace: float,
    lease: float,
    janitor: float,
) -> ExitCode:
    """Serve a module's agents over HTTP.

    MODULE:AGENTS names an agent, or a list of agents, in a module that can be imported from here.
    """
    if not token and not allow_unauthenticated:
        raise click.UsageError(
            "Say who may call: --token (or HELIX_TOKEN), or --allow-unauthenticated where everybody may do everything."
        )
    from helix_agents.domain.errors import MissingExtraError

    agents = load_agents(target)
    try:
        from helix_agents.server.serving import serve
    except ImportError as missing:
        raise MissingExtraError("helix serve", "server") from missing
    try:
        listening = socket.create_server((host, port))
    except OSError as problem:
        raise click.ClickException(f"helix serve cannot listen on {host}:{port}: {problem.strerror}.") from None
    serve(
        agents,
        store_url,
        sock=listening,
        token=token,
        user=user,
        origins=origins,
        say=output.say,
        grace=grace,
        lease_ms=int(lease * 1000),
        janitor_seconds=janitor or None,
    )
    return ExitCode.OK


def load_agents(target: str) -> "list[Agent[Any, Any, Any]]":
    """The agents that `module:name` names."""
    from helix_agents.agent.agent import Agent

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise click.UsageError(f"{target!r} is not of the form MODULE:AGENTS, such as app:agents.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not module_name.startswith(missing.name):
            raise
        raise click.UsageError(f"There is no module {module_name!r} to import from {here}.") from None
    found: Any = getattr(module, name, None)
    if found is None:
        raise click.UsageError(f"Module {module_name!r} has no {name!r}.")
    several: list[Any] = list(cast("list[Any]", found)) if isinstance(found, list | tuple) else [found]
    if not several or not all(isinstance(agent, Agent) for agent in several):
        raise click.UsageError(f"{target!r} is neither an Agent nor a list of Agents.")
    return several
