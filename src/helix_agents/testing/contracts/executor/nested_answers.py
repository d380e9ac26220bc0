"""Scenarios of people who answer for agents at any depth: the root is all they need to know."""

import itertools
from collections.abc import Sequence

import pytest

from helix_agents.domain.chunks import RunPaused, RunResumed, ToolApprovalRequest
from helix_agents.domain.errors import NotARootSessionError, StillWaitingError
from helix_agents.domain.pending import (
    AnswerAccepted,
    AnswerAlreadyCompleted,
    ApprovalAnswer,
    PendingFilter,
    ToolAnswer,
)
from helix_agents.domain.results import Completed, Suspended
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.family import (
    agent,
    answer_to,
    assert_well_told,
    children,
    delegate,
    deploy_if_allowed,
    lead,
    locate_at_client,
    only_child,
    planner,
    statuses,
    story,
    worker,
)
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    ended,
    runs_of,
    spoken,
    suspended,
)

WAITING = ("planner locate", "planner/worker deploy", "worker deploy")


class NestedAnswersContract(ScenarioContract):
    """Whatever waits below a root is listed and answered at the root, and each child continues from where it was."""

    async def test_answers_in_any_order_each_to_another_process_come_to_what_no_pause_comes_to(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as helix:
            assert await completed(await helix.execute(lead(pauses=False), "Go", "smooth")) == "All done."
        expected, used = await story(parts, "smooth"), await parts.usage.get_usage_rollup("smooth")
        orders = list(itertools.permutations(WAITING))
        for number, order in enumerate(orders if self.several_processes else orders[::3]):
            session_id = f"s-{number}"
            await _answered_one_by_one(open_executor, parts, session_id, order)
            assert await story(parts, session_id) == expected
            assert_well_told(await parts.streams.get_all_chunks(session_id), session_id)
            assert (await parts.usage.get_usage_rollup(session_id)).tokens == used.tokens
            assert (await parts.state.list_pending(PendingFilter(root_session_id=session_id))).items == ()

    async def test_several_answers_are_drained_by_one_resume(self, helix: Executor, parts: Backend) -> None:
        handle = await helix.execute(lead(), "Go", SESSION)
        for waiting in (await suspended(handle)).pending:
            outcome = await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
            assert isinstance(outcome, AnswerAccepted)
            assert outcome.next == ("wait" if outcome.still_waiting else "resume")
        assert await completed(await helix.resume(lead(), SESSION)) == "All done."
        assert [run.status for run in await runs_of(helix)] == ["suspended_awaiting_children", "completed"]
        for ref in await children(parts):
            runs = await runs_of(helix, ref.sub_session_id)
            assert [run.status for run in runs] == ["suspended_client_tool", "completed"]

    async def test_what_waits_is_listed_at_the_root_with_its_own_name_and_input(
        self, helix: Executor, parts: Backend
    ) -> None:
        handle = await helix.execute(lead(), "Go", SESSION, user_id="ann")
        chunks = await chunks_of(handle)
        result = await suspended(handle)
        assert result.kind == "suspended_awaiting_children"
        assert [wait.agent_type for wait in result.children] == ["planner", "worker"]
        listed = (await helix.list_pending(PendingFilter(root_session_id=SESSION, user_id="ann"))).items
        assert {each.tool_call_id for each in listed} == set(result.tool_call_ids)
        assert sorted((each.tool_name, str(each.input)) for each in listed) == [
            ("deploy", "{'target': 'prod'}"),
            ("deploy", "{'target': 'prod'}"),
            ("locate", "{'city': 'Rome'}"),
        ]
        assert len({each.tool_call_id for each in listed}) == 3
        asked = {chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolApprovalRequest)}
        assert asked == {each.tool_call_id for each in listed if each.tool_name == "deploy"}
        assert isinstance([chunk for chunk in chunks if chunk.session_id == SESSION][-3], RunPaused)
        # The planner waits for the client as well as for its worker.
        assert await statuses(parts) == {
            "lead": "active suspended_awaiting_children",
            "planner": "active suspended_client_tool",
            "worker": "active suspended_client_tool",
        }

    async def test_a_message_that_comes_with_an_answer_waits_for_the_children_too(
        self, helix: Executor, parts: Backend
    ) -> None:
        batch = reply(calls=[call("locate", {"city": "Rome"}, id="where"), delegate("worker", id="work")])
        boss = agent("boss", batch, "Fine.", tools=[locate_at_client, worker().as_tool()])
        await suspended(await helix.execute(boss, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "where", ToolAnswer(result="here"))
        going = await helix.resume(boss, SESSION, mode="with_message", message="And quickly.")
        (waiting,) = (await suspended(going)).pending
        assert waiting.tool_name == "deploy"
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
        assert await completed(await helix.resume(boss, SESSION)) == "Fine."
        assert (await spoken(helix))[2:] == [
            "result locate#where: here",
            "result subagent__worker#work: Deployed.",
            "user: And quickly.",
            "assistant: Fine.",
        ]
        assert_well_told(await parts.streams.get_all_chunks(SESSION), SESSION)

    async def test_an_answer_is_taken_at_the_owner_too_and_stands_once(self, helix: Executor, parts: Backend) -> None:
        boss = agent("boss", delegate("worker"), "Fine.", tools=[worker().as_tool()])
        (waiting,) = (await suspended(await helix.execute(boss, "Go", SESSION))).pending
        child = await only_child(parts)
        assert waiting.session_id == child
        accepted = await helix.submit_tool_result(child, waiting.tool_call_id, ApprovalAnswer(approved=True))
        assert isinstance(accepted, AnswerAccepted)
        again = await helix.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=False))
        assert isinstance(again, AnswerAlreadyCompleted)
        assert await completed(await helix.resume(boss, SESSION)) == "Fine."
        assert (await parts.state.load_state(child)).custom_state == {"done": ["prod"]}

    async def test_a_child_that_asks_again_and_again_suspends_its_root_each_time(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        steps = [call("deploy", {"target": name}, id="call_0") for name in ("a", "b", "c")]
        busy = agent("busy", *steps, "Three.", tools=[deploy_if_allowed])
        boss = agent("boss", delegate("busy"), "Fine.", tools=[busy.as_tool()])
        async with open_executor() as helix:
            result = await ended(await helix.execute(boss, "Go", SESSION))
        rounds = 0
        while isinstance(result, Suspended):
            rounds += 1
            (waiting,) = result.pending
            async with open_executor() as helix:
                await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
                result = await ended(await helix.resume(boss, SESSION))
        assert isinstance(result, Completed)
        assert rounds == 3
        assert (await parts.state.load_state(await only_child(parts))).custom_state == {"done": ["a", "b", "c"]}
        chunks = await parts.streams.get_all_chunks(SESSION)
        assert_well_told(chunks)
        resumed = [chunk for chunk in chunks if isinstance(chunk, RunResumed)]
        assert len([chunk for chunk in resumed if chunk.session_id == SESSION]) == 3

    async def test_a_mixed_batch_is_partly_done_and_its_results_keep_the_order_of_the_calls(
        self, helix: Executor
    ) -> None:
        calls = [
            delegate("worker", id="first"),
            call("locate", {"city": "Rome"}, id="second"),
            delegate("quick", id="third"),
        ]
        tools = [worker().as_tool(), locate_at_client, agent("quick", "Quick.").as_tool()]
        boss = agent("boss", reply(calls=calls), "Fine.", tools=tools)
        result = await suspended(await helix.execute(boss, "Go", SESSION))
        assert result.kind == "suspended_step_partial"
        assert [wait.tool_call_id for wait in result.children] == ["first"]
        await helix.submit_tool_result(SESSION, "second", ToolAnswer(result="here"))
        result = await suspended(await helix.resume(boss, SESSION))
        assert result.kind == "suspended_awaiting_children"
        (waiting,) = result.pending
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
        await completed(await helix.resume(boss, SESSION))
        assert (await spoken(helix))[2:5] == [
            "result subagent__worker#first: Deployed.",
            "result locate#second: here",
            "result subagent__quick#third: Quick.",
        ]

    async def test_a_denial_reaches_the_agent_that_asked(self, helix: Executor, parts: Backend) -> None:
        boss = agent("boss", delegate("worker"), "Fine.", tools=[worker().as_tool()])
        (waiting,) = (await suspended(await helix.execute(boss, "Go", SESSION))).pending
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=False, reason="no"))
        await completed(await helix.resume(boss, SESSION))
        child = await only_child(parts)
        assert (await spoken(helix, child))[2] == f"error deploy#{waiting.tool_call_id}: not_approved"
        assert (await parts.state.load_state(child)).custom_state == {"done": []}

    async def test_a_deadline_below_the_root_runs_out_and_the_tree_goes_on(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        boss = agent("boss", delegate("worker"), "Fine.", tools=[worker(pending_deadline=60).as_tool()])
        (waiting,) = (await suspended(await helix.execute(boss, "Go", SESSION))).pending
        with pytest.raises(StillWaitingError):
            await helix.resume(boss, SESSION)
        clock.advance(61_000)
        await completed(await helix.resume(boss, SESSION))
        told = await spoken(helix, await only_child(parts))
        assert told[2] == f"error deploy#{waiting.tool_call_id}: client_tool_timeout"

    async def test_entries_on_a_child_are_refused_and_name_the_root(self, helix: Executor, parts: Backend) -> None:
        await suspended(await helix.execute(lead(), "Go", SESSION))
        for ref in await children(parts):
            child = ref.sub_session_id
            for entry in (
                helix.execute(worker(), "Hi", child),
                helix.resume(worker(), child),
                helix.resume(worker(), child, mode="with_message", message="Hi"),
                helix.retry(worker(), child),
                helix.interrupt(child),
                helix.abort(child),
            ):
                with pytest.raises(NotARootSessionError) as refused:
                    await entry
                assert refused.value.root_session_id == SESSION
            assert isinstance(await helix.can_resume(worker(), child), NotARootSessionError)

    async def test_a_new_message_gives_up_what_waits_below_and_the_model_is_told(
        self, helix: Executor, parts: Backend
    ) -> None:
        (waiting, *_) = (await suspended(await helix.execute(lead(), "Go", SESSION))).pending
        assert await completed(await helix.execute(lead(), "Never mind", SESSION)) == "All done."
        assert await spoken(helix) == [
            "user: Go",
            "assistant: I delegate. [subagent__planner#call_0, subagent__worker#call_1]",
            "error subagent__planner#call_0: client_tool_abandoned",
            "error subagent__worker#call_1: client_tool_abandoned",
            "user: Never mind",
            "assistant: All done.",
        ]
        late = await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
        assert isinstance(late, AnswerAlreadyCompleted)
        assert set((await statuses(parts)).values()) == {"completed completed", "interrupted interrupted"}
        assert [ref.status for ref in await children(parts)] == ["terminated", "terminated"]
        assert_well_told(await parts.streams.get_all_chunks(SESSION))

    async def test_a_new_message_uses_the_answers_that_were_given_and_waits_for_no_other(
        self, helix: Executor, parts: Backend
    ) -> None:
        result = await suspended(await helix.execute(lead(), "Go", SESSION))
        located = next(each for each in result.pending if each.tool_name == "locate")
        await helix.submit_tool_result(SESSION, located.tool_call_id, answer_to(located))
        assert await completed(await helix.execute(lead(), "Never mind", SESSION)) == "All done."
        assert (await spoken(helix))[2:4] == [
            "result subagent__planner#call_0: Planned.",
            "error subagent__worker#call_1: client_tool_abandoned",
        ]
        planned = next(ref for ref in await children(parts) if ref.agent_type == "planner")
        told = await spoken(helix, planned.sub_session_id)
        assert told[2].startswith("error subagent__worker")
        assert told[3].endswith(": here")

    async def test_a_suspended_tree_is_rewound_and_what_waits_in_it_is_dropped(
        self, helix: Executor, parts: Backend
    ) -> None:
        first = agent(
            "boss", "Hello.", reply("Now. ", calls=[delegate("planner")]), "Fine.", tools=[planner().as_tool()]
        )
        await completed(await helix.execute(first, "Hi", SESSION))
        point = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
        await suspended(await helix.execute(first, "Go", SESSION))
        quiet = agent("boss", "Hello.", "Something else.", tools=[planner().as_tool()])
        resumed = await helix.resume(quiet, SESSION, mode="from_checkpoint", checkpoint_id=point, message="Better not")
        assert await completed(resumed) == "Something else."
        assert (await spoken(helix))[2:] == ["user: Better not", "assistant: Something else."]
        assert (await helix.list_pending(PendingFilter(root_session_id=SESSION))).items == ()
        assert await statuses(parts) == {
            "boss": "completed completed",
            "planner": "interrupted interrupted",
            "worker": "interrupted interrupted",
        }


async def _answered_one_by_one(
    open_executor: OpenExecutor, parts: Backend, session_id: str, order: Sequence[str]
) -> None:
    """Run the family until it waits, then give each answer in a process that knows nothing but the store."""
    async with open_executor() as helix:
        result = await ended(await helix.execute(lead(), "Go", session_id))
    for number, name in enumerate(order):
        assert isinstance(result, Suspended)
        waiting = {await _named(parts, session_id, each.session_id, each.tool_name): each for each in result.pending}
        assert waiting.keys() == set(order[number:])
        async with open_executor() as helix:
            outcome = await helix.submit_tool_result(session_id, waiting[name].tool_call_id, answer_to(waiting[name]))
            assert isinstance(outcome, AnswerAccepted)
            result = await ended(await helix.resume(lead(), session_id))
    assert isinstance(result, Completed), result


async def _named(parts: Backend, root: str, owner: str, tool_name: str) -> str:
    """Which agent waits for which tool, as a path of agents below the root."""
    path: list[str] = []
    while owner != root:
        session = await parts.state.load_state(owner)
        path.insert(0, session.agent_type)
        owner = session.parent_session_id or root
    return f"{'/'.join(path)} {tool_name}"
