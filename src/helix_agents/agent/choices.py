"""Options that are one of a few words, or a number: what would be taken for another one is refused."""

import math
from collections.abc import Sequence

from helix_agents.domain.errors import DefinitionError


def check_choice(subject: str, option: str, value: object, known: Sequence[str], *, other: str = "") -> None:
    """Refuse a word that means nothing; `other` says what else may be given.

    Raises:
        DefinitionError: names it, and what there is.
    """
    if value not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise DefinitionError(subject, f"{option}={value!r} means nothing; there is {words}{other}.")


def check_switch(subject: str, option: str, value: object, *, other: str = "") -> None:
    """Refuse what is neither True nor False: any text counts as true, also "no".

    Raises:
        DefinitionError: it is neither.
    """
    if not isinstance(value, bool):
        raise DefinitionError(subject, f"{option}={value!r} is neither True nor False{other}.")


def check_whole(subject: str, option: str, value: object, least: int, *, other: str = "") -> None:
    """Refuse what is no whole number from `least` on; True is none, though it counts as one.

    Raises:
        DefinitionError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DefinitionError(subject, f"{option}={value!r} has to be a whole number from {least} on{other}.")


def check_text(subject: str, option: str, value: object) -> None:
    """Refuse what is no text, or an empty one.

    Raises:
        DefinitionError: it is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(subject, f"{option}={value!r} has to be a text that is not blank.")


def check_seconds(subject: str, option: str, value: object) -> None:
    """Refuse what is no finite time above 0; True is none, though it counts as one.

    Raises:
        DefinitionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise DefinitionError(subject, f"{option}={value!r} has to be a number of seconds above 0.")
