"""The responses for OpenAI clients, as the OpenAPI document describes them, and the format of errors."""

from typing import Any, Literal

import msgspec
from starlette.responses import Response as HTTPResponse

from helix_agents.server.errors import ErrorShape, RefusedError
from helix_agents.server.wire import to_json


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """The session that a response belongs to."""

    id: str


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the input came from a provider's cache, or was written to it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the output was reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens used by a response and by everything that worked for it."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed. The message ends with the code that this server uses for it."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response ended too early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a session, as an OpenAI client knows it."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    conversation: ConversationObject
    previous_response_id: str | None
    metadata: dict[str, str]
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    background: bool | None
    instructions: str | None
    max_output_tokens: int | None
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: str


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the input items of a response."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, as an OpenAI client knows it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The agents that callers may talk to."""

    object: Literal["list"]
    data: list[ModelObject]


class OpenAIProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused. `code` is the same as on every other route; `param` is the field at fault."""

    message: str
    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
    ]
    param: str | None
    code: str


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of an error, as OpenAI's clients read it."""

    error: OpenAIProblem


_TYPES: dict[int, Any] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def _refused(refusal: RefusedError) -> HTTPResponse:
    kind = "server_error" if refusal.status >= 500 else _TYPES.get(refusal.status, "invalid_request_error")
    param = getattr(refusal, "param", None)
    problem = {"message": refusal.detail, "type": kind, "param": param, "code": refusal.code}
    return HTTPResponse(
        to_json({"error": problem}),
        status_code=refusal.status,
        media_type="application/json",
        headers=refusal.headers,
    )


OPENAI_ERRORS = ErrorShape(body=OpenAIError, refused=_refused)
