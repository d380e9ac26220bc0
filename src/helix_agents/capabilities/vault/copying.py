"""Copies a backup to where an operator allows it: ciphertext only, so the vault may be locked."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from helix_agents.capabilities.vault.backup_header import read_header
from helix_agents.capabilities.vault.files import BLOCK_BYTES, PartFile, file_system, kind_of, open_folder, open_regular
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.domain.errors import BackupDamagedError, PathRefusedError, VaultFileError
from helix_agents.domain.records import Record


class CopiedBackup(Record):
    """Where the copy is, and what it contains."""

    path: str
    size_bytes: int
    sha256: str


async def copy_backup(
    source: str | Path, destination: str | Path, *, roots: Iterable[str | Path], sha256: str | None = None
) -> CopiedBackup:
    """Copy a backup below one of the roots: into a folder under its own name, or to a path that does not exist yet.

    The copy is identical byte for byte, readable by its owner only, and on disk when this returns. Below a root no link
    is followed, even one that appears while this runs; a root itself may be a link, because the operator chose it. With
    `sha256`, only a source that has this hash is copied.

    Raises:
        PathRefusedError: the destination is taken, is or passes a link, or is outside the roots.
        BackupDamagedError, BackupTooNewError: the source is not a backup, or not the one it should be.
        VaultFileError: the file system refused.
    """
    allowed = [Path(root) for root in roots]
    return await in_thread(partial(_copy, Path(source), Path(destination), allowed, sha256))


def _copy(source: Path, destination: Path, roots: list[Path], expected: str | None) -> CopiedBackup:
    root, inside = _place(destination, [root.absolute() for root in roots])
    with ExitStack() as opened:
        original = open_regular(source)
        opened.callback(os.close, original)
        _refuse_what_is_no_backup(source, original)
        target = _target(root, root.joinpath(*inside), source.name)
        folder = opened.enter_context(open_folder(target.parent, beneath=root))
        part = PartFile(folder, target)
        opened.callback(part.close)
        sha256, size = _hashed(source, original, part.write)
        if expected not in (None, sha256):
            raise BackupDamagedError(str(source), "its hash is another")
        part.sync()
        if _hashed(target, part.descriptor, _keep_nothing) != (sha256, size):
            raise VaultFileError(str(target), "what was read back is not what was written")
        part.publish()
        return CopiedBackup(path=str(target), size_bytes=size, sha256=sha256)


def _place(destination: Path, roots: list[Path]) -> tuple[Path, tuple[str, ...]]:
    """The root that contains the destination, as the folder it really is, and the steps from there."""
    if destination.is_absolute() and ".." not in destination.parts:
        for root in roots:
            real = Path(os.path.realpath(root))
            for name in (root, real):
                if destination.is_relative_to(name):
                    return real, destination.relative_to(name).parts
    listed = ", ".join(repr(str(root)) for root in roots) or "none"
    raise PathRefusedError(str(destination), f"it is not a full path under an allowed folder (allowed: {listed})")


def _target(root: Path, wanted: Path, name: str) -> Path:
    if wanted == root:
        return root / name
    with open_folder(wanted.parent, beneath=root) as folder, file_system(wanted):
        kind = kind_of(wanted.name, folder)
    if kind is not None and stat.S_ISLNK(kind):
        raise PathRefusedError(str(wanted), "it is a link, and links are not followed")
    return wanted / name if kind is not None and stat.S_ISDIR(kind) else wanted


def _refuse_what_is_no_backup(path: Path, descriptor: int) -> None:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        with file_system(path):
            data = os.pread(descriptor, size, position)
        position += len(data)
        return data

    read_header(path, read)


def _hashed(path: Path, descriptor: int, use: Callable[[bytes], None]) -> tuple[str, int]:
    """Pass every block of the file on, and return the hash and size of the whole."""
    digest = hashlib.sha256()
    size = 0
    with file_system(path):
        while data := os.pread(descriptor, BLOCK_BYTES, size):
            digest.update(data)
            size += len(data)
            use(data)
    return digest.hexdigest(), size


def _keep_nothing(_: bytes) -> None:
    pass
