"""`helix backup`: encrypted copies of agents' state; `import` brings one from elsewhere, `leftovers` cleans up."""

import asyncio
from pathlib import Path
from typing import Any

import click

from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.cli.capability_commands import command_for, show
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, passphrase, state_options

command = click.Group("backup", help="Make, list, restore, export and import backups.")
for _capability in CATALOGUE.values():
    if _capability.name.startswith("state.backup."):
        command.add_command(command_for(_capability))


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--foreign", is_flag=True, help="The backup was made with another vault: ask for that vault's passphrase."
)
@state_options
@click.pass_obj
def import_(output: Output, file: Path, foreign: bool, **options: Any) -> None:
    """Verify and list a backup that was exported elsewhere.

    It can then be restored by its id.
    """
    given = passphrase() if foreign else None
    show(output, asyncio.run(_import(options, file, given)))


async def _import(options: dict[str, Any], file: Path, given: str | None) -> dict[str, Any]:
    from helix_agents.capabilities.importing import import_backup

    async with operator(options) as state:
        return await import_backup(state.gateway, file, passphrase=given)


@command.command("leftovers")
@click.option("--delete", is_flag=True, help="Delete the files of this store; look at them first.")
@state_options
@click.pass_obj
def leftovers(output: Output, delete: bool, **options: Any) -> None:
    """Find files that a process left behind when it died.

    It died while it made or retired a backup or a snapshot. The store knows no backup by them, and none of them is
    younger than a day. If one is needed after all, for example because the store was replaced by an older copy,
    import lists it again.
    """
    show(output, asyncio.run(_leftovers(options, delete=delete)))


async def _leftovers(options: dict[str, Any], *, delete: bool) -> dict[str, Any]:
    from helix_agents.capabilities.leftovers import delete_leftovers, find_leftovers

    async with operator(options, with_passphrase=False, creates=False) as state:
        store, settings = state.gateway.store, state.gateway.settings
        found = await find_leftovers(store, settings)
        gone = await delete_leftovers(store, found) if delete else []
    return {"leftovers": [each.shown() for each in found], "count": len(found), "deleted": len(gone)}
