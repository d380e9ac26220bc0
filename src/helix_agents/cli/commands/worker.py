"""`helix worker`: drives runs of a durable engine in this process, until it is stopped."""

import asyncio

import click

from helix_agents.cli.options import Seconds, agents_argument, deps_option, json_option, seconds_option, store_option
from helix_agents.cli.output import Output
from helix_agents.cli.webhooks_given import load_webhooks, webhook_option


@click.group("worker")
def command() -> None:
    """Drive runs of a durable engine until stopped."""


@command.command("temporal")
@agents_argument
@click.option(
    "--address",
    envvar="TEMPORAL_ADDRESS",
    show_default="127.0.0.1:7233",
    show_envvar=True,
    help="The address of the Temporal server.",
)
@click.option(
    "--namespace",
    envvar="TEMPORAL_NAMESPACE",
    show_default="default",
    show_envvar=True,
    help="The Temporal namespace.",
)
@click.option(
    "--profile",
    envvar="TEMPORAL_PROFILE",
    show_envvar=True,
    help="The profile to use from Temporal's own configuration file.",
)
@click.option("--config-file", envvar="TEMPORAL_CONFIG_FILE", show_envvar=True, help="The path of that file.")
@click.option(
    "--tls/--no-tls",
    default=None,
    envvar="TEMPORAL_TLS",
    show_envvar=True,
    help="Use TLS; the default if an API key or a certificate is given.",
)
@click.option(
    "--tls-ca-path",
    envvar="TEMPORAL_TLS_SERVER_CA_CERT_PATH",
    show_envvar=True,
    help="The CA certificate for the server, if this machine does not trust its CA.",
)
@click.option(
    "--tls-cert-path", envvar="TEMPORAL_TLS_CLIENT_CERT_PATH", show_envvar=True, help="The client certificate."
)
@click.option("--tls-key-path", envvar="TEMPORAL_TLS_CLIENT_KEY_PATH", show_envvar=True, help="Its private key.")
@click.option(
    "--tls-server-name",
    envvar="TEMPORAL_TLS_SERVER_NAME",
    show_envvar=True,
    help="The name in the server's certificate.",
)
@click.option("--task-queue", default="helix", show_default=True, help="The queue to work on.")
@click.option("--prefix", default="helix", show_default=True, help="The prefix of workflow ids.")
@click.option("--register", is_flag=True, help="First make HelixSession and HelixAgent searchable in Temporal.")
@webhook_option
@seconds_option("--grace", 20.0, "Seconds that running effects get when the worker stops.")
@deps_option
@store_option
@json_option
@click.pass_obj
def temporal_command(
    output: Output,
    agents: str,
    address: str | None,
    namespace: str | None,
    profile: str | None,
    config_file: str | None,
    tls: bool | None,
    tls_ca_path: str | None,
    tls_cert_path: str | None,
    tls_key_path: str | None,
    tls_server_name: str | None,
    task_queue: str,
    prefix: str,
    register: bool,
    webhook_urls: tuple[str, ...],
    grace: float,
    deps: str | None,
    store_url: str,
) -> None:
    """Work on a Temporal task queue.

    Any number of workers can share a queue. If a worker leaves or dies, another one continues its runs.

    The API key is read from TEMPORAL_API_KEY or from the profile, never from the command line, which everyone on the
    machine can read.
    """
    from helix_agents.cli.agent_modules import load_agents, load_deps
    from helix_agents.cli.driving import check_agents
    from helix_agents.cli.temporal_work import work
    from helix_agents.cli.warnings_shown import show_warnings
    from helix_agents.runtimes.temporal import find_temporal

    given = {
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": namespace,
        "TEMPORAL_PROFILE": profile,
        "TEMPORAL_CONFIG_FILE": config_file,
        "TEMPORAL_TLS": None if tls is None else str(tls).lower(),
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH": tls_ca_path,
        "TEMPORAL_TLS_CLIENT_CERT_PATH": tls_cert_path,
        "TEMPORAL_TLS_CLIENT_KEY_PATH": tls_key_path,
        "TEMPORAL_TLS_SERVER_NAME": tls_server_name,
    }
    known = load_agents(agents)
    show_warnings()
    check_agents(known, deps)
    where = {**find_temporal(given), "task_queue": task_queue, "prefix": prefix}
    settings = {"deps": load_deps(deps), "grace": grace, "webhooks": load_webhooks(webhook_urls), **where}
    asyncio.run(work(output, known, store_url, settings, register=register))


@command.command("dbos")
@agents_argument
@click.option(
    "--system-database",
    envvar="DBOS_SYSTEM_DATABASE_URL",
    show_envvar=True,
    help="Where DBOS keeps its tables; by default, the store's own PostgreSQL database, or a file beside SQLite.",
)
@click.option(
    "--prefix", default="helix", show_default=True, help="The name of the queue, and the prefix of workflow ids."
)
@click.option(
    "--executor-id", help="A name that this worker keeps across restarts, so that it continues its runs at once."
)
@click.option("--max-running", type=click.IntRange(min=1), help="How many runs this worker drives at once.")
@click.option(
    "--keep-workflows",
    metavar="DAYS",
    type=Seconds(min=0, min_open=True),
    default=7.0,
    show_default=True,
    help="How long DBOS keeps workflows that have ended. Only its console uses them.",
)
@webhook_option
@seconds_option("--grace", 20.0, "Seconds that running steps get when the worker stops.")
@deps_option
@store_option
@json_option
@click.pass_obj
def dbos_command(
    output: Output,
    agents: str,
    system_database: str | None,
    prefix: str,
    executor_id: str | None,
    max_running: int | None,
    keep_workflows: float,
    webhook_urls: tuple[str, ...],
    grace: float,
    deps: str | None,
    store_url: str,
) -> None:
    """Work on a DBOS queue.

    Any number of workers can share a queue. It is filled by programs whose executors have the placement "elsewhere", or
    "shared" if they also work on it.
    """
    from helix_agents.cli.agent_modules import load_agents, load_deps
    from helix_agents.cli.dbos_work import work
    from helix_agents.cli.driving import check_agents
    from helix_agents.cli.warnings_shown import show_warnings

    settings = {
        "system_database_url": system_database,
        "prefix": prefix,
        "executor_id": executor_id,
        "max_running": max_running,
        "workflow_retention_ms": int(keep_workflows * 24 * 3600 * 1000),
        "grace": grace,
        "deps": load_deps(deps),
        "webhooks": load_webhooks(webhook_urls),
    }
    known = load_agents(agents)
    show_warnings()
    check_agents(known, deps)
    asyncio.run(work(output, known, store_url, settings))
