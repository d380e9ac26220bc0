"""Scenarios of stops in a tree of agents: they reach everything below the root, and nothing is left behind."""

import asyncio

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import RunInterrupted, TextDelta
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.sessions import InterruptSet
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.family import (
    agent,
    answer_to,
    assert_well_told,
    children,
    delegate,
    lead,
    statuses,
    told,
    worker,
)
from helix_agents.testing.contracts.executor.household import (
    WORKING,
    busy,
    only_companion,
    pondering,
    spawn,
    until_ended,
)
from helix_agents.testing.contracts.executor.stage import (
    NO_GRACE,
    SESSION,
    Gate,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    interrupted,
    result_at,
    spoken,
    suspended,
    transcript,
    until,
)
from helix_agents.testing.contracts.executor.stopping import CUT_SHORT


def talking(gate: PieceGate) -> AnyAgent:
    """Two levels down an agent talks, held in the middle of a sentence, while its uncle waits for an approval."""
    talker = agent("talker", model=ScriptedModel(["One two three four five six."], pace=gate))
    middle = agent("middle", delegate("talker", id="call_0"), "Never.", tools=[talker.as_tool()])
    calls = [delegate("middle", id="c"), delegate("worker", id="d")]
    return agent("boss", reply(calls=calls), "Fine.", tools=[middle.as_tool(), worker().as_tool()])


async def _waits(helix: Executor) -> bool:
    """Whether an agent below waits, and has come to rest."""
    waiting = (await helix.list_pending()).items
    return bool(waiting) and (await helix.sessions.runs(waiting[0].session_id)).items[0].status.startswith("suspended")


async def reached(parts: Backend, gate: PieceGate) -> None:
    """The talker talks and the worker waits."""
    await gate.until_reached()

    async def waits() -> bool:
        return bool((await parts.state.list_pending(PendingFilter(root_session_id=SESSION))).items)

    await until(waits)


class TreeStopsContract(ScenarioContract):
    """Stopping a root stops every agent that works or waits below it."""

    async def test_an_interrupt_from_another_process_reaches_a_grandchild_that_talks(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = PieceGate(3)
        handle = await helix.execute(talking(gate), "Go", SESSION)
        await reached(parts, gate)
        async with open_executor() as other:
            assert await other.interrupt(SESSION, "enough") == InterruptSet(run_id=handle.run_id)
            assert (await interrupted(handle)).reason == "enough"
            assert set((await statuses(parts)).values()) == {"interrupted interrupted"}
            assert {ref.status for ref in await children(parts)} == {"interrupted"}
            assert (await other.list_pending()).items == ()
            assert (await spoken(other))[2:] == [
                "error subagent__middle#c: run_stopped",
                "error subagent__worker#d: run_stopped",
            ]
            assert result_at(await transcript(other), 2).content == CUT_SHORT
            chunks = await chunks_of(handle)
            assert_well_told(chunks)
            stopped = [chunk.agent_type for chunk in chunks if isinstance(chunk, RunInterrupted)]
            assert stopped == ["talker", "middle", "boss"]
            said = [chunk for chunk in chunks if isinstance(chunk, TextDelta) and chunk.agent_type == "talker"]
            seen = "".join(chunk.delta for chunk in said)
            assert (await spoken(other, said[0].session_id))[1] == f"assistant: {seen} (interrupt)"
            resumed = agent("boss", "Never.", "On we go.", tools=[worker().as_tool()])
            assert await completed(await other.resume(resumed, SESSION)) == "On we go."

    async def test_an_abort_fails_the_whole_tree_for_good(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = PieceGate(3)
        handle = await helix.execute(talking(gate), "Go", SESSION)
        await reached(parts, gate)
        async with open_executor() as other:
            await other.abort(SESSION, "away")
            assert (await failed(handle)).code == "framework_cancelled"
            assert set((await statuses(parts)).values()) == {"failed failed"}
            assert (await other.list_pending()).items == ()
            assert_well_told(await chunks_of(handle))
            await told(parts, SESSION)

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_stop_of_a_tree_that_waits_settles_all_of_it(
        self, helix: Executor, parts: Backend, kind: str
    ) -> None:
        waiting = (await suspended(await helix.execute(lead(), "Go", SESSION))).pending
        await (helix.interrupt(SESSION) if kind == "interrupt" else helix.abort(SESSION))
        expected = "interrupted interrupted" if kind == "interrupt" else "failed failed"
        assert set((await statuses(parts)).values()) == {expected}
        assert (await helix.sessions.get(SESSION)).error == (None if kind == "interrupt" else "The run was aborted.")
        assert (await helix.list_pending()).items == ()
        late = await helix.submit_tool_result(SESSION, waiting[0].tool_call_id, answer_to(waiting[0]))
        assert type(late).__name__ == "AnswerAlreadyCompleted"
        again = agent("lead", "Never.", "Again.", tools=lead().tools)
        assert await completed(await helix.execute(again, "Once more", SESSION)) == "Again."
        assert (await spoken(helix))[2:4] == [
            "error subagent__planner#call_0: run_stopped",
            "error subagent__worker#call_1: run_stopped",
        ]
        assert result_at(await transcript(helix), 2).content == CUT_SHORT
        assert {ref.status for ref in await children(parts)} == {"interrupted"}
        assert_well_told(await parts.streams.get_all_chunks(SESSION))

    async def test_a_stop_reaches_a_child_that_was_paused_while_it_waits(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        @tool
        async def dig() -> str:
            """Dig."""
            await gate.wait()
            return "a hole"

        digger = agent(
            "boss", reply(calls=[delegate("worker"), call("dig")]), "Never.", tools=[worker().as_tool(), dig]
        )
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(digger, "Go", SESSION)
            await gate.until_reached()
            await until(lambda: _waits(helix))
            (waiting,) = (await helix.list_pending()).items
            await parts.state.compare_and_set_status(waiting.session_id, ["active"], "paused")
            await handle.interrupt()
            await interrupted(handle)
        assert set((await statuses(parts)).values()) == {"interrupted interrupted"}

    async def test_a_process_that_leaves_lets_go_of_the_tree_and_another_one_goes_on_with_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = PieceGate(3)
        async with open_executor(grace=0.01) as helix:
            await helix.execute(talking(gate), "Go", SESSION)
            await reached(parts, gate)
        assert set((await statuses(parts)).values()) == {"active running", "active suspended_client_tool"}
        async with open_executor(agents=[talking(PieceGate(0))]) as other:
            assert len((await other.recover()).run_ids) == 1
            handle = await other.get_handle(talking(PieceGate(0)), SESSION)
            assert handle is not None
            result = await suspended(handle)
            (waiting,) = result.pending
            assert [wait.tool_call_id for wait in result.children] == ["d"]
            await other.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
            assert await completed(await other.resume(talking(PieceGate(0)), SESSION)) == "Fine."
            chunks = await parts.streams.get_all_chunks(SESSION)
            assert_well_told(chunks)
            said = [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta) and chunk.agent_type == "talker"]
            assert "".join(said) == "One two three four five six."
        for ref in await children(parts):
            runs = (await parts.state.list_runs(ref.sub_session_id)).items
            assert runs[0].status == "completed"
            assert len(runs) == (1 if ref.tool_call_id == "c" else 2)

    async def test_a_user_who_goes_on_after_a_crash_leaves_no_child_behind(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = PieceGate(3)
        async with open_executor(grace=0.01) as helix:
            await helix.execute(talking(gate), "Go", SESSION)
            await reached(parts, gate)
        async with open_executor() as other:
            other_words = agent("boss", "Never.", "Something else.", tools=talking(gate).tools)
            assert await completed(await other.execute(other_words, "Never mind", SESSION)) == "Something else."
            await told(parts, SESSION)
            standing = await statuses(parts)
            assert standing.pop("boss") == "completed completed"
            assert set(standing.values()) == {"interrupted interrupted"}
            assert (await other.list_pending()).items == ()
            assert (await other.recover()).run_ids == ()
            assert await parts.state.list_orphans() == ()

    async def test_a_child_whose_parent_run_is_over_is_let_go_by_recovery(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = PieceGate(3)
        async with open_executor(grace=0.01) as helix:
            await helix.execute(talking(gate), "Go", SESSION)
            await reached(parts, gate)
        run = await parts.state.get_current_run(SESSION)
        assert run is not None
        await parts.state.update_run_status(run.run_id, "failed")
        async with open_executor() as other:
            assert (await other.recover()).run_ids == ()
            standing = await statuses(parts)
            assert (standing["middle"], standing["talker"]) == ("interrupted interrupted", "interrupted interrupted")
            assert await parts.state.list_orphans() == ()

    async def test_two_processes_that_resume_at_once_drive_each_child_once(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as helix:
            waiting = (await suspended(await helix.execute(lead(), "Go", SESSION))).pending
            for each in waiting:
                await helix.submit_tool_result(SESSION, each.tool_call_id, answer_to(each))
        async with open_executor() as one, open_executor() as two:
            both = await asyncio.gather(
                one.resume(lead(), SESSION), two.resume(lead(), SESSION), return_exceptions=True
            )
            won = [each for each in both if not isinstance(each, BaseException)]
            assert len(won) == 1
            assert await completed(won[0]) == "All done."
        for ref in await children(parts):
            assert len((await parts.state.list_runs(ref.sub_session_id)).items) == 2

    async def test_a_stop_reaches_a_companion_of_a_child_that_is_done(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        working, waiting = Gate(), Gate()
        keeps = [PersistentAgent(busy(working, *WORKING), mode="non_blocking")]
        middle = agent("middle", spawn(), "Done.", persistent_agents=keeps)
        tools = [middle.as_tool(), pondering(waiting)]
        boss = agent("boss", delegate("middle", id="d"), call("ponder"), "Never.", tools=tools)
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(boss, "Go", SESSION)
            await working.until_reached()
            await waiting.until_reached()
            await helix.interrupt(SESSION)
            await interrupted(handle)
            (ref,) = await children(parts)
            await until_ended(parts, (await only_companion(parts, ref.sub_session_id)).sub_session_id, "interrupted")
