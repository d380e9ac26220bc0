"""What a terminal shows of a run beside its answer."""

from typing import Any

import pytest

from helix_agents.cli.following import Follower
from helix_agents.cli.output import Output
from helix_agents.cli.session_views import shown_message
from helix_agents.domain.chunks import ProviderToolEnd, ProviderToolInput, SourceChunk, TextDelta, ToolError
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Source
from helix_agents.ports.llm import FINISH_TOOL

URL = "https://sea.example/tides"


def test_what_the_provider_does_is_a_line_and_each_source_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    head: dict[str, Any] = {"session_id": "s", "run_id": "r", "agent_type": "a"}
    about = {"tool_call_id": "ws", "tool_name": "web_search", **head}
    source = SourceChunk(url=URL, title="Tides", **head)
    follower = Follower(Output(), "s")
    for chunk in (
        ProviderToolInput(arguments={"query": "tides"}, **about),
        ProviderToolEnd(result=[1], **about),
        ProviderToolEnd(result="too often", error=True, **about),
        TextDelta(delta="Twice.", **head),
        source,
        source,
    ):
        follower.show(chunk)
    said = capsys.readouterr()
    assert said.out == "Twice.\n"
    assert said.err.splitlines() == [
        '· web_search {"query":"tides"} (at the provider)',
        "· web_search → [1]",
        "· web_search failed: too often",
        f"· source Tides {URL}",
    ]


def test_an_output_that_was_refused_is_called_that_and_no_tool(capsys: pytest.CaptureFixture[str]) -> None:
    about: dict[str, Any] = {"session_id": "s", "run_id": "r", "agent_type": "a", "tool_call_id": "f"}
    Follower(Output(), "s").show(ToolError(tool_name=FINISH_TOOL, error="name the case", **about))
    assert capsys.readouterr().err == "· the output was refused: name the case\n"


def test_a_stored_reply_shows_what_the_provider_did() -> None:
    made = (
        ProviderCall(id="1", name="web_search", arguments={"query": "tides"}, result=[1]),
        ProviderCall(id="2", name="web_search", error=True),
    )
    sources = (Source(url=URL, title="Tides"), Source(url=URL, title="Tides", start=1, end=2))
    said = AssistantMessage(text="Twice.", provider_calls=made, sources=sources)
    assert list(shown_message(said)) == [
        'the provider calls web_search {"query":"tides"}',
        "web_search answers: [1]",
        "the provider calls web_search {}",
        "web_search failed: null",
        "assistant: Twice.",
        f"source: Tides {URL}",
    ]
