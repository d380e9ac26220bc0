"""A backup is there whole or not at all, never over another file, never through a link."""

import asyncio
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from helix_agents.capabilities.vault import Vault, copy_backup, create_backup, open_backup, verify_backup
from helix_agents.capabilities.vault import checking as checking_module
from helix_agents.capabilities.vault import files as files_module
from helix_agents.capabilities.vault.creating import _Draft
from helix_agents.domain.errors import (
    BackupDamagedError,
    DefinitionError,
    PathRefusedError,
    VaultFileError,
    WrongPassphraseError,
)
from tests.capabilities.killed_writers import CONTENT
from tests.capabilities.samples import ABOUT, PASSPHRASE, SEGMENT, backup, content_of, sample


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"vault"}


async def test_a_backup_is_for_its_owner_only_and_leaves_nothing_beside_it(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, sample(10_000))
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    assert (tmp_path / "b").stat().st_nlink == 1
    assert names(tmp_path) == {"b"}


async def test_nothing_is_there_until_the_block_is_left(vault: Vault, tmp_path: Path) -> None:
    async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
        await writer.write(bytes(3 << 20))
        assert not (tmp_path / "b").exists()
    assert names(tmp_path) == {"b"}


async def test_a_block_that_fails_leaves_nothing(vault: Vault, tmp_path: Path) -> None:
    async def fail() -> None:
        async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
            await writer.write(bytes(2 << 20))
            raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError, match="the store went away"):
        await fail()
    assert names(tmp_path) == set()


async def test_a_writer_who_is_cancelled_leaves_nothing_and_no_thread_at_work(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, finished = threading.Event(), threading.Event(), []
    whole_write = _Draft.write

    def held(self: _Draft, *pieces: bytes) -> None:
        inside.set()
        assert go_on.wait(20)
        whole_write(self, *pieces)
        finished.append(True)

    monkeypatch.setattr(_Draft, "write", held)

    async def write() -> None:
        async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
            await writer.write(bytes(1 << 20))

    writing = asyncio.create_task(write())
    assert await asyncio.to_thread(inside.wait, 20)
    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()
    writing.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert finished == [True]
    assert names(tmp_path) == set()


async def test_a_name_that_is_taken_is_refused_whatever_has_it(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    before = names(tmp_path)
    for name in sorted(before):
        with pytest.raises(PathRefusedError, match="choose another path"):
            await backup(tmp_path / name, vault, b"content")
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert names(tmp_path) == before


async def test_a_name_that_is_taken_while_the_backup_is_written_is_refused_at_the_end(
    vault: Vault, tmp_path: Path
) -> None:
    async def write() -> None:
        async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
            await writer.write(b"content")
            (tmp_path / "b").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PathRefusedError):
        await write()
    assert names(tmp_path) == {"b"}
    assert not (tmp_path / "elsewhere").exists()


async def test_of_two_writers_of_one_name_one_wins(vault: Vault, tmp_path: Path) -> None:
    tries = await asyncio.gather(
        *(backup(tmp_path / "b", vault, sample(size)) for size in range(1, 6)), return_exceptions=True
    )
    won = [answer for answer in tries if not isinstance(answer, BaseException)]
    assert len(won) == 1
    assert all(isinstance(answer, PathRefusedError) for answer in tries if isinstance(answer, BaseException))
    assert await content_of(tmp_path / "b", vault=vault) == sample(won[0].plain_bytes)
    assert names(tmp_path) == {"b"}


async def test_a_folder_that_is_a_link_or_missing_or_a_file_is_refused(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PathRefusedError, match="link"):
        await backup(tmp_path / "linked" / "b", vault, b"content")
    with pytest.raises(VaultFileError, match="No such file"):
        await backup(tmp_path / "nowhere" / "b", vault, b"content")
    with pytest.raises(VaultFileError, match="Not a directory"):
        await backup(tmp_path / "file" / "b", vault, b"content")
    assert list((tmp_path / "real").iterdir()) == []


async def test_reading_takes_plain_files_only(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, b"content")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(PathRefusedError):
            await content_of(tmp_path / name, vault=vault)
    with pytest.raises(VaultFileError, match="No such file"):
        await content_of(tmp_path / "nothing", vault=vault)


@pytest.mark.parametrize("failing", ["write", "fsync", "link"])
async def test_a_disk_that_refuses_leaves_nothing_and_is_named(
    failing: str, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = threading.Event()
    whole = getattr(os, failing)

    def refuse(*args: object, **options: object) -> object:
        if refusing.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(*args, **options)

    async def write() -> None:
        async with create_backup(tmp_path / "b", vault=vault, about=ABOUT, segment_bytes=SEGMENT) as writer:
            refusing.set()
            await writer.write(bytes(2 << 20))

    monkeypatch.setattr(files_module.os, failing, refuse)
    with pytest.raises(VaultFileError, match=r"No space left.*free space"):
        await write()
    assert names(tmp_path) == set()


async def test_a_disk_that_returns_other_bytes_than_were_written_is_found_before_the_backup_counts(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.fsync

    def rot(descriptor: int) -> None:
        whole(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            last = os.fstat(descriptor).st_size - 1
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, last)[0] ^ 1]), last)

    monkeypatch.setattr(files_module.os, "fsync", rot)
    with pytest.raises(BackupDamagedError):
        await backup(tmp_path / "b", vault, sample(10_000))
    assert names(tmp_path) == set()


async def test_a_disk_that_cannot_be_read_is_not_taken_for_a_damaged_backup(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backup(tmp_path / "b", vault, sample(5 * SEGMENT))
    whole, read = os.read, 0

    def fail_later(descriptor: int, size: int) -> bytes:
        nonlocal read
        if read > 2 * SEGMENT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = whole(descriptor, size)
        read += len(data)
        return data

    monkeypatch.setattr(checking_module.os, "read", fail_later)
    with pytest.raises(VaultFileError, match="Input/output error"):
        await content_of(tmp_path / "b", vault=vault)


async def test_a_backup_that_reads_back_as_another_one_does_not_count(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: _Draft, *pieces: bytes) -> None:
        whole(self, *(piece[1:] for piece in pieces))
        self._plain.update(b"x")

    whole = _Draft.write
    monkeypatch.setattr(_Draft, "write", forget)
    with pytest.raises(BackupDamagedError, match="check this disk"):
        await backup(tmp_path / "b", vault, sample(1_000))
    assert names(tmp_path) == set()


async def test_a_writer_whose_file_was_swept_before_it_was_locked_makes_another(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, swept = fcntl.flock, []

    def swept_before(descriptor: int, operation: int) -> None:
        if not swept:
            swept.extend(tmp_path.glob(".b.*.part"))
            swept[0].unlink()
        whole(descriptor, operation)

    monkeypatch.setattr(files_module.fcntl, "flock", swept_before)
    await backup(tmp_path / "b", vault, b"content")
    assert len(swept) == 1
    assert await content_of(tmp_path / "b", vault=vault) == b"content"


async def test_where_a_file_cannot_have_two_names_the_name_is_taken_first(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(files_module.os, "link", no_links)
    await backup(tmp_path / "b", vault, b"content")
    assert await content_of(tmp_path / "b", vault=vault) == b"content"
    with pytest.raises(PathRefusedError):
        async with create_backup(tmp_path / "c", vault=vault, about=ABOUT):
            (tmp_path / "c").write_bytes(b"precious")
    assert (tmp_path / "c").read_bytes() == b"precious"
    assert names(tmp_path) == {"b", "c"}


async def test_what_a_dead_writer_left_is_swept_and_what_a_living_one_holds_is_not(
    vault: Vault, tmp_path: Path
) -> None:
    left, other = f".b.{'0' * 16}.part", ".notes.part"
    (tmp_path / left).write_bytes(b"half a backup")
    (tmp_path / other).write_bytes(b"somebody's own")
    async with create_backup(tmp_path / "slow", vault=vault, about=ABOUT) as writer:
        assert left not in names(tmp_path)
        await backup(tmp_path / "quick", vault, b"content")
        await writer.write(b"slow")
    assert names(tmp_path) == {"slow", "quick", other}
    assert await content_of(tmp_path / "slow", vault=vault) == b"slow"


async def test_no_file_stays_open_whether_it_was_written_read_copied_or_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"

    async def work() -> None:
        path.unlink(missing_ok=True)
        await backup(path, vault, sample(10_000))
        await content_of(path, vault=vault)
        await verify_backup(path, passphrase=PASSPHRASE)
        copied = await copy_backup(path, tmp_path / "copy", roots=[tmp_path])
        Path(copied.path).unlink()
        with pytest.raises(BackupDamagedError):
            await copy_backup(path, tmp_path / "copy", roots=[tmp_path], sha256="another")
        with pytest.raises(WrongPassphraseError):
            await content_of(path, passphrase="another one")
        path.write_bytes(path.read_bytes()[:-1])
        for read in (content_of, verify_backup):
            with pytest.raises(BackupDamagedError):
                await read(path, vault=vault)
        with suppress(ZeroDivisionError):
            async with create_backup(tmp_path / "c", vault=vault, about=ABOUT) as writer:
                await writer.write(sample(10_000))
                raise ZeroDivisionError

    await work()
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        await work()
    assert len(os.listdir("/dev/fd")) == before


async def test_a_backup_is_opened_by_exactly_one_of_a_vault_and_a_passphrase(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, b"content")
    for given in ({}, {"vault": vault, "passphrase": PASSPHRASE}):
        with pytest.raises(DefinitionError, match="give one of them"):
            await content_of(tmp_path / "b", **given)


async def test_memory_stays_bounded_while_a_hundred_megabytes_go_through(vault: Vault, tmp_path: Path) -> None:
    piece = bytes(256 * 1024)
    await backup(tmp_path / "warm", vault, piece)
    tracemalloc.start()
    try:
        async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
            for _ in range(400):
                await writer.write(piece)
        size = 0
        async with open_backup(tmp_path / "b", vault=vault) as reader:
            async for read in reader:
                size += len(read)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, writer.facts.plain_bytes) == (400 * len(piece), 400 * len(piece))
    assert most < 16 << 20


async def test_a_writer_killed_at_any_call_to_the_system_leaves_the_whole_backup_or_none(
    vault: Vault, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    program = Path(__file__).with_name("killed_writers.py")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, program, tmp_path, PASSPHRASE],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert last == 0, done.stderr
    assert len(killed) > 10
    whole = {path for path in folder.iterdir() if not path.name.startswith(".")}
    for path in whole:
        assert await content_of(path, vault=vault) == CONTENT
    # Those who were killed after their backup had its name left it whole; those before left none.
    first = min(int(path.name) for path in whole)
    assert {int(path.name) for path in whole} == set(range(first, len(killed) + 1))
    assert 8 < first < len(killed)
    await backup(folder / "next", vault, b"content")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
