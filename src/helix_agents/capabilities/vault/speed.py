"""How fast backups are on this machine, compared with bare AES-256-GCM: for benchmarks, and for planning a schedule."""

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

from helix_agents.capabilities.vault.backup_header import BackupAbout
from helix_agents.capabilities.vault.creating import create_backup
from helix_agents.capabilities.vault.keys import KEY_BYTES, NONCE_BYTES, Argon2Cost
from helix_agents.capabilities.vault.opening import open_backup
from helix_agents.capabilities.vault.threads import in_thread
from helix_agents.capabilities.vault.vault import Vault
from helix_agents.domain.records import Record

_MIB = 1 << 20


class BackupSpeed(Record):
    """MiB per second. `create` includes syncing and reading everything back."""

    create: float
    open: float
    raw_aes_gcm: float


async def measure_backup(folder: str | Path, mib: int = 64) -> BackupSpeed:
    """Write and read one backup of random bytes in the folder, and encrypt the same bytes in memory for comparison."""
    inside = Path(await in_thread(partial(tempfile.mkdtemp, dir=folder)))
    try:
        return await _measure(inside, os.urandom(_MIB), mib)
    finally:
        await in_thread(partial(shutil.rmtree, inside))


async def _measure(folder: Path, block: bytes, mib: int) -> BackupSpeed:
    vault = Vault(folder / "vault", cost=Argon2Cost(memory_kib=64, passes=1, lanes=1))
    await vault.init("a passphrase for one minute")
    about = BackupAbout(backup_id="speed", created_at="", scope="full", store_id="speed", revision=0)
    # Load now what would otherwise be loaded on first use.
    async with create_backup(folder / "first", vault=vault, about=about):
        pass
    raw = await in_thread(partial(_encrypt_in_memory, block, mib))
    started = time.perf_counter()
    async with create_backup(folder / "backup", vault=vault, about=about) as backup:
        for _ in range(mib):
            await backup.write(block)
    created = time.perf_counter()
    async with open_backup(folder / "backup", vault=vault) as opened:
        async for _ in opened:
            pass
    read = time.perf_counter()
    return BackupSpeed(create=mib / (created - started), open=mib / (read - created), raw_aes_gcm=mib / raw)


def _encrypt_in_memory(block: bytes, mib: int) -> float:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(os.urandom(KEY_BYTES))
    started = time.perf_counter()
    for number in range(mib):
        cipher.encrypt(number.to_bytes(NONCE_BYTES, "big"), block, None)
    return time.perf_counter() - started
