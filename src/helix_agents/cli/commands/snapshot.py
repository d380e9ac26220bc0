"""`helix snapshot`: made from the declarations of `state.snapshot.*`."""

import click

from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.cli.capability_commands import command_for

command = click.Group("snapshot", help="Look at the whole system at one moment.")
for _capability in CATALOGUE.values():
    if _capability.name.startswith("state.snapshot."):
        command.add_command(command_for(_capability))
