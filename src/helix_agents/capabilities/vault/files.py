"""Files that appear completely or not at all, are readable by their owner only, and are never reached through a link.

A file is written under a temporary name and then linked to its own. A process that dies before that leaves only the
temporary name behind; it held a lock on it, so the next writer in the folder can tell that the process is gone.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from helix_agents.domain.errors import PathRefusedError, VaultFileError

BLOCK_BYTES = 1 << 20
_OWNER_ONLY = 0o600
_PART = re.compile(r"^\..+\.[0-9a-f]{16}\.part$")
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def file_system(path: Path) -> Generator[None]:
    """Turn an error of the operating system into one of ours about this path."""
    try:
        yield
    except FileExistsError as problem:
        raise PathRefusedError(str(path), "something is there already, and nothing is overwritten") from problem
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise PathRefusedError(str(path), "it is a link, and links are not followed") from problem
        raise VaultFileError(str(path), problem.strerror or str(problem)) from problem


@contextmanager
def open_folder(folder: Path, *, beneath: Path | None = None) -> Generator[int]:
    """The folder as a descriptor. From `beneath` down (by default: for the folder itself) no link is followed.

    Operations through the descriptor happen in this folder, whatever is renamed or linked over its path meanwhile.
    """
    start = folder.parent if beneath is None else beneath
    steps = folder.parts[len(start.parts) :]
    with file_system(folder):
        current = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps:
            current = _step_into(current, step, folder)
        yield current
    finally:
        os.close(current)


def _step_into(current: int, step: str, folder: Path) -> int:
    if is_link(step, current):
        raise PathRefusedError(str(folder), f"{step!r} in it is a link, and links are not followed")
    with file_system(folder):
        below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    os.close(current)
    return below


def is_link(name: str, folder: int) -> bool:
    """Whether this name in the folder is a link."""
    kind = kind_of(name, folder)
    return kind is not None and stat.S_ISLNK(kind)


def kind_of(name: str, folder: int) -> int | None:
    """The mode of what has this name in the folder, without following links; None if nothing has."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def open_regular(path: Path) -> int:
    """An existing plain file, for reading.

    Raises:
        PathRefusedError: it is a link, a folder, a pipe or a device.
        VaultFileError: it cannot be opened.
    """
    with file_system(path):
        # Opening a pipe would wait for its other end, so nothing waits until it is known what this is.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PathRefusedError(str(path), "it is not a plain file")
    return opened


class PartFile:
    """A file on its way into a folder: written, synced, and then given its name, or removed."""

    def __init__(self, folder: int, path: Path, *, replacing: bool = False) -> None:
        self.path = path
        self._folder = folder
        self._replacing = replacing
        if not replacing and kind_of(path.name, folder) is not None:
            raise PathRefusedError(str(path), "something is there already, and nothing is overwritten")
        with file_system(path):
            sweep(folder)
            self.descriptor, self._part = _create_part(folder, path.name)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with file_system(self.path):
            while view:
                view = view[os.write(self.descriptor, view) :]

    def sync(self) -> None:
        """Sync it to disk, and let the next read come from there where the system supports that."""
        with file_system(self.path):
            os.fsync(self.descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def publish(self) -> None:
        """Give the file its name: one that is still free, or that of the file it replaces."""
        with file_system(self.path):
            if self._replacing:
                os.rename(self._part, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            else:
                _give_name(self._folder, self._part, self.path.name)
            os.fsync(self._folder)

    def close(self) -> None:
        """Remove what was not published; must always be called."""
        with suppress(OSError):
            os.unlink(self._part, dir_fd=self._folder)
        os.close(self.descriptor)


def _create_part(folder: int, name: str) -> tuple[int, str]:
    while True:
        part = f".{name}.{secrets.token_hex(8)}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, _OWNER_ONLY, dir_fd=folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, part
        # A writer that swept the folder between these lines took it for a leftover.
        os.close(descriptor)


def sweep(folder: int) -> None:
    """Remove what writers that died left in the folder; what a living one holds is kept."""
    for name in os.listdir(folder):
        if not _PART.match(name):
            continue
        with suppress(OSError):
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


def _give_name(folder: int, part: str, name: str) -> None:
    try:
        os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in _NO_HARD_LINKS:
            raise
        # Some file systems, such as those of memory sticks, allow no second name for a file. There the name is taken
        # first, and a machine that stops between these two lines leaves an empty file, which every reader refuses.
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_ONLY, dir_fd=folder))
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(part, dir_fd=folder)
