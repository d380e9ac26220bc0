"""`helix vault`: the key that backups are encrypted and audit checkpoints are signed with."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from helix_agents.cli.capability_commands import show
from helix_agents.cli.output import Output
from helix_agents.cli.state_options import operator, passphrase, state_options

if TYPE_CHECKING:
    from helix_agents.capabilities.client import StateClient
    from helix_agents.capabilities.vault import Vault

HOUR_SECONDS = 3600


@click.group()
def command() -> None:
    """Manage the vault.

    `unlock` works for every process of this user; a single process can also unlock the vault for itself, with
    HELIX_VAULT_PASSPHRASE or `Vault.unlock`.
    """


@command.command()
@state_options
@click.pass_obj
def init(output: Output, **options: Any) -> None:
    """Create a vault. There is no way to recover a lost passphrase."""
    show(output, asyncio.run(_init(options, passphrase(confirm=True))))


@command.command()
@state_options
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    show_default=True,
    help="How long it stays unlocked.",
)
@click.pass_obj
def unlock(output: Output, hours: float, **options: Any) -> None:
    """Unlock the vault for every process of this user.

    It stays unlocked, also for processes that start later, until it is locked or the time is up. A background
    process keeps the keys in memory; they are not written anywhere.
    """
    show(output, asyncio.run(_unlock(options, passphrase(), hours * HOUR_SECONDS)))


@command.command()
@state_options
@click.pass_obj
def lock(output: Output, **options: Any) -> None:
    """Lock the vault again.

    A process that unlocked it for itself can still use it.
    """
    show(output, asyncio.run(_lock(options)))


@command.command()
@state_options
@click.pass_obj
def status(output: Output, **options: Any) -> None:
    """Show which vault there is, and if it is unlocked."""
    show(output, asyncio.run(_status(options)))


async def _init(options: dict[str, Any], given: str) -> dict[str, Any]:
    async with operator(options) as state:
        vault = _vault_of(state)
        await asyncio.to_thread(lambda: vault.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
        await vault.init(given)
        return await _told(state, vault)


async def _unlock(options: dict[str, Any], given: str, seconds: float) -> dict[str, Any]:
    from helix_agents.domain.errors import WrongPassphraseError

    async with operator(options, with_passphrase=False) as state:
        vault = _vault_of(state)
        try:
            await vault.entrust(given, seconds)
        except WrongPassphraseError:
            await _audit(state, "vault.unlock", "failed", error="WrongPassphrase")
            raise
        await _audit(state, "vault.unlock", "done", seconds=seconds)
        return await _told(state, vault)


async def _lock(options: dict[str, Any]) -> dict[str, Any]:
    async with operator(options, with_passphrase=False) as state:
        vault = _vault_of(state)
        locked = await vault.withdraw()
        if locked:
            await _audit(state, "vault.lock", "done")
        return {**await _told(state, vault), "locked": locked}


async def _status(options: dict[str, Any]) -> dict[str, Any]:
    async with operator(options, with_passphrase=False, creates=False) as state:
        return await _told(state, _vault_of(state))


def _vault_of(state: "StateClient") -> "Vault":
    from helix_agents.capabilities.vault.extra import require_vault_extra

    require_vault_extra()
    vault = state.gateway.settings.vault
    if vault is None:
        raise click.UsageError("This store has no folder for a vault; give --vault FILE.")
    return vault


async def _told(state: "StateClient", vault: "Vault") -> dict[str, Any]:
    from helix_agents.capabilities.values import shown_time

    facts = await vault.find()
    if facts is None:
        return {"initialised": False, "unlocked": False, "path": str(vault.path)}
    now = state.gateway.store.now_ms()
    left = await vault.entrusted_seconds()
    return {
        "initialised": True,
        "unlocked": left is not None,
        "unlocked_until": None if left is None else shown_time(now + int(left * 1000)),
        "path": str(vault.path),
        "vault_id": facts.vault_id,
        "created_at": facts.created_at,
        "checked_at": shown_time(now),
    }


async def _audit(state: "StateClient", what: str, status: str, **more: Any) -> None:
    """Every attempt to use the vault leaves a line in the log of its store."""
    from helix_agents.capabilities.values import shown_time
    from helix_agents.domain.entries import EntryTransaction

    store = state.gateway.store
    line = {"at": shown_time(store.now_ms()), "face": "operator", "capability": what, "status": status, **more}
    await store.transact(EntryTransaction(audit=(line,)))
