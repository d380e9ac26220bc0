"""Addresses of stores and databases: read with care, and shown as far as they may be."""

import re
from urllib.parse import SplitResult, urlsplit

from helix_agents.domain.errors import InvalidStoreUrlError

# From the colon after a user to the last @ before another address begins: a password may hold any character, though it
# should not. A port is no password, unless there is an @ behind it in the path.
_PASSWORD = re.compile(r"(://[^/@:?#]*:)(?!\d+(?:,|/[^@?#]*(?:[?#]|$)|[?#]|$))(?:(?!://).)*@")


def shown_url(url: str) -> str:
    """A URL without its password, wherever in it that stands."""
    without = _PASSWORD.sub(r"\1***@", url)
    return re.sub(r"([?&]\w*password=)[^&]+", r"\1***", without)


def read_url(url: str) -> SplitResult:
    """The parts of a server's URL.

    Raises:
        InvalidStoreUrlError: they cannot be told apart.
    """
    parts = _split(url)
    if parts is None or "#" in url:
        raise InvalidStoreUrlError(
            shown_url(url),
            "host and port cannot be made out; in a password, write characters such as / ? # @ [ ] as "
            "urllib.parse.quote(password, safe='') does",
        )
    return parts


def _split(url: str) -> SplitResult | None:
    """The parts, if they can be told apart; what is wrong otherwise is not said, as it would show a password."""
    try:
        parts = urlsplit(url)
        # Several hosts with a port each are for the driver to read.
        return parts if "," in parts.netloc or parts.port is None or parts.port else None
    except ValueError:
        return None
