"""Errors of a model or of its provider."""

from helix_agents.domain.errors.root import HelixError


class ModelError(HelixError):
    """A model or its provider did not answer as needed."""

    code = "provider_error"
    model: str
    reason: str
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"Model {self.model!r} gave no answer: {self.reason}"


class ModelOverloadedError(ModelError):
    """The provider limits requests or is overloaded; `retry_after` is the wait in seconds that it asks for."""

    code = "provider_rate_limited"
    retryable = True


class ModelUnavailableError(ModelError):
    """The provider could not be reached, took too long, or had an internal error."""

    code = "provider_unavailable"
    retryable = True


class ModelRefusedError(ModelError):
    """The provider refused the request: wrong credentials, an unknown model, or a request it cannot read."""

    code = "provider_refused"


class ContextTooLongError(ModelError):
    """The conversation is longer than the model's context window."""

    code = "context_too_long"

    def __str__(self) -> str:
        return f"The conversation no longer fits model {self.model!r}: {self.reason}"
