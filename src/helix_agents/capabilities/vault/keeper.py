"""The keeper: a process that holds the keys of an unlocked vault in memory, until it is told to lock or time is up.

`helix vault unlock` starts it. It gives the keys to processes of its own user only. A new passphrase, a missing vault
file, or another keeper in its place end it, just like `helix vault lock`.
"""

import os
import resource
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from helix_agents.capabilities.vault.keeping import (
    PATIENCE_SECONDS,
    READY,
    Charge,
    KeeperAnswer,
    Kept,
    door_of,
    read_line,
)
from helix_agents.capabilities.vault.vault_file import find_vault_file
from helix_agents.domain.errors import VaultError
from helix_agents.domain.records import decode, encode

LOOK_SECONDS = 5.0
# A clock that continues while the machine sleeps, because the hours are meant as a person means them. Linux has one;
# elsewhere, the monotonic clock has to do.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def main() -> None:
    """Be the keeper of one vault, with keys that come from standard input."""
    vault = Path(sys.argv[1])
    # The keys are written nowhere, not even into a crash dump.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    charge = decode(sys.stdin.buffer.read(), Charge)
    if os.fork():
        # The starter waits for this process to end, and for what its child says; the child continues.
        os._exit(0)
    try:
        door = _open_door(vault)
    except OSError as problem:
        os.write(1, f"no process can listen in its folder: {problem.strerror}\n".encode())
        return
    os.write(1, READY)
    _let_go_of_pipes()
    with door:
        _keep(vault, charge.kept, door, until=_now() + charge.seconds)


def _keep(vault: Path, kept: Kept, door: socket.socket, *, until: float) -> None:
    own = _door_number(vault)
    try:
        while (left := until - _now()) > 0 and _door_number(vault) == own and _fits(vault, kept):
            door.settimeout(min(left, LOOK_SECONDS))
            with suppress(OSError):
                other, _ = door.accept()
                with other:
                    # Hours may have passed since it started to wait for a request.
                    if (left := until - _now()) <= 0 or _answer(other, kept, left) == b"lock":
                        return
    finally:
        if _door_number(vault) == own:
            os.unlink(door_of(vault))


def _now() -> float:
    return time.clock_gettime(CLOCK)


def _door_number(vault: Path) -> int | None:
    """What tells this keeper's socket from that of a later keeper."""
    try:
        return os.stat(door_of(vault)).st_ino
    except OSError:
        return None


def _answer(other: socket.socket, kept: Kept, left: float) -> bytes:
    """Answer one request; returns which it was."""
    other.settimeout(PATIENCE_SECONDS)
    if not _is_same_user(other):
        return b""
    question = read_line(other)
    answer = KeeperAnswer(seconds_left=left, kept=kept if question == b"keys" else None)
    other.sendall(encode(answer) + b"\n")
    return question


def _open_door(vault: Path) -> socket.socket:
    """Listen in the vault's folder under a temporary name, and then rename the socket: no client finds it half open."""
    os.chdir(vault.parent)
    os.umask(0o177)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    making = f"{door_of(vault)}.{os.getpid()}"
    door.bind(making)
    door.listen(64)
    os.rename(making, door_of(vault))
    return door


def _fits(vault: Path, kept: Kept) -> bool:
    """Whether the keys still belong to the vault's file."""
    try:
        found = find_vault_file(vault)
    except VaultError:
        return False
    return found is not None and found.wrapped_key == kept.wrapped_key


def _is_same_user(other: socket.socket) -> bool:
    """The socket's mode lets no other user in; where the system says who asks, that is checked as well."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return user == os.getuid()


def _let_go_of_pipes() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    main()
