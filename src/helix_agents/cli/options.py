"""Options and arguments that mean the same thing on every command."""

from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from helix_agents.cli.output import Output

DEFAULT_STORE_FILE = "helix.db"
DEFAULT_STORE = f"sqlite:///{DEFAULT_STORE_FILE}"

Command = TypeVar("Command", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A time within a range; an infinite value, or one that is not a number, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        return seconds if isfinite(seconds) else self.fail(f"{value} is not a number of seconds.", param, ctx)


class Port(click.IntRange):
    """A port to listen on, 0 for a free one; the error for an address with a port says how to give both."""

    def __init__(self) -> None:
        super().__init__(0, 65535)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            host, _, port = str(value).rpartition(":")
            if not host or "/" in host or not port.isdecimal():
                self.fail(f"{value!r} is not a port: give a number up to 65535, or 0 for a free port.", param, ctx)
            option = param.opts[0] if param is not None else "PORT"
            self.fail(f"{value!r} is more than a port: write --host {host.strip('[]')} {option} {port}.", param, ctx)


def seconds_option(name: str, default: float, text: str, *, above_zero: bool = False) -> Callable[[Command], Command]:
    """Add a time; zero may mean that there is none."""
    time = Seconds(min=0, min_open=above_zero)
    return click.option(name, type=time, default=default, show_default=True, help=text)


def store_option(command: Command) -> Command:
    """Add `--store URL`, which falls back to HELIX_STORE and then to an embedded store in this directory."""

    def remember(context: click.Context, parameter: click.Parameter, url: str) -> str:
        source = context.get_parameter_source(parameter.name or "")
        context.ensure_object(Output).store_was_named = source is not ParameterSource.DEFAULT
        return url

    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar="HELIX_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        callback=remember,
        help="The store to use.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`, which replaces the sentences by one JSON document on standard output."""

    def switch(context: click.Context, _parameter: click.Parameter, as_json: bool) -> None:
        output = context.ensure_object(Output)
        output.as_json = as_json
        if as_json:
            output.reserve()

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        # Eager, so that a mistake in a later option is already reported in the right form.
        is_eager=True,
        callback=switch,
        help="Print one JSON document.",
    )(command)


def agents_argument(command: Command) -> Command:
    """Add the place where agents are defined, `module:name` or `file.py:name`, or either without the name."""
    return click.argument("agents", metavar="MODULE:AGENTS")(command)


def check_says_something(message: str, name: str) -> None:
    """Refuse a message without content.

    Raises:
        click.UsageError: it is empty, or blank.
    """
    if not message.strip():
        raise click.UsageError(f"{name} is empty; the agent needs something to answer.")


def session_argument(command: Command) -> Command:
    """Add the session that a command is about."""
    return click.argument("session_id", metavar="SESSION")(command)


def model_option(command: Command) -> Command:
    """Add `--model NAME`, which takes the place of the agent's own for this run."""
    return click.option("--model", metavar="NAME", help="Use this model instead, such as anthropic:claude-sonnet-4-5.")(
        command
    )


def deps_option(command: Command) -> Command:
    """Add `--deps MODULE:NAME`, for agents whose tools take some."""
    text = "What opens ctx.deps for tools, like an executor's deps: module:name or file.py:name."
    return click.option("--deps", metavar="MODULE:NAME", help=text)(command)


def page_options(command: Command) -> Command:
    """Add `--limit` and `--offset`; lists are newest first."""
    limit = click.option(
        "--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How many to show."
    )
    offset = click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip, newest first.")
    return limit(offset(command))
