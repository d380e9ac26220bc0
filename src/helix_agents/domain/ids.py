"""What an id is, and the check that keeps an id plain data."""

from functools import lru_cache
from typing import TypeAlias

from helix_agents.domain.errors import InvalidIdError

SessionId: TypeAlias = str
RunId: TypeAlias = str
StepId: TypeAlias = str
ToolCallId: TypeAlias = str
CheckpointId: TypeAlias = str
StreamId: TypeAlias = str

MAX_ID_LENGTH = 256

PATH_DOTS = (".", "..")
"""What clients and proxies remove from a path, however it is written: no server could ever receive it."""


# A run checks the same few ids in every step.
@lru_cache(maxsize=1_024)
def _is_plain(value: str) -> bool:
    return value != "" and value.isprintable() and value[0] != " " and value[-1] != " "


def check_id(value: str, kind: str = "session id") -> str:
    """The id itself, if it is 1 to 256 printable characters without space at its ends.

    Raises:
        InvalidIdError: it is not; says why.
    """
    is_text = isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if is_text and len(value) <= MAX_ID_LENGTH and _is_plain(value):
        return value
    if not is_text:
        reason = f"it is of type {type(value).__name__}; it has to be text"
    elif not value:
        reason = "it is empty"
    elif len(value) > MAX_ID_LENGTH:
        reason = f"it has {len(value)} characters, but at most {MAX_ID_LENGTH} are allowed"
    elif not value.isprintable():
        reason = "it contains control characters or other unprintable characters"
    else:
        reason = "it starts or ends with a space"
    raise InvalidIdError(kind, str(value), reason)


def check_new_session_id(value: str, kind: str = "session id") -> str:
    """The id of a new session, or of something else with an address, if it is valid and no URL path takes it for
    another place.

    Raises:
        InvalidIdError: it is not; says why.
    """
    if check_id(value, kind) in PATH_DOTS:
        raise InvalidIdError(kind, value, "it has another meaning in a URL path; choose any other id")
    return value
