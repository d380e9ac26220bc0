"""Options that are one of a few words, or a number: values that would be mistaken for another are rejected."""

import math
from collections.abc import Sequence
from typing import TypeGuard

from helix_agents.domain.errors import DefinitionError


def check_choice(subject: str, option: str, value: object, known: Sequence[str], *, other: str = "") -> None:
    """Reject an unknown word; `other` says what else may be given.

    Raises:
        DefinitionError: names the word, and lists the known ones.
    """
    if value not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise DefinitionError(subject, f"{option}={value!r} is not one of {words}{other}.")


def check_switch(subject: str, option: str, value: object, *, other: str = "") -> None:
    """Reject anything but True and False: any text counts as true, even "no".

    Raises:
        DefinitionError: it is neither.
    """
    if not isinstance(value, bool):
        raise DefinitionError(subject, f"{option}={value!r} is neither True nor False{other}.")


def check_whole(subject: str, option: str, value: object, least: int, *, other: str = "") -> None:
    """Reject anything but a whole number of at least `least`. True is rejected, although Python counts it as 1.

    Raises:
        DefinitionError: it is not such a number.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DefinitionError(subject, f"{option}={value!r} has to be a whole number of at least {least}{other}.")


def check_text(subject: str, option: str, value: object) -> None:
    """Reject anything but text, and an empty text.

    Raises:
        DefinitionError: it is not text, or empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(subject, f"{option}={value!r} has to be a text that is not blank.")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number. True is none, although Python counts it as 1."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(subject: str, option: str, value: object) -> None:
    """Reject anything but a finite time above 0.

    Raises:
        DefinitionError: it is not such a time.
    """
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise DefinitionError(subject, f"{option}={value!r} has to be a number of seconds above 0.")
