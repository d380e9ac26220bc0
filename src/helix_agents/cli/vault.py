"""`helix vault`: the key that backups are encrypted and audit checkpoints are signed with."""

import asyncio
from typing import Any

import click

from helix_agents.cli.capability_commands import show
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, passphrase, state_options


@click.group()
def command() -> None:
    """Look after the vault. A process unlocks its own: with HELIX_VAULT_PASSPHRASE, or by `Vault.unlock`."""


@command.command()
@state_options
@click.pass_obj
def init(output: Output, **options: Any) -> None:
    """Make a vault. There is no way to recover a lost passphrase."""
    show(output, asyncio.run(_with_vault(options, "init", passphrase(confirm=True))))


@command.command()
@state_options
@click.pass_obj
def unlock(output: Output, **options: Any) -> None:
    """Check the passphrase by unlocking the vault with it."""
    show(output, asyncio.run(_with_vault(options, "unlock", passphrase())))


@command.command()
@state_options
@click.pass_obj
def lock(output: Output, **options: Any) -> None:
    """Lock the vault here. Other processes unlocked theirs, and keep it so until they lock it or end."""
    show(output, asyncio.run(_with_vault(options, "lock", None)))


@command.command()
@state_options
@click.pass_obj
def status(output: Output, **options: Any) -> None:
    """Whether there is a vault, and which."""
    show(output, asyncio.run(_with_vault(options, "status", None)))


async def _with_vault(options: dict[str, Any], what: str, given: str | None) -> dict[str, Any]:
    from helix_agents.capabilities.values import shown_time

    async with operator(options) as state:
        vault = state.gateway.settings.vault
        if vault is None:
            raise click.UsageError("This store has no folder for a vault; say --vault FILE.")
        await asyncio.to_thread(lambda: vault.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
        if what == "init":
            facts = await vault.init(given or "")
        elif what == "unlock":
            facts = await vault.unlock(given or "")
        else:
            facts = await vault.find()
        if what == "lock":
            vault.lock()
        if facts is None:
            return {"initialised": False, "unlocked": False, "path": str(vault.path)}
        return {
            "initialised": True,
            "unlocked": vault.unlocked,
            "path": str(vault.path),
            "vault_id": facts.vault_id,
            "created_at": facts.created_at,
            "checked_at": shown_time(state.gateway.store.now_ms()),
        }
