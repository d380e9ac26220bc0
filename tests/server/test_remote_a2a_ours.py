"""An agent of this library, delegated to over A2A instead of its own routes: answers, approvals and stops reach it."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import BaseModel

from helix_agents import (
    Agent,
    AnyAgent,
    ApprovalAnswer,
    Completed,
    Executor,
    Failed,
    Interrupted,
    ScriptedModel,
    Suspended,
    ToolAnswer,
    a2a_agent_tool,
)
from helix_agents.agent.client_tools import ask_human
from helix_agents.domain.chunks import TextDelta
from helix_agents.engine.remote.stops import REMOTE, id_there
from helix_agents.testing import call
from helix_agents.testing.service_process import free_port
from tests.server.agents import gate
from tests.server.chain import a2a_boss, service
from tests.server.delegating import ask, child_of, delegated, eventually, finish, only, results_of, status_at
from tests.server.live import ANN, LiveServer
from tests.server.test_remote import calls_itself


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


@pytest.fixture
def agent(remote: LiveServer) -> AnyAgent:
    return a2a_boss(f"{remote.url}/a2a/worker", token=ANN)


async def test_its_words_are_seen_here_and_its_task_is_a_session_there(
    remote: LiveServer, helix: Executor, agent: AnyAgent
) -> None:
    run = await helix.execute(agent, "remote search", "s")
    chunks = [chunk async for chunk in run.stream()]
    assert isinstance(await run.result(), Completed)
    words = "".join(each.delta for each in chunks if isinstance(each, TextDelta) and each.remote_sequence is not None)
    assert words == "Let me see. I was told: ['page 1 about tides', 'page 2 about tides']."
    assert str((await delegated(helix)).content).endswith("'page 2 about tides'].")
    there = await ask(remote, "GET", f"/sessions/{id_there(await child_of(helix))}")
    assert (there["agentType"], there["status"]) == ("worker", "completed")
    assert there["metadata"]["helix.depth"] == "1"


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_inside_is_given_at_the_root(helix: Executor, agent: AnyAgent, approved: bool) -> None:
    waiting = only(await finish(helix, agent, "remote publish"))
    assert (waiting.tool_name, waiting.input, waiting.kind) == ("publish", {"report_id": "r-1"}, "approval")
    assert waiting.deadline is not None
    await helix.submit_tool_result(
        "s", waiting.tool_call_id, ApprovalAnswer(approved=approved, reason="no"), approval_id=waiting.approval_id
    )
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert ("published r-1" in str((await delegated(helix)).content)) is approved


async def test_an_approval_may_change_the_input(helix: Executor, agent: AnyAgent) -> None:
    waiting = only(await finish(helix, agent, "remote publish"))
    answer = ApprovalAnswer(approved=True, edited_input={"report_id": "r-9"})
    await helix.submit_tool_result("s", waiting.tool_call_id, answer)
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert "published r-9" in str((await delegated(helix)).content)


async def test_of_several_calls_each_goes_on_with_its_answer(helix: Executor, agent: AnyAgent) -> None:
    result = await finish(helix, agent, "remote both & locate")
    assert isinstance(result, Suspended)
    assert sorted(call.tool_name for call in result.pending) == ["locate", "locate", "publish"]
    answers = {"publish": ApprovalAnswer(approved=True), "locate": ToolAnswer(result="Brest")}
    for place, waiting in enumerate(result.pending):
        await helix.submit_tool_result("s", waiting.tool_call_id, answers[waiting.tool_name])
        result = await (await helix.resume(agent, "s")).result()
        assert isinstance(result, Suspended if place < 2 else Completed)
    assert isinstance(result, Completed)
    assert "published r-1" in result.output


async def test_an_answer_that_does_not_fit_there_is_asked_for_again(helix: Executor, agent: AnyAgent) -> None:
    waiting = only(await finish(helix, agent, "remote locate"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result={"no": "text"}))
    again = only(await (await helix.resume(agent, "s")).result())
    assert again.tool_call_id == waiting.tool_call_id
    assert "string" in (again.reason or "")
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)


async def test_an_answer_given_there_is_noticed_here(remote: LiveServer, agent: AnyAgent) -> None:
    async with Executor.open("memory://", janitor_seconds=600) as helix:
        only(await finish(helix, agent, "remote publish"))
        child = await child_of(helix)
        (waiting,) = (await status_at(remote, child))["pending"]
        decision = {"toolCallId": waiting["toolCallId"], "approvalId": waiting["approvalId"], "approved": True}
        path = f"/chat/{id_there(child)}/submit-tool-result"
        await ask(remote, "POST", path, json={"kind": "approval-response", **decision})

        async def is_completed() -> bool:
            return (await helix.sessions.get("s")).status == "completed"

        await eventually(is_completed)
        assert "published r-1" in (await helix.sessions.get("s")).output


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_reaches_a_child_at_work(remote: LiveServer, helix: Executor, agent: AnyAgent, kind: str) -> None:
    gate.shut(after=2)
    run = await helix.execute(agent, "remote long story", "s")
    async for chunk in run.stream():
        if chunk.remote_sequence is not None and isinstance(chunk, TextDelta):
            break
    await getattr(helix, kind)("s", "enough")
    assert isinstance(await run.result(), Interrupted if kind == "interrupt" else Failed)
    child = await child_of(helix)
    assert (await status_at(remote, child))["runStatus"] == "failed"
    assert REMOTE not in (await helix.sessions.get(child)).metadata


async def test_one_that_fails_there_is_a_failed_call_here(helix: Executor, agent: AnyAgent) -> None:
    assert isinstance(await finish(helix, agent, "remote fail & hello"), Completed)
    assert sorted(str(message.code) for message in await results_of(helix)) == ["None", "sub_agent_failed"]


async def test_one_that_was_deleted_while_it_waited_is_lost(
    remote: LiveServer, helix: Executor, agent: AnyAgent
) -> None:
    waiting = only(await finish(helix, agent, "remote locate"))
    await ask(remote, "DELETE", f"/sessions/{id_there(await child_of(helix))}")
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    message = await delegated(helix)
    assert (message.code, "not_found" in str(message.content)) == ("framework_subagent_lost", True)


async def test_without_credentials_nothing_is_started(remote: LiveServer, helix: Executor) -> None:
    assert isinstance(await finish(helix, a2a_boss(f"{remote.url}/a2a/worker"), "remote search"), Completed)
    message = await delegated(helix)
    assert message.code == "sub_agent_dispatch_failed"
    assert "401" in str(message.content)


class Report(BaseModel):
    title: str


@pytest.fixture(scope="module")
def typed() -> Iterator[LiveServer]:
    """A service whose agents have a typed output, or ask before they answer."""
    finishes = ScriptedModel([call("__finish__", {"title": "Tides"})] * 2)
    asks = ScriptedModel([call("ask_human", {"question": "Which port?"}), "Thank you."])
    reporter = Agent(name="reporter", model=finishes, output=Report)
    with LiveServer(service(reporter, Agent(name="asker", model=asks, tools=[ask_human()]))) as live:
        yield live


async def test_a_typed_output_comes_back_as_data(typed: LiveServer, helix: Executor) -> None:
    agent = a2a_boss(f"{typed.url}/a2a/reporter", token=ANN, output=Report)
    assert isinstance(await finish(helix, agent, "remote report"), Completed)
    assert (await delegated(helix)).content == {"title": "Tides"}


async def test_a_question_keeps_its_words(typed: LiveServer, helix: Executor) -> None:
    agent = a2a_boss(f"{typed.url}/a2a/asker", token=ANN)
    waiting = only(await finish(helix, agent, "remote ask"))
    assert (waiting.kind, waiting.tool_name) == ("question", "ask_human")
    assert isinstance(waiting.input, dict)
    assert waiting.input["question"] == "Which port?"
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert (await delegated(helix)).content == "Thank you."


@pytest.fixture
def endless() -> Iterator[AnyAgent]:
    """An agent whose service has an agent that delegates to itself."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/a2a/worker"
    tool = a2a_agent_tool(url, "worker", description="Itself.", token=ANN)
    with LiveServer(service(Agent(name="worker", model=ScriptedModel(calls_itself), tools=[tool])), port=port):
        yield Agent(name="boss", model=ScriptedModel(calls_itself), tools=[tool])


async def test_agents_that_delegate_to_each_other_come_to_an_end(endless: AnyAgent, helix: Executor) -> None:
    """Each tells the next how deep it stands."""
    result = await finish(helix, endless, "go")
    assert isinstance(result, Completed)
    assert "sub-agents may be nested at most 8 deep" in result.output
