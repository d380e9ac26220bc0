"""Files of the capabilities: written completely or not at all, in folders that only their owner can read."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import quote

from helix_agents.capabilities.settings import StateSettings
from helix_agents.domain.capability_errors import CapabilityError, IoError
from helix_agents.domain.errors import HelixError
from helix_agents.ports.entries import EntryStore

_NO_TENANT = "default"
_LONGEST_NAME = 200


def folder_of(store: EntryStore, settings: StateSettings, name: str) -> Path:
    """The folder for one kind of file.

    Raises:
        IoError: the store has no place on disk, and no folder was given.
    """
    home = settings.directory or store.home
    if home is None:
        raise IoError("There is no folder for files; give state_capabilities(directory=…).", {"folder": name})
    return home / _tenant_folder(store.namespace) / name


def _tenant_folder(namespace: str) -> str:
    """A unique name for each tenant, which leads nowhere else whatever the tenant is called."""
    name = quote(namespace, safe="") or _NO_TENANT
    if namespace == _NO_TENANT or name.startswith("."):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME // 2]}%-{hashlib.sha256(namespace.encode()).hexdigest()}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a new file that exists completely or not at all, and survives a power cut once this returns.

    Raises:
        FileExistsError: the name is taken.
        OSError: it could not be written; nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # A link to an existing name fails, where a rename would overwrite it.
        os.link(making, path)
    finally:
        with contextlib.suppress(OSError):
            making.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checked(path: Path, sha256: str) -> bytes:
    """The content of a file, if it is still what was written.

    Raises:
        IoError: it was changed.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IoError(f"{path.name} is not what was written: its hash differs.", {"file": path.name})
    return data


def hash_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def free_bytes(folder: Path) -> int:
    """How much space the disk of a folder has, whether or not the folder exists yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder; none if the folder is gone."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def remove_file(path: Path) -> None:
    """Delete a file; one that is gone is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


@contextlib.asynccontextmanager
async def kept_if_known(store: EntryStore, scope: str, key: str, path: Path) -> AsyncGenerator[None]:
    """Register a file by a row, within the block; a file whose row was refused is deleted.

    A caller that is cancelled, or loses the store, cannot tell whether the row exists, so it is looked up. If the store
    does not answer, the file is kept: a file without a row is not a backup, but a backup without its file is a broken
    one.
    """
    try:
        yield
    except CapabilityError:
        await asyncio.to_thread(remove_file, path)
        raise
    except BaseException:
        with contextlib.suppress(HelixError):
            if await store.find(scope, key) is None:
                await asyncio.to_thread(remove_file, path)
        raise
