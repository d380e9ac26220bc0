"""What the tests of the vault share: cheap keys, a backup with small segments, and a look into its structure."""

import struct
from itertools import pairwise
from pathlib import Path

from helix_agents.capabilities.vault import Argon2Cost, BackupAbout, BackupFacts, Vault, create_backup, open_backup

# Argon2id as cheap as it goes: these tests ask whether the right key is made, not how long guessing takes.
CHEAP = Argon2Cost(memory_kib=8, passes=1, lanes=1)
PASSPHRASE = "correct horse battery staple"
SEGMENT = 4096
TINK_HEADER = 40
TAG = 16

ABOUT = BackupAbout(
    backup_id="bkp-20260325T140000",
    created_at="2026-03-25T14:00:00+00:00",
    scope="full",
    store_id="store_1",
    revision=42,
)


def sample(size: int) -> bytes:
    return bytes(number * 7 % 251 for number in range(size))


async def backup(path: Path, vault: Vault, content: bytes, about: BackupAbout = ABOUT) -> BackupFacts:
    async with create_backup(path, vault=vault, about=about, segment_bytes=SEGMENT) as writer:
        await writer.write(content)
    return writer.facts


async def content_of(path: Path, *, vault: Vault | None = None, passphrase: str | None = None) -> bytes:
    async with open_backup(path, vault=vault, passphrase=passphrase) as reader:
        return b"".join([piece async for piece in reader])


def head_parts(content: bytes) -> dict[str, tuple[int, int]]:
    """Where each part of the head begins and ends."""
    core = 14 + struct.unpack_from(">I", content, 10)[0]
    slots = core + 4 + struct.unpack_from(">I", content, core)[0]
    edges = {
        "magic": (0, 8),
        "version": (8, 10),
        "core": (10, core),
        "slots": (core, slots),
        "checksum": (slots, slots + 32),
        "mac": (slots + 32, slots + 64),
    }
    assert edges["mac"][1] < len(content)
    return edges


def segments(content: bytes) -> list[tuple[int, int]]:
    """Where each encrypted segment begins and ends; the first is shorter by the payload's own header."""
    begin = head_parts(content)["mac"][1]
    edges = [begin + TINK_HEADER, *range(begin + SEGMENT, len(content), SEGMENT), len(content)]
    return list(pairwise(edges))
