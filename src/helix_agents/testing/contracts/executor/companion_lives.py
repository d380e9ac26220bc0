"""Scenarios of companions across pauses, stops and processes: what they wait for, and who drives them then."""

from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import NotARootSessionError
from helix_agents.domain.pending import AnswerAccepted, ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import InterruptSet
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import (
    DEPLOYING,
    WORKING,
    about,
    boss,
    busy,
    careful,
    companions,
    helper,
    notices,
    only_companion,
    results,
    send,
    spawn,
    until_ended,
)
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    interrupted,
    scripted,
    spoken,
    suspended,
    until,
    within,
)

APPROVED = ApprovalAnswer(approved=True)
NO_GRACE = EngineOptions(cancel_grace_seconds=0.01)
TOLD = ["Companion 'helper-1' (helper) is completed: Deployed."]


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _deployer(*script: Any, mode: CompanionMode = "non_blocking", **fields: Any) -> Agent[Any, Any, Any]:
    """A boss of companions that wait for an approval."""
    return boss(spawn(), *script, keeps=careful(*DEPLOYING), mode=mode, **fields)


async def _waiting_call(helix: Executor) -> str:
    """The call that waits at the root."""
    (waiting,) = (await helix.sessions.get(SESSION)).pending_client_tool_calls.values()
    assert (waiting.tool_name, waiting.input, waiting.root_session_id) == ("deploy", {"env": "live"}, SESSION)
    return waiting.tool_call_id


async def _until_it_waits(helix: Executor) -> str:
    """The call a companion waits for, once it does."""

    async def waits() -> bool:
        return bool((await helix.sessions.get(SESSION)).pending_client_tool_calls)

    await until(waits)
    call_id = await _waiting_call(helix)
    pending = (await helix.sessions.get(SESSION)).pending_client_tool_calls[call_id]

    async def rests() -> bool:
        return (await helix.sessions.runs(pending.session_id)).items[0].status.startswith("suspended")

    await until(rests)
    return call_id


async def _approve(helix: Executor, call_id: str) -> AnswerAccepted:
    answered = await helix.submit_tool_result(SESSION, call_id, APPROVED)
    assert isinstance(answered, AnswerAccepted)
    return answered


class CompanionLivesContract(ScenarioContract):
    """Companions wait, are stopped, outlive their parent's process, and are lost by nobody."""

    # -- people who answer

    async def test_an_approval_inside_a_blocking_companion_is_answered_at_the_root_in_another_process(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as first:
            waits = await suspended(await first.execute(_deployer("Fine.", mode="blocking"), "Hi", SESSION))
            assert (waits.kind, [each.tool_name for each in waits.pending]) == (
                "suspended_awaiting_children",
                ["deploy"],
            )
            assert [wait.agent_type for wait in waits.children] == ["helper"]
        async with open_executor() as second:
            assert (await _approve(second, waits.pending[0].tool_call_id)).next == "resume"
        async with open_executor() as third:
            assert await completed(await third.resume(_deployer("Fine.", mode="blocking"), SESSION)) == "Fine."
            assert await results(third) == {"call_1_1": "Deployed."}
            ref = await only_companion(parts)
            assert (ref.status, ref.result) == ("completed", "Deployed.")
            assert list(await results(third, ref.sub_session_id)) == [waits.pending[0].tool_call_id]
            with pytest.raises(NotARootSessionError):
                await third.resume(careful(), ref.sub_session_id)

    async def test_an_approval_inside_a_non_blocking_companion_is_answered_when_its_parent_has_long_finished(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as first:
            assert await completed(await first.execute(_deployer("Started."), "Hi", SESSION)) == "Started."
            call_id = await _until_it_waits(first)
        async with open_executor() as second:
            assert (await _approve(second, call_id)).next == "resume"
            handle = await second.resume(_deployer("Started.", "Next."), SESSION)
            assert await completed(handle) == "Started."
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
        async with open_executor() as third:
            await completed(await third.execute(_deployer("Started.", "Next."), "And?", SESSION))
            assert await notices(third) == TOLD

    async def test_the_janitor_drives_a_companion_that_has_its_answer(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        async with open_executor() as first:
            await completed(await first.execute(_deployer("Started."), "Hi", SESSION))
            await _approve(first, await _until_it_waits(first))
        clock.advance(60_000)
        async with open_executor(agents=[_deployer("Started.")]) as second:
            assert (await second.sweep()).resumed == 1
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
            assert (await second.sweep()).resumed == 0

    async def test_a_companion_with_its_answer_is_driven_while_its_parent_works(
        self, helix: Executor, parts: Backend
    ) -> None:
        gate = Gate()

        @tool
        async def ponder() -> str:
            """Ponder."""
            await gate.wait()
            return "pondered"

        agent = _deployer(call("ponder"), "Fine.", "Next.", tools=[ponder])
        handle = await helix.execute(agent, "Hi", SESSION)
        await gate.until_reached()
        assert (await _approve(helix, await _until_it_waits(helix))).next == "resume"
        assert (await helix.resume(agent, SESSION)).run_id == handle.run_id
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        gate.opened.set()
        assert await completed(handle) == "Fine."
        assert await notices(helix) == TOLD

    async def test_a_parent_waits_in_peace_while_a_companion_works_off_its_answer(
        self, helix: Executor, parts: Backend
    ) -> None:
        gate = Gate()

        async def slowly() -> str:
            await gate.wait()
            return "deployed slowly"

        script = (spawn(), "Started.", call("locate", {"city": "Rome"}, id="where"), "Fine.", "Next.")
        keeps = careful(*DEPLOYING, work=slowly)
        agent = boss(*script, keeps=keeps, mode="non_blocking", tools=[locate])
        await completed(await helix.execute(agent, "Hi", SESSION))
        await _approve(helix, await _until_it_waits(helix))
        await helix.resume(agent, SESSION)
        await gate.until_reached()
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "where", ToolAnswer(result="41.9 N"))
        assert await completed(await helix.resume(agent, SESSION)) == "Fine."
        gate.opened.set()
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        await completed(await helix.execute(agent, "And?", SESSION))
        assert await notices(helix) == TOLD

    async def test_whoever_goes_on_leaves_the_question_of_a_blocking_companion_but_not_the_companion(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = _deployer("Never mind.", send("helper-1", "Better?"), "Fine.", mode="blocking")
        await suspended(await helix.execute(agent, "Hi", SESSION))
        assert await completed(await helix.execute(agent, "Forget it", SESSION)) == "Never mind."
        assert (await spoken(helix))[2] == "error companion__spawnAgent#call_1_1: client_tool_abandoned"
        assert (await helix.list_pending()).items == ()
        await completed(await helix.execute(agent, "Ask again", SESSION))
        assert (await results(helix))["call_3_1"] == "Deployed."
        said = await spoken(helix, (await only_companion(parts)).sub_session_id)
        assert said[-2:] == ["user: Better?", "assistant: Deployed."]

    async def test_whoever_goes_on_leaves_the_question_of_a_non_blocking_companion_as_it_is(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = _deployer("Started.", call("locate", {"city": "Rome"}), "Never mind.", "Next.", tools=[locate])
        await completed(await helix.execute(agent, "Hi", SESSION))
        call_id = await _until_it_waits(helix)
        await suspended(await helix.execute(agent, "Where?", SESSION))
        assert await completed(await helix.execute(agent, "Forget it", SESSION)) == "Never mind."
        await _approve(helix, call_id)
        await helix.resume(agent, SESSION)
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        await completed(await helix.execute(agent, "And?", SESSION))
        assert await notices(helix) == TOLD

    async def test_a_parent_that_waits_for_a_companion_which_waits_is_suspended_with_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        def cast() -> Agent[Any, Any, Any]:
            other = PersistentAgent(scripted(["x"], {}, name="other"))
            keeps = [PersistentAgent(careful(*DEPLOYING), mode="non_blocking"), other]
            script = [spawn(), "Started.", about("waitForResult", "helper-1", id="wait"), "Fine.", "Next."]
            return scripted(script, {}, name="boss", persistent_agents=keeps)

        async with open_executor() as first:
            await completed(await first.execute(cast(), "Hi", SESSION))
            call_id = await _until_it_waits(first)
            assert (await suspended(await first.execute(cast(), "Wait", SESSION))).kind == "suspended_awaiting_children"
        async with open_executor() as second:
            assert (await _approve(second, call_id)).next == "resume"
            assert await completed(await second.resume(cast(), SESSION)) == "Fine."
            assert (await results(second))["wait"] == "Deployed."
            await completed(await second.execute(cast(), "And?", SESSION))
            assert await notices(second) == []

    # -- stops

    async def test_a_stop_of_the_parent_reaches_its_companions(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate, pondering = Gate(), Gate()

        @tool
        async def ponder() -> str:
            """Ponder."""
            await pondering.wait()
            return "pondered"

        agent = boss(spawn(), call("ponder"), "Never.", keeps=busy(gate, *WORKING), mode="non_blocking", tools=[ponder])
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(agent, "Hi", SESSION)
            await gate.until_reached()
            await pondering.until_reached()
            assert isinstance(await helix.interrupt(SESSION, "enough"), InterruptSet)
            await interrupted(handle)
            await until_ended(parts, (await only_companion(parts)).sub_session_id, "interrupted")

    @pytest.mark.parametrize("waits", [False, True])
    async def test_a_stop_reaches_companions_whose_parent_has_finished(
        self, open_executor: OpenExecutor, parts: Backend, waits: bool
    ) -> None:
        gate = Gate()
        keeps = careful(*DEPLOYING) if waits else busy(gate, *WORKING)
        async with open_executor(options=NO_GRACE) as helix:
            agent = boss(spawn(), "Started.", keeps=keeps, mode="non_blocking")
            await completed(await helix.execute(agent, "Hi", SESSION))
            await (_until_it_waits(helix) if waits else gate.until_reached())
            assert isinstance(await helix.interrupt(SESSION, "enough"), InterruptSet)
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child, "interrupted")
            await spoken(helix, child)
            assert (await helix.list_pending()).items == ()

    # -- processes

    async def test_a_companion_starts_only_after_the_step_that_announced_it_is_committed(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        @tool
        async def ponder() -> str:
            """Ponder."""
            await gate.wait()
            return "pondered"

        def cast() -> Agent[Any, Any, Any]:
            batch = reply(calls=[spawn(), call("ponder")])
            return boss(batch, "Fine.", keeps=helper("Helped."), tools=[ponder])

        async with open_executor(grace=0) as dying:
            await dying.execute(cast(), "Hi", SESSION)
            await gate.until_reached()
            assert await companions(parts) == []
        assert await companions(parts) == []
        gate.opened.set()
        async with open_executor(agents=[cast()]) as other:
            await other.recover()
            handle = await other.get_handle(cast(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Fine."
            assert (await only_companion(parts)).result == "Helped."

    async def test_a_companion_ends_while_its_parents_process_is_dead_and_the_next_turn_sees_it_once(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> Agent[Any, Any, Any]:
            keeps = busy(gate, *WORKING)
            return boss(spawn(), "Started.", "Second.", "Third.", keeps=keeps, mode="non_blocking")

        async with open_executor(grace=0) as dying:
            await completed(await dying.execute(cast(), "Hi", SESSION))
            await gate.until_reached()
        child = (await only_companion(parts)).sub_session_id
        gate.opened.set()
        async with open_executor(agents=[busy(gate, *WORKING)]) as other:
            assert len((await other.recover()).run_ids) == 1
            await until_ended(parts, child)
        async with open_executor() as third:
            await completed(await third.execute(cast(), "And?", SESSION))
            await completed(await third.execute(cast(), "And?", SESSION))
            assert await notices(third) == ["Companion 'helper-1' (helper) is completed: Worked."]
        assert len((await other_runs(parts, child))) == 1

    async def test_a_notice_survives_a_crash_of_the_step_that_took_it_and_is_not_doubled(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        @tool
        async def ponder() -> str:
            """Ponder."""
            await gate.wait()
            return "pondered"

        def cast() -> Agent[Any, Any, Any]:
            script = [spawn(), "Started.", call("ponder"), "Second.", "Third."]
            return boss(*script, keeps=helper("Helped."), mode="non_blocking", tools=[ponder])

        async with open_executor(grace=0) as dying:
            await completed(await dying.execute(cast(), "Hi", SESSION))
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
            before = await notices(dying)
            await dying.execute(cast(), "And?", SESSION)
            await gate.until_reached()
            assert await notices(dying) == before
        gate.opened.set()
        async with open_executor(agents=[cast()]) as other:
            await other.recover()
            handle = await other.get_handle(cast(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Second."
            assert len(await notices(other)) == 1
            await completed(await other.execute(cast(), "And?", SESSION))
            assert len(await notices(other)) == 1

    async def test_companions_do_not_starve_a_parent_that_waits_for_them(self, open_executor: OpenExecutor) -> None:
        other = PersistentAgent(scripted(["x"], {}, name="other"))
        keeps = [PersistentAgent(helper("Helped."), mode="non_blocking"), other]
        script = [spawn(), about("waitForResult", "helper-1", id="wait"), "Fine."]
        agent = scripted(script, {}, name="boss", persistent_agents=keeps)
        async with open_executor(max_running=1) as helix:
            assert await completed(await within(helix.execute(agent, "Hi", SESSION))) == "Fine."
            assert (await results(helix))["wait"] == "Helped."


async def other_runs(parts: Backend, child: str) -> tuple[Any, ...]:
    """All runs of a companion."""
    return (await parts.state.list_runs(child)).items
