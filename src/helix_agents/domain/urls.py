"""Addresses of stores and databases, as far as they may be shown."""

import re


def shown_url(url: str) -> str:
    """A URL without its password, wherever in it that stands."""
    without = re.sub(r"(://[^/@:]*:)[^/]+@", r"\1***@", url)
    return re.sub(r"([?&]\w*password=)[^&]+", r"\1***", without)
