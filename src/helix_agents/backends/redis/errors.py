"""What Redis says in trouble, as the errors this library has for it."""

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
)


class LookAgainError(Exception):
    """What was known is out of date: read again and decide again. Never leaves the backend."""


def translated(problem: BaseException, store: str) -> HelixError | None:
    """The error for what the driver raised; None for what is nobody's fault but ours."""
    match problem:
        case exceptions.OutOfMemoryError():
            return StoreFullError(store)
        case exceptions.ReadOnlyError():
            return StoreReadOnlyError(store)
        case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
            return StoreUnavailableError(store, str(problem) or type(problem).__name__)
        case exceptions.ResponseError():
            return _translated_reply(str(problem), store)
        case _:
            return None


def translated_at_first(problem: BaseException, store: str) -> HelixError:
    """The error for what the driver raised for somebody who comes for the first time: a server that answers, and
    refuses, is the wrong one or is asked in the wrong way."""
    match problem:
        case exceptions.RedisClusterException() if "is not enabled" not in str(problem):
            told = StoreUnavailableError(store, str(problem))
        case exceptions.AuthenticationError() | exceptions.AuthorizationError() | exceptions.RedisClusterException():
            told = None
        case _:
            told = translated(problem, store)
    return told or InvalidStoreUrlError(store, f"the server refused us: {problem}")


def _translated_reply(text: str, store: str) -> HelixError | None:
    word = text.partition(" ")[0]
    if word == "OOM" or "OOM command not allowed" in text:
        return StoreFullError(store)
    if word in ("READONLY", "MISCONF", "NOREPLICAS", "NOPERM"):
        return StoreReadOnlyError(store)
    if word in ("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "UNBLOCKED", "UNKILLABLE"):
        return StoreUnavailableError(store, text)
    if word == "WRONGTYPE":
        return StoreCorruptError(store, text)
    return None


@contextmanager
def translating(store: str) -> Generator[None]:
    """Let what the driver raises inside come out as an error of this library."""
    try:
        yield
    except (exceptions.RedisError, OSError) as problem:
        known = translated(problem, store)
        if known is None:
            raise
        raise known from problem
