"""The vault's file: its identity, what a guess at its passphrase costs, and its master key under that passphrase.

Two lines of JSON, so that an operator can read and copy it. The second line's key is bound to the first line's bytes,
and both are under a checksum, so that a wrong passphrase can be told from a damaged file.
"""

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from helix_agents.capabilities.vault.files import PartFile, file_system, is_link, open_folder
from helix_agents.capabilities.vault.keys import KEY_BYTES, SALT_BYTES, Argon2Cost
from helix_agents.domain.errors import PathRefusedError, VaultAlreadyExistsError, VaultDamagedError
from helix_agents.domain.records import Record, encode

VAULT_VERSION = 1
MOST_BYTES = 64 * 1024


class VaultFacts(Record):
    """What may be known about a vault without its passphrase. `public_key` verifies its audit checkpoints."""

    vault_id: str
    created_at: str
    public_key: str


class VaultDescription(Record, omit_defaults=False):
    """The first line."""

    format: Literal["helix-vault"] = "helix-vault"
    version: int = VAULT_VERSION
    vault_id: str
    created_at: str
    public_key: str
    cost: Argon2Cost
    salt: bytes

    def bound(self) -> bytes:
        """The line as it is written, to which the wrapped key is bound."""
        return encode(self)

    def facts(self) -> VaultFacts:
        return VaultFacts(vault_id=self.vault_id, created_at=self.created_at, public_key=self.public_key)


class _WrappedMaster(Record, omit_defaults=False):
    """The second line."""

    wrapped_key: bytes
    checksum: str


class VaultFile(Record):
    """Both lines. `bound` is the first line as it is in the file, to which the wrapped key is bound."""

    description: VaultDescription
    bound: bytes
    wrapped_key: bytes


def find_vault_file(path: Path) -> VaultFile | None:
    """Read the file; None if there is none.

    Raises:
        VaultDamagedError: it was altered, cut off, or is something else.
        VaultFileError: it cannot be read.
    """
    with file_system(path):
        try:
            with path.open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
    return _parse(path, content)


def write_vault_file(path: Path, description: VaultDescription, wrapped_key: bytes, *, replacing: bool) -> None:
    """Write the complete file, for its owner only.

    Raises:
        VaultAlreadyExistsError: there is one, and it was not to be replaced.
        PathRefusedError: it was to be replaced, and is a link.
        VaultFileError: the file system refused.
    """
    bound = description.bound()
    second = _WrappedMaster(wrapped_key=wrapped_key, checksum=_checksum(bound, wrapped_key))
    content = bound + b"\n" + encode(second) + b"\n"
    with open_folder(path.parent, beneath=path.parent) as folder:
        if replacing and is_link(path.name, folder):
            # The link would become a file, and the file that it points to would keep the old passphrase.
            raise PathRefusedError(str(path), "it is a link; name the file it points to")
        try:
            _write(folder, path, content, replacing=replacing)
        except PathRefusedError as problem:
            raise VaultAlreadyExistsError(str(path)) from problem


def _write(folder: int, path: Path, content: bytes, *, replacing: bool) -> None:
    part = PartFile(folder, path, replacing=replacing)
    try:
        part.write(content)
        part.sync()
        part.publish()
    finally:
        part.close()


def _parse(path: Path, content: bytes) -> VaultFile:
    lines = content.split(b"\n")
    if len(content) > MOST_BYTES or len(lines) != 3 or lines[2]:
        raise VaultDamagedError(str(path), "it is not a vault, or part of it is missing")
    bound = lines[0]
    try:
        second = msgspec.json.decode(lines[1], type=_WrappedMaster)
    except msgspec.DecodeError as problem:
        raise VaultDamagedError(str(path), "its second line cannot be read") from problem
    if _checksum(bound, second.wrapped_key) != second.checksum:
        raise VaultDamagedError(str(path), "its checksum does not fit: it was altered")
    return VaultFile(description=_description(path, bound), bound=bound, wrapped_key=second.wrapped_key)


def _description(path: Path, bound: bytes) -> VaultDescription:
    try:
        version = msgspec.json.decode(bound, type=_Version).version
        if version > VAULT_VERSION:
            raise VaultDamagedError(str(path), f"it has format {version}; this version of helix-agents is too old")
        description = msgspec.json.decode(bound, type=VaultDescription)
    except msgspec.DecodeError as problem:
        raise VaultDamagedError(str(path), "its first line cannot be read") from problem
    problem = description.cost.problem()
    if problem is None and (len(description.salt) < SALT_BYTES or len(description.public_key) != 2 * KEY_BYTES):
        problem = "a salt or a key that is too short"
    if problem is not None:
        raise VaultDamagedError(str(path), f"it asks for {problem}")
    return description


class _Version(msgspec.Struct):
    version: int


def _checksum(bound: bytes, wrapped_key: bytes) -> str:
    return hashlib.sha256(bound + b"\n" + wrapped_key).hexdigest()
