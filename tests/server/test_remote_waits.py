"""A person may answer where a remote child is, and not where it was delegated: the parent goes on just the same."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from helix_agents import Agent, ApprovalAnswer, Executor, Failed, FlowRun, ScriptedModel, flow, remote_agent_tool
from helix_agents.domain.pending import AnswerAlreadyCompleted, AnsweredElsewhere
from helix_agents.engine.remote.stops import WAITING, WAITS, id_there
from helix_agents.engine.remote.waits import FIRST_LOOK_MS, LAST_LOOK_MS, LONGEST_MS, look_again_after
from helix_agents.testing import call
from tests.server.agents import gate
from tests.server.chain import boss
from tests.server.delegating import ask, child_of, eventually, finish, only, status_at
from tests.server.live import ANN, LiveServer

PROMPTLY = 12.0


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    """Its janitor comes once in ten minutes: whatever is noticed is noticed without it."""
    async with Executor.open("memory://", janitor_seconds=600) as executor:
        yield executor


async def approve_there(remote: LiveServer, child: str) -> None:
    """What a person does at the other service's own page."""
    (waiting,) = (await status_at(remote, child))["pending"]
    decision = {"toolCallId": waiting["toolCallId"], "approvalId": waiting["approvalId"], "approved": True}
    path = f"/chat/{id_there(child)}/submit-tool-result"
    told = await ask(remote, "POST", path, json={"kind": "approval-response", **decision})
    assert told["outcome"] == "accepted"


async def is_completed(helix: Executor) -> bool:
    return (await helix.sessions.get("s")).status == "completed"


async def test_an_answer_given_there_is_noticed_soon_and_the_parent_goes_on(
    remote: LiveServer, helix: Executor
) -> None:
    waiting = only(await finish(helix, boss(remote.url), "remote publish"))
    child = await child_of(helix)
    assert (await helix.sessions.get(child)).metadata[WAITS] == WAITING
    await approve_there(remote, child)
    await eventually(lambda: is_completed(helix), PROMPTLY)
    assert "published r-1" in (await helix.sessions.get("s")).output
    assert WAITS not in (await helix.sessions.get(child)).metadata
    row = await helix._services.store.get_pending_call("s", waiting.tool_call_id)
    assert row is not None
    assert (row.state, row.answer) == ("consumed", AnsweredElsewhere())
    too_late = await helix.submit_tool_result("s", waiting.tool_call_id, ApprovalAnswer(approved=False))
    assert isinstance(too_late, AnswerAlreadyCompleted)


async def test_an_answer_given_there_while_a_sibling_works_is_used_when_it_has_finished(
    remote: LiveServer, helix: Executor
) -> None:
    gate.shut(only="so")
    run = await helix.execute(boss(remote.url), "remote publish & long story", "s")
    store = helix._services.store

    async def waiting() -> Any:
        return (await helix.list_pending()).items

    await eventually(waiting)
    refs = await store.get_sub_session_refs("s")
    (child,) = [ref.sub_session_id for ref in refs if (await store.load_state(ref.sub_session_id)).metadata.get(WAITS)]
    await approve_there(remote, child)
    assert (await helix.sessions.runs("s")).items[0].status == "running"
    gate.open()
    await run.result()
    await eventually(lambda: is_completed(helix), PROMPTLY)
    assert "published r-1" in (await helix.sessions.get("s")).output


async def test_a_child_that_was_deleted_there_while_it_waited_is_lost_soon(remote: LiveServer, helix: Executor) -> None:
    only(await finish(helix, boss(remote.url), "remote locate"))
    await ask(remote, "DELETE", f"/sessions/{id_there(await child_of(helix))}")
    await eventually(lambda: is_completed(helix), PROMPTLY)
    assert "not_found" in (await helix.sessions.get("s")).output


async def test_a_child_that_waits_is_asked_about_and_left_in_peace(remote: LiveServer, helix: Executor) -> None:
    only(await finish(helix, boss(remote.url), "remote locate"))
    runs = (await helix.sessions.runs("s")).total
    looked = await helix._caretakers.remotes._waits.look()
    assert (looked.roots, looked.next_in_ms is not None) == ((), True)
    assert (await helix.sessions.runs("s")).total == runs


async def test_a_flow_that_was_stopped_does_not_ask_again_who_had_asked_another_service(
    remote: LiveServer, helix: Executor
) -> None:
    far = remote_agent_tool(remote.url, "worker", name="printer", description="Prints.", token=ANN)
    script = [call("subagent__printer", {"message": "publish"}), "Asked twice."]
    desk = Agent(name="desk", model=ScriptedModel(script), tools=[far])

    @flow(agents=[desk])
    async def printing(run: FlowRun) -> str:
        """Have something printed."""
        return await run.ask(desk, "Print")

    only(await finish(helix, printing, "Go"))
    await helix.interrupt("s")
    result = await (await helix.resume(printing, "s")).result()
    assert isinstance(result, Failed)
    assert "run_stopped" in result.error


def test_a_child_is_looked_at_less_often_the_longer_it_waits() -> None:
    looks, waited = 0, 0
    while waited < 24 * 3_600_000:
        step = look_again_after(waited, 0)
        assert FIRST_LOOK_MS <= step <= LAST_LOOK_MS
        looks, waited = looks + 1, waited + step
    assert looks < 3_000


def test_a_child_that_keeps_going_on_by_itself_is_looked_at_less_and_less() -> None:
    """A service that only says so cannot make its parent begin a run every other second."""
    rounds, elapsed = 0, 0
    while elapsed < 24 * 3_600_000:
        elapsed += look_again_after(0, rounds)
        rounds += 1
    assert rounds < 500
    assert look_again_after(0, 10_000) == LONGEST_MS
