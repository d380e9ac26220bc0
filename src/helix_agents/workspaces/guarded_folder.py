"""A folder that cannot be escaped: each name of a path is opened within the folder before it, and links are refused.

A path is never passed to the system as a whole. Each folder on the way is opened by its name within the one before it,
which is already open, and links are not followed. So there is no moment between checking and acting in which a folder
could be exchanged for a link: what is open stays what it is, and the rest is checked as it is opened.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from helix_agents.domain.errors import WorkspaceFileError
from helix_agents.domain.texts import storable
from helix_agents.domain.workspaces import MOST_LEVELS, parts_of
from helix_agents.ports.workspaces import FileInfo

FILES = "files"
ASIDE = "aside"
LOCK = "lock"
"""What a workspace's own folder contains: its files, a place for files being written, and the lock for writers."""

_GONE = "gone-"
"""How folders are called that were moved to be deleted."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Otherwise, opening a pipe that was left there would block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

_SENTENCES = {
    errno.ENOENT: "there is no such file or folder.",
    errno.ENOTDIR: "a part of the path is not a folder, or is a link, which is not followed.",
    errno.ELOOP: "it is a link, which is not followed.",
    errno.EISDIR: "it is a folder.",
    errno.ENOTEMPTY: "the folder is not empty.",
    errno.EINVAL: "a folder cannot be moved into itself.",
    errno.ENAMETOOLONG: "a name in it is too long.",
    errno.ENOSPC: "the disk is full.",
    errno.EACCES: "the system does not allow it.",
    errno.ENXIO: "it is no file.",
}


@contextmanager
def telling(path: str) -> Generator[None]:
    """Turn an error of the system into a sentence about this path."""
    try:
        yield
    except OSError as problem:
        sentence = _SENTENCES.get(problem.errno or 0) or f"{problem.strerror or problem}."
        raise WorkspaceFileError(path, sentence) from problem


@contextmanager
def opened(name: str | Path, flags: int = _FOLDER, *, within: int | None = None, mode: int = 0o666) -> Generator[int]:
    """An open file or folder, until the block ends."""
    found = os.open(name, flags, mode, dir_fd=within)
    try:
        yield found
    finally:
        os.close(found)


class GuardedFolder:
    """The files of one workspace, below `root / name`. All methods block: call them in a thread."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name

    def exists(self) -> bool:
        """Whether the workspace was created, and is here."""
        try:
            with self.home() as home, opened(FILES, within=home):
                return True
        except OSError:
            return False

    def make(self) -> None:
        """Create the workspace's folders; those that exist are left as they are."""
        self.root.mkdir(parents=True, exist_ok=True)
        with opened(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root:
            make_folder(root, self.name, 0o700)
            with opened(self.name, within=root) as home:
                for each in (ASIDE, FILES):
                    make_folder(home, each, 0o777)

    def remove(self) -> None:
        """Delete the workspace with everything in it, if it exists."""
        with suppress(FileNotFoundError), opened(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root:
            with opened(self.name, within=root) as home:
                while inside := os.listdir(home):
                    remove(inside[0], home, aside=home)
            os.rmdir(self.name, dir_fd=root)

    @contextmanager
    def home(self) -> Generator[int]:
        """The workspace's own folder, open. The root belongs to the operator, and may be a link."""
        with (
            opened(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root,
            opened(self.name, within=root) as home,
        ):
            yield home

    @contextmanager
    def alone(self) -> Generator[int]:
        """The workspace's own folder, open, while no other process or thread writes through this class."""
        with self.home() as home, opened(LOCK, _LOCK_FILE, within=home) as at:
            fcntl.flock(at, fcntl.LOCK_EX)
            yield home

    def read(self, path: str, most_bytes: int) -> bytes:
        with telling(path), self._beside(path) as (folder, name):
            return read_file(folder, name, path, most_bytes)

    def write(self, path: str, content: bytes, instead_of: bytes | None) -> bool:
        with telling(path), self.alone() as home, self._beside(path, make=True) as (folder, name):
            mode = None
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(there.st_mode):
                    raise OSError(errno.EISDIR if stat.S_ISDIR(there.st_mode) else errno.ELOOP, "")
                mode = stat.S_IMODE(there.st_mode)
            if instead_of is not None and not _is_still(folder, name, path, instead_of):
                return False
            with opened(ASIDE, within=home) as aside:
                write_file(aside, name_aside := "writing", content, mode)
                os.rename(name_aside, name, src_dir_fd=aside, dst_dir_fd=folder)
            os.fsync(folder)
            return True

    def list(self, path: str, deep: bool, most: int) -> Sequence[FileInfo]:
        parts = parts_of(path)
        with telling(path):
            if parts:
                with self._beside(path) as (folder, name):
                    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if not stat.S_ISDIR(there.st_mode):
                        return [info_of("/".join(parts), there)]
            with self._folder(parts) as folder:
                found: list[FileInfo] = []
                for each in walk(folder, parts, deep=deep):
                    found.append(each)
                    if len(found) == most:
                        break
                return sorted(found, key=lambda each: each.path)

    def delete(self, path: str, with_contents: bool) -> bool:
        with telling(path), self.alone() as home, self._beside(path) as (folder, name):
            try:
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            if not stat.S_ISDIR(there.st_mode):
                os.unlink(name, dir_fd=folder)
            elif with_contents:
                with opened(ASIDE, within=home) as aside:
                    remove(name, folder, aside=aside)
            else:
                os.rmdir(name, dir_fd=folder)
            return True

    def move(self, path: str, target: str) -> None:
        with self.alone(), telling(path), self._beside(path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            with telling(target), self._beside(target, make=True) as (other, new):
                with suppress(FileNotFoundError):
                    os.stat(new, dir_fd=other, follow_symlinks=False)
                    raise WorkspaceFileError(target, "something is there already.")
                os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)

    @contextmanager
    def _beside(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """The folder that contains something, open, and its name there."""
        parts = parts_of(path)
        if not parts:
            raise WorkspaceFileError(path, "this is the workspace itself; name something in it.")
        with self._folder(parts[:-1], make=make) as folder:
            yield folder, parts[-1]

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Generator[int]:
        with self.home() as home:
            at = os.open(FILES, _FOLDER, dir_fd=home)
            try:
                for name in parts:
                    if make:
                        make_folder(at, name, 0o777)
                    above, at = at, os.open(name, _FOLDER, dir_fd=at)
                    os.close(above)
                yield at
            finally:
                os.close(at)


def make_folder(within: int, name: str, mode: int) -> None:
    """Create a folder of this name, unless the name is taken."""
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=within)


def read_file(folder: int, name: str, path: str, most_bytes: int) -> bytes:
    """A file in an open folder; anything that is not a file, or is too large, is refused."""
    with opened(name, _FILE, within=folder) as file:
        there = os.fstat(file)
        if not stat.S_ISREG(there.st_mode):
            raise WorkspaceFileError(path, "it is a folder." if stat.S_ISDIR(there.st_mode) else "it is no file.")
        if there.st_size > most_bytes:
            raise WorkspaceFileError(path, f"it has {there.st_size:,} bytes; {most_bytes:,} are the most.")
        with os.fdopen(os.dup(file), "rb") as reading:
            content = reading.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise WorkspaceFileError(path, f"it has more than {most_bytes:,} bytes.")
    return content


def write_file(folder: int, name: str, content: bytes, mode: int | None = None, *, lasting: bool = True) -> None:
    """A new file in an open folder, if `lasting` on disk when this returns; a file that was left there is replaced."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    with opened(name, _NEW_FILE, within=folder) as file, os.fdopen(os.dup(file), "wb") as writing:
        writing.write(content)
        writing.flush()
        if mode is not None:
            os.fchmod(file, mode)
        if lasting:
            os.fsync(file)


def remove(name: str, within: int, *, aside: int) -> None:
    """Delete something in an open folder with all that it contains, however deep that is and whether or not its folders
    may be written to. What is deep is first moved to another open folder of the same file system, `aside`."""
    if not _is_folder(name, within):
        os.unlink(name, dir_fd=within)
        return
    left, moved = [(within, name)], 0
    while left:
        above, each = left.pop()
        with opened(each, within=above) as folder:
            os.fchmod(folder, 0o700)
            for inside in os.listdir(folder):
                if not _is_folder(inside, folder):
                    os.unlink(inside, dir_fd=folder)
                    continue
                moved = _move_aside(inside, folder, aside, moved + 1)
                left.append((aside, f"{_GONE}{moved}"))
        os.rmdir(each, dir_fd=above)


def _move_aside(name: str, within: int, aside: int, number: int) -> int:
    """Give a folder the first free number from here on."""
    with opened(name, within=within) as folder:
        # A folder that is moved gets another folder above it, which is a change of its own.
        os.fchmod(folder, 0o700)
    while True:
        try:
            os.rename(name, f"{_GONE}{number}", src_dir_fd=within, dst_dir_fd=aside)
        except OSError as problem:
            # One that was cut short left it here.
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            number += 1
        else:
            return number


def _is_folder(name: str, within: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)


def walk(folder: int, above: Sequence[str] = (), *, deep: bool) -> Iterator[FileInfo]:
    """What is in an open folder, with `deep` also in its subfolders, up to a generous depth."""
    with os.scandir(folder) as entries:
        names = sorted(each.name for each in entries)
    for name in names:
        path = (*above, name)
        try:
            info = info_of("/".join(path), os.stat(name, dir_fd=folder, follow_symlinks=False))
            yield info
            if deep and info.kind == "folder" and len(path) < MOST_LEVELS:
                with opened(name, within=folder) as below:
                    yield from walk(below, path, deep=True)
        except OSError:
            # It was removed, or became something else, a moment ago.
            continue


def info_of(path: str, there: os.stat_result) -> FileInfo:
    """An entry as it is reported."""
    path = storable(path)
    if stat.S_ISREG(there.st_mode):
        return FileInfo(path=path, kind="file", size=there.st_size)
    if stat.S_ISDIR(there.st_mode):
        return FileInfo(path=path, kind="folder")
    return FileInfo(path=path, kind="link" if stat.S_ISLNK(there.st_mode) else "other")


def _is_still(folder: int, name: str, path: str, content: bytes) -> bool:
    try:
        return read_file(folder, name, path, len(content)) == content
    except (FileNotFoundError, WorkspaceFileError):
        return False
