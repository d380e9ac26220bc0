"""Audit checkpoints signed with the vault's key, kept in their own file away from the rows that they are about."""

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from helix_agents.capabilities.vault.extra import require_vault_extra
from helix_agents.capabilities.vault.files import file_system
from helix_agents.capabilities.vault.keys import Secret
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.domain.audit import AuditCheckpoint, AuditFinding, entry_text
from helix_agents.domain.errors import VaultDamagedError
from helix_agents.domain.records import encode

_MOST_LINE_BYTES = 64 * 1024


class CheckpointSigner:
    """Signs checkpoints with Ed25519. Created by an unlocked vault; works until the process ends or it is dropped."""

    def __init__(self, seed: bytes) -> None:
        self._seed = Secret(seed)
        self.public_key = public_key_of(seed)

    def sign(self, checkpoint: AuditCheckpoint) -> AuditCheckpoint:
        """The checkpoint with this signer's key and signature."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        ours = replace(checkpoint, key=self.public_key, signature="")
        signature = Ed25519PrivateKey.from_private_bytes(self._seed.reveal()).sign(_signed_bytes(ours))
        return replace(ours, signature=signature.hex())

    def __repr__(self) -> str:
        return f"CheckpointSigner(public_key={self.public_key!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A signer is not pickled.")


def public_key_of(seed: bytes) -> str:
    """The key, in hex, that verifies what this seed signs."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw().hex()


def check_checkpoints(
    checkpoints: Iterable[AuditCheckpoint], store_id: str, public_key: str
) -> tuple[tuple[AuditCheckpoint, ...], tuple[AuditFinding, ...]]:
    """Separate the checkpoints that this vault signed for this store from all others, which become findings.

    The public key must not come from the same place as the checkpoints: take it from the vault's file, or from an
    operator's note.

    Raises:
        MissingExtraError: the extra `vault` is not installed.
    """
    require_vault_extra()
    good: list[AuditCheckpoint] = []
    bad: list[AuditFinding] = []
    for checkpoint in checkpoints:
        if (problem := _problem(checkpoint, store_id, public_key)) is None:
            good.append(checkpoint)
        else:
            bad.append(
                AuditFinding(
                    kind="bad_checkpoint",
                    seq=checkpoint.seq,
                    last_seq=checkpoint.seq,
                    sentence=f"The checkpoint at row {checkpoint.seq} proves nothing: {problem}.",
                )
            )
    return tuple(good), tuple(bad)


def _problem(checkpoint: AuditCheckpoint, store_id: str, public_key: str) -> str | None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if checkpoint.store_id != store_id:
        return f"it speaks of store {checkpoint.store_id!r}"
    if checkpoint.key != public_key:
        return "it was signed with another key"
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(checkpoint.signature), _signed_bytes(checkpoint))
    except (InvalidSignature, ValueError):
        return "its signature does not fit"
    return None


def _signed_bytes(checkpoint: AuditCheckpoint) -> bytes:
    said = {
        "store_id": checkpoint.store_id,
        "seq": checkpoint.seq,
        "head": checkpoint.head,
        "created_at": checkpoint.created_at,
        "key": checkpoint.key,
    }
    return b"helix-agents/audit-checkpoint/v1\n" + entry_text(said).encode()


async def append_checkpoint(path: str | Path, checkpoint: AuditCheckpoint) -> None:
    """Append one line to the file and sync it to disk; the file is created if it is missing.

    Raises:
        PathRefusedError: the path is a link.
        VaultFileError: the file system refused.
    """
    await in_thread(lambda: _append(Path(path), encode(checkpoint) + b"\n"))


async def load_checkpoints(path: str | Path, *, newest: bool = False) -> tuple[AuditCheckpoint, ...]:
    """The checkpoints in the file, oldest first; none if there is no file. Signatures are not verified here.

    With `newest`, only those at its end: some hundred of them, however long the file has become.

    Raises:
        VaultDamagedError: a line is not a checkpoint. A last line that was cut off while it was written is left out.
    """
    return await in_thread(lambda: _load(Path(path), most_bytes=_MOST_LINE_BYTES if newest else None))


def _append(path: Path, line: bytes) -> None:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with file_system(path):
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            end = _whole_lines(descriptor)
            try:
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)


def _whole_lines(descriptor: int) -> int:
    """The size of the file, after removing a line at its end that a dying process cut short."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _MOST_LINE_BYTES, max(0, size - _MOST_LINE_BYTES))
    torn = len(tail) - (tail.rfind(b"\n") + 1)
    if torn:
        os.ftruncate(descriptor, size - torn)
    return size - torn


def _load(path: Path, *, most_bytes: int | None) -> tuple[AuditCheckpoint, ...]:
    with file_system(path):
        try:
            content = _end_of(path, most_bytes)
        except FileNotFoundError:
            return ()
    checkpoints: list[AuditCheckpoint] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            checkpoints.append(msgspec.json.decode(line, type=AuditCheckpoint))
        except msgspec.DecodeError as problem:
            if number == len(lines):
                break
            raise VaultDamagedError(str(path), f"line {number} is not a checkpoint") from problem
    return tuple(checkpoints)


def _end_of(path: Path, most_bytes: int | None) -> bytes:
    """The file, or the whole lines within this many bytes before its end."""
    with path.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        skipped = 0 if most_bytes is None else max(0, size - most_bytes)
        opened.seek(skipped)
        content = opened.read()
    return content[content.find(b"\n") + 1 :] if skipped else content
