"""Texts from outside, as far as they can be kept."""

ERROR_BYTES = 8_000
"""How much is kept of why a run failed."""


def storable(text: str, most_bytes: int | None = None) -> str:
    """The text, or its beginning, as UTF-8 carries it: what has no form there, as in a file name that nobody could
    decode, is spelt out."""
    whole = text.encode(errors="backslashreplace")
    return whole[:most_bytes].decode(errors="ignore")


def said_by(problem: BaseException, most_bytes: int = ERROR_BYTES) -> str:
    """What an exception says; some fail even at that."""
    try:
        text = str(problem)
    except Exception as unsaid:
        text = f"no text, because of {type(unsaid).__name__}"
    return storable(text, most_bytes)
