"""What the rings outside the engine hand in to it: the machine's clock, unguessable ids, and a little unevenness."""

import os
import random
import time

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
