"""HTTP responses that are closed together with the request, and not when the garbage collector finds them."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, Self

from httpx2 import AsyncClient
from pydantic_ai.models import create_async_http_client, create_async_httpx2_client

if TYPE_CHECKING:
    import httpx


class Connection(Protocol):
    """What a model is asked through: an HTTP client, or a client of a provider's own library."""

    async def aclose(self) -> None: ...


class _Response(Protocol):
    """What the responses of both generations of HTTPX have in common."""

    @property
    def is_success(self) -> bool: ...
    async def aclose(self) -> None: ...


_arriving: ContextVar[list[_Response] | None] = ContextVar("arriving_responses", default=None)


def open_client() -> AsyncClient:
    """A client whose responses `OpenResponses` records."""
    client = create_async_httpx2_client()
    client.event_hooks = {**client.event_hooks, "response": [_note]}
    return client


def open_older_client() -> "httpx.AsyncClient":
    """The same for libraries that take only a client of the older HTTPX."""
    client = create_async_http_client()
    client.event_hooks = {**client.event_hooks, "response": [_note]}
    return client


class OpenResponses:
    """The responses that one request is reading, closed at its end: some libraries leave one open when its reader stops
    early."""

    def __init__(self) -> None:
        self._responses: list[_Response] = []

    @contextmanager
    def noted(self) -> Generator[None]:
        """Record what arrives in here. It must be left in the task that entered it, so nothing may be yielded
        inside."""
        before = _arriving.set(self._responses)
        try:
            yield
        finally:
            _arriving.reset(before)

    @property
    def granted(self) -> bool:
        """Whether the provider agreed to answer; its answer may still make no sense."""
        return any(response.is_success for response in self._responses)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for response in self._responses:
            await response.aclose()


async def _note(response: _Response) -> None:
    arriving = _arriving.get()
    if arriving is not None:
        arriving.append(response)
