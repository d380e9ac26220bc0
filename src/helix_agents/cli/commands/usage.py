"""`helix usage`: what sessions cost."""

import asyncio
from datetime import datetime

import click

from helix_agents.cli.options import json_option, store_option
from helix_agents.cli.output import Output


@click.command()
@click.argument("session_id", metavar="[SESSION]", required=False)
@click.option("--user", "user_id", metavar="ID", help="Only what this user's sessions used.")
@click.option("--agent", "agent_type", metavar="NAME", help="Only what this agent used.")
@click.option("--since", type=click.DateTime(), metavar="TIME", help="Only from this time on, in UTC.")
@store_option
@json_option
@click.pass_obj
def command(
    output: Output,
    session_id: str | None,
    user_id: str | None,
    agent_type: str | None,
    since: datetime | None,
    store_url: str,
) -> None:
    """Add up tokens, tools, sub-agents and waiting times.

    For one session with everything below it, or for all sessions.
    """
    from helix_agents.cli.usage_views import show_usage

    narrowed = user_id is not None or agent_type is not None or since is not None
    if session_id is not None and narrowed:
        raise click.UsageError(
            "A session is counted as a whole; --user, --agent and --since only work across sessions."
        )
    asyncio.run(
        show_usage(output, store_url, session_id=session_id, user_id=user_id, agent_type=agent_type, since=since)
    )
