"""Asks the keeper of an unlocked vault: a process that an operator started, and that all processes of that user ask.

It listens on a socket beside the vault's file that only its user may open. It keeps nothing on disk: when it ends, the
vault is locked.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from helix_agents.domain.errors import RecordTooNewError, SessionCorruptError, VaultFileError
from helix_agents.domain.records import Record, decode, encode

PATIENCE_SECONDS = 5.0
STARTING_SECONDS = 30.0
MOST_BYTES = 4096
READY = b"ready\n"

Question: TypeAlias = Literal["keys", "status", "lock"]


class Kept(Record):
    """The keys of one vault. `wrapped_key` is what its file contained: under a new passphrase the keys are dropped."""

    wrapped_key: bytes
    master: bytes
    stretched: bytes


class Charge(Record):
    """What a keeper is started with, over a pipe: on a command line everyone could read it."""

    kept: Kept
    seconds: float


class KeeperAnswer(Record):
    """A keeper's answer: how long it will be there, and the keys if it was asked for them."""

    seconds_left: float
    kept: Kept | None = None


def door_of(vault: Path) -> str:
    """The name of the socket, in the vault's folder."""
    return f"{vault.name}.keeper"


def ask_keeper(vault: Path, question: Question) -> KeeperAnswer | None:
    """The answer of a vault's keeper; None if there is no keeper."""
    try:
        with _address(vault) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(PATIENCE_SECONDS)
            door.connect(address)
            door.sendall(question.encode() + b"\n")
            answer = read_line(door)
            return decode(answer, KeeperAnswer) if answer else None
    except (OSError, RecordTooNewError, SessionCorruptError):
        # There is no keeper, it is leaving, or it is one of another version: in any case the vault is locked.
        return None


def start_keeper(vault: Path, charge: Charge) -> None:
    """Start a keeper in place of any existing one.

    Raises:
        VaultFileError: it could not start to listen.
    """
    ask_keeper(vault, "lock")
    environment = {name: value for name, value in os.environ.items() if name != "HELIX_VAULT_PASSPHRASE"}
    started = subprocess.Popen(
        # Without -P, a file in the current folder could become a module of the process that holds the keys.
        [sys.executable, "-P", "-m", "helix_agents.capabilities.vault.keeper", str(vault)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    try:
        said, _ = started.communicate(encode(charge), timeout=STARTING_SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        said, _ = started.communicate()
    if said != READY:
        raise VaultFileError(str(vault), said.decode("utf-8", "replace").strip() or "no keeper could be started for it")


def read_line(door: socket.socket) -> bytes:
    """What the other side said, up to the end of its line; empty if it left before that."""
    heard = b""
    while not heard.endswith(b"\n") and len(heard) < MOST_BYTES:
        more = door.recv(MOST_BYTES)
        if not more:
            return b""
        heard += more
    return heard.strip()


@contextmanager
def _address(vault: Path) -> Generator[str]:
    """How the socket is reached: its path may be longer than an address can be, so Linux goes through the open
    folder."""
    if not Path("/proc/self/fd").exists():
        yield str(vault.with_name(door_of(vault)))
        return
    folder = os.open(vault.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{door_of(vault)}"
    finally:
        os.close(folder)
