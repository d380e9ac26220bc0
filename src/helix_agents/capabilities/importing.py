"""Importing a backup from elsewhere: verified completely before it is listed; only an operator can do it."""

import asyncio
from pathlib import Path

from helix_agents.capabilities.backups import FULL, SUFFIX, BackupRow, Backups, Known
from helix_agents.capabilities.files import kept_if_known
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.scopes import BACKUPS
from helix_agents.capabilities.values import shown_time
from helix_agents.capabilities.vault import (
    BackupFacts,
    copy_backup,
    create_backup,
    open_backup,
    verify_backup,
)
from helix_agents.domain.capability_errors import IoError
from helix_agents.domain.entries import EntryTransaction
from helix_agents.domain.errors import BackupDamagedError, PathRefusedError
from helix_agents.domain.records import JSON


async def import_backup(gateway: Gateway, file: Path, *, passphrase: str | None = None) -> dict[str, JSON]:
    """Verify and list a backup file; one from another vault is opened with that vault's passphrase and sealed again.

    Raises:
        VaultError: it cannot be opened, or is damaged.
    """
    backups = Backups(gateway.store, gateway.settings)
    folder = backups.folder
    await asyncio.to_thread(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
    facts = (
        await verify_backup(file, passphrase=passphrase)
        if passphrase
        else await verify_backup(file, vault=backups.vault)
    )
    now = gateway.store.now_ms()
    async for backup_id in backups.free_names(now):
        path = folder / f"{backup_id}{SUFFIX}"
        try:
            if passphrase:
                facts = await _seal_anew(backups, file, passphrase, path, facts)
            else:
                await copy_backup(file, path, roots=[folder], sha256=facts.sha256)
        except PathRefusedError:
            # The name belongs to a file without a record.
            if not await asyncio.to_thread(path.exists):
                raise
            continue
        known = Known(backup_id=backup_id, row=_row_of(facts), made_at=now, path=path)
        return await _list(gateway, backups, known)
    raise IoError("No free name for the backup was found.", {})


def _row_of(facts: BackupFacts) -> BackupRow:
    return BackupRow(
        scope=facts.about.scope or FULL,
        created_at=facts.about.created_at,
        file_size_bytes=facts.file_bytes,
        revision=facts.about.revision,
        sha256=facts.sha256,
        reason=f"imported from {facts.about.store_id}",
    )


async def _list(gateway: Gateway, backups: Backups, known: Known) -> dict[str, JSON]:
    backup_id, row = known.backup_id, known.row
    line: dict[str, JSON] = {
        "at": shown_time(known.made_at),
        "agent": "operator",
        "status": "imported",
        "backup_id": backup_id,
    }
    listing = EntryTransaction(changes=(backups.registration(known),), owner="operator", audit=(line,))
    async with kept_if_known(gateway.store, BACKUPS, backup_id, known.path):
        await gateway.store.transact(listing)
    return {"backup_id": backup_id, "scope": row.scope, "created_at": row.created_at, "size_bytes": row.file_size_bytes}


async def _seal_anew(backups: Backups, file: Path, passphrase: str, path: Path, verified: BackupFacts) -> BackupFacts:
    async with (
        create_backup(path, vault=backups.vault, about=verified.about) as sealed,
        open_backup(file, passphrase=passphrase) as opened,
    ):
        async for chunk in opened:
            await sealed.write(chunk)
        if opened.sha256 != verified.sha256:
            raise BackupDamagedError(str(file), "its hash is another")
    return sealed.facts
