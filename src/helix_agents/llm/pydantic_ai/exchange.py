"""One request and its streamed answer, through Pydantic AI."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, StreamedResponse

from helix_agents.domain.errors import ModelError, ModelRefusedError, ModelUnavailableError
from helix_agents.llm.pydantic_ai.connections import Connection, OpenResponses, open_client
from helix_agents.llm.pydantic_ai.conversations import Conversations
from helix_agents.llm.pydantic_ai.failures import as_model_error
from helix_agents.llm.pydantic_ai.messages import MessageConverter
from helix_agents.llm.pydantic_ai.replies import ReplyReader, joined
from helix_agents.llm.pydantic_ai.settings import cache_ttl, parameters_of, settings_of
from helix_agents.ports.llm import ModelEvent, ModelRequest


class Exchange:
    """The connections to one model, and what was converted for it.

    Raises:
        ModelRefusedError: the model cannot be set up, for example because a key is missing.
    """

    def __init__(
        self, name: str, build: Callable[[Any], Model[Any]], connect: Callable[[], Connection] | None = None
    ) -> None:
        self._name = name
        try:
            self._connection = open_client() if connect is None else connect()
            self._model = build(self._connection)
        except Exception as problem:
            raise as_model_error(name, problem) from problem
        self._conversations = Conversations(MessageConverter(name, self._model))

    async def close(self) -> None:
        await self._connection.aclose()

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reader = ReplyReader(self._name)
        responses, is_answering = OpenResponses(), False
        so_far: ModelResponse | None = None
        try:
            while so_far is None or reader.goes_on(so_far):
                async with self._stream(request, responses, so_far) as stream, aclosing(_events(stream)) as events:
                    is_answering = True
                    async for event in events:
                        for piece in reader.read(event):
                            yield piece
                so_far = stream.get() if so_far is None else joined(so_far, stream.get())
            done = reader.done(so_far)
        except ModelError:
            raise
        except Exception as problem:
            # What the libraries fail on in an answer came from the provider, and may be fine next time.
            is_theirs = is_answering or responses.granted
            otherwise = ModelUnavailableError if is_theirs else ModelRefusedError
            raise as_model_error(self._name, problem, otherwise=otherwise) from problem
        for piece in reader.rest():
            yield piece
        yield done

    @asynccontextmanager
    async def _stream(
        self, request: ModelRequest, responses: OpenResponses, so_far: ModelResponse | None
    ) -> AsyncGenerator[StreamedResponse]:
        history = self._conversations.history(request, cache_ttl(request, self._model))
        opening = model_request_stream(
            self._model,
            history if so_far is None else [*history, so_far],
            model_settings=settings_of(request, self._model),
            model_request_parameters=parameters_of(self._name, request, self._model),
        )
        async with responses, AsyncExitStack() as stack:
            with responses.noted():
                stream = await stack.enter_async_context(opening)
            yield stream


def _events(stream: StreamedResponse) -> AsyncGenerator[ModelResponseStreamEvent, None]:
    """The events as the generator they are: an early end closes it here, and not when it is collected."""
    return cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(stream))
