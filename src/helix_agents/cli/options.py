"""Options that mean the same thing on every command."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from helix_agents.cli.output import Output

DEFAULT_STORE_FILE = "helix.db"
DEFAULT_STORE = f"sqlite:///{DEFAULT_STORE_FILE}"

Command = TypeVar("Command", bound=Callable[..., Any])


def store_option(command: Command) -> Command:
    """Add `--store URL`, which falls back to HELIX_STORE and then to an embedded store in this directory."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar="HELIX_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        help="The store to use.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`, which replaces the sentences by one JSON document on standard output."""

    def switch(context: click.Context, _parameter: click.Parameter, as_json: bool) -> None:
        context.ensure_object(Output).as_json = as_json

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        # Eager, so that a mistake in a later option is already reported in the right form.
        is_eager=True,
        callback=switch,
        help="Print one JSON document.",
    )(command)
