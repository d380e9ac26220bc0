"""Checkpoints are believed when this vault signed them for this store, and survive in a file of their own."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from helix_agents.capabilities.vault import (
    Vault,
    append_checkpoint,
    check_checkpoints,
    load_checkpoints,
)
from helix_agents.capabilities.vault import checkpoints as checkpoints_module
from helix_agents.domain.audit import AuditCheckpoint
from helix_agents.domain.audit_verification import verify_rows
from helix_agents.domain.errors import PathRefusedError, VaultDamagedError, VaultFileError, VaultLockedError
from tests.capabilities.samples import CHEAP, PASSPHRASE
from tests.capabilities.test_audit_chain import ROWS, STORE, found, seen_at


async def test_a_signed_checkpoint_is_believed_with_the_public_key_of_a_locked_vault(vault: Vault) -> None:
    signed = (await vault.signer()).sign(seen_at(ROWS, 8))
    vault.lock()
    facts = await vault.find()
    assert facts is not None
    assert signed.key == facts.public_key
    assert check_checkpoints([signed], STORE, facts.public_key) == ((signed,), ())
    with pytest.raises(VaultLockedError):
        await vault.signer()


async def test_the_signing_key_outlives_a_change_of_passphrase(vault: Vault) -> None:
    before = await vault.signer()
    await vault.change_passphrase(PASSPHRASE, "a new passphrase")
    after = await vault.signer()
    assert after.sign(seen_at(ROWS, 8)) == before.sign(seen_at(ROWS, 8))


async def test_a_checkpoint_that_was_altered_or_signed_by_another_is_a_finding(vault: Vault, tmp_path: Path) -> None:
    signer = await vault.signer()
    other = Vault(tmp_path / "other", cost=CHEAP)
    await other.init(PASSPHRASE)
    genuine = signer.sign(seen_at(ROWS, 8))
    foreign = (await other.signer()).sign(seen_at(ROWS, 8))
    fakes = [
        replace(genuine, seq=9),
        replace(genuine, head=ROWS[3].hash),
        replace(genuine, created_at="2020-01-01"),
        replace(genuine, signature="00" * 64),
        replace(genuine, signature="no hex"),
        replace(genuine, signature=""),
        replace(genuine, store_id="store_2"),
        signer.sign(replace(seen_at(ROWS, 8), store_id="store_2")),
        foreign,
        replace(foreign, key=signer.public_key),
        seen_at(ROWS, 8),
    ]
    good, bad = check_checkpoints([genuine, *fakes], STORE, signer.public_key)
    assert good == (genuine,)
    assert [finding.kind for finding in bad] == ["bad_checkpoint"] * len(fakes)
    report = verify_rows(ROWS, STORE, good, bad_checkpoints=bad)
    assert len(report.findings) == len(fakes)


async def test_a_cut_tail_is_found_with_checkpoints_from_the_file(vault: Vault, tmp_path: Path) -> None:
    signer = await vault.signer()
    path = tmp_path / "checkpoints"
    assert await load_checkpoints(path) == ()
    written = [signer.sign(seen_at(ROWS, seq)) for seq in (8, 16)]
    for checkpoint in written:
        await append_checkpoint(path, checkpoint)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = await load_checkpoints(path)
    assert loaded == tuple(written)
    good, bad = check_checkpoints(loaded, STORE, signer.public_key)
    assert found(verify_rows(ROWS[:12], STORE, good, bad_checkpoints=bad)) == [("cut_tail", 13, 16)]


async def test_many_who_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    wanted = [seen_at(ROWS, seq) for seq in range(1, 20)]
    await asyncio.gather(*(append_checkpoint(path, checkpoint) for checkpoint in wanted))
    assert sorted(c.seq for c in await load_checkpoints(path)) == list(range(1, 20))


async def test_a_line_that_was_cut_while_it_was_written_is_left_out_and_then_removed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    first, second = seen_at(ROWS, 8), seen_at(ROWS, 16)
    await append_checkpoint(path, first)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert await load_checkpoints(path) == (first,)
    await append_checkpoint(path, second)
    assert await load_checkpoints(path) == (first, second)


async def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoints"
    await append_checkpoint(path, seen_at(ROWS, 8))
    whole = os.write
    monkeypatch.setattr(checkpoints_module.os, "write", lambda descriptor, data: whole(descriptor, data[:5]))
    with pytest.raises(VaultFileError, match=os.strerror(errno.ENOSPC)):
        await append_checkpoint(path, seen_at(ROWS, 16))
    assert path.read_bytes().endswith(b"\n")
    assert await load_checkpoints(path) == (seen_at(ROWS, 8),)


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.write_bytes(b"not a checkpoint\n")
    with pytest.raises(VaultDamagedError, match="line 1"):
        await load_checkpoints(path)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathRefusedError):
        await append_checkpoint(tmp_path / "link", AuditCheckpoint(store_id="", seq=0, head="", created_at=""))
    assert not (tmp_path / "elsewhere").exists()
