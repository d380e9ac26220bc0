"""Errors of Redis and its driver, translated into this library's."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from redis import exceptions

from helix_agents.domain.errors import (
    HelixError,
    InvalidStoreUrlError,
    StoreCorruptError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnstorableValueError,
)

# After a failover the old address may still lead to a server that only follows.
ONLY_FOLLOWS = "the server accepts no writes at the moment"
# What it says of a number that is larger than any it counts with.
_NO_NUMBER = ("is not an integer or out of range", "is not a valid float", "Invalid stream ID")
_IN_A_SCRIPT = re.compile(r"@user_script: ?\d+: -([A-Z]+) ")


class LookAgainError(Exception):
    """What was known is out of date: read again and decide again. Never leaves the backend."""


def translated(problem: BaseException, store: str) -> HelixError | None:
    """The error for what the driver raised; None for our own mistakes."""
    match problem:
        case exceptions.OutOfMemoryError():
            return StoreFullError(store)
        case exceptions.ReadOnlyError():
            return StoreUnavailableError(store, ONLY_FOLLOWS)
        case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
            return StoreUnavailableError(store, str(problem) or type(problem).__name__)
        case exceptions.AskError():
            return StoreUnavailableError(store, "the server is part of a cluster; add ?cluster=true to the URL")
        case exceptions.ClusterDownError() | exceptions.TryAgainError() | exceptions.ClusterError():
            return StoreUnavailableError(store, str(problem))
        case UnicodeEncodeError():
            return UnstorableValueError("value", str(problem))
        case exceptions.ResponseError():
            return _translated_reply(str(problem), store)
        case _:
            return None


def translated_at_first(problem: BaseException, store: str) -> HelixError:
    """The error for what the driver raised on a first connection.

    A server that answers with a refusal is the wrong server, or was addressed in the wrong way.
    """
    match problem:
        case exceptions.AuthenticationError() | exceptions.AuthorizationError():
            told = None
        case _:
            told = translated(problem, store)
    return told or InvalidStoreUrlError(store, f"the server refused us: {problem}")


def _translated_reply(text: str, store: str) -> HelixError | None:
    word = _word_of(text)
    if word == "OOM" or "OOM command not allowed" in text:
        return StoreFullError(store)
    if word == "NOPERM" or text.startswith("ACL failure"):
        return StoreReadOnlyError(store, f"grant access to the user that opens it ({text.rstrip('.')})")
    if word == "READONLY":
        return StoreUnavailableError(store, ONLY_FOLLOWS)
    if word in (
        # The server cannot save its data, mostly because its disk is full; it accepts writes again as soon as it can.
        "MISCONF",
        "NOREPLICAS",
        "LOADING",
        "BUSY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MOVED",
        "ASK",
        "UNBLOCKED",
        "UNKILLABLE",
    ):
        return StoreUnavailableError(store, text)
    if word == "WRONGTYPE":
        return StoreCorruptError(store, text)
    if any(words in text for words in _NO_NUMBER):
        return UnstorableValueError("number", text)
    return None


def only_follows(problem: BaseException) -> bool:
    """Whether this is the error of a server that may not be written to because it follows another one."""
    return isinstance(problem, exceptions.ReadOnlyError) or _word_of(str(problem)) == "READONLY"


def _word_of(text: str) -> str:
    """The word that classifies an error reply; older servers wrap errors that stopped a script."""
    inside = _IN_A_SCRIPT.search(text)
    return inside[1] if inside is not None else text.partition(" ")[0]


@contextmanager
def translating(store: str) -> Generator[None]:
    """Translate the driver's errors inside the block into this library's."""
    try:
        yield
    except (exceptions.RedisError, OSError, UnicodeEncodeError) as problem:
        known = translated(problem, store)
        if known is None:
            raise
        raise known from problem
