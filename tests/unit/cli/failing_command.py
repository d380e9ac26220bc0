"""A command that raises whatever a test asks for, standing in for any command that meets trouble."""

import click

from helix_agents.cli.options import json_option, store_option

trouble: BaseException = RuntimeError("no test said what to raise")


@click.command()
@store_option
@json_option
def command(store_url: str) -> None:
    """Fail."""
    click.echo(store_url, err=True)
    raise trouble
