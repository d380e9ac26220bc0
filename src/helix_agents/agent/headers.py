"""Headers that users give for requests to a service: what can be sent, and secrets that are made anew each time."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from helix_agents.domain.errors import DefinitionError

Headers: TypeAlias = Mapping[str, str] | Callable[[], Awaitable[Mapping[str, str]]]
"""Headers for every request, or a function that gives them anew each time, such as a token that is renewed."""

_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")


def check_header(subject: str, name: object, value: object) -> None:
    """Let a header pass that can be sent. What it holds may be a secret, and is not told.

    Raises:
        DefinitionError: it cannot.
    """
    is_sent = isinstance(name, str) and _NAME.fullmatch(name) is not None
    if not is_sent or not isinstance(value, str) or not _can_be_sent(value):
        raise DefinitionError(
            subject,
            f"header {str(name)[:80]!r} cannot be sent: it takes printable ASCII without space or a line break at its "
            "end.",
        )


def _can_be_sent(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()
