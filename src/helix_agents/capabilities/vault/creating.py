"""Writes a backup: encrypted as it comes, read back and checked, and only then given its name."""

import hashlib
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

from helix_agents.capabilities.vault.backup_header import (
    FEWEST_SEGMENT_BYTES,
    MOST_SEGMENT_BYTES,
    BackupAbout,
    BackupCore,
    BackupHeader,
    build_header,
    new_file_key,
)
from helix_agents.capabilities.vault.checking import BackupFacts, check_file
from helix_agents.capabilities.vault.files import PartFile, open_folder
from helix_agents.capabilities.vault.payload import EncryptingPayload
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.capabilities.vault.vault import Vault
from helix_agents.domain.errors import BackupDamagedError, DefinitionError

_HOP_BYTES = 1 << 20


def create_backup(
    path: str | Path, *, vault: Vault, about: BackupAbout, segment_bytes: int = 1 << 20
) -> "BackupWriter":
    """A backup to be written inside `async with`. If the block ends normally, it is synced, verified, and then gets its
    name.

    If the block raises, nothing is left; only a cancellation or a crash at the very end may leave the complete file. An
    existing file is never overwritten, and a link never followed. Memory stays bounded however much is written, and the
    event loop is never blocked.

    Raises (on entering or leaving the block):
        VaultLockedError, VaultNotInitialisedError: there is no key to encrypt with.
        PathRefusedError: the name is taken, or the folder is a link.
        VaultFileError: the file system refused.
        BackupDamagedError: what was read back is not what was written.
    """
    if not FEWEST_SEGMENT_BYTES <= segment_bytes <= MOST_SEGMENT_BYTES:
        raise DefinitionError("A backup", f"has segments from {FEWEST_SEGMENT_BYTES} to {MOST_SEGMENT_BYTES} bytes")
    return BackupWriter(Path(path).absolute(), vault, BackupCore(about=about, segment_bytes=segment_bytes))


class BackupWriter:
    """What `create_backup` provides to its block. `facts` are known after it."""

    facts: BackupFacts

    def __init__(self, path: Path, vault: Vault, core: BackupCore) -> None:
        self.path = path
        self._vault = vault
        self._core = core
        self._waiting = bytearray()
        self._draft: _Draft | None = None

    async def __aenter__(self) -> "BackupWriter":
        keys = await self._vault.keys()
        file_key = new_file_key()
        header = build_header(self._core, keys, file_key)
        draft = _Draft(self.path, header, file_key)
        try:
            await in_thread(draft.open)
        except BaseException:
            await in_thread(draft.discard)
            raise
        self._draft = draft
        return self

    async def write(self, data: bytes) -> None:
        """Add bytes. Small pieces are collected before a thread encrypts them.

        Raises:
            VaultFileError: the file system refused.
        """
        if self._draft is None:
            raise DefinitionError("A backup", "is written to inside its `async with` block")
        if len(self._waiting) + len(data) < _HOP_BYTES:
            self._waiting += data
            return
        gathered, self._waiting = bytes(self._waiting), bytearray()
        await in_thread(partial(self._draft.write, gathered, data))

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        draft, self._draft = self._draft, None
        assert draft is not None
        try:
            if kind is None:
                self.facts = await in_thread(partial(draft.finish, bytes(self._waiting)))
        finally:
            await in_thread(draft.discard)


class _Draft:
    """The file that is being written; its methods block, and run in threads one after another."""

    def __init__(self, path: Path, header: BackupHeader, file_key: bytes) -> None:
        self.header = header
        self._path = path
        self._file_key = file_key
        self._open = ExitStack()
        self._plain = hashlib.sha256()
        self._plain_bytes = 0

    def open(self) -> None:
        folder = self._open.enter_context(open_folder(self._path.parent))
        self._part = PartFile(folder, self._path)
        self._open.callback(self._part.close)
        self._part.write(self.header.content + self.header.mac)
        self._payload = EncryptingPayload(
            self._part.write,
            key=self._file_key,
            bound=self.header.bound,
            segment_bytes=self.header.core.segment_bytes,
        )
        self._open.callback(self._payload.abandon)

    def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._plain.update(piece)
            self._plain_bytes += len(piece)
            view = memoryview(piece)
            # Tink copies what it is given, and holds the interpreter meanwhile, so it is given a little at a time.
            for begin in range(0, len(view), _HOP_BYTES):
                self._payload.write(view[begin : begin + _HOP_BYTES])

    def finish(self, rest: bytes) -> BackupFacts:
        self.write(rest)
        self._payload.finish()
        self._part.sync()
        facts = self._read_back()
        self._part.publish()
        return facts

    def discard(self) -> None:
        self._open.close()

    def _read_back(self) -> BackupFacts:
        os.lseek(self._part.descriptor, 0, os.SEEK_SET)
        facts = check_file(self._path, self._part.descriptor, lambda _: self._file_key)
        if (facts.plain_sha256, facts.plain_bytes) != (self._plain.hexdigest(), self._plain_bytes):
            raise BackupDamagedError(str(self._path), "what was read back is not what was written; check this disk")
        return facts
