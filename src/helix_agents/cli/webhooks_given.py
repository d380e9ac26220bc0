"""Webhooks as they are given to commands: addresses as options, their secret in the environment."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from helix_agents.runtimes.executor.webhooks import Webhook

SECRET_VARIABLE = "HELIX_WEBHOOK_SECRET"

Command = TypeVar("Command", bound=Callable[..., Any])


def webhook_option(command: Command) -> Command:
    """Add `--webhook URL`, for commands whose process tells webhooks how turns end."""
    return click.option(
        "--webhook",
        "webhook_urls",
        metavar="URL",
        multiple=True,
        envvar="HELIX_WEBHOOK",
        show_envvar=True,
        help=f"An address to notify when turns end and calls wait, signed with {SECRET_VARIABLE}; may be repeated.",
    )(command)


def load_webhooks(urls: Sequence[str]) -> "list[Webhook]":
    """The webhooks at these addresses. A secret that is being replaced stands beside the new one, after a space.

    Raises:
        click.UsageError: there is no secret.
        DefinitionError: an address or the secret is not valid.
        MissingExtraError: the HTTP client is not installed.
    """
    if not urls:
        return []
    from helix_agents.runtimes.executor.webhook_posts import Posts
    from helix_agents.runtimes.executor.webhooks import Webhook

    secrets = os.environ.get(SECRET_VARIABLE, "").split()
    if not secrets:
        raise click.UsageError(
            f"--webhook needs a secret to sign with: set {SECRET_VARIABLE}. `helix webhooks secret` makes one."
        )
    Posts()
    return [Webhook(url, secret=secrets) for url in urls]
