"""What is measured beside the traces, on every runtime, by the real SDK."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from helix_agents import Agent, ApprovalAnswer, Budget, Executor, Failed, Memory, MemoryGeneration, tool
from helix_agents.domain.errors import ModelUnavailableError
from helix_agents.domain.messages import AssistantMessage
from helix_agents.domain.usage import TokenCount
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent, ModelRequest, ReplyDone
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import SESSION, Gate, OpenExecutor, completed, suspended
from tests.tracing.measures import counted, measuring, points_of

RUN, WAIT, TOOL = "helix.run.duration", "helix.run.wait", "helix.tool.duration"
AGENT, STATUS, ERROR = "gen_ai.agent.name", "helix.run.status", "error.type"


@tool
async def look() -> str:
    """Look something up."""
    return "found"


@tool(require_approval=True)
async def publish() -> str:
    """Publish it."""
    raise ValueError("no such page")


class Paid:
    """A model with a provider, and a bill."""

    name = "anthropic:claude-x"

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        said = AssistantMessage(text="Hi.", model="claude-x-2026")
        yield ReplyDone(reply=said, usage=TokenCount(prompt=7, completion=3, cached=5, reasoning=2, total=10))


async def test_models_are_measured_by_the_conventions() -> None:
    reader, hooks = measuring()
    agent = Agent(name="writer", model=Paid())
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        assert await (await helix.execute(agent, "Hi", SESSION)).output() == "Hi."
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.response.model": "claude-x-2026",
    }
    tokens = points_of(reader, "gen_ai.client.token.usage")
    assert {point.attributes["gen_ai.token.type"]: point.sum for point in tokens} == {"input": 7, "output": 3}
    (took,) = points_of(reader, "gen_ai.client.operation.duration")
    assert (dict(took.attributes), took.count) == (about, 1)


async def test_runs_calls_and_waits_are_counted_once_wherever_they_happen(open_executor: OpenExecutor) -> None:
    reader, hooks = measuring()
    finder = Agent(name="finder", description="Finds.", model=ScriptedModel([call("look"), "Found."]), tools=[look])
    script = [reply(calls=[call("subagent__finder", {"message": "tides"}), call("publish", id="p")]), "Out."]
    writer = Agent(name="writer", model=ScriptedModel(script), tools=[finder.as_tool(), publish])
    async with open_executor(agents=[writer], hooks=hooks) as helix:
        await suspended(await helix.execute(writer, "Write", SESSION))
    assert counted(reader, "helix.tool.suspended", AGENT, "gen_ai.tool.name") == {("writer", "publish"): 1}
    async with open_executor(agents=[writer], hooks=hooks) as helix:
        await helix.submit_tool_result(SESSION, "p", ApprovalAnswer(approved=True))
        assert await completed(await helix.resume(writer, SESSION)) == "Out."
    assert counted(reader, RUN, AGENT, STATUS) == {
        ("finder", "completed"): 1,
        ("writer", "suspended"): 1,
        ("writer", "completed"): 1,
    }
    assert counted(reader, WAIT, AGENT, "helix.run.queued") == {("finder", False): 1, ("writer", False): 2}
    assert counted(reader, TOOL, AGENT, "gen_ai.tool.name", "helix.tool.ran_by", ERROR) == {
        ("finder", "look", "function", None): 1,
        ("writer", "subagent__finder", "agent", None): 1,
        ("writer", "publish", "function", "tool_execution_failed"): 1,
    }
    assert sum(counted(reader, "gen_ai.client.operation.duration").values()) == 4


async def test_a_turn_that_waits_in_the_queue_is_measured_from_when_it_was_sent() -> None:
    reader, hooks = measuring()
    gate = Gate()

    @tool
    async def hold() -> str:
        """Hold everything up."""
        await gate.wait()
        return "held"

    agent = Agent(name="writer", model=ScriptedModel([call("hold"), "First.", "Second."]), tools=[hold])
    clock = ManualClock(int(time.time() * 1000) - 30_000)
    async with (
        await open_backend("memory://", clock=clock) as parts,
        Executor(state=parts.state, streams=parts.streams, usage=parts.usage, agents=[agent], hooks=hooks) as helix,
    ):
        first = await helix.execute(agent, "One", SESSION)
        await gate.until_reached()
        second = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        clock.advance(20_000)
        gate.opened.set()
        assert (await completed(first), await completed(second)) == ("First.", "Second.")
    waits = {point.attributes["helix.run.queued"]: point for point in points_of(reader, WAIT)}
    assert (waits[False].count, waits[True].count) == (1, 1)
    # It began ten seconds ago, by this clock, and was sent twenty seconds before.
    assert waits[True].sum >= 29


async def test_a_run_that_fails_says_why_and_a_model_that_is_down_counts_as_asked_once() -> None:
    reader, hooks = measuring()

    def down(_: Any) -> Any:
        return ModelUnavailableError("scripted", "no route")

    lost = Agent(name="lost", model=ScriptedModel(down))
    spent = Agent(
        name="spent", model=ScriptedModel([call("look"), "Done."]), tools=[look], budget=Budget(model_calls=1)
    )
    options = EngineOptions(model_retries=1, first_retry_seconds=0)
    async with Executor.open("memory://", agents=[lost, spent], hooks=hooks, options=options) as helix:
        for agent in (lost, spent):
            assert isinstance(await (await helix.execute(agent, "Go")).result(), Failed)
    assert counted(reader, RUN, AGENT, STATUS, ERROR) == {
        ("lost", "failed", "provider_unavailable"): 1,
        ("spent", "failed", "budget_exhausted"): 1,
    }
    assert counted(reader, "gen_ai.client.operation.duration", ERROR) == {("provider_unavailable",): 1, (None,): 1}


async def test_a_model_that_makes_memories_is_measured_as_any_other() -> None:
    reader, hooks = measuring()
    learned = call("remember", {"save": ["Likes tea."]})
    learner = ScriptedModel([learned], name="learner")
    agent = Agent(name="friend", model=Paid(), memory=Memory(generation=MemoryGeneration(model=learner)))
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        await (await helix.execute(agent, "I like tea.", SESSION, user_id="ann")).output()
    models = counted(reader, "gen_ai.client.operation.duration", "gen_ai.request.model")
    assert models == {("claude-x",): 1, ("learner",): 1}
