"""HTTP responses that are closed when the question is, and not when the garbage collector finds them."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from httpx2 import AsyncClient, Response
from pydantic_ai.models import create_async_httpx2_client

_arriving: ContextVar[list[Response] | None] = ContextVar("arriving_responses", default=None)


def open_client() -> AsyncClient:
    """A client whose responses `closing_responses` sees."""
    client = create_async_httpx2_client()
    client.event_hooks = {**client.event_hooks, "response": [_note]}
    return client


class OpenResponses:
    """The responses one question is reading."""

    def __init__(self) -> None:
        self._responses: list[Response] = []

    @contextmanager
    def noted(self) -> Generator[None]:
        """Note what arrives in here. To be left in the task it was entered in, so nothing may be yielded inside."""
        before = _arriving.set(self._responses)
        try:
            yield
        finally:
            _arriving.reset(before)

    async def close(self) -> None:
        for response in self._responses:
            await response.aclose()


@asynccontextmanager
async def closing_responses() -> AsyncGenerator[OpenResponses]:
    """Close at the end what was noted: some libraries leave a response open when its reader stops early."""
    responses = OpenResponses()
    try:
        yield responses
    finally:
        await responses.close()


async def _note(response: Response) -> None:
    arriving = _arriving.get()
    if arriving is not None:
        arriving.append(response)
