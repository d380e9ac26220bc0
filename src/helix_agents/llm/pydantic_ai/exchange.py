"""One question and its streamed answer, through Pydantic AI."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelResponseStreamEvent
from pydantic_ai.models import Model, StreamedResponse

from helix_agents.domain.errors import ModelError
from helix_agents.llm.pydantic_ai.conversations import Conversations
from helix_agents.llm.pydantic_ai.failures import as_model_error
from helix_agents.llm.pydantic_ai.messages import MessageConverter
from helix_agents.llm.pydantic_ai.replies import ReplyReader
from helix_agents.llm.pydantic_ai.settings import cache_ttl, parameters_of, settings_of
from helix_agents.ports.llm import ModelEvent, ModelRequest


class Exchange:
    """The connections to one model, and what was converted for it.

    Raises:
        ModelRefusedError: the model cannot be set up, for want of a key for instance.
    """

    def __init__(self, name: str, build: Callable[[], Model[Any]]) -> None:
        self._name = name
        try:
            self._model = build()
        except Exception as problem:
            raise as_model_error(name, problem) from problem
        self.conversations = Conversations(MessageConverter(name, self._model))

    async def open(self) -> None:
        await self._model.__aenter__()

    async def close(self) -> None:
        await self._model.__aexit__(None, None, None)

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reader = ReplyReader(self._name)
        try:
            history = self.conversations.history(request, cache_ttl(request, self._model))
            async with (
                model_request_stream(
                    self._model,
                    history,
                    model_settings=settings_of(request, self._model),
                    model_request_parameters=parameters_of(request),
                ) as stream,
                aclosing(_events(stream)) as events,
            ):
                async for event in events:
                    for piece in reader.read(event):
                        yield piece
            done = reader.done(stream.get())
        except ModelError:
            raise
        except Exception as problem:
            raise as_model_error(self._name, problem) from problem
        yield done


def _events(stream: StreamedResponse) -> AsyncGenerator[ModelResponseStreamEvent, None]:
    """The events as the generator they are: an early end closes it here, and not when it is collected."""
    return cast("AsyncGenerator[ModelResponseStreamEvent, None]", aiter(stream))
