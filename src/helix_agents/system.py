"""What the layers outside the engine ask the machine: its clock, unguessable ids, some jitter, and places."""

import os
import random
import sys
import time
from pathlib import Path

_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyz"
_LETTER_OF_BYTE = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    """More than 128 random bits in 26 letters and digits."""

    def new(self, prefix: str) -> str:
        return f"{prefix}_{os.urandom(26).translate(_LETTER_OF_BYTE).decode()}"


def jitter() -> float:
    """A factor between 1 and 1.25, so that many waiters do not come back at the same moment."""
    return random.uniform(1.0, 1.25)


def beside_the_caller(module: str) -> Path:
    """The folder of the module that calls this one: it is the same wherever the process is started."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_globals.get("__name__") == module and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return Path(file).parent if isinstance(file, str) else Path.cwd()
