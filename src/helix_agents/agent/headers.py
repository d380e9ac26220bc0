"""Headers for requests to a service: what can be sent, and secrets that are computed for each request."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from helix_agents.domain.errors import DefinitionError

Headers: TypeAlias = Mapping[str, str] | Callable[[], Awaitable[Mapping[str, str]]]
"""Headers for every request, or a function that computes them each time, such as for a token that is renewed."""

_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")


def check_header(subject: str, name: object, value: object) -> None:
    """Check that a header can be sent. Its value may be a secret, so the error does not show it.

    Raises:
        DefinitionError: it cannot be sent.
    """
    is_sent = isinstance(name, str) and _NAME.fullmatch(name) is not None
    if not is_sent or not isinstance(value, str) or not _can_be_sent(value):
        raise DefinitionError(
            subject,
            f"header {str(name)[:80]!r} cannot be sent: it has to be printable ASCII without spaces or line breaks at "
            "its ends.",
        )


def _can_be_sent(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()
