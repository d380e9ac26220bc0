"""Earlier states of a folder's files: a list for each snapshot, and every content once, by its digest.

A file that has not changed since the last snapshot is not read again. What says so is the time at which the system last
changed it, which no program can set. That time is only as fine as the file system's clock, so a file that changed
shortly before a snapshot is read by the next one too.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import file_digest, sha256
from shutil import copyfileobj
from typing import BinaryIO

from helix_agents.domain.errors import HelixError, WorkspaceFailedError
from helix_agents.domain.records import Record, decode, encode
from helix_agents.workspaces.guarded_folder import (
    ASIDE,
    FILES,
    GuardedFolder,
    info_of,
    make_folder,
    opened,
    read_file,
    remove,
    write_file,
)

OBJECTS = "objects"
SNAPSHOTS = "snapshots"
KNOWN = "known.json"
"""The digests of files that the last snapshot read, and how to tell that they are still the same."""

_SUFFIX = ".json"
_MOST_BYTES_OF_A_LIST = 100_000_000
_SETTLED_NS = 2_000_000_000
_BLOCK_BYTES = 1 << 18
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Kept(Record):
    """One entry of a snapshot: a folder, a file with the digest of its content, or a link with its target."""

    name: str
    mode: int
    digest: str | None = None
    link: str | None = None
    inside: tuple["_Kept", ...] | None = None


class _Snapshot(Record):
    entries: tuple[_Kept, ...]


class _Digest(Record):
    """The digest of a file's content, which it has as long as size and times are these."""

    digest: str
    size: int
    modified_ns: int
    changed_ns: int


class _Known(Record):
    """Digests by the files' numbers in the file system."""

    files: dict[str, _Digest]


class FolderSnapshots:
    """The snapshots of one workspace, in its own folder beside its files. All methods block: call them in a thread."""

    def __init__(self, folder: GuardedFolder, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def create(self, name: str) -> None:
        with self._folder.alone() as home:
            make_folder(home, OBJECTS, 0o700)
            make_folder(home, SNAPSHOTS, 0o700)
            with (
                opened(FILES, within=home) as files,
                opened(OBJECTS, within=home) as objects,
                opened(ASIDE, within=home) as aside,
                opened(SNAPSHOTS, within=home) as snapshots,
            ):
                keeping = _Keeping(self._folder.name, objects, aside, self._most_bytes, _known_in(home))
                entries = keeping.entries_of(files)
                os.fsync(objects)
                write_file(aside, "list", encode(_Snapshot(entries=entries)))
                os.rename("list", name + _SUFFIX, src_dir_fd=aside, dst_dir_fd=snapshots)
                write_file(aside, "known", encode(_Known(files=keeping.known)), lasting=False)
                os.rename("known", KNOWN, src_dir_fd=aside, dst_dir_fd=home)

    def list(self) -> Sequence[str]:
        with suppress(OSError), self._folder.home() as home, opened(SNAPSHOTS, within=home) as snapshots:
            return sorted(each.removesuffix(_SUFFIX) for each in os.listdir(snapshots))
        return ()

    def delete(self, name: str) -> None:
        """Delete a list; contents are shared with other snapshots, and are deleted with the workspace."""
        with suppress(FileNotFoundError), self._folder.alone() as home, opened(SNAPSHOTS, within=home) as snapshots:
            os.unlink(name + _SUFFIX, dir_fd=snapshots)

    def restore(self, name: str | None, source: GuardedFolder) -> None:
        """Empty the folder and fill it again; a restore that was cut short is done again by the next caller."""
        with self._folder.alone() as home, source.home() as theirs:
            entries: tuple[_Kept, ...] = ()
            if name is not None:
                with opened(SNAPSHOTS, within=theirs) as snapshots:
                    found = read_file(snapshots, name + _SUFFIX, name, _MOST_BYTES_OF_A_LIST)
                entries = decode(found, _Snapshot).entries
            with opened(FILES, within=home) as files, opened(ASIDE, within=home) as aside:
                for each in os.listdir(files):
                    remove(each, files, aside=aside)
                if entries:
                    with opened(OBJECTS, within=theirs) as objects:
                        _fill(files, objects, entries)


class _Keeping:
    """Copies the contents of a folder into the snapshots, each content once, up to a limit of bytes."""

    def __init__(
        self, workspace: str, objects: int, aside: int, most_bytes: int, known_before: Mapping[str, _Digest]
    ) -> None:
        self._workspace = workspace
        self._known_before = known_before
        self._settled_before_ns = _now_ns(aside) - _SETTLED_NS
        self.known: dict[str, _Digest] = {}
        self._objects = objects
        self._aside = aside
        self._most_bytes = most_bytes
        self._left = most_bytes

    def entries_of(self, folder: int) -> tuple[_Kept, ...]:
        kept: list[_Kept] = []
        for name in sorted(os.listdir(folder)):
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            shown, mode = os.fsencode(name).hex(), stat.S_IMODE(there.st_mode)
            kind = info_of(name, there).kind
            if kind == "folder":
                with opened(name, within=folder) as below:
                    kept.append(_Kept(name=shown, mode=mode, inside=self.entries_of(below)))
            elif kind == "link":
                says = os.fsencode(os.readlink(name, dir_fd=folder)).hex()
                kept.append(_Kept(name=shown, mode=mode, link=says))
            elif kind == "file":
                kept.append(_Kept(name=shown, mode=mode, digest=self._digest_of(folder, name)))
        return tuple(kept)

    def _digest_of(self, folder: int, name: str) -> str:
        with opened(name, _READING, within=folder) as file, os.fdopen(os.dup(file), "rb") as reading:
            there = os.fstat(file)
            self._left -= there.st_size
            if self._left < 0:
                raise WorkspaceFailedError(
                    self._workspace,
                    f"its files have more than {self._most_bytes:,} bytes, which is too much for a snapshot; "
                    "to allow more, give LocalWorkspaces(snapshot_bytes=…).",
                )
            number = f"{there.st_dev}.{there.st_ino}"
            known = self._known_before.get(number)
            if known is not None and known == _read_as(known.digest, there) and _is_there(self._objects, known.digest):
                self.known[number] = known
                return known.digest
            digest = file_digest(reading, "sha256").hexdigest()
            is_same = _read_as(digest, os.fstat(file)) == _read_as(digest, there)
            if is_same and there.st_ctime_ns < self._settled_before_ns:
                self.known[number] = _read_as(digest, there)
            if not _is_there(self._objects, digest):
                reading.seek(0)
                with suppress(FileNotFoundError):
                    os.unlink("content", dir_fd=self._aside)
                with opened("content", _WRITING, within=self._aside) as new, os.fdopen(os.dup(new), "wb") as writing:
                    # The file may have changed since it was read, and others may have what it had.
                    digest = _copied(reading, writing)
                    writing.flush()
                    os.fsync(new)
                os.rename("content", digest, src_dir_fd=self._aside, dst_dir_fd=self._objects)
            return digest


def _copied(reading: BinaryIO, writing: BinaryIO) -> str:
    """The digest of what was copied."""
    digest = sha256()
    while block := reading.read(_BLOCK_BYTES):
        digest.update(block)
        writing.write(block)
    return digest.hexdigest()


def _read_as(digest: str, there: os.stat_result) -> _Digest:
    """The digest of a file that was read when it looked like this."""
    times = {"modified_ns": there.st_mtime_ns, "changed_ns": there.st_ctime_ns}
    return _Digest(digest=digest, size=there.st_size, **times)


def _known_in(home: int) -> Mapping[str, _Digest]:
    """What the last snapshot knew; nothing if that cannot be read, since every file can be read instead."""
    with suppress(OSError, HelixError):
        return decode(read_file(home, KNOWN, KNOWN, _MOST_BYTES_OF_A_LIST), _Known).files
    return {}


def _now_ns(folder: int) -> int:
    """The time by the clock of the file system, which may be that of another machine."""
    write_file(folder, "clock", b"", lasting=False)
    return os.stat("clock", dir_fd=folder).st_ctime_ns


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _fill(folder: int, objects: int, entries: Sequence[_Kept]) -> None:
    for each in entries:
        name = os.fsdecode(bytes.fromhex(each.name))
        if each.inside is not None:
            os.mkdir(name, 0o700, dir_fd=folder)
            with opened(name, within=folder) as below:
                _fill(below, objects, each.inside)
                os.fchmod(below, each.mode)
        elif each.link is not None:
            os.symlink(os.fsdecode(bytes.fromhex(each.link)), name, dir_fd=folder)
        elif each.digest is not None:
            with (
                opened(each.digest, _READING, within=objects) as content,
                opened(name, _WRITING, within=folder) as new,
                os.fdopen(os.dup(content), "rb") as reading,
                os.fdopen(os.dup(new), "wb") as writing,
            ):
                copyfileobj(reading, writing)
                os.fchmod(new, each.mode)
