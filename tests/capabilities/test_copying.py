"""A backup is copied to where an operator allows it, byte for byte, and to nowhere else."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from helix_agents.capabilities.vault import Vault, copy_backup
from helix_agents.capabilities.vault import copying as copying_module
from helix_agents.capabilities.vault import files as files_module
from helix_agents.domain.errors import BackupDamagedError, PathRefusedError, VaultFileError
from tests.capabilities.samples import PASSPHRASE, backup, content_of, sample


@pytest.fixture
async def source(vault: Vault, tmp_path: Path) -> Path:
    (tmp_path / "root" / "folder").mkdir(parents=True)
    await backup(tmp_path / "b", vault, sample(10_000))
    vault.lock()
    return tmp_path / "b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize(("wanted", "given"), [("", "b"), ("folder", "folder/b"), ("c", "c"), ("folder/c", "folder/c")])
async def test_a_copy_is_the_same_bytes_and_opens_with_the_passphrase(
    wanted: str, given: str, source: Path, root: Path
) -> None:
    copied = await copy_backup(source, root / wanted, roots=[root])
    assert Path(copied.path) == root / given
    content = (root / given).read_bytes()
    assert content == source.read_bytes()
    assert (copied.size_bytes, copied.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert stat.S_IMODE((root / given).stat().st_mode) == 0o600
    assert everything(root) == {"folder", given}
    assert await content_of(root / given, passphrase=PASSPHRASE) == sample(10_000)


async def test_a_name_that_is_taken_is_refused_whatever_has_it(source: Path, root: Path, tmp_path: Path) -> None:
    (root / "file").write_bytes(b"precious")
    (root / "link").symlink_to(root / "file")
    (root / "dangling").symlink_to(tmp_path / "elsewhere")
    (root / "way").symlink_to(root / "folder")
    (root / "b").write_bytes(b"precious")
    os.mkfifo(root / "pipe")
    before = everything(root)
    for name in ("file", "link", "dangling", "way", "way/c", "pipe", ""):
        with pytest.raises(PathRefusedError, match="choose another path"):
            await copy_backup(source, root / name, roots=[root])
    assert everything(root) == before
    assert (root / "b").read_bytes() == (root / "file").read_bytes() == b"precious"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("wanted", ["../out", "folder/../../out", "folder/../c"])
async def test_a_path_that_climbs_is_refused(wanted: str, source: Path, root: Path) -> None:
    with pytest.raises(PathRefusedError, match="allowed folder"):
        await copy_backup(source, f"{root}/{wanted}", roots=[root])


async def test_a_path_outside_every_root_is_refused(source: Path, root: Path, tmp_path: Path) -> None:
    for wanted in (tmp_path / "out", f"{root}-twin/c", "relative", "/"):
        with pytest.raises(PathRefusedError, match="allowed folder"):
            await copy_backup(source, wanted, roots=[root, root / "folder"])
    with pytest.raises(PathRefusedError, match="none"):
        await copy_backup(source, root / "c", roots=[])


async def test_a_root_may_be_a_link_and_the_answer_names_the_real_place(
    source: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "mount").symlink_to(root)
    copied = await copy_backup(source, tmp_path / "mount" / "folder" / "c", roots=[tmp_path / "mount"])
    assert copied.path == str(root / "folder" / "c")
    again = await copy_backup(source, root / "d", roots=[tmp_path / "mount"])
    assert again.path == str(root / "d")


async def test_a_folder_that_becomes_a_link_after_it_was_looked_at_is_not_followed(
    source: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    whole = copying_module._target

    def swap(*args: Any) -> Path:
        target = whole(*args)
        (root / "folder").rmdir()
        (root / "folder").symlink_to(tmp_path / "outside")
        return target

    monkeypatch.setattr(copying_module, "_target", swap)
    with pytest.raises(PathRefusedError, match="link"):
        await copy_backup(source, root / "folder" / "c", roots=[root])
    assert everything(tmp_path / "outside") == set()


async def test_a_missing_folder_and_a_full_disk_are_named_and_leave_nothing(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VaultFileError, match="No such file"):
        await copy_backup(source, root / "nowhere" / "c", roots=[root])
    with pytest.raises(VaultFileError, match="No such file"):
        await copy_backup(root / "nothing", root / "c", roots=[root])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files_module.os, "write", full)
    with pytest.raises(VaultFileError, match="No space left"):
        await copy_backup(source, root / "c", roots=[root])
    assert everything(root) == {"folder"}


async def test_a_copy_that_reads_back_differently_does_not_count(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module.os, "fsync", lambda descriptor: os.pwrite(descriptor, b"rot", 2_000))
    with pytest.raises(VaultFileError, match="read back"):
        await copy_backup(source, root / "c", roots=[root])
    assert everything(root) == {"folder"}


async def test_only_backups_are_copied(source: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a private key")
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(BackupDamagedError):
        await copy_backup(tmp_path / "secret", root / "c", roots=[root])
    with pytest.raises(PathRefusedError):
        await copy_backup(tmp_path / "link", root / "c", roots=[root])
    assert everything(root) == {"folder"}
