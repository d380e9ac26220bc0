"""What the rings outside the engine hand in to it: the machine's clock, unguessable ids, and a little unevenness."""

import random
import secrets
import time

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    """128 random bits in 25 letters and digits."""

    def new(self, prefix: str) -> str:
        number = secrets.randbits(128)
        digits: list[str] = []
        for _ in range(25):
            number, digit = divmod(number, 36)
            digits.append(_ALPHABET[digit])
        return f"{prefix}_{''.join(digits)}"


def jitter() -> float:
    """A factor between 1 and 1.25, so that many waiters do not come back at the same moment."""
    return random.uniform(1.0, 1.25)
