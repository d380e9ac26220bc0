"""What every command about state needs: a store, whose state it is, and a vault that may have to be unlocked."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from helix_agents.cli.options import json_option, store_option

if TYPE_CHECKING:
    from helix_agents.capabilities.client import StateClient
    from helix_agents.capabilities.vault import Vault

Command = TypeVar("Command", bound=Callable[..., Any])

PASSPHRASE = "HELIX_VAULT_PASSPHRASE"


def state_options(command: Command) -> Command:
    """Add `--store`, `--namespace`, `--agent`, `--session`, `--directory`, `--vault`, `--export-root` and `--json`."""
    for option in reversed(
        (
            store_option,
            click.option("--namespace", default="", help="The tenant within the store."),
            click.option("--agent", "acting", metavar="NAME", default="operator", help="The agent whose state it is."),
            click.option("--session", "session_id", metavar="ID", help="A session made by create-session."),
            click.option("--directory", type=click.Path(path_type=Path), help="Where snapshots and backups are kept."),
            click.option(
                "--vault",
                "vault_path",
                type=click.Path(path_type=Path),
                envvar="HELIX_VAULT",
                show_envvar=True,
                help="The vault's file; by default, beside the store.",
            ),
            click.option(
                "--export-root",
                "export_roots",
                type=click.Path(path_type=Path),
                multiple=True,
                help="A folder within which backups may be exported.",
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


@asynccontextmanager
async def operator(
    options: dict[str, Any], *, face: Any = "operator", with_passphrase: bool = True, creates: bool = True
) -> AsyncGenerator["StateClient"]:
    """A client with which a person acts for an agent; the vault is unlocked if the passphrase is in the environment.

    A command that only reads does not create a store.
    """
    from helix_agents.capabilities.client import StateClient, entries_for
    from helix_agents.capabilities.gateway import Gateway
    from helix_agents.capabilities.settings import StateSettings
    from helix_agents.cli.stored import open_stored
    from helix_agents.ports.backend import open_backend

    url, namespace = options["store_url"], options["namespace"]
    opening = await open_backend(url, namespace=namespace) if creates else open_stored(url, namespace=namespace)
    async with opening as backend:
        store = entries_for(backend.entries, url)
        settings = StateSettings(
            directory=options["directory"],
            vault=await _vault(options, store.home, with_passphrase=with_passphrase),
            export_roots=tuple(options["export_roots"]),
        )
        gateway = Gateway(store, settings)
        try:
            yield StateClient(gateway, agent=options["acting"], session_id=options["session_id"], face=face)
        finally:
            await gateway.close()


def vault_path(options: dict[str, Any], home: Path | None) -> Path:
    """Where the vault is, or will be."""
    if options["vault_path"] is not None:
        return options["vault_path"]
    if home is None:
        raise click.UsageError("This store has no folder for a vault; give --vault FILE.")
    return home / "vault.json"


def passphrase(*, confirm: bool = False) -> str:
    """The passphrase from the environment, or else from a prompt."""
    from helix_agents.capabilities.vault.extra import require_vault_extra

    require_vault_extra()
    given = os.environ.get(PASSPHRASE)
    if given:
        return given
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is no terminal to ask for the passphrase; set {PASSPHRASE}.")
    return click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)


async def _vault(options: dict[str, Any], home: Path | None, *, with_passphrase: bool) -> "Vault | None":
    from helix_agents.capabilities.vault import Vault
    from helix_agents.domain.errors import MissingExtraError

    if options["vault_path"] is None and home is None:
        return None
    path = vault_path(options, home)
    try:
        vault = Vault(path)
    except MissingExtraError:
        # If there is no vault either, everything that needs none still works.
        if options["vault_path"] is not None or await asyncio.to_thread(path.exists):
            raise
        return None
    given = os.environ.get(PASSPHRASE) if with_passphrase else None
    if given and await vault.find() is not None:
        await vault.unlock(given)
    return vault
