"""What goes into a backup comes out of it, whatever its size, by the vault and by the passphrase."""

import asyncio
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helix_agents.capabilities.vault import Vault, create_backup, open_backup, read_about, verify_backup
from helix_agents.domain.errors import BackupKeyMismatchError, DefinitionError, VaultLockedError, WrongPassphraseError
from tests.capabilities.samples import (
    ABOUT,
    CHEAP,
    PASSPHRASE,
    SEGMENT,
    TAG,
    TINK_HEADER,
    backup,
    content_of,
    head_parts,
    sample,
    segments,
)
from tests.capabilities.second_implementation import decrypt

FIRST = SEGMENT - TINK_HEADER - TAG
FULL = SEGMENT - TAG
BORDERS = [0, FIRST, FIRST + FULL, FIRST + 2 * FULL, FIRST + 7 * FULL]
SIZES = sorted({max(0, border + step) for border in BORDERS for step in (-1, 0, 1, TAG)})


@pytest.mark.parametrize("size", SIZES)
async def test_sizes_around_every_border_come_back_by_both_keys(size: int, vault: Vault, tmp_path: Path) -> None:
    facts = await backup(tmp_path / "b", vault, sample(size))
    assert await content_of(tmp_path / "b", vault=vault) == sample(size)
    assert await content_of(tmp_path / "b", passphrase=PASSPHRASE) == sample(size)
    assert (facts.plain_bytes, facts.plain_sha256) == (size, hashlib.sha256(sample(size)).hexdigest())


@given(pieces=st.lists(st.integers(0, 3 * SEGMENT), max_size=12))
@settings(max_examples=25)
async def test_pieces_of_any_size_are_joined(pieces: list[int]) -> None:
    with TemporaryDirectory() as folder:
        vault = Vault(Path(folder) / "vault", cost=CHEAP)
        await vault.init(PASSPHRASE)
        async with create_backup(Path(folder) / "b", vault=vault, about=ABOUT, segment_bytes=SEGMENT) as writer:
            for size in pieces:
                await writer.write(sample(size))
        assert await content_of(Path(folder) / "b", vault=vault) == b"".join(map(sample, pieces))


async def test_facts_say_what_the_file_is(vault: Vault, tmp_path: Path) -> None:
    facts = await backup(tmp_path / "b", vault, sample(10_000))
    content = (tmp_path / "b").read_bytes()
    found = await vault.find()
    assert found is not None
    assert (facts.about, facts.vault_id) == (ABOUT, found.vault_id)
    assert (facts.file_bytes, facts.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert facts == await verify_backup(tmp_path / "b", vault=vault)
    assert facts == await verify_backup(tmp_path / "b", passphrase=PASSPHRASE)
    assert await read_about(tmp_path / "b") == ABOUT
    async with open_backup(tmp_path / "b", vault=vault) as reader:
        assert (reader.about, reader.vault_id) == (ABOUT, found.vault_id)


async def test_a_machine_without_the_vault_opens_it_by_the_passphrase_alone(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, sample(10_000))
    vault.lock()
    vault.path.unlink()
    assert await content_of(tmp_path / "b", passphrase=PASSPHRASE) == sample(10_000)


async def test_a_backup_opens_with_the_passphrase_it_was_made_under_and_with_its_vault_for_ever(
    vault: Vault, tmp_path: Path
) -> None:
    await backup(tmp_path / "old", vault, b"old")
    await vault.change_passphrase(PASSPHRASE, "a new passphrase")
    await backup(tmp_path / "new", vault, b"new")
    assert await content_of(tmp_path / "old", vault=vault) == b"old"
    assert await content_of(tmp_path / "old", passphrase=PASSPHRASE) == b"old"
    assert await content_of(tmp_path / "new", passphrase="a new passphrase") == b"new"
    for name, other in (("old", "a new passphrase"), ("new", PASSPHRASE)):
        with pytest.raises(WrongPassphraseError, match="had when the backup was made"):
            await content_of(tmp_path / name, passphrase=other)


async def test_another_vault_is_refused_by_name(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, b"content")
    other = Vault(tmp_path / "other", cost=CHEAP)
    await other.init(PASSPHRASE)
    found = await vault.find()
    assert found is not None
    with pytest.raises(BackupKeyMismatchError, match=found.vault_id):
        await content_of(tmp_path / "b", vault=other)


async def test_a_locked_vault_neither_writes_nor_reads(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, b"content")
    vault.lock()
    with pytest.raises(VaultLockedError):
        await backup(tmp_path / "c", vault, b"content")
    with pytest.raises(VaultLockedError):
        await content_of(tmp_path / "b", vault=vault)
    with pytest.raises(VaultLockedError):
        await verify_backup(tmp_path / "b", vault=vault)
    assert not (tmp_path / "c").exists()


async def test_locking_while_a_backup_is_written_lets_it_finish(vault: Vault, tmp_path: Path) -> None:
    async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
        await writer.write(sample(100))
        vault.lock()
    assert await content_of(tmp_path / "b", passphrase=PASSPHRASE) == sample(100)


async def test_exactly_one_key_is_asked_for(vault: Vault, tmp_path: Path) -> None:
    await backup(tmp_path / "b", vault, b"content")
    with pytest.raises(DefinitionError, match="give one"):
        await content_of(tmp_path / "b")
    with pytest.raises(DefinitionError, match="give one"):
        await content_of(tmp_path / "b", vault=vault, passphrase=PASSPHRASE)


async def test_two_backups_of_the_same_content_share_no_salt_key_or_ciphertext(vault: Vault, tmp_path: Path) -> None:
    for name in "ab":
        await backup(tmp_path / name, vault, sample(9_000))
    first, second = (tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()
    assert first[: head_parts(first)["core"][1]] == second[: head_parts(second)["core"][1]]
    for (begin, end), (other_begin, other_end) in zip(segments(first), segments(second), strict=True):
        assert first[begin:end] != second[other_begin:other_end]
    assert sample(200) not in first


async def test_the_payload_is_tinks_wire_format_as_a_second_implementation_reads_it(
    vault: Vault, tmp_path: Path
) -> None:
    await backup(tmp_path / "b", vault, sample(FIRST + FULL + 5))
    assert decrypt((tmp_path / "b").read_bytes(), PASSPHRASE) == sample(FIRST + FULL + 5)


async def test_segments_have_a_size_that_makes_sense(vault: Vault, tmp_path: Path) -> None:
    for size in (0, 1024, 2**30):
        with pytest.raises(DefinitionError, match="segments"):
            create_backup(tmp_path / "b", vault=vault, about=ABOUT, segment_bytes=size)


async def test_a_backup_is_used_inside_its_block(vault: Vault, tmp_path: Path) -> None:
    async with create_backup(tmp_path / "b", vault=vault, about=ABOUT) as writer:
        pass
    with pytest.raises(DefinitionError, match="inside"):
        await writer.write(b"late")
    async with open_backup(tmp_path / "b", vault=vault) as reader:
        assert [piece async for piece in reader] == []
    with pytest.raises(DefinitionError, match="inside"):
        [piece async for piece in reader]


async def test_many_backups_at_once_do_not_mix(vault: Vault, tmp_path: Path) -> None:
    contents = {str(number): sample(number * 3_000) for number in range(6)}
    await asyncio.gather(*(backup(tmp_path / name, vault, content) for name, content in contents.items()))
    read = await asyncio.gather(*(content_of(tmp_path / name, vault=vault) for name in contents))
    assert read == list(contents.values())
