"""A backup that is not what was written is refused, wherever it was touched, and the refusal says what to do."""

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace

from helix_agents.capabilities.vault import Vault, read_about, verify_backup
from helix_agents.domain.errors import (
    BackupDamagedError,
    BackupKeyMismatchError,
    BackupTooNewError,
    VaultError,
    WrongPassphraseError,
)
from tests.capabilities.samples import ABOUT, PASSPHRASE, SEGMENT, backup, content_of, head_parts, sample, segments

CONTENT = sample(5 * SEGMENT + 123)


async def refused(path: Path, vault: Vault) -> VaultError:
    with pytest.raises(VaultError) as by_vault:
        await verify_backup(path, vault=vault)
    assert not isinstance(by_vault.value, WrongPassphraseError)
    return by_vault.value


async def refused_twice(path: Path, vault: Vault) -> None:
    """By both keys, as damage."""
    assert isinstance(await refused(path, vault), BackupDamagedError)
    with pytest.raises(BackupDamagedError, match="take another copy of it, or an older backup"):
        await verify_backup(path, passphrase=PASSPHRASE)


async def test_a_flipped_bit_at_any_of_a_thousand_positions_is_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, CONTENT)
    whole = path.read_bytes()
    payload = head_parts(whole)["mac"][1]
    # Every byte of the head and of the payload's own header, and as many more spread over the segments.
    dense = range(payload + 40)
    step = (len(whole) - len(dense)) // max(1, 1_000 - len(dense)) or 1
    positions = [*dense, *range(len(dense), len(whole), step), len(whole) - 1]
    assert len(positions) >= 1_000
    descriptor = os.open(path, os.O_RDWR)
    try:
        for position in positions:
            flipped = whole[position] ^ (1 << position % 8)
            os.pwrite(descriptor, bytes([flipped]), position)
            expected = BackupTooNewError if 8 <= position < 10 else BackupDamagedError
            assert isinstance(await refused(path, vault), expected), position
            os.pwrite(descriptor, whole[position : position + 1], position)
    finally:
        os.close(descriptor)
    assert await content_of(path, vault=vault) == CONTENT


async def test_a_flipped_bit_is_refused_by_the_passphrase_as_well(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, CONTENT)
    whole = path.read_bytes()
    for position in range(10, len(whole), 397):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(BackupDamagedError):
            await verify_backup(path, passphrase=PASSPHRASE)


async def test_a_cut_at_every_edge_and_around_it_is_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, CONTENT)
    whole = path.read_bytes()
    edges = {edge for part in head_parts(whole).values() for edge in part}
    edges |= {edge for segment in segments(whole) for edge in segment}
    cuts = {edge + step for edge in edges for step in (-1, 0, 1)}
    for size in sorted(cut for cut in cuts if 0 <= cut < len(whole)):
        path.write_bytes(whole[:size])
        await refused_twice(path, vault)


async def test_anything_appended_is_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    full_last_segments = [SEGMENT - 56, 3 * (SEGMENT - 16) - 40]
    for size in (0, 100, SEGMENT, 3 * SEGMENT, *full_last_segments):
        await backup(path, vault, sample(size))
        whole = path.read_bytes()
        for more in (b"\0", b"x" * 16, whole[-SEGMENT:], bytes(SEGMENT)):
            path.write_bytes(whole + more)
            await refused_twice(path, vault)
        path.unlink()


async def test_segments_that_were_swapped_repeated_or_left_out_are_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, CONTENT)
    whole = path.read_bytes()
    head, parts = whole[: segments(whole)[0][0]], [whole[begin:end] for begin, end in segments(whole)]
    assert len(parts) == 6
    for order in (
        [0, 2, 1, 3, 4, 5],
        [0, 1, 2, 4, 3, 5],
        [0, 1, 1, 2, 3, 4, 5],
        [0, 2, 3, 4, 5],
        [0, 5],
        [1, 2, 3, 4, 5],
    ):
        path.write_bytes(head + b"".join(parts[number] for number in order))
        await refused_twice(path, vault)


async def test_parts_of_one_backup_do_not_fit_another_of_the_same_content(vault: Vault, tmp_path: Path) -> None:
    for name in "ab":
        await backup(tmp_path / name, vault, CONTENT)
    await backup(tmp_path / "other", vault, CONTENT, replace(ABOUT, revision=43))
    own = (tmp_path / "a").read_bytes()
    mixed = tmp_path / "mixed"
    for name in ("b", "other"):
        foreign = (tmp_path / name).read_bytes()
        assert [end - begin for begin, end in segments(foreign)] == [end - begin for begin, end in segments(own)]
        for begin, end in [*head_parts(own).values(), *segments(own)]:
            if own[begin:end] != foreign[begin:end]:
                mixed.write_bytes(own[:begin] + foreign[begin:end] + own[end:])
                assert isinstance(await refused(mixed, vault), BackupDamagedError)
        payload = head_parts(own)["mac"][1]
        mixed.write_bytes(own[:payload] + foreign[payload:])
        await refused_twice(mixed, vault)


def with_head(whole: bytes, core: dict | None = None, slots: list | None = None) -> bytes:
    """The file with another core or other slots, and a checksum that fits: what a careful forger could write."""
    edges = head_parts(whole)
    core_json = json.dumps(core).encode() if core else whole[14 : edges["core"][1]]
    slots_json = json.dumps(slots).encode() if slots else whole[edges["slots"][0] + 4 : edges["slots"][1]]
    head = whole[:10] + struct.pack(">I", len(core_json)) + core_json + struct.pack(">I", len(slots_json)) + slots_json
    return head + hashlib.sha256(head).digest() + whole[edges["mac"][0] :]


async def test_a_forged_head_with_a_fitting_checksum_is_refused(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, CONTENT)
    whole = path.read_bytes()
    edges = head_parts(whole)
    core = json.loads(whole[14 : edges["core"][1]])
    slots = json.loads(whole[edges["slots"][0] + 4 : edges["slots"][1]])
    assert with_head(whole) == whole
    assert [slot["kind"] for slot in slots] == ["vault", "passphrase"]

    path.write_bytes(with_head(whole, core={**core, "about": {**core["about"], "scope": "agent:mallory"}}))
    assert (await read_about(path)).scope == "agent:mallory"
    assert isinstance(await refused(path, vault), BackupDamagedError)
    with pytest.raises(WrongPassphraseError):
        await verify_backup(path, passphrase=PASSPHRASE)

    path.write_bytes(with_head(whole, slots=[{**slots[0], "vault_id": "vault_of_mallory"}, slots[1]]))
    assert isinstance(await refused(path, vault), BackupKeyMismatchError)
    with pytest.raises(BackupDamagedError):
        await verify_backup(path, passphrase=PASSPHRASE)

    path.write_bytes(with_head(whole, slots=[slots[0], {**slots[1], "salt": slots[0]["salt"]}]))
    assert isinstance(await refused(path, vault), BackupDamagedError)

    for senseless in ([], [slots[0]], [slots[1], slots[0]], [*slots, slots[0]], [{"kind": "x"}, slots[1]], ["x", 1]):
        path.write_bytes(with_head(whole, slots=senseless or [{}]))
        await refused_twice(path, vault)
    for change in ({"suite": "rot13"}, {"segment_bytes": 1 << 40}, {"segment_bytes": 16}, {"more": 1}, {"about": {}}):
        path.write_bytes(with_head(whole, core={**core, **change}))
        await refused_twice(path, vault)


@pytest.mark.parametrize(
    "cost",
    [
        {"memory_kib": 2**31, "passes": 1, "lanes": 1},
        {"memory_kib": 8, "passes": 2**31, "lanes": 1},
        {"memory_kib": 2**20, "passes": 1, "lanes": 2**20},
    ],
)
async def test_a_file_that_asks_for_too_much_work_is_refused_without_doing_it(
    cost: dict[str, int], vault: Vault, tmp_path: Path
) -> None:
    path = tmp_path / "b"
    await backup(path, vault, b"content")
    whole = path.read_bytes()
    begin, end = head_parts(whole)["slots"]
    slots = json.loads(whole[begin + 4 : end])
    path.write_bytes(with_head(whole, slots=[slots[0], {**slots[1], "cost": cost}]))
    with pytest.raises(BackupDamagedError, match="Argon2id"):
        await verify_backup(path, passphrase=PASSPHRASE)


@pytest.mark.parametrize("part", ["core", "slots"])
async def test_a_head_that_says_it_is_huge_is_refused_without_room_being_made_for_it(
    part: str, vault: Vault, tmp_path: Path
) -> None:
    path = tmp_path / "b"
    await backup(path, vault, b"content")
    whole = path.read_bytes()
    begin, _ = head_parts(whole)[part]
    path.write_bytes(whole[:begin] + b"\xff\xff\xff\xff" + whole[begin + 4 :])
    with pytest.raises(BackupDamagedError, match="its head was altered"):
        await verify_backup(path, vault=vault)


@pytest.mark.parametrize("content", [b"", b"x", b"\x89HLXB", b"PK\x03\x04" * 100, b"\x89HLXB\n\x1a" * 9, bytes(4096)])
async def test_what_never_was_a_backup_is_refused(content: bytes, vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(content)
    await refused_twice(tmp_path / "b", vault)
    with pytest.raises(BackupDamagedError):
        await read_about(tmp_path / "b")


async def test_a_later_format_asks_for_an_upgrade(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "b"
    await backup(path, vault, b"content")
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + b"\0\2" + whole[10:])
    with pytest.raises(BackupTooNewError, match="upgrade"):
        await read_about(path)
