"""Which files a snapshot of a folder reads, and that it misses no change."""

import os
import shutil
from collections.abc import Callable
from hashlib import file_digest
from pathlib import Path
from typing import Any

import pytest

from helix_agents.workspaces import folder_snapshots
from helix_agents.workspaces.folder_snapshots import FolderSnapshots
from helix_agents.workspaces.guarded_folder import GuardedFolder

MOST = 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> GuardedFolder:
    made = GuardedFolder(tmp_path, "w")
    made.make()
    return made


@pytest.fixture
def files(folder: GuardedFolder) -> Path:
    return folder.root / folder.name / "files"


@pytest.fixture
def snapshots(folder: GuardedFolder) -> FolderSnapshots:
    return FolderSnapshots(folder, MOST)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The contents that were read to take a snapshot."""
    read: list[bytes] = []

    def watched(file: Any, kind: str) -> Any:
        digest = file_digest(file, kind)
        file.seek(0)
        read.append(file.read())
        return digest

    monkeypatch.setattr(folder_snapshots, "file_digest", watched)
    return read


@pytest.fixture
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changed a moment ago counts as if it were long ago."""
    monkeypatch.setattr(folder_snapshots, "_SETTLED_NS", -60_000_000_000)


def restored(folder: GuardedFolder, files: Path, name: str) -> dict[str, bytes]:
    FolderSnapshots(folder, MOST).restore(name, folder)
    return {str(each.relative_to(files)): each.read_bytes() for each in sorted(files.rglob("*")) if each.is_file()}


@pytest.mark.usefixtures("soon_settled")
def test_a_snapshot_reads_what_has_changed_since_the_last_one(
    folder: GuardedFolder, files: Path, snapshots: FolderSnapshots, reads: list[bytes]
) -> None:
    (files / "notes").mkdir()
    for number in range(20):
        (files / "notes" / f"{number}.md").write_text(f"note {number}")
    snapshots.create("one")
    assert len(reads) == 20
    reads.clear()
    (files / "notes" / "7.md").write_text("NOTE 7")
    (files / "new.md").write_text("new")
    os.rename(files / "notes" / "3.md", files / "moved.md")
    # Another process, as far as this object is concerned.
    FolderSnapshots(folder, MOST).create("two")
    # A rename changes the file as well, as the system sees it.
    assert sorted(reads) == [b"NOTE 7", b"new", b"note 3"]
    reads.clear()
    snapshots.create("three")
    assert reads == []
    expected = {f"notes/{number}.md": b"note %d" % number for number in range(20) if number not in (3, 7)}
    expected |= {"notes/7.md": b"NOTE 7", "new.md": b"new", "moved.md": b"note 3"}
    for name in ("two", "three"):
        assert restored(folder, files, name) == expected


def _until_the_clock_moves(file: Path) -> None:
    """Wait until what changes now changes later than this file: the clock moves in steps of some milliseconds."""
    probe = file.parent.parent / "probe"
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > file.stat().st_ctime_ns:
            return


def _in_place(file: Path) -> None:
    with file.open("r+b") as writing:
        writing.write(b"B")


def _exchanged(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"Beta")
    os.utime(other, ns=(0, file.stat().st_mtime_ns))
    os.replace(other, file)


def _anew(file: Path) -> None:
    file.write_bytes(b"Beta")


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("change", [_in_place, _exchanged, _anew])
def test_no_change_is_missed_although_size_and_time_are_as_before(
    folder: GuardedFolder,
    files: Path,
    snapshots: FolderSnapshots,
    monkeypatch: pytest.MonkeyPatch,
    settled: bool,
    change: Callable[[Path], None],
) -> None:
    if settled:
        monkeypatch.setattr(folder_snapshots, "_SETTLED_NS", -60_000_000_000)
    file = files / "a"
    file.write_bytes(b"Aeta")
    os.utime(file, ns=(0, 1))
    snapshots.create("one")
    if settled:
        _until_the_clock_moves(file)
    change(file)
    os.utime(file, ns=(0, 1))
    snapshots.create("two")
    assert restored(folder, files, "two") == {"a": b"Beta"}
    assert restored(folder, files, "one") == {"a": b"Aeta"}


def test_a_file_that_changes_while_it_is_kept_changes_no_other(
    folder: GuardedFolder, files: Path, snapshots: FolderSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = files / "a"
    for each in (changing, files / "b"):
        each.write_bytes(b"Aeta")

    def late(file: Any, kind: str) -> Any:
        digest = file_digest(file, kind)
        changing.write_bytes(b"Beta")
        return digest

    monkeypatch.setattr(folder_snapshots, "file_digest", late)
    snapshots.create("one")
    assert restored(folder, files, "one") == {"a": b"Beta", "b": b"Aeta"}


@pytest.mark.usefixtures("soon_settled")
@pytest.mark.parametrize("left", [None, b"", b"{", b'{"files": {}, "more": 1}', b'{"files": [1]}'])
def test_what_the_last_snapshot_knew_may_be_lost_or_unreadable(
    folder: GuardedFolder, files: Path, snapshots: FolderSnapshots, reads: list[bytes], left: bytes | None
) -> None:
    (files / "a").write_bytes(b"Alpha")
    snapshots.create("one")
    known = folder.root / folder.name / "known.json"
    known.unlink()
    if left is not None:
        known.write_bytes(left)
    snapshots.create("two")
    assert reads == [b"Alpha"] * 2
    snapshots.create("three")
    assert reads == [b"Alpha"] * 2
    assert restored(folder, files, "three") == {"a": b"Alpha"}


@pytest.mark.usefixtures("soon_settled")
def test_a_content_that_is_no_longer_stored_is_stored_again(
    folder: GuardedFolder, files: Path, snapshots: FolderSnapshots
) -> None:
    (files / "a").write_bytes(b"Alpha")
    snapshots.create("one")
    shutil.rmtree(folder.root / folder.name / "objects")
    snapshots.create("two")
    assert restored(folder, files, "two") == {"a": b"Alpha"}


def test_what_changed_just_before_a_snapshot_is_read_by_the_next_one_too(
    files: Path, snapshots: FolderSnapshots, reads: list[bytes]
) -> None:
    (files / "a").write_bytes(b"Alpha")
    snapshots.create("one")
    snapshots.create("two")
    assert reads == [b"Alpha"] * 2
