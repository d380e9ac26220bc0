"""Files without a record: a process died between writing and registering one, or between forgetting and deleting it.

They are found and reported, and deleted only by an operator who has seen them, never automatically: a store that was
reset to an older copy of itself does not know its newest backups, and those are the ones that are needed then.
"""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from helix_agents.capabilities.backups import SUFFIX
from helix_agents.capabilities.files import folder_of, names_in, remove_file
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import BACKUPS, SNAPSHOTS
from helix_agents.capabilities.settings import HOUR_MS, StateSettings
from helix_agents.capabilities.values import shown_time
from helix_agents.capabilities.vault import BackupAbout, read_about
from helix_agents.domain.entries import EntryTransaction
from helix_agents.domain.errors import PathRefusedError, VaultError
from helix_agents.domain.records import JSON
from helix_agents.ports.entries import EntryStore

LONGEST_WRITING_MS = 24 * HOUR_MS
"""A younger file may still be on its way: its row is written last."""

_KINDS = (("backups", BACKUPS, "bkp-", SUFFIX), ("snapshots", SNAPSHOTS, "snap-", ".json"))


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file without a row. `about` is what a backup says about itself, unproven. `is_ours` is set if it says that it
    was made in this store, because another store may keep its files here as well; an unfinished file belongs to no
    store."""

    path: Path
    size_bytes: int
    changed_at: str
    about: BackupAbout | None = None
    is_ours: bool = True

    def shown(self) -> dict[str, JSON]:
        """The file as it is shown to an operator."""
        shown: dict[str, JSON] = {
            "file": str(self.path),
            "size_bytes": self.size_bytes,
            "changed_at": self.changed_at,
        }
        if self.about is not None:
            shown |= {"scope": self.about.scope, "created_at": self.about.created_at}
        return shown if self.is_ours else {**shown, "of_this_store": False}


async def find_leftovers(store: EntryStore, settings: StateSettings) -> list[Leftover]:
    """Files that are not registered as a backup or snapshot, and that no process can still be writing.

    Raises:
        PathRefusedError: a folder is a link.
    """
    found: list[Leftover] = []
    for kind, scope, prefix, suffix in _KINDS:
        folder = folder_of(store, settings, kind)
        # The files first: whatever is registered meanwhile existed already.
        names = await asyncio.to_thread(_names, folder)
        known = {f"{entry.key}{suffix}" async for entry in every_entry(store, scope, values=False)}
        strange = [name for name in sorted(names - known) if _is_named_like(name, prefix, suffix)]
        old = await asyncio.to_thread(_old_files, [folder / name for name in strange])
        found.extend([await _with_origin(store, each) for each in old])
    return found


async def delete_leftovers(store: EntryStore, found: Sequence[Leftover]) -> list[Leftover]:
    """Delete those that are ours; the audit log records that an operator did so. Returns which."""
    ours = [each for each in found if each.is_ours]
    for each in ours:
        line: dict[str, JSON] = {
            "at": shown_time(store.now_ms()),
            "agent": "operator",
            "status": "leftover deleted",
            "file": each.path.name,
        }
        await store.transact(EntryTransaction(changes=(), owner="operator", audit=(line,)))
        await asyncio.to_thread(remove_file, each.path)
    return ours


def _names(folder: Path) -> set[str]:
    if folder.is_symlink():
        raise PathRefusedError(str(folder), "it is a link, and links are not followed")
    return names_in(folder)


def _is_named_like(name: str, prefix: str, suffix: str) -> bool:
    """Whether it has the name of such a file, or of one that was never finished."""
    if name.endswith(".part"):
        return name.startswith(f".{prefix}")
    return name.startswith(prefix) and name.endswith(suffix)


def _old_files(paths: Sequence[Path]) -> list[Leftover]:
    before = time.time() - LONGEST_WRITING_MS / 1000
    found: list[Leftover] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            file = os.lstat(path)
            if stat.S_ISREG(file.st_mode) and file.st_mtime < before:
                changed_at = shown_time(int(file.st_mtime * 1000))
                found.append(Leftover(path=path, size_bytes=file.st_size, changed_at=changed_at))
    return found


async def _with_origin(store: EntryStore, found: Leftover) -> Leftover:
    """The file with what it says about itself."""
    if found.path.suffix == SUFFIX:
        try:
            about = await read_about(found.path)
        except VaultError:
            return replace(found, is_ours=False)
        return replace(found, about=about, is_ours=about.store_id == await store.store_id())
    if found.path.suffix == ".json":
        made_in = await asyncio.to_thread(_store_of_snapshot, found.path)
        return replace(found, is_ours=made_in == await store.store_id())
    return found


def _store_of_snapshot(path: Path) -> str | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Snapshot).store_id
    except (OSError, msgspec.DecodeError):
        return None


class _Snapshot(msgspec.Struct):
    store_id: str | None = None
