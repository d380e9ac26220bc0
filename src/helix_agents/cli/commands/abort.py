"""`helix abort`: fails a session's run for good."""

import asyncio

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, session_argument, store_option
from helix_agents.cli.output import Output


@click.command()
@session_argument
@click.option("--reason", metavar="TEXT", help="The reason, kept with the session.")
@store_option
@json_option
@click.pass_obj
def command(output: Output, session_id: str, reason: str | None, store_url: str) -> ExitCode:
    """Fail a session's run for good; only a new message continues it.

    The request is durable. It reaches the run in whichever process it is, and everything below it. Exit code 1 means
    that nothing was running.
    """
    from helix_agents.cli.stopping import stop

    return asyncio.run(stop(output, store_url, session_id, "abort", reason))
