"""`helix janitor`: keeps sessions from getting stuck, once or on a schedule."""

import asyncio

import click

from helix_agents.cli.options import Seconds, deps_option, json_option, store_option
from helix_agents.cli.output import Output
from helix_agents.cli.webhooks_given import load_webhooks, webhook_option


@click.command()
@click.argument("agents", metavar="[MODULE:AGENTS]", required=False)
@click.option("--every", metavar="SECONDS", type=Seconds(min=0, min_open=True), help="Repeat at this interval.")
@click.option(
    "--resume-grace",
    metavar="SECONDS",
    type=Seconds(min=0),
    default=30.0,
    show_default=True,
    help="How long an answered call may wait before the janitor resumes its session.",
)
@webhook_option
@deps_option
@store_option
@json_option
@click.pass_obj
def command(
    output: Output,
    agents: str | None,
    every: float | None,
    resume_grace: float,
    webhook_urls: tuple[str, ...],
    deps: str | None,
    store_url: str,
) -> None:
    """Expire deadlines, end expired sessions, prune old streams.

    With webhooks, it also sends the messages that are due. With agents, it also continues runs whose process died and
    sessions that were answered but never resumed, and waits for them to end. Any number of janitors may run; each case
    is handled by one of them. With --every and --json, each
    round prints one line.
    """
    from helix_agents.cli.sweeping import sweep

    webhooks = load_webhooks(webhook_urls)
    asyncio.run(sweep(output, store_url, agents, deps=deps, every=every, resume_grace=resume_grace, webhooks=webhooks))
