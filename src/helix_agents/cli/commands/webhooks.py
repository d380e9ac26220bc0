"""`helix webhooks`: what other services are still to be told, and what could not be told."""

import asyncio
from typing import get_args

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, page_options, store_option
from helix_agents.cli.output import Output
from helix_agents.domain.webhooks import DeliveryState


@click.group("webhooks")
def command() -> None:
    """List messages to webhooks, and send them again.

    Webhooks are given to the processes that run agents: `helix serve --webhook URL`, `helix worker`, `helix janitor`,
    or a program with an executor.
    """


@command.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(get_args(DeliveryState)),
    multiple=True,
    help="Only deliveries in this state; may be repeated.",
)
@page_options
@store_option
@json_option
@click.pass_obj
def list_command(output: Output, states: tuple[DeliveryState, ...], limit: int, offset: int, store_url: str) -> None:
    """List deliveries, newest first.

    These are the owed ones, those delivered within the last hour, and those given up within 30 days.
    """
    from helix_agents.cli.webhook_views import list_deliveries

    asyncio.run(list_deliveries(output, store_url, states=states, offset=offset, limit=limit))


@command.command("retry")
@click.argument("delivery_ids", metavar="DELIVERY…", nargs=-1)
@click.option("--given-up", is_flag=True, help="Try all deliveries again that were given up.")
@store_option
@json_option
@click.pass_obj
def retry_command(output: Output, delivery_ids: tuple[str, ...], given_up: bool, store_url: str) -> ExitCode:
    """Have deliveries tried again, under the same ids.

    The processes that know their webhooks do so.
    """
    if bool(delivery_ids) == given_up:
        raise click.UsageError("Say which: ids of deliveries, or --given-up for all that were given up.")
    from helix_agents.cli.webhook_views import retry_deliveries

    return asyncio.run(retry_deliveries(output, store_url, delivery_ids))


@command.command("secret")
@json_option
@click.pass_obj
def secret_command(output: Output) -> None:
    """Make a secret to sign messages with; nothing is stored."""
    import base64
    import secrets

    from helix_agents.domain.webhooks import SECRET_PREFIX

    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    output.answer({"secret": secret})
    output.say(secret)
