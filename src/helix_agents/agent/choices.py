"""Options that are one of a few words: a misspelt one would be taken for another, so it is refused."""

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
