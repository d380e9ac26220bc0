"""An agent's provider tools are checked when it is defined."""

from typing import Any, cast

import pytest

from helix_agents import (
    Agent,
    FallbackModel,
    FileSearch,
    LLMAdapter,
    ProviderMCP,
    ScriptedModel,
    WebFetch,
    WebSearch,
    tool,
)
from helix_agents.domain.errors import DefinitionError


@tool
async def note() -> str:
    """Take a note."""
    return "noted"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (WebSearch(), r"is not a list; write provider_tools=\[WebSearch\(\)\]"),
        ([WebSearch], "WebSearch in provider_tools is not a provider tool; call it"),
        ([note], "tools that run in your process belong in tools"),
        ([WebSearch(), WebSearch(max_uses=1)], "provider_tools has WebSearch twice"),
        ([WebSearch(max_uses=0)], "max_uses=0 has to be a whole number of at least 1"),
        ([WebFetch(allowed_domains=cast("Any", "example.org"))], "has to be a list with at least one name"),
        ([WebSearch(allowed_domains=[])], "has to be a list with at least one name"),
        ([WebSearch(context_size=cast("Any", "huge"))], "context_size='huge' is not one of"),
        ([WebSearch(user_location=cast("Any", {"city": "Kiel"}))], r"is not a UserLocation\(city=…\)"),
        ([WebFetch(max_content_tokens=0)], "max_content_tokens=0"),
        ([FileSearch(stores=[])], "stores="),
        ([ProviderMCP(label=" ", url="https://mcp.example")], "label=' ' has to be a text that is not blank"),
    ],
)
def test_what_could_not_work_is_refused(given: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Agent(name="searcher", model=ScriptedModel([]), provider_tools=given)


def test_two_mcp_servers_may_stand_side_by_side() -> None:
    servers = [ProviderMCP(label=label, url="https://mcp.example") for label in ("one", "two")]
    assert Agent(name="searcher", model=ScriptedModel([]), provider_tools=servers).provider_tools == tuple(servers)


def test_the_token_of_an_mcp_server_is_not_shown() -> None:
    assert "secret" not in repr(ProviderMCP(label="one", url="https://mcp.example", authorization="secret"))


def test_of_several_models_each_has_to_run_them() -> None:
    agent = Agent(name="searcher", model="openai:gpt-5", provider_tools=[WebSearch(max_uses=3)])
    agent.check_runs_provider_tools(cast("LLMAdapter", FallbackModel(ScriptedModel([]), ScriptedModel([]))))
    agent.check_runs_provider_tools(FallbackModel("anthropic:claude-sonnet-4-6", ScriptedModel([])))
    with pytest.raises(
        DefinitionError, match=r"'openai:gpt-5' does not keep max_uses of WebSearch; models that do: anth"
    ):
        agent.check_runs_provider_tools(FallbackModel("anthropic:claude-sonnet-4-6", "openai:gpt-5"))
