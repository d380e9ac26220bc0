"""Processes that write a backup and are killed at their first, second, third … call to the system, until one is not.

    python killed_writers.py FOLDER PASSPHRASE

The vault is FOLDER/vault; writer n writes FOLDER/backups/n. Prints how each one ended.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helix_agents.capabilities.vault import BackupAbout, Vault, create_backup
from helix_agents.capabilities.vault.payload import EncryptingPayload

CALLS = ("open", "listdir", "write", "fsync", "lseek", "link", "unlink", "close")
CONTENT = bytes(10_000)


async def write(vault: Vault, passphrase: str, path: Path) -> None:
    await vault.unlock(passphrase)
    about = BackupAbout(backup_id=path.name, created_at="", scope="full", store_id="store_1", revision=1)
    die_at_call(int(path.name))
    async with create_backup(path, vault=vault, about=about, segment_bytes=4096) as writer:
        await writer.write(CONTENT)


def die_at_call(number: int) -> None:
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*args, **options)

        return one

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def main(folder: Path, passphrase: str) -> None:
    vault = Vault(folder / "vault")
    # What every child would import is here before the first fork, and no thread is.
    EncryptingPayload(lambda _: None, key=bytes(32), bound=b"", segment_bytes=4096).finish()
    ended: list[int] = []
    while not ended or ended[-1] == -signal.SIGKILL:
        child = os.fork()
        if not child:
            asyncio.run(write(vault, passphrase, folder / "backups" / str(len(ended))))
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
