"""Exchanges two folders in one step where the system supports it, so that there is no moment without either."""

import ctypes
import os
import sys
from pathlib import Path

_HERE = -100
_EXCHANGE = 2


def swap(new: Path, place: Path) -> None:
    """Put `new` at `place`; the old folder ends up beside where `new` was. Readers of `place` find one or the other,
    complete. Only where a system cannot exchange two folders is there nothing for a moment.

    Raises:
        OSError: a folder could not be moved.
    """
    if place.exists() and _exchange(os.fsencode(new), os.fsencode(place)):
        return
    if place.exists():
        os.replace(place, new.with_name("old"))
    os.replace(new, place)


def _exchange(one: bytes, other: bytes) -> bool:
    """Whether two paths were exchanged: not every system and file system can do it."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return libc.renamex_np(one, other, _EXCHANGE) == 0
        return libc.renameat2(_HERE, one, _HERE, other, _EXCHANGE) == 0
    except (AttributeError, OSError, TypeError):
        return False
