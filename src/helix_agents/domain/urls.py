"""Addresses of stores, databases and services: parsed carefully, and shown without secrets."""

import re
from urllib.parse import SplitResult, urlsplit

from helix_agents.domain.errors import InvalidStoreUrlError

# From the colon after a user to the last @ before another address starts: a password may contain any character, though
# it should not. A port is not a password, unless there is an @ behind it in the path.
_PASSWORD = re.compile(r"(://[^/@:?#]*:)(?!\d+(?:,|/[^@?#]*(?:[?#]|$)|[?#]|$))(?:(?!://).)*@")


def shown_url(url: str) -> str:
    """A URL without its password, wherever it is."""
    without = _PASSWORD.sub(r"\1***@", url)
    return re.sub(r"([?&]\w*password=)[^&]+", r"\1***", without)


def read_url(url: str) -> SplitResult:
    """The parts of a server's URL.

    Raises:
        InvalidStoreUrlError: the parts cannot be told apart.
    """
    parts = _split(url)
    if parts is None or "#" in url:
        raise InvalidStoreUrlError(
            shown_url(url),
            "host and port cannot be told apart; in a password, escape characters such as / ? # @ [ ] with "
            "urllib.parse.quote(password, safe='')",
        )
    return parts


def web_address(url: object) -> SplitResult | None:
    """The parts of an http or https address that can be called; None if it is not one."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _split(url: str) -> SplitResult | None:
    """The parts, if they can be told apart; the reason why not is withheld, as it could show a password."""
    try:
        parts = urlsplit(url)
        # Several hosts with a port each are left to the driver.
        return parts if "," in parts.netloc or parts.port is None or parts.port else None
    except ValueError:
        return None
