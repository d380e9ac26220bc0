"""Embedders of OpenAI and Google, through Pydantic AI's providers, loaded when they are first asked."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from helix_agents.domain.errors import DefinitionError, ModelUnavailableError
from helix_agents.llm.pydantic_ai import model_of, require
from helix_agents.ports.embeddings import EmbeddingAdapter, EmbeddingPurpose

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.embeddings import EmbeddingModel, EmbeddingSettings


class _Opened(NamedTuple):
    """A model, and the connections to it."""

    client: "AsyncClient"
    model: "EmbeddingModel"


class PydanticAIEmbedder(EmbeddingAdapter):
    """Any embedder that Pydantic AI can reach. `build` creates it, in a thread, when it is first asked.

    `build` gets an HTTP client for the provider; `close` closes it. One instance serves any event loop, one loop at a
    time.
    """

    def __init__(self, name: str, build: "Callable[[AsyncClient], EmbeddingModel]") -> None:
        self._name = name
        self._build = build
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Task[_Opened]] | None = None

    @property
    def name(self) -> str:
        return self._name

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        """A vector for each text.

        Raises:
            ModelError: what went wrong, and whether asking again may help.
        """
        from helix_agents.llm.pydantic_ai.failures import as_model_error

        model = await self._model()
        try:
            return (await model.embed(list(texts), input_type=purpose)).embeddings
        except Exception as problem:
            raise as_model_error(self._name, problem, otherwise=ModelUnavailableError) from problem

    async def close(self) -> None:
        """Close the connections to the provider; idempotent. Another request opens new ones."""
        opening, self._opening = self._opening, None
        if opening is None or opening[0] is not asyncio.get_running_loop():
            return
        await asyncio.wait([opening[1]])
        if not _failed(opening[1]):
            await opening[1].result().client.aclose()

    async def _model(self) -> "EmbeddingModel":
        loop = asyncio.get_running_loop()
        # Connections belong to the loop that opened them; a process may use several loops, one after another.
        if self._opening is None or self._opening[0] is not loop or _failed(self._opening[1]):
            # The providers' libraries take seconds to import: in the event loop, that would starve every other run.
            self._opening = (loop, loop.create_task(asyncio.to_thread(self._load)))
        # Several callers may wait for the same opening; if one gives up, it must not end it for the others.
        return (await asyncio.shield(self._opening[1])).model

    def _load(self) -> _Opened:
        from helix_agents.llm.pydantic_ai.connections import open_client
        from helix_agents.llm.pydantic_ai.failures import as_model_error

        client = open_client()
        try:
            return _Opened(client, self._build(client))
        except Exception as problem:
            raise as_model_error(self._name, problem) from problem


def _failed(task: asyncio.Task[_Opened]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def open_openai_embedder(
    name: str, *, api_key: str | None = None, base_url: str | None = None, dimensions: int | None = None
) -> PydanticAIEmbedder:
    """`openai:text-embedding-3-small`, or any server that supports OpenAI's embeddings API.

    Raises:
        MissingExtraError: the extra `openai` is not installed.
    """
    require(name, "openai", "openai")

    def build(http: "AsyncClient") -> "EmbeddingModel":
        from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(api_key=api_key, base_url=base_url, http_client=http)
        return OpenAIEmbeddingModel(model_of(name), provider=provider, settings=_settings(dimensions))

    return PydanticAIEmbedder(_named(name, dimensions), build)


def open_google_embedder(
    name: str, *, api_key: str | None = None, base_url: str | None = None, dimensions: int | None = None
) -> PydanticAIEmbedder:
    """`google:gemini-embedding-001`, through the Gemini API.

    Raises:
        MissingExtraError: the extra `google` is not installed.
    """
    require(name, "google", "google.genai")

    def build(http: "AsyncClient") -> "EmbeddingModel":
        from pydantic_ai.embeddings.google import GoogleEmbeddingModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=api_key, base_url=base_url, http_client=http)
        return GoogleEmbeddingModel(model_of(name), provider=provider, settings=_settings(dimensions))

    return PydanticAIEmbedder(_named(name, dimensions), build)


def _named(name: str, dimensions: int | None) -> str:
    """The name under which its vectors are stored; vectors of another length are not comparable."""
    if dimensions is not None and dimensions < 1:
        raise DefinitionError(f"Embedder {name!r}", f"dimensions={dimensions} has to be a whole number of at least 1.")
    return name if dimensions is None else f"{name}/{dimensions}"


def _settings(dimensions: int | None) -> "EmbeddingSettings | None":
    return None if dimensions is None else {"dimensions": dimensions}
