"""Texts from outside, made storable."""

ERROR_BYTES = 8_000
"""How much is kept of the reason why a run failed."""


def storable(text: str, most_bytes: int | None = None) -> str:
    """The text, or its beginning, as valid UTF-8: characters without a UTF-8 form, as in a file name that could not be
    decoded, are escaped."""
    whole = text.encode(errors="backslashreplace")
    return whole[:most_bytes].decode(errors="ignore")


def said_by(problem: BaseException, most_bytes: int = ERROR_BYTES) -> str:
    """The message of an exception; some exceptions fail even at giving that."""
    try:
        text = str(problem)
    except Exception as unsaid:
        text = f"no text, because of {type(unsaid).__name__}"
    return storable(text, most_bytes)
