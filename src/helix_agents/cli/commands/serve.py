"""`helix serve`: the agents of a module over HTTP, on one store, until it is stopped."""

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.listening import listen
from helix_agents.cli.options import Port, deps_option, json_option, seconds_option, store_option
from helix_agents.cli.output import Output
from helix_agents.cli.webhooks_given import load_webhooks, webhook_option
from helix_agents.domain.urls import shown_url

DEFAULT_USER = "helix"


@click.command()
@click.argument("target", metavar="MODULE:AGENTS")
@deps_option
@store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8700, show_default=True, type=Port(), help="The port to listen on; 0 takes a free one.")
@click.option(
    "--token",
    envvar="HELIX_TOKEN",
    show_envvar=True,
    help="What callers send as `Authorization: Bearer …`. Safer in the environment than on the command line.",
)
@click.option("--user", default=DEFAULT_USER, show_default=True, help="The user whose sessions the token opens.")
@click.option("--allow-unauthenticated", is_flag=True, help="Let anyone who can reach the port do everything.")
@click.option("--cors-origin", "origins", multiple=True, help="A site whose pages may call this server.")
@click.option("--console", is_flag=True, help="Serve a page for operators at /console.")
@webhook_option
@seconds_option("--grace", 20.0, "Seconds that running steps get when the server stops.")
@seconds_option("--lease", 15.0, "Seconds after which a dead instance is noticed.", above_zero=True)
@seconds_option("--janitor", 15.0, "Seconds between two rounds of the janitor; 0 for none.")
@json_option
@click.pass_obj
def command(
    output: Output,
    target: str,
    deps: str | None,
    store_url: str,
    host: str,
    port: int,
    token: str | None,
    user: str,
    allow_unauthenticated: bool,
    origins: tuple[str, ...],
    console: bool,
    webhook_urls: tuple[str, ...],
    grace: float,
    lease: float,
    janitor: float,
) -> ExitCode:
    """Serve a module's agents over HTTP.

    MODULE:AGENTS is `module:name` or `file.py:name`, where the name is an Agent, a list of them or an AgentRegistry;
    the module or file alone means all of its agents. The current directory is importable. With --json, the document is
    printed once the server answers requests: the url, the agents, the store, and the url of the console if there is
    one.
    """
    if not token and not allow_unauthenticated:
        raise click.UsageError(
            "Say who may call: --token (or HELIX_TOKEN), or --allow-unauthenticated to let anyone do everything."
        )
    from helix_agents.cli.agent_modules import load_agents, load_deps
    from helix_agents.cli.driving import check_agents
    from helix_agents.cli.warnings_shown import show_warnings
    from helix_agents.domain.errors import MissingExtraError

    agents = load_agents(target)
    show_warnings()
    webhooks = load_webhooks(webhook_urls)
    try:
        from helix_agents.server.serving import serve
    except ImportError as missing:
        raise MissingExtraError("helix serve", "server") from missing
    check_agents(agents, deps)

    def ready(url: str) -> None:
        names = sorted(agent.name for agent in agents)
        page = f"{url}/console" if console else None
        output.answer({"url": url, "agents": names, "store": shown_url(store_url), "console": page})
        output.say(f"Serving on {url}")
        if page is not None:
            output.say(f"Console at {page}")
        output.note(f"{', '.join(names)}, on {shown_url(store_url)}; Ctrl-C to stop")

    serve(
        list(agents),
        store_url,
        sock=listen("helix serve", host, port),
        token=token,
        user=user,
        origins=origins,
        console=console,
        on_ready=ready,
        deps=load_deps(deps),
        webhooks=webhooks,
        grace=grace,
        lease_ms=int(lease * 1000),
        janitor_seconds=janitor or None,
    )
    return ExitCode.OK
