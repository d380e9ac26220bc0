"""Opening a backup, with the vault that made it or with the passphrase it was made under."""

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from helix_agents.capabilities.vault.backup_header import (
    BackupAbout,
    BackupHeader,
    key_from_passphrase,
    key_from_vault,
    read_header,
)
from helix_agents.capabilities.vault.checking import BackupFacts, EncryptedFile, check_file
from helix_agents.capabilities.vault.extra import require_vault_extra
from helix_agents.capabilities.vault.files import open_regular
from helix_agents.capabilities.vault.keys import UnlockedKeys, stretch
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.capabilities.vault.vault import Vault
from helix_agents.domain.errors import (
    BackupDamagedError,
    BackupKeyMismatchError,
    DefinitionError,
    WrongPassphraseError,
)

_FindKey = Callable[[BackupHeader], bytes]


def open_backup(path: str | Path, *, vault: Vault | None = None, passphrase: str | None = None) -> "BackupReader":
    """A backup to be read inside `async with`, with an unlocked vault or, on any machine, with its passphrase.

    Every piece read is authentic. Whether the file was cut short is known only at its end, so put what you read in a
    place that is discarded if the loop over it raises.

    Raises (on entering or inside the block):
        VaultLockedError, VaultNotInitialisedError: the vault has no key in memory.
        WrongPassphraseError, BackupKeyMismatchError: the key is a different one.
        BackupDamagedError, BackupTooNewError: the file cannot be read here.
        PathRefusedError, VaultFileError: it is a link or not a plain file, or cannot be read.
    """
    return BackupReader(Path(path), vault, passphrase)


async def verify_backup(path: str | Path, *, vault: Vault | None = None, passphrase: str | None = None) -> BackupFacts:
    """Read a whole backup and keep none of it. It raises what `open_backup` raises."""
    where = Path(path)
    find_key = await _key_finder(where, vault, passphrase)
    return await in_thread(partial(_verify, where, find_key))


async def read_about(path: str | Path) -> BackupAbout:
    """What a file says it is. No key is needed, so nothing is proved except that its checksum is right.

    Raises:
        BackupDamagedError, BackupTooNewError: the file cannot be read here.
        PathRefusedError, VaultFileError: it is a link or not a plain file, or cannot be read.
    """
    return await in_thread(partial(_read_about, Path(path)))


class BackupReader:
    """What `open_backup` provides to its block: what the backup is about, and its bytes by `async for`."""

    about: BackupAbout
    vault_id: str

    def __init__(self, path: Path, vault: Vault | None, passphrase: str | None) -> None:
        self.path = path
        self._vault = vault
        self._passphrase = passphrase
        self._file: _OpenFile | None = None

    async def __aenter__(self) -> "BackupReader":
        find_key = await _key_finder(self.path, self._vault, self._passphrase)
        file = _OpenFile(self.path)
        try:
            header = await in_thread(partial(file.open, find_key))
        except BaseException:
            await in_thread(file.close)
            raise
        self._file = file
        self.about = header.core.about
        self.vault_id = header.vault_slot.vault_id
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._file is None:
            raise DefinitionError("A backup", "is read inside its `async with` block")
        while data := await in_thread(self._file.read):
            yield data

    @property
    def sha256(self) -> str:
        """The hash of the file as it was read; of the whole file, once its end was reached."""
        if self._file is None:
            raise DefinitionError("A backup", "is read inside its `async with` block")
        return self._file.seen.hexdigest()

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        assert file is not None
        await in_thread(file.close)


class _OpenFile:
    """The descriptor and its decryption; its methods block, and run in threads one after another."""

    def __init__(self, path: Path) -> None:
        self.seen = hashlib.sha256()
        self._path = path
        self._descriptor: int | None = None
        self._encrypted: EncryptedFile | None = None

    def open(self, find_key: _FindKey) -> BackupHeader:
        self._descriptor = open_regular(self._path)
        self._encrypted = EncryptedFile(self._path, self._descriptor, find_key, self.seen.update)
        return self._encrypted.header

    def read(self) -> bytes:
        assert self._encrypted is not None
        return self._encrypted.read()

    def close(self) -> None:
        if self._encrypted is not None:
            self._encrypted.close()
        if self._descriptor is not None:
            os.close(self._descriptor)


async def _key_finder(path: Path, vault: Vault | None, passphrase: str | None) -> _FindKey:
    require_vault_extra()
    match vault, passphrase:
        case Vault(), None:
            return partial(_by_vault, path, await vault.keys())
        case None, str():
            return partial(_by_passphrase, path, passphrase)
        case _:
            raise DefinitionError("A backup", "is opened by a vault or by a passphrase: give one of them")


def _by_vault(path: Path, keys: UnlockedKeys, header: BackupHeader) -> bytes:
    if header.vault_slot.vault_id != keys.vault_id:
        raise BackupKeyMismatchError(str(path), header.vault_slot.vault_id)
    file_key = key_from_vault(header, keys)
    if file_key is None:
        raise BackupDamagedError(str(path), "its key was altered")
    return file_key


def _by_passphrase(path: Path, passphrase: str, header: BackupHeader) -> bytes:
    slot = header.passphrase_slot
    file_key = key_from_passphrase(header, stretch(passphrase, slot.vault_salt, slot.cost))
    if file_key is None:
        raise WrongPassphraseError(str(path))
    return file_key


def _verify(path: Path, find_key: _FindKey) -> BackupFacts:
    descriptor = open_regular(path)
    try:
        return check_file(path, descriptor, find_key)
    finally:
        os.close(descriptor)


def _read_about(path: Path) -> BackupAbout:
    descriptor = open_regular(path)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as opened:
            return read_header(path, opened.read).core.about
    finally:
        os.close(descriptor)
