"""Anthropic, OpenAI and Google models, through Pydantic AI's providers."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from helix_agents.domain.errors import MissingExtraError
from helix_agents.llm.pydantic_ai import provider_support
from helix_agents.llm.pydantic_ai.adapter import PydanticAIModel

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

__all__ = ["PydanticAIModel", "open_anthropic", "open_google", "open_openai", "open_openai_chat"]


def open_anthropic(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`anthropic:claude-…`, through the Messages API.

    Raises:
        MissingExtraError: the extra `anthropic` is not installed.
    """
    require(name, "anthropic", "anthropic")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(api_key=api_key, base_url=base_url, http_client=http)
        return AnthropicModel(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.ANTHROPIC)


def open_openai(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`openai:gpt-…`, through the Responses API.

    Raises:
        MissingExtraError: the extra `openai` is not installed.
    """
    require(name, "openai", "openai")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(api_key=api_key, base_url=base_url, http_client=http)
        return OpenAIResponsesModel(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.OPENAI)


def open_openai_chat(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`openai-chat:…`, through the Chat Completions API, which many other servers support too.

    Raises:
        MissingExtraError: the extra `openai` is not installed.
    """
    require(name, "openai", "openai")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.providers.openai import OpenAIProvider

        from helix_agents.llm.pydantic_ai.chat_totals import TotalsOfChat

        provider = OpenAIProvider(api_key=api_key, base_url=base_url, http_client=http)
        return TotalsOfChat(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.OPENAI_CHAT)


def open_google(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`google:gemini-…`, through the Gemini API.

    Raises:
        MissingExtraError: the extra `google` is not installed.
    """
    require(name, "google", "google.genai")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=api_key, base_url=base_url, http_client=http)
        return GoogleModel(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.GOOGLE)


def model_of(name: str) -> str:
    """The provider's own name for a model."""
    return name.partition(":")[2]


def require(name: str, extra: str, driver: str) -> None:
    """Reject a model whose provider's library is missing.

    Raises:
        MissingExtraError: says what to install.
    """
    if not (_installed("pydantic_ai") and _installed(driver)):
        raise MissingExtraError(f"Model {name!r}", extra)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around a nested module is missing too.
        return False
