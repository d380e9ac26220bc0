"""The header of a backup file: what it is, in clear text, and the file's own key in two envelopes.

```
8    magic       89 "HLXB" 0D 0A 1A: a transfer as text damages it visibly
2    version     1, big endian
4+n  core        JSON: what the backup is about, and how its payload is cut
4+m  slots       JSON: the file's key under the vault's master key, and under the passphrase
32   checksum    SHA-256 of everything before: tells a damaged file from a wrong key
32   MAC         HMAC-SHA-256 of everything before, under the file's key: the header cannot be altered without a key
...  payload     Tink's AES-GCM-HKDF streaming AEAD, bound to the bytes from magic to core
```

A slot is bound to the same bytes, so neither slots nor payloads can be moved from one file to another. The core is
readable without a key and believed only with one.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from helix_agents.capabilities.vault.keys import KEY_BYTES, SALT_BYTES, Argon2Cost, UnlockedKeys, derive, unwrap, wrap
from helix_agents.domain.errors import BackupDamagedError, BackupTooNewError
from helix_agents.domain.records import Record, encode

MAGIC = b"\x89HLXB\r\n\x1a"
BACKUP_VERSION = 1
FEWEST_SEGMENT_BYTES = 4 * 1024
MOST_SEGMENT_BYTES = 4 << 20
DIGEST_BYTES = 32
_MOST_JSON_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_VERSION = struct.Struct(">H")

_VAULT_SLOT = "backup/vault-slot/v1"
_PASSPHRASE_SLOT = "backup/passphrase-slot/v1"
_MAC = "backup/header-mac/v1"


class BackupAbout(Record, omit_defaults=False):
    """What a backup is. Anyone who has the file can read this, so nothing secret belongs here."""

    backup_id: str
    created_at: str
    scope: str
    store_id: str
    revision: int
    payload: str = "records/1"
    app_version: str = ""


class BackupCore(Record, omit_defaults=False):
    """The part of the header that never changes once the payload is written."""

    about: BackupAbout
    suite: Literal["tink-aes256-gcm-hkdf-sha256"] = "tink-aes256-gcm-hkdf-sha256"
    segment_bytes: int


class VaultSlot(Record, omit_defaults=False, tag_field="kind", tag="vault"):
    """The file's key under a key derived from the vault's master key and this salt."""

    vault_id: str
    salt: bytes
    wrapped_key: bytes


class PassphraseSlot(Record, omit_defaults=False, tag_field="kind", tag="passphrase"):
    """The file's key under a key derived from the passphrase: Argon2id with the vault's salt, HKDF with this file's."""

    cost: Argon2Cost
    vault_salt: bytes
    salt: bytes
    wrapped_key: bytes


class BackupHeader(Record):
    """A header that was read, and the bytes it consists of."""

    core: BackupCore
    vault_slot: VaultSlot
    passphrase_slot: PassphraseSlot
    bound: bytes
    content: bytes
    mac: bytes

    @property
    def size(self) -> int:
        return len(self.content) + len(self.mac)


_Slots = tuple[VaultSlot, PassphraseSlot]


def build_header(core: BackupCore, keys: UnlockedKeys, file_key: bytes) -> BackupHeader:
    """The header of a new file, under both keys of an unlocked vault."""
    core_json = encode(core)
    bound = MAGIC + _VERSION.pack(BACKUP_VERSION) + _LENGTH.pack(len(core_json)) + core_json
    context = hashlib.sha256(bound).digest()
    vault_salt, passphrase_salt = os.urandom(SALT_BYTES), os.urandom(SALT_BYTES)
    slots: _Slots = (
        VaultSlot(
            vault_id=keys.vault_id,
            salt=vault_salt,
            wrapped_key=wrap(keys.from_master(_VAULT_SLOT, vault_salt), file_key, context),
        ),
        PassphraseSlot(
            cost=keys.cost,
            vault_salt=keys.salt,
            salt=passphrase_salt,
            wrapped_key=wrap(keys.from_passphrase(_PASSPHRASE_SLOT, passphrase_salt), file_key, context),
        ),
    )
    slots_json = msgspec.json.encode(slots)
    content = bound + _LENGTH.pack(len(slots_json)) + slots_json
    content += hashlib.sha256(content).digest()
    return BackupHeader(
        core=core,
        vault_slot=slots[0],
        passphrase_slot=slots[1],
        bound=bound,
        content=content,
        mac=_mac(file_key, content),
    )


def read_header(path: Path, read: Callable[[int], bytes]) -> BackupHeader:
    """Read a header from the start of a file. Its checksum is right; without a key, no more than that is known.

    Raises:
        BackupDamagedError: it is not a backup, was cut off, or was altered.
        BackupTooNewError: a newer version wrote it.
    """

    def take(size: int) -> bytes:
        taken = read(size)
        if len(taken) < size:
            raise BackupDamagedError(str(path), "it ends inside its head")
        return taken

    def take_json() -> tuple[bytes, bytes]:
        length = take(_LENGTH.size)
        if _LENGTH.unpack(length)[0] > _MOST_JSON_BYTES:
            raise BackupDamagedError(str(path), "its head was altered")
        return length, take(_LENGTH.unpack(length)[0])

    if take(len(MAGIC)) != MAGIC:
        raise BackupDamagedError(str(path), "it does not begin as a backup does: another file, or one sent as text")
    version = take(_VERSION.size)
    if _VERSION.unpack(version)[0] > BACKUP_VERSION:
        raise BackupTooNewError(str(path), _VERSION.unpack(version)[0], BACKUP_VERSION)
    core_length, core_json = take_json()
    slots_length, slots_json = take_json()
    bound = MAGIC + version + core_length + core_json
    content = bound + slots_length + slots_json
    checksum = take(DIGEST_BYTES)
    if hashlib.sha256(content).digest() != checksum:
        raise BackupDamagedError(str(path), "its head was altered")
    core, slots = _decode(path, core_json, slots_json)
    return BackupHeader(
        core=core,
        vault_slot=slots[0],
        passphrase_slot=slots[1],
        bound=bound,
        content=content + checksum,
        mac=take(DIGEST_BYTES),
    )


def _decode(path: Path, core_json: bytes, slots_json: bytes) -> tuple[BackupCore, _Slots]:
    try:
        core = msgspec.json.decode(core_json, type=BackupCore)
        vault_slot, passphrase_slot = msgspec.json.decode(slots_json, type=tuple[msgspec.Raw, msgspec.Raw])
        slots = (
            msgspec.json.decode(vault_slot, type=VaultSlot),
            msgspec.json.decode(passphrase_slot, type=PassphraseSlot),
        )
    except msgspec.DecodeError as problem:
        raise BackupDamagedError(str(path), f"its head makes no sense: {problem}") from problem
    if not FEWEST_SEGMENT_BYTES <= core.segment_bytes <= MOST_SEGMENT_BYTES:
        raise BackupDamagedError(str(path), f"segments of {core.segment_bytes} bytes are not accepted")
    refused = slots[1].cost.problem() or (len(slots[1].vault_salt) < SALT_BYTES and "a salt that is too short")
    if refused:
        raise BackupDamagedError(str(path), f"it asks for {refused}")
    return core, slots


def key_from_vault(header: BackupHeader, keys: UnlockedKeys) -> bytes | None:
    """The file's key, by the vault's master key; None if the slot does not open."""
    slot = header.vault_slot
    return unwrap(keys.from_master(_VAULT_SLOT, slot.salt), slot.wrapped_key, hashlib.sha256(header.bound).digest())


def key_from_passphrase(header: BackupHeader, stretched: bytes) -> bytes | None:
    """The file's key, by what Argon2id made of a passphrase; None if the slot does not open."""
    slot = header.passphrase_slot
    wrapping_key = derive(stretched, _PASSPHRASE_SLOT, slot.salt)
    return unwrap(wrapping_key, slot.wrapped_key, hashlib.sha256(header.bound).digest())


def check_mac(path: Path, header: BackupHeader, file_key: bytes) -> None:
    """Check that a header was written by someone who had the file's key.

    Raises:
        BackupDamagedError: it was altered since.
    """
    if not hmac.compare_digest(_mac(file_key, header.content), header.mac):
        raise BackupDamagedError(str(path), "its head was altered")


def new_file_key() -> bytes:
    """A key for a single file."""
    return os.urandom(KEY_BYTES)


def _mac(file_key: bytes, content: bytes) -> bytes:
    return hmac.digest(derive(file_key, _MAC), content, "sha256")
