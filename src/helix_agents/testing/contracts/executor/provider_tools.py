"""Scenarios of tools that the model's provider runs itself: their calls are part of the reply, and nothing else."""

from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.fallback_model import FallbackModel
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import (
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    SourceChunk,
    StreamChunk,
    TextDelta,
)
from helix_agents.domain.errors import DefinitionError, ModelUnavailableError, SessionNotFoundError
from helix_agents.domain.messages import AssistantMessage, ProviderCall, Source, ToolMessage
from helix_agents.domain.rendering import surviving
from helix_agents.domain.sessions import BranchPoint
from helix_agents.engine.services import EngineOptions
from helix_agents.engine.steps.provider_calls import CUT_OFF
from helix_agents.llm.scripted import ScriptedModel, call, provider_call, reply
from helix_agents.ports.llm import ModelEvent, ProviderCallEnded
from helix_agents.ports.provider_tools import WebSearch
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    interrupted,
    result_at,
    scripted,
    spoken,
    transcript,
)

TIDES = Source(url="https://sea.example/tides", title="Tides", start=0, end=5)
SEARCH = provider_call("web_search", {"query": "tides"}, result=[{"url": TIDES.url}], id="ws_1")
QUICK = EngineOptions(first_retry_seconds=0.001)

_OF_PROVIDER = (ProviderToolStart, ProviderToolInput, ProviderToolEnd, SourceChunk)


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="searcher", provider_tools=[WebSearch()])


def _by_provider(chunks: list[StreamChunk]) -> list[StreamChunk]:
    return [chunk for chunk in surviving(chunks) if isinstance(chunk, _OF_PROVIDER)]


class _RunsNone:
    """Passes requests on to a model whose provider runs no tools."""

    name = "plain"

    def __init__(self) -> None:
        self._model = ScriptedModel(["Here."])
        self.ask = self._model.ask


class _BreaksOnce:
    """Breaks the connection after the provider has ended its first call."""

    def __init__(self) -> None:
        self._broken = False

    async def __call__(self, event: ModelEvent) -> None:
        if isinstance(event, ProviderCallEnded) and not self._broken:
            self._broken = True
            raise ModelUnavailableError("scripted", "the connection broke")


@tool
async def note(text: str = "") -> str:
    """Take a note."""
    return f"noted {text}"


class ProviderToolsContract(ScenarioContract):
    """What a provider does itself is seen and kept as it was, and no machinery of ours runs for it."""

    async def test_a_providers_call_is_told_and_kept_with_the_reply(self, helix: Executor) -> None:
        agent = _agent(reply("Twice a day.", provider_calls=[SEARCH], sources=[TIDES]), "Yes.")
        handle = await helix.execute(agent, "When?", SESSION)
        assert await completed(handle) == "Twice a day."
        chunks = await chunks_of(handle)
        begun, given, ended, source = _by_provider(chunks)
        assert isinstance(begun, ProviderToolStart)
        assert isinstance(given, ProviderToolInput)
        assert isinstance(ended, ProviderToolEnd)
        assert isinstance(source, SourceChunk)
        assert {begun.tool_call_id, given.tool_call_id, ended.tool_call_id} == {"ws_1"}
        assert (given.arguments, ended.result, source.url) == ({"query": "tides"}, SEARCH.result, TIDES.url)
        first_word = next(chunk for chunk in chunks if isinstance(chunk, TextDelta))
        assert ended.sequence < first_word.sequence < source.sequence

        _, said = await transcript(helix)
        assert isinstance(said, AssistantMessage)
        kept = ProviderCall(id="ws_1", name="web_search", arguments={"query": "tides"}, result=SEARCH.result)
        assert (said.provider_calls, said.sources) == ((kept,), (TIDES,))
        rollup = await handle.usage()
        assert [(each.source_type, each.calls) for each in rollup.sources if each.source_name == "web_search"] == [
            ("tool", 1)
        ]
        assert await completed(await helix.execute(agent, "Sure?", SESSION)) == "Yes."
        assert [isinstance(each, ToolMessage) for each in await transcript(helix)] == [False] * 4

    async def test_it_stands_beside_calls_of_the_agent_under_an_id_of_its_own(self, helix: Executor) -> None:
        both = reply("So.", calls=[call("note", {"text": "x"}, id="ws_1")], provider_calls=[SEARCH])
        agent = _agent(both, "Done.", tools=[note])
        handle = await helix.execute(agent, "When?", SESSION)
        assert await completed(handle) == "Done."
        assert await spoken(helix) == [
            "user: When?",
            "assistant: So.[note#ws_1_1]",
            "result note#ws_1_1: noted x",
            "assistant: Done.",
        ]

    async def test_a_broken_reply_takes_its_calls_back(self, open_executor: OpenExecutor) -> None:
        model = ScriptedModel([reply("Twice.", provider_calls=[SEARCH])], pace=_BreaksOnce(), by="transcript")
        async with open_executor(options=QUICK) as helix:
            handle = await helix.execute(_agent(model=model), "When?", SESSION)
            assert await completed(handle) == "Twice."
            told = _by_provider(await chunks_of(handle))
            assert [type(each) for each in told] == [ProviderToolStart, ProviderToolInput, ProviderToolEnd]
            _, said = await transcript(helix)
            assert isinstance(said, AssistantMessage)
            assert len(said.provider_calls) == 1

    async def test_a_reply_that_is_cut_off_keeps_the_call_as_failed(self, open_executor: OpenExecutor) -> None:
        gate = PieceGate(3)
        model = ScriptedModel([reply("Twice.", provider_calls=[SEARCH]), "Again."], pace=gate)
        async with open_executor() as helix:
            agent = _agent(model=model)
            handle = await helix.execute(agent, "When?", SESSION)
            await gate.until_reached()
            await handle.interrupt()
            await interrupted(handle)
            *_, ended = _by_provider(await chunks_of(handle))
            assert isinstance(ended, ProviderToolEnd)
            assert (ended.error, ended.result) == (True, CUT_OFF)
            _, said = await transcript(helix)
            assert isinstance(said, AssistantMessage)
            assert [(each.error, each.arguments) for each in said.provider_calls] == [(True, {"query": "tides"})]
            assert await completed(await helix.execute(agent, "Well?", SESSION)) == "Again."

    async def test_a_branch_has_what_the_provider_did(self, helix: Executor) -> None:
        agent = _agent(reply("Twice.", provider_calls=[SEARCH], sources=[TIDES]), "Yes.")
        await completed(await helix.execute(agent, "When?", SESSION))
        before = await transcript(helix)
        await completed(await helix.execute(agent, "Sure?", "s-branch", branch=BranchPoint(from_session_id=SESSION)))
        assert (await transcript(helix, "s-branch"))[:2] == before

    async def test_a_model_that_does_not_run_them_is_refused_before_anything_is_written(
        self, open_executor: OpenExecutor
    ) -> None:
        plain = _RunsNone()
        fallback = FallbackModel(ScriptedModel(["Here."]), plain)
        below = Agent(name="below", description="Helps.", model=plain, provider_tools=[WebSearch()])
        above = _agent("Fine.", tools=[below.as_tool()])
        refused = "'plain' does not run tools of a provider, such as WebSearch"
        async with open_executor() as helix:
            for agent in (_agent(model=plain), _agent(model=fallback), above):
                with pytest.raises(DefinitionError, match=refused):
                    await helix.execute(agent, "When?", SESSION)
            with pytest.raises(SessionNotFoundError):
                await helix.sessions.get(SESSION)

    async def test_a_child_whose_model_does_not_run_them_fails_when_it_is_asked(self, helix: Executor) -> None:
        below = Agent(name="below", description="Helps.", model=_RunsNone(), provider_tools=[WebSearch()])
        asks = ScriptedModel([call("subagent__below", {"message": "When?"}), "Well."])
        above = Agent(name="above", model=ScriptedModel([]), tools=[below.as_tool()])
        handle = await helix.execute(above, "When?", SESSION, model=asks)
        assert await completed(handle) == "Well."
        assert "does not run tools of a provider" in str(result_at(await transcript(helix), 2).content)

    async def test_a_summary_is_told_what_the_provider_found_and_replaces_all_of_it(self, helix: Executor) -> None:
        told = ScriptedModel(lambda _: "Tides.", name="summariser")
        compaction = Compaction(above_tokens=60, keep_tokens=1, model=told)
        model = ScriptedModel([reply("Twice a day. " * 9, provider_calls=[SEARCH]), "Yes.", "No."])
        agent = _agent(model=model, compaction=compaction)
        for question in ("When?", "Sure?", "Really?"):
            await completed(await helix.execute(agent, question, SESSION))
        found = 'web_search, asked with {"query":"tides"}, gave [{"url":"https://sea.example/tides"}]'
        assert found in str(told.requests[0].messages)
        shown = model.requests[-1].messages
        assert not any(isinstance(each, AssistantMessage) and each.provider_calls for each in shown)
