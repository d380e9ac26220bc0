"""Models of further providers and of servers of your own, each through Pydantic AI's own provider for it."""

import os
from typing import TYPE_CHECKING, Any

from helix_agents.llm.pydantic_ai import model_of, provider_support, require
from helix_agents.llm.pydantic_ai.adapter import PydanticAIModel

if TYPE_CHECKING:
    import httpx
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from helix_agents.llm.pydantic_ai.bedrock import BedrockConnection

SERVERS = {
    "litellm": ("api_base", "LITELLM_PROXY_API_BASE", "http://127.0.0.1:4000"),
    "ollama": ("base_url", "OLLAMA_BASE_URL", "http://127.0.0.1:11434/v1"),
    "vllm": ("base_url", "VLLM_BASE_URL", "http://127.0.0.1:8000/v1"),
}
"""Servers that people run themselves: how their provider is told the address, and where it comes from otherwise."""


def open_compatible(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`openrouter:…`, `deepseek:…`, `azure:…`, `ollama:…` and others that speak OpenAI's Chat Completions.

    Raises:
        MissingExtraError: the extra `openai` is not installed.
    """
    require(name, "openai", "openai")

    def provider(prefix: str, http: "AsyncClient") -> "Provider[Any]":
        from pydantic_ai.providers import infer_provider_class

        of: Any = infer_provider_class(prefix)
        if prefix == "azure":
            return of(api_key=api_key, azure_endpoint=base_url, http_client=http)
        if prefix in SERVERS:
            told_as, variable, usual = SERVERS[prefix]
            return of(api_key=api_key, **{told_as: base_url or os.environ.get(variable) or usual}, http_client=http)
        made = of(api_key=api_key, http_client=http)
        if base_url is not None:
            # Not every provider takes an address, but the client of each of them does.
            made.client.base_url = base_url
        return made

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models import infer_model

        return infer_model(name, lambda prefix: provider(prefix, http))

    return PydanticAIModel(name, build, provider_tools=provider_support.NOTHING)


def open_bedrock(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`bedrock:us.anthropic.claude-…`, through the Converse API of Amazon Bedrock, with the credentials and the region
    that AWS's own tools find.

    Raises:
        MissingExtraError: the extra `bedrock` is not installed.
    """
    require(name, "bedrock", "boto3")

    def connect() -> "BedrockConnection":
        from helix_agents.llm.pydantic_ai.bedrock import BedrockConnection

        return BedrockConnection(api_key=api_key, base_url=base_url)

    def build(connection: "BedrockConnection") -> "Model[Any]":
        return connection.model(model_of(name))

    return PydanticAIModel(name, build, connect=connect, provider_tools=provider_support.NOTHING)


def open_google_cloud(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`google-cloud:gemini-…`, Gemini on Vertex AI, with the credentials, the project and the location that Google's
    own tools find.

    Raises:
        MissingExtraError: the extra `google` is not installed.
    """
    require(name, "google", "google.genai")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google_cloud import GoogleCloudProvider

        provider = GoogleCloudProvider(api_key=api_key, base_url=base_url, http_client=http)
        return GoogleModel(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.GOOGLE)


def open_groq(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`groq:…`, models that Groq hosts.

    Raises:
        MissingExtraError: the extra `groq` is not installed.
    """
    require(name, "groq", "groq")

    def connect() -> "httpx.AsyncClient":
        from helix_agents.llm.pydantic_ai.connections import open_older_client

        return open_older_client()

    def build(http: "httpx.AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.groq import GroqModel
        from pydantic_ai.providers.groq import GroqProvider

        return GroqModel(model_of(name), provider=GroqProvider(api_key=api_key, base_url=base_url, http_client=http))

    return PydanticAIModel(name, build, connect=connect, provider_tools=provider_support.NOTHING)


def open_mistral(name: str, *, api_key: str | None = None, base_url: str | None = None) -> PydanticAIModel:
    """`mistral:…`, models of Mistral.

    Raises:
        MissingExtraError: the extra `mistral` is not installed.
    """
    require(name, "mistral", "mistralai")

    def build(http: "AsyncClient") -> "Model[Any]":
        from pydantic_ai.models.mistral import MistralModel
        from pydantic_ai.providers.mistral import MistralProvider

        provider = MistralProvider(api_key=api_key, base_url=base_url, http_client=http)
        return MistralModel(model_of(name), provider=provider)

    return PydanticAIModel(name, build, provider_tools=provider_support.NOTHING)
