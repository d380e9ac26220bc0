"""`helix interrupt`: stops what a session does and keeps what was done."""

import asyncio

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, session_argument, store_option
from helix_agents.cli.output import Output


@click.command()
@session_argument
@click.option("--reason", metavar="TEXT", help="Kept with the session.")
@store_option
@json_option
@click.pass_obj
def command(output: Output, session_id: str, reason: str | None, store_url: str) -> ExitCode:
    """Stop a session's run, keeping what it did; resume goes on.

    The request is durable and reaches the run in whichever process it is, and everything below it. A session that waits
    is settled, after its companions had time to stop. Exit code 1 says that nothing was running.
    """
    from helix_agents.cli.stopping import stop

    return asyncio.run(stop(output, store_url, session_id, "interrupt", reason))
