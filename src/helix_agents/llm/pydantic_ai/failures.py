"""What went wrong at a provider, sorted by what helps: wait, try again, shorten the history, or change the request."""

import json
import re
import sys
from math import isfinite
from typing import Any, cast

import httpx2
from pydantic_ai import exceptions as theirs

from helix_agents.domain.errors import (
    ContextTooLongError,
    ModelError,
    ModelOverloadedError,
    ModelRefusedError,
    ModelUnavailableError,
)

# The first kind that matches decides, so specific kinds come before general ones.
_KINDS: tuple[tuple[type[Exception], type[ModelError]], ...] = (
    (theirs.ModelContextWindowExceededError, ContextTooLongError),
    (theirs.ModelRateLimitError, ModelOverloadedError),
    (theirs.ModelOverloadedError, ModelOverloadedError),
    (theirs.ModelQuotaExceededError, ModelRefusedError),
    (theirs.ModelRequestRejectedError, ModelRefusedError),
    (theirs.ModelUnavailableError, ModelUnavailableError),
    (theirs.ModelServerError, ModelUnavailableError),
    (theirs.ModelConnectionError, ModelUnavailableError),
    (theirs.ModelRequestTimeout, ModelUnavailableError),
    (theirs.ContentFilterError, ModelRefusedError),
    # A reply that makes no sense is an accident of this attempt, like a broken connection.
    (theirs.UnexpectedModelBehavior, ModelUnavailableError),
    (httpx2.HTTPError, ModelUnavailableError),
    (OSError, ModelUnavailableError),
)

# Their sentence continues with advice for users of their library.
_NO_KEY = re.compile(r"Set the `(\w+)`.* environment variable")
# How OpenAI names what it refuses in a stream that has already begun.
_REFUSALS = re.compile(r"invalid_|unsupported_|image_")
_WORTH_ANOTHER_TRY = frozenset({408, 409, 425})
_TOO_LARGE = 413
# Servers that imitate an API say in words what its own provider says with a code; one says it as its own failure.
_MAY_SAY_TOO_LONG = frozenset({400, 422, 500})
_TOO_LONG = re.compile(
    r"(exceed|too long).*context (length|limit|size)|`inputs` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE | re.DOTALL,
)


def as_model_error(model: str, problem: Exception, *, otherwise: type[ModelError] = ModelRefusedError) -> ModelError:
    """Our error that says whether asking again may help, with the provider's own words and requested wait.

    `otherwise` is what an unknown problem counts as.
    """
    kind = _kind(problem) or otherwise
    return kind(model, _reason(problem), _wished(problem))


def _wished(problem: Exception) -> float | None:
    """How long the provider asks us to wait, in seconds: from a header, or from where Google writes it."""
    if not isinstance(problem, theirs.ModelAPIError):
        return None
    if problem.retry_after is not None:
        return problem.retry_after
    # Theirs reads only whole seconds.
    headers = problem.headers if isinstance(problem, theirs.ModelHTTPError) else None
    return _seconds((headers or {}).get("retry-after")) or _delay_in(problem.body)


def _delay_in(body: Any) -> float | None:
    match body:
        case {"error": {"details": [*details]}}:
            for each in details:
                match each:
                    case {"retryDelay": str() as delay}:
                        return _seconds(delay.removesuffix("s"))
                    case _:
                        continue
        case _:
            pass
    return None


def _seconds(said: str | None) -> float | None:
    try:
        seconds = float(said or "")
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds > 0 else None


def _kind(problem: Exception) -> type[ModelError] | None:
    # Nothing can be asked without an address, however often.
    if (lost := _lost(problem)) is not None and not lost.request.url.host:
        return ModelRefusedError
    # A status with a clear meaning takes precedence over the category it was filed under.
    if isinstance(problem, theirs.ModelHTTPError):
        if problem.status_code == _TOO_LARGE:
            return ContextTooLongError
        if problem.status_code in _WORTH_ANOTHER_TRY:
            return ModelUnavailableError
        if problem.status_code in _MAY_SAY_TOO_LONG and _TOO_LONG.search(_own_words(problem.body) or ""):
            return ContextTooLongError
    for their_kind, our_kind in _KINDS:
        if isinstance(problem, their_kind):
            return our_kind
    # What the provider reports without a status arrives in the middle of a stream, which may go better next time.
    if isinstance(problem, theirs.ModelAPIError) and not isinstance(problem, theirs.ModelHTTPError):
        is_refusal = _REFUSALS.match(problem.provider_error_code or "")
        return ModelRefusedError if is_refusal else ModelUnavailableError
    return None


def _reason(problem: Exception) -> str:
    words = _own_words(problem.body) if isinstance(problem, theirs.ModelAPIError) else None
    if isinstance(problem, theirs.ModelHTTPError) and words is not None:
        return f"HTTP {problem.status_code}: {words}"
    if (lost := _lost(problem)) is not None:
        url = lost.request.url
        if not url.host:
            return "its address has no host; begin it with http:// or https://, in base_url or in the environment"
        return f"{url.scheme}://{url.netloc.decode()} did not answer: {str(lost) or type(lost).__name__}"
    missing = _NO_KEY.match(str(problem)) if isinstance(problem, theirs.UserError) else None
    if missing is not None:
        return f"there is no API key for it; set {missing[1]}, or give open_model an api_key"
    if isinstance(problem, theirs.AgentRunError | theirs.UserError):
        return words or str(problem)
    return f"{type(problem).__name__}: {problem}"


def _lost(problem: BaseException) -> httpx2.RequestError | None:
    """What happened to the connection: the providers' libraries say only that there was none."""
    # Some of them use the older HTTPX, whose errors have the same parts.
    older = sys.modules.get("httpx")
    kinds: tuple[type[Exception], ...] = (httpx2.RequestError, *([older.RequestError] if older else ()))
    cause: BaseException | None = problem
    while cause is not None:
        # The request is part of the error, unless somebody else than the client raised it.
        if isinstance(cause, kinds) and getattr(cause, "_request", None) is not None:
            return cast("httpx2.RequestError", cause)
        cause = cause.__cause__
    return None


def _own_words(body: object) -> str | None:
    """The sentence in a provider's error body, wherever it is. Mistral's body arrives as a text, and AWS's library
    names its parts anew."""
    match body:
        case str():
            return _own_words(_read(body))
        case (
            {"error": {"message": str() as message}}
            | {"message": str() as message}
            | {"Error": {"Message": str() as message}}
        ):
            return message
        case _:
            return None


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
