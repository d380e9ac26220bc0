"""What problems say, as text that can be stored: file names and answers of services get into it."""

MOST_BYTES = 32 * 1024
"""How much of a text that says why something failed is kept."""


def text_of(problem: BaseException, most_bytes: int = MOST_BYTES) -> str:
    """What a problem says, as far as it can be stored."""
    try:
        text = str(problem)
    except Exception as unsaid:
        text = f"no text, because of {type(unsaid).__name__}"
    return storable(text, most_bytes)


def storable(text: str, most_bytes: int = MOST_BYTES) -> str:
    """A text without what cannot be encoded, and not longer than it may be."""
    return text.encode(errors="backslashreplace")[:most_bytes].decode(errors="ignore")
