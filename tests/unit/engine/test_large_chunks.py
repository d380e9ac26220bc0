"""What is too large for a chunk is on record all the same, and the run goes on."""

from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents import Agent, AssistantMessage, Suspended, ToolContext, WebSearch, tool
from helix_agents.domain.chunks import (
    Custom,
    Output,
    ProviderToolEnd,
    ProviderToolInput,
    RunPaused,
    StatePatch,
    StepCommitted,
    ToolApprovalRequest,
    ToolStart,
)
from helix_agents.ports.backend import open_backend
from helix_agents.ports.streams import StreamLimits
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, provider_call, reply
from helix_agents.testing.contracts.executor.stage import SESSION, completed

LONG = "x" * 3_000


class Pages(BaseModel):
    text: str = ""


@tool
async def keep(ctx: ToolContext[Pages], text: str) -> str:
    """Keep a text."""
    ctx.state.text = text
    return "kept"


@tool
async def shout(ctx: ToolContext[Pages], text: str) -> str:
    """Tell readers of a text."""
    ctx.emit("shout", text * 3_000)
    return "shouted"


@tool(require_approval=True)
async def publish(text: str) -> str:
    """Publish a text."""
    return "published"


@pytest.fixture
async def helix() -> Any:
    async with (
        await open_backend("memory://", stream_limits=StreamLimits(chunk_bytes=2_000)) as backend,
        Executor(state=backend.state, streams=backend.streams, usage=backend.usage, janitor_seconds=None) as helix,
    ):
        yield helix


async def told(helix: Executor) -> set[type]:
    return {type(chunk) for chunk in await helix._services.streams.get_all_chunks(SESSION)}


async def test_an_output_that_is_too_large_for_a_chunk_completes_its_run(helix: Executor):
    agent = Agent(name="writer", model=ScriptedModel([LONG]))
    assert await completed(await helix.execute(agent, "Go", SESSION)) == LONG
    assert Output not in await told(helix)
    info = await helix._services.streams.get_stream_info(SESSION)
    assert info is not None
    assert (info.status, info.output) == ("ended", LONG)


async def test_arguments_and_state_that_are_too_large_for_a_chunk_do_not_fail_the_call(helix: Executor):
    model = ScriptedModel([call("keep", {"text": LONG}), "Done."])
    agent = Agent(name="keeper", model=model, tools=[keep], state=Pages)
    assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
    assert (await helix.sessions.get(SESSION)).custom_state == {"text": LONG}
    assert not {ToolStart, StatePatch} & await told(helix)


async def test_a_call_that_is_too_large_for_a_chunk_waits_for_its_approval(helix: Executor):
    agent = Agent(name="editor", model=ScriptedModel([call("publish", {"text": LONG}), "Done."]), tools=[publish])
    result = await (await helix.execute(agent, "Go", SESSION)).result()
    assert isinstance(result, Suspended)
    assert result.pending[0].input == {"text": LONG}
    assert RunPaused in await told(helix)
    assert ToolApprovalRequest not in await told(helix)


async def test_what_a_provider_found_that_is_too_large_for_a_chunk_is_in_the_transcript(helix: Executor):
    found = provider_call("web_search", {"query": LONG}, result=LONG)
    model = ScriptedModel([reply("Done.", provider_calls=[found])])
    agent = Agent(name="searcher", model=model, provider_tools=[WebSearch()])
    assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
    chunks = await helix._services.streams.get_all_chunks(SESSION)
    assert [each.result for each in chunks if isinstance(each, ProviderToolEnd)] == [None]
    assert ProviderToolInput not in await told(helix)
    said = (await helix.sessions.messages(SESSION)).items[0].message
    assert isinstance(said, AssistantMessage)
    assert [(call.arguments, call.result) for call in said.provider_calls] == [({"query": LONG}, LONG)]


async def test_an_event_that_is_too_large_for_a_chunk_does_not_fail_its_run(helix: Executor):
    model = ScriptedModel([call("shout", {"text": "x"}), "Done."])
    agent = Agent(name="shouter", model=model, tools=[shout], state=Pages)
    assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
    assert Custom not in await told(helix)


async def test_a_commit_that_warns_of_more_than_a_chunk_takes_is_told_without(helix: Executor):
    calls = [call("keep", {"text": str(n)}, id=f"{n}-{LONG[:20]}") for n in range(100)]
    agent = Agent(name="keeper", model=ScriptedModel([reply(calls=calls), "Done."]), tools=[keep], state=Pages)
    assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
    commits = [c for c in await helix._services.streams.get_all_chunks(SESSION) if isinstance(c, StepCommitted)]
    assert [(each.step, each.warnings) for each in commits] == [(1, ()), (2, ())]


async def test_a_name_that_is_too_large_for_a_chunk_is_one_that_no_tool_has(helix: Executor):
    agent = Agent(name="keeper", model=ScriptedModel([call(LONG), "Done."]), tools=[keep], state=Pages)
    assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
