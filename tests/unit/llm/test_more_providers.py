"""Providers that speak another's API, and those whose credentials come from elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from helix_agents.domain.errors import ModelError, ModelRefusedError
from helix_agents.domain.messages import ToolCall
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.prices import listed_price
from helix_agents.llm.prompt_cache import anthropic_cache
from helix_agents.llm.pydantic_ai import PydanticAIModel, more_providers
from helix_agents.llm.pydantic_ai.bedrock import BedrockConnection
from helix_agents.ports.llm import ModelSettings, ToolSpec
from helix_agents.ports.models import open_model
from tests.support.asking import answer_of, question
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import BEDROCK, CHAT, GOOGLE, Wired

KEYS = {
    "alibaba": "ALIBABA_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "fireworks": "FIREWORKS_API_KEY",
    "heroku": "HEROKU_INFERENCE_KEY",
    "moonshotai": "MOONSHOTAI_API_KEY",
    "nebius": "NEBIUS_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "ovhcloud": "OVHCLOUD_API_KEY",
    "sambanova": "SAMBANOVA_API_KEY",
    "together": "TOGETHER_API_KEY",
    "vercel": "VERCEL_AI_GATEWAY_API_KEY",
    "zai": "ZAI_API_KEY",
}
SERVERS = {"litellm": "LITELLM_PROXY_API_BASE", "ollama": "OLLAMA_BASE_URL", "vllm": "VLLM_BASE_URL"}
SEARCH = ToolSpec(name="search", description="Search the archive.", parameters={"type": "object", "properties": {}})
LOOKS = Wired(text="Let me look.", calls=[("call_a", "search", {"query": "tides"})])


async def told_by(name: str, server: ProviderServer, **options: Any) -> Any:
    """The reply of a model that speaks Chat Completions."""
    model = open_model(name, **options)
    assert isinstance(model, PydanticAIModel)
    server.will(CHAT.stream(LOOKS))
    try:
        return (await answer_of(model, question(tools=(SEARCH,)))).reply
    finally:
        await model.close()


@pytest.mark.parametrize("prefix", sorted(KEYS | SERVERS))
async def test_a_provider_that_speaks_chat_completions_is_asked_where_and_as_one_says(
    prefix: str, server: ProviderServer
) -> None:
    reply = await told_by(f"{prefix}:maker/model-7", server, base_url=f"{server.url}/v1", api_key="a-key")
    assert (reply.text, reply.model) == ("Let me look.", f"{prefix}:maker/model-7")
    assert reply.tool_calls == (ToolCall(id="call_a", name="search", arguments={"query": "tides"}),)
    [received] = server.requests
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer a-key"
    assert received.body["model"].endswith("model-7")


async def test_a_model_on_azure_is_found_by_its_endpoint(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key")
    monkeypatch.setenv("OPENAI_API_VERSION", "2026-01-01")
    reply = await told_by("azure:our-deployment", server)
    assert reply.text == "Let me look."
    [received] = server.requests
    assert received.path.startswith("/openai/deployments/our-deployment/")
    assert received.headers["api-key"] == "a-key"


@pytest.mark.parametrize("prefix", SERVERS)
async def test_a_server_of_ones_own_is_found_by_its_variable_and_needs_no_key(
    prefix: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVERS[prefix], f"{server.url}/v1")
    assert (await told_by(f"{prefix}:qwen3", server)).text == "Let me look."


@pytest.mark.parametrize("prefix", SERVERS)
async def test_a_server_of_ones_own_is_looked_for_on_this_machine(
    prefix: str, monkeypatch: pytest.MonkeyPatch, server: ProviderServer
) -> None:
    monkeypatch.delenv(SERVERS[prefix], raising=False)
    told_as, variable, usual = more_providers.SERVERS[prefix]
    assert usual.startswith("http://127.0.0.1:")
    monkeypatch.setitem(more_providers.SERVERS, prefix, (told_as, variable, f"{server.url}/v1"))
    assert (await told_by(f"{prefix}:qwen3", server)).text == "Let me look."


@pytest.mark.parametrize("prefix", KEYS)
async def test_a_key_that_is_missing_is_asked_for_by_the_name_of_its_variable(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*KEYS.values(), "DASHSCOPE_API_KEY", "VERCEL_OIDC_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelRefusedError, match=f"there is no API key for it; set {KEYS[prefix]}, or give open_model"):
        await answer_of(open_model(f"{prefix}:model-7"), question())


@pytest.mark.usefixtures("aws")
def test_an_api_key_of_bedrock_signs_in_place_of_credentials() -> None:
    """AWS's library sends a key only over HTTPS, so its request is looked at before it leaves."""
    connection = BedrockConnection(api_key="a-key", base_url="https://127.0.0.1:9")
    model: Any = connection.model("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
    sent: list[Any] = []

    def look(request: Any, **_: Any) -> None:
        sent.append(request)
        raise LookupError

    model.client.meta.events.register("before-send.bedrock-runtime", look)
    with pytest.raises(LookupError):
        model.client.converse(modelId="any", messages=[{"role": "user", "content": [{"text": "hello"}]}])
    assert sent[0].headers["Authorization"] == b"Bearer a-key"
    asyncio.run(connection.aclose())


async def test_bedrock_without_a_region_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ModelRefusedError, match="the AWS region is not known; set AWS_REGION"):
        await answer_of(open_model(BEDROCK.model), question())


async def test_bedrock_without_credentials_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(ModelError) as caught:
        await answer_of(open_model(BEDROCK.model, base_url="http://127.0.0.1:9"), question())
    assert "credentials" in str(caught.value).lower()
    assert not caught.value.retryable


async def test_the_prompt_of_claude_on_bedrock_is_cached(server: ProviderServer, connect: Any) -> None:
    server.will(BEDROCK.stream(Wired(text="yes")))
    await answer_of(connect(BEDROCK), question(tools=(SEARCH,), settings=ModelSettings(cache=anthropic_cache())))
    assert any("cachePoint" in block for block in server.asked["system"])


async def test_gemini_on_google_cloud_is_asked_there(server: ProviderServer) -> None:
    model = open_model("google-cloud:gemini-2.5-flash", base_url=server.url, api_key="a-key")
    assert isinstance(model, PydanticAIModel)
    server.will(GOOGLE.stream(Wired(text="yes")))
    assert (await answer_of(model, question())).reply.text == "yes"
    await model.close()
    assert "/publishers/google/models/gemini-2.5-flash" in server.requests[0].path


@pytest.mark.parametrize(
    "name",
    [
        "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "google-cloud:gemini-2.5-flash",
        "mistral:mistral-large-latest",
        "deepseek:deepseek-chat",
    ],
)
def test_a_price_is_found_under_the_name_that_the_list_has_for_the_provider(name: str) -> None:
    assert (listed_price(name, TokenCount(prompt=1_000, completion=1_000)) or 0) > 0
