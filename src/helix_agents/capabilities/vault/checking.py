"""Reads a backup from its first byte to its last, in one place for writing, opening and verifying."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from helix_agents.capabilities.vault.backup_header import BackupAbout, BackupHeader, check_mac, read_header
from helix_agents.capabilities.vault.files import file_system
from helix_agents.capabilities.vault.payload import DecryptingPayload, PayloadDamagedError, payload_bytes
from helix_agents.domain.errors import BackupDamagedError
from helix_agents.domain.records import Record


class BackupFacts(Record):
    """The facts about a backup that was read from its first byte to its last."""

    about: BackupAbout
    vault_id: str
    file_bytes: int
    plain_bytes: int
    sha256: str
    plain_sha256: str


class EncryptedFile:
    """An open backup whose header is authentic; its plaintext comes piece by piece. Everything here blocks."""

    def __init__(
        self,
        path: Path,
        descriptor: int,
        find_key: Callable[[BackupHeader], bytes],
        see: Callable[[bytes], None] | None = None,
    ) -> None:
        """Read the header; `see` is called with every byte of the file on its way."""
        self._path = path
        self._descriptor = descriptor
        self._see = see
        self._plain_bytes = 0
        self._file_bytes = 0
        self.header = read_header(path, self._take)
        file_key = find_key(self.header)
        check_mac(path, self.header, file_key)
        self._payload = DecryptingPayload(
            self._take_some,
            key=file_key,
            bound=self.header.bound,
            segment_bytes=self.header.core.segment_bytes,
        )

    def read(self) -> bytes:
        """The next authentic bytes, empty after the last.

        Raises:
            BackupDamagedError: the file was altered or cut off; what was read before must not be used.
        """
        try:
            data = self._payload.read()
        except PayloadDamagedError as problem:
            raise BackupDamagedError(str(self._path), "its content was altered or cut") from problem
        self._plain_bytes += len(data)
        if not data:
            self._check_size()
        return data

    def close(self) -> None:
        self._payload.close()

    def _check_size(self) -> None:
        """Tink stops at a last segment that is full, whatever follows it; a backup has to end where its content
        does."""
        with file_system(self._path):
            size = os.fstat(self._descriptor).st_size
        expected = self.header.size + payload_bytes(self._plain_bytes, self.header.core.segment_bytes)
        if not size == self._file_bytes == expected:
            raise BackupDamagedError(str(self._path), "something was appended to it")

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size and (some := self._take_some(size - len(taken))):
            taken += some
        return taken

    def _take_some(self, size: int) -> bytes:
        with file_system(self._path):
            data = os.read(self._descriptor, size)
        if self._see is not None:
            self._see(data)
        self._file_bytes += len(data)
        return data


def check_file(path: Path, descriptor: int, find_key: Callable[[BackupHeader], bytes]) -> BackupFacts:
    """Read everything and keep only its facts.

    Raises:
        BackupDamagedError: the file is not what was written.
    """
    whole, plain = hashlib.sha256(), hashlib.sha256()
    file_bytes = plain_bytes = 0

    def see(data: bytes) -> None:
        nonlocal file_bytes
        whole.update(data)
        file_bytes += len(data)

    opened = EncryptedFile(path, descriptor, find_key, see)
    try:
        while data := opened.read():
            plain.update(data)
            plain_bytes += len(data)
    finally:
        opened.close()
    return BackupFacts(
        about=opened.header.core.about,
        vault_id=opened.header.vault_slot.vault_id,
        file_bytes=file_bytes,
        plain_bytes=plain_bytes,
        sha256=whole.hexdigest(),
        plain_sha256=plain.hexdigest(),
    )
