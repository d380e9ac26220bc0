"""Two folders change places in one step where the system can do that, so that nobody ever finds neither."""

import ctypes
import os
import sys
from pathlib import Path

_HERE = -100
_EXCHANGE = 2


def swap(new: Path, place: Path) -> None:
    """Have `new` at `place`; what was there is beside where `new` was. Whoever looks at `place` finds one or the other,
    whole; only where a system cannot exchange two folders is there nothing for a moment.

    Raises:
        OSError: a folder could not be moved.
    """
    if place.exists() and _exchange(os.fsencode(new), os.fsencode(place)):
        return
    if place.exists():
        os.replace(place, new.with_name("old"))
    os.replace(new, place)


def _exchange(one: bytes, other: bytes) -> bool:
    """Whether two paths were exchanged: not every system can, and not every file system."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return libc.renamex_np(one, other, _EXCHANGE) == 0
        return libc.renameat2(_HERE, one, _HERE, other, _EXCHANGE) == 0
    except (AttributeError, OSError, TypeError):
        return False
