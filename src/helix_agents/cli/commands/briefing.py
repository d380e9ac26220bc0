"""`helix briefing`: made from the declarations of `state.briefing.*`."""

import click

from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.cli.capability_commands import command_for

command = click.Group("briefing", help="What happened while an agent was away.")
for _capability in CATALOGUE.values():
    if _capability.name.startswith("state.briefing."):
        command.add_command(command_for(_capability))
