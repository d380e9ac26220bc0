"""A conversation is one trace on every runtime, though nothing survives from one hook to the next."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry import trace

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import ModelOverloadedError, ModelRefusedError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import BranchPoint
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.testing.contracts.executor.household import send, spawn
from helix_agents.testing.contracts.executor.stage import (
    NO_GRACE,
    SESSION,
    Gate,
    OpenExecutor,
    completed,
    failed,
    runs_of,
    suspended,
    until,
    within,
)
from tests.tracing.pictures import Forgetful, Pictures, tree


@tool
async def look(query: str) -> str:
    """Look something up."""
    return f"a page about {query}"


@tool
def count(query: str) -> int:
    """Count letters, on a thread."""
    with trace.get_tracer("mine").start_as_current_span("inside"):
        return len(query)


@tool
async def stumble() -> str:
    """Fail."""
    raise ToolFailed("no such page: sk-secret")


@tool(require_approval=True)
async def publish(title: str) -> str:
    """Publish."""
    return f"published {title}"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def agent(name: str, *script: Any, **fields: Any) -> AnyAgent:
    return Agent(name=name, model=ScriptedModel(list(script)), description=name, **fields)


def ask(name: str) -> Any:
    return call(f"subagent__{name}", {"message": "go"})


async def test_a_turn_is_an_agent_with_its_models_and_tools_side_by_side(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    calls = [call("look", {"query": "tides"}), call("count", {"query": "tides"}), call("stumble")]
    writer = agent("writer", reply(calls=calls), "Done.", tools=[look, count, stumble])
    async with open_executor(agents=[writer], hooks=Forgetful(pictures)) as helix:
        await completed(await helix.execute(writer, "Write", SESSION))
        (run,) = await runs_of(helix)
        session = await helix.sessions.get(SESSION)
    assert tree(pictures.spans) == [
        "invoke_agent writer",
        "  chat scripted",
        "  chat scripted",
        "  execute_tool count",
        "  execute_tool look",
        "  execute_tool stumble (tool_failed)",
    ]
    assert session.tracing_context is not None
    top = pictures.one("invoke_agent writer")
    assert f"{top.trace_id:032x}" == session.tracing_context.trace_id
    assert f"{top.span_id:016x}" == session.tracing_context.root_span_id
    assert top.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "writer",
        "gen_ai.conversation.id": SESSION,
        "helix.session.id": SESSION,
        "helix.run.id": run.run_id,
        "helix.run.attempt": 1,
        "helix.run.status": "completed",
        "helix.run.turn": 1,
        "helix.run.steps": 2,
    }
    for span in pictures.spans:
        # The clocks of a run's beginning and of its spans may be two, and one of them counts milliseconds.
        assert span.started >= top.started - 1_000_000
        assert span.ended <= top.ended
    assert "secret" not in str(pictures.spans)


async def test_sub_agents_hang_below_the_calls_that_they_work_for_at_any_depth(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    worker = agent("worker", call("look", {"query": "x"}), "Found.", tools=[look])
    planner = agent("planner", ask("worker"), "Planned.", tools=[worker.as_tool()])
    helper = agent("helper", "Helped.")
    lead = agent(
        "lead", reply(calls=[ask("planner"), ask("helper")]), "Led.", tools=[planner.as_tool(), helper.as_tool()]
    )
    async with open_executor(agents=[lead], hooks=Forgetful(pictures)) as helix:
        await completed(await helix.execute(lead, "Go", SESSION))
    assert tree(pictures.spans) == [
        "invoke_agent lead",
        "  chat scripted",
        "  chat scripted",
        "  execute_tool subagent__helper",
        "    invoke_agent helper",
        "      chat scripted",
        "  execute_tool subagent__planner",
        "    invoke_agent planner",
        "      chat scripted",
        "      chat scripted",
        "      execute_tool subagent__worker",
        "        invoke_agent worker",
        "          chat scripted",
        "          chat scripted",
        "          execute_tool look",
    ]
    assert {span.attributes["gen_ai.conversation.id"] for span in pictures.spans} == {SESSION}
    assert len({span.attributes["helix.session.id"] for span in pictures.spans}) == 4


async def test_a_suspension_ends_every_span_and_who_goes_on_elsewhere_goes_on_in_the_same_trace(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    script = [reply(calls=[call("look", {"query": "x"}), call("publish", {"title": "Tides"})]), "Out."]
    asked = [reply(calls=[ask("writer"), call("locate", {"city": "Rome"})]), "Done."]

    def lead() -> AnyAgent:
        writer = agent("writer", *script, tools=[look, publish])
        return agent("lead", *asked, tools=[writer.as_tool(), locate])

    async with open_executor(agents=[lead()], hooks=Forgetful(pictures)) as helix:
        waiting = await suspended(await helix.execute(lead(), "Go", SESSION))
    before = [
        "invoke_agent lead (suspended)",
        "  chat scripted",
        "  execute_tool subagent__writer (waits)",
        "    invoke_agent writer (suspended)",
        "      chat scripted",
        "      execute_tool look",
    ]
    assert tree(pictures.spans) == before
    first = pictures.one("invoke_agent lead")
    async with open_executor(agents=[lead()], hooks=Forgetful(pictures)) as helix:
        for pending in waiting.pending:
            approval = pending.kind == "approval"
            answer = ApprovalAnswer(approved=True) if approval else ToolAnswer(result="41.9 N")
            await helix.submit_tool_result(SESSION, pending.tool_call_id, answer)
        await completed(await helix.resume(lead(), SESSION))
    assert tree(pictures.spans) == [
        *before,
        "invoke_agent lead",
        "  chat scripted",
        "  execute_tool locate",
        "  execute_tool subagent__writer",
        "    invoke_agent writer",
        "      chat scripted",
        "      execute_tool publish",
    ]
    (second,) = [span for span in pictures.named("invoke_agent lead") if span.span_id != first.span_id]
    assert second.links == [(first.trace_id, first.span_id, "previous_run")]
    assert second.started >= first.ended - 1_000_000


async def test_a_denied_call_and_one_that_was_not_understood_are_seen(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    calls = [call("publish", {"title": "Tides"}), call("fly")]
    writer = agent("writer", reply(calls=calls), "Well.", tools=[publish])
    async with open_executor(agents=[writer], hooks=Forgetful(pictures)) as helix:
        waiting = await suspended(await helix.execute(writer, "Go", SESSION))
        denial = ApprovalAnswer(approved=False, reason="not today")
        await helix.submit_tool_result(SESSION, waiting.pending[0].tool_call_id, denial)
        await completed(await helix.resume(writer, SESSION))
    assert tree(pictures.spans) == [
        "invoke_agent writer (suspended)",
        "  chat scripted",
        "  execute_tool fly (unknown_tool)",
        "invoke_agent writer",
        "  chat scripted",
        "  execute_tool publish (not_approved)",
    ]
    assert "not today" not in str(pictures.spans)


async def test_a_model_that_is_asked_again_and_one_that_fails_are_told_apart(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    overloaded = ModelOverloadedError("scripted", "slow down")
    writer = agent(
        "writer", overloaded, call("look", {"query": "x"}), ModelRefusedError("scripted", "no"), tools=[look]
    )
    async with open_executor(agents=[writer], hooks=Forgetful(pictures)) as helix:
        await failed(await helix.execute(writer, "Go", SESSION))
    assert tree(pictures.spans) == [
        "invoke_agent writer (provider_refused)",
        "  chat scripted (retry)",
        "  chat scripted (provider_refused)",
        "  execute_tool look",
    ]
    assert pictures.one("invoke_agent writer").attributes["helix.run.status"] == "failed"


async def test_an_interrupt_closes_what_was_open(open_executor: OpenExecutor, pictures: Pictures) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    worker = agent("worker", call("wait"), "Waited.", tools=[wait])
    lead = agent("lead", ask("worker"), "Led.", tools=[worker.as_tool()])
    async with open_executor(agents=[lead], hooks=Forgetful(pictures), options=NO_GRACE) as helix:
        handle = await helix.execute(lead, "Go", SESSION)
        await gate.until_reached()
        await handle.interrupt("enough")
        await within(handle.result())
    assert tree(pictures.spans) == [
        "invoke_agent lead (interrupted)",
        "  chat scripted",
        "  execute_tool subagent__worker (stopped)",
        "    invoke_agent worker (interrupted)",
        "      chat scripted",
        "      execute_tool wait (stopped)",
    ]
    assert {span.status for span in pictures.spans} == {"UNSET"}


async def test_a_companion_hangs_below_the_call_that_spoke_to_it(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    helper = agent("helper", "Here.", "Again.")
    script = [spawn("helper", name="eve"), send("eve", "more"), "Done."]
    boss = agent("boss", *script, persistent_agents=[PersistentAgent(helper)])
    async with open_executor(agents=[boss, helper], hooks=Forgetful(pictures)) as helix:
        await completed(await helix.execute(boss, "Go", SESSION))
    assert tree(pictures.spans) == [
        "invoke_agent boss",
        *["  chat scripted"] * 3,
        "  execute_tool companion__sendMessage",
        "    invoke_agent helper",
        "      chat scripted",
        "  execute_tool companion__spawnAgent",
        "    invoke_agent helper",
        "      chat scripted",
    ]


async def test_a_companion_that_outlives_its_call_hangs_below_it_all_the_same(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    helper = agent("helper", call("wait"), "Here.", tools=[wait])
    boss = agent("boss", spawn(), "Done.", persistent_agents=[PersistentAgent(helper, mode="non_blocking")])
    async with open_executor(agents=[boss, helper], hooks=Forgetful(pictures)) as helix:
        await completed(await helix.execute(boss, "Go", SESSION))
        gate.opened.set()

        async def is_over() -> bool:
            return bool(pictures.named("invoke_agent helper"))

        await until(is_over)
    assert tree(pictures.spans) == [
        "invoke_agent boss",
        *["  chat scripted"] * 2,
        "  execute_tool companion__spawnAgent",
        "    invoke_agent helper",
        "      chat scripted",
        "      chat scripted",
        "      execute_tool wait",
    ]


async def test_a_branch_is_a_trace_of_its_own_and_the_next_turn_is_not(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    writer = agent("writer", "One.", "Two.", "Three.", "Four.")
    async with open_executor(agents=[writer], hooks=Forgetful(pictures)) as helix:
        await completed(await helix.execute(writer, "Go", SESSION))
        await completed(await helix.execute(writer, "On", SESSION))
        await completed(await helix.execute(writer, "Or", "branch", branch=BranchPoint(from_session_id=SESSION)))
        # A copy that was made in the store, as `helix sessions branch` does it.
        await helix._services.store.clone_session(BranchPoint(from_session_id=SESSION), "copy")
        await completed(await helix.execute(writer, "Or", "copy"))
    first, second, branch, copy = pictures.named("invoke_agent writer")
    assert first.trace_id == second.trace_id
    assert len({span.trace_id for span in (first, branch, copy)}) == 3
    assert [span.attributes["helix.run.turn"] for span in (first, second, branch, copy)] == [1, 2, 1, 1]


async def test_a_run_that_nobody_could_drive_is_a_span_that_failed(
    open_executor: OpenExecutor, pictures: Pictures
) -> None:
    @asynccontextmanager
    async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[None]:
        raise LookupError("no such pool")
        yield

    async def is_told() -> bool:
        return bool(pictures.spans)

    writer = agent("writer", "Never.")
    async with open_executor(agents=[writer], deps=broken, hooks=Forgetful(pictures)) as helix:
        result = await failed(await helix.execute(writer, "Go", SESSION))
        await until(is_told)
    assert tree(pictures.spans) == [f"invoke_agent writer ({result.code})"]
