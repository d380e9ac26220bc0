"""Errors for callers: a sentence for users, a detail for developers, and a stable code."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from helix_agents.domain.errors import (
    AgentMismatchError,
    CallerError,
    CheckpointNotFoundError,
    ChunkTooLargeError,
    ConflictError,
    ExecutorClosedError,
    HelixError,
    ModelError,
    NotARootSessionError,
    NothingToResumeError,
    NothingToRetryError,
    NotTheOwnerError,
    QueuedTurnDroppedError,
    QueueFullError,
    RunAlreadyExistsError,
    RunNotFoundError,
    ScheduleNotFoundError,
    SessionAlreadyExistsError,
    SessionCorruptError,
    SessionNotFoundError,
    StateSchemaChangedError,
    StateSizeExceededError,
    StillWaitingError,
    StoreCorruptError,
    StoreError,
    UnknownAgentError,
    WorkspaceFailedError,
)
from helix_agents.domain.records import Record
from helix_agents.server.wire import to_json


class ErrorBody(Record):
    """The JSON of every error. `error` is safe to show to a user; `detail` is for the developer of the client."""

    error: str
    detail: str
    code: str
    retryable: bool = False


class RefusedError(Exception):
    """A request that is answered with an error; raised anywhere behind a route."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(
            error=sentence_for(self.code, self.status), detail=self.detail, code=self.code, retryable=self.retryable
        )


def refused(refusal: RefusedError) -> Response:
    """The refusal as a response."""
    return Response(
        to_json(refusal.body), status_code=refusal.status, media_type="application/json", headers=refusal.headers
    )


class ErrorShape(Record):
    """How a protocol reports refusals: their body, and the response."""

    body: Any
    refused: Callable[[RefusedError], Response]


OURS = ErrorShape(body=ErrorBody, refused=refused)


# Errors that a user can do something about; all others get the sentence of their status.
_SENTENCES = {
    "agent_already_running": "An answer is still being written. Wait for it, or stop it first.",
    "already_completed": "This conversation has already been completed.",
    "budget_exhausted": "This answer reached its limit. It can be continued.",
    "cannot_regenerate": "This answer cannot be regenerated.",
    "context_too_long": "This conversation has become too long to continue.",
    "framework_cancelled": "This answer was stopped.",
    "history_mismatch": "This page is out of date. Reload it and try again.",
    "late_answer_after_timeout": "This answer came too late; the conversation continued without it.",
    "nothing_to_resume": "There is nothing to continue here.",
    "output_refused": "This answer was withheld.",
    "payload_too_large": "This is too large to send.",
    "provider_rate_limited": "The model is busy at the moment. Please try again shortly.",
    "provider_unavailable": "The model cannot be reached at the moment. Please try again shortly.",
    "queue_full": "Too many messages are already waiting for their turn.",
    "queued_turn_dropped": "This message was taken back before it was answered.",
    "server_draining": "The service is restarting. Please try again in a moment.",
    "session_not_found": "There is no such conversation.",
    "schedule_not_found": "There is no such schedule.",
    "still_waiting": "This conversation is still waiting for another answer.",
    "stream_lost": "The connection was lost. The answer is still being written; reconnect to see it.",
    "too_many_runs": "You have too many answers being written at once. Wait for one to finish.",
    "too_many_schedules": "You have too many schedules. Delete one first.",
    "too_many_streams": "Too many connections are open. Please try again shortly.",
    "unauthenticated": "Please sign in.",
}

_BY_STATUS = {
    400: "This request could not be understood.",
    401: "Please sign in.",
    403: "You are not allowed to do this.",
    404: "This does not exist.",
    405: "This is not possible here.",
    408: "The request took too long to arrive.",
    409: "This is not possible at the moment. Something else came first.",
    413: "This is too large.",
    415: "This request could not be understood.",
    429: "Too many requests at once. Please wait a moment.",
    503: "The service is not available at the moment. Please try again shortly.",
}


def sentence_for(code: str, status: int = 500) -> str:
    """What a user may be told about a failure of this kind; it never reveals what went wrong inside."""
    return _SENTENCES.get(code) or _BY_STATUS.get(status, "Something went wrong. Please try again.")


_NOT_FOUND = (
    SessionNotFoundError,
    RunNotFoundError,
    CheckpointNotFoundError,
    ScheduleNotFoundError,
    UnknownAgentError,
)
_TOO_LARGE = (StateSizeExceededError, ChunkTooLargeError)
_NOT_NOW = (
    AgentMismatchError,
    ConflictError,
    NotARootSessionError,
    NothingToResumeError,
    NothingToRetryError,
    QueuedTurnDroppedError,
    QueueFullError,
    RunAlreadyExistsError,
    SessionAlreadyExistsError,
    StateSchemaChangedError,
    StillWaitingError,
)


def status_of(problem: HelixError) -> int:
    """The HTTP status that says who has to act on an error."""
    match problem:
        case ExecutorClosedError():
            return 503
        case NotTheOwnerError():
            return 403
        case _ if isinstance(problem, _NOT_FOUND):
            return 404
        case _ if isinstance(problem, _TOO_LARGE):
            return 413
        case _ if isinstance(problem, _NOT_NOW):
            return 409
        case CallerError():
            return 400
        case StoreCorruptError() | SessionCorruptError():
            return 500
        case StoreError() | ModelError() | WorkspaceFailedError():
            return 503
        case _:
            return 500


def passes(problem: HelixError) -> bool:
    """Whether it helps to retry later."""
    return status_of(problem) == 503


def refusal_of(problem: HelixError, retry_after_seconds: int) -> RefusedError:
    """The response to a request that met this error. Internals of the server are not revealed."""
    status = status_of(problem)
    if status < 500:
        return RefusedError(status, problem.code, str(problem), retryable=problem.retryable)
    if isinstance(problem, ExecutorClosedError):
        return draining(retry_after_seconds)
    headers = {"retry-after": str(retry_after_seconds)} if passes(problem) else {}
    detail = f"{HTTPStatus(status).phrase}: {(type(problem).__doc__ or '').partition(chr(10))[0]}"
    return RefusedError(status, problem.code, detail, retryable=passes(problem), headers=headers)


def draining(retry_after_seconds: int) -> RefusedError:
    """The refusal while the instance shuts down; another instance, or the next one here, takes the request."""
    return RefusedError(
        503,
        "server_draining",
        "This instance is shutting down and starts nothing new.",
        retryable=True,
        headers={"retry-after": str(retry_after_seconds)},
    )


def invalid(detail: str) -> RefusedError:
    """The refusal of a request that is itself wrong; repeating it is refused again."""
    return RefusedError(400, "validation_error", detail)
