"""`helix interrupt`: stops a session's run and keeps what it did."""

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
    """Stop a session's run and keep what it did; resume continues it.

    The request is durable. It reaches the run in whichever process it is, and everything below it. A session that waits
    is settled after its companions have had time to stop. Exit code 1 means that nothing was running.
    """
    from helix_agents.cli.stopping import stop

    return asyncio.run(stop(output, store_url, session_id, "interrupt", reason))
