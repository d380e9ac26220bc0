"""Scenarios of companions that wait for an answer or are stopped: who answers them, and what drives them then."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.context import RunContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AfterToolEvent, AgentCompleteEvent, AgentSuspendedEvent, BeforeToolEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import ToolApprovalRequest, ToolStart
from helix_agents.domain.errors import AgentMismatchError, NotARootSessionError, NothingToResumeError
from helix_agents.domain.pending import AnswerAccepted, ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import InterruptSet
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import (
    DEPLOYING,
    WORKING,
    about,
    boss,
    busy,
    careful,
    helper,
    notices,
    only_companion,
    pondering,
    results,
    send,
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
    scripted,
    spoken,
    suspended,
    until,
)

APPROVED = ApprovalAnswer(approved=True)
TOLD = ["Companion 'helper-1' (helper) is completed: Deployed."]


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _deployer(*script: Any, mode: CompanionMode = "non_blocking", **fields: Any) -> AnyAgent:
    """A boss of companions that wait for an approval."""
    return boss(spawn(), *script, keeps=careful(*DEPLOYING), mode=mode, **fields)


async def _waiting_call(helix: Executor) -> str:
    """The call that waits at the root."""
    (waiting,) = (await helix.sessions.get(SESSION)).pending_client_tool_calls.values()
    assert (waiting.tool_name, waiting.input, waiting.root_session_id) == ("deploy", {"env": "live"}, SESSION)
    return waiting.tool_call_id


async def _until_it_waits(helix: Executor) -> str:
    """The call that a companion waits for, once it does."""

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
    """What a companion waits for is answered at the root, and a stop reaches it wherever it is."""

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

    async def test_a_message_is_refused_that_no_run_takes_also_where_a_companion_goes_on(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = _deployer("Started.", "Next.")
        assert await completed(await helix.execute(agent, "Hi", SESSION)) == "Started."
        await _approve(helix, await _until_it_waits(helix))
        with pytest.raises(NothingToResumeError):
            await helix.resume(agent, SESSION, mode="with_message", message="And?")
        await until_ended(parts, (await only_companion(parts)).sub_session_id)

    async def test_an_agent_that_a_session_does_not_belong_to_wakes_no_companion(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = _deployer("Started.", "Second.")
        await completed(await helix.execute(agent, "Hi", SESSION))
        await _approve(helix, await _until_it_waits(helix))
        child = (await only_companion(parts)).sub_session_id
        before = await parts.state.get_current_run(child)
        with pytest.raises(AgentMismatchError):
            await helix.resume(scripted(["No."], {}, name="stranger"), SESSION)
        assert await parts.state.get_current_run(child) == before
        await helix.resume(agent, SESSION)
        await until_ended(parts, child)

    async def test_a_companion_that_nobody_answered_in_time_goes_on_when_its_root_is_resumed(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        agent = _deployer("Started.", "Second.")
        await completed(await helix.execute(agent, "Hi", SESSION))
        await _until_it_waits(helix)
        clock.advance(8 * 24 * 60 * 60 * 1000)
        await helix.resume(agent, SESSION)
        await until_ended(parts, (await only_companion(parts)).sub_session_id)

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

        agent = _deployer(call("ponder"), "Fine.", "Next.", tools=[pondering(gate)])
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

    @pytest.mark.parametrize("way", ["goes on", "interrupts"])
    async def test_a_companion_whose_question_was_left_knows_what_it_did_beside_it(
        self, helix: Executor, parts: Backend, way: str
    ) -> None:
        @tool
        async def work() -> str:
            """Work."""
            return "worked"

        batch = reply(calls=[call("work", id="work"), call("locate", {"city": "Rome"}, id="where")])
        keeps = helper(batch, "Fine then.", tools=[work, locate])
        agent = boss(spawn(), send("helper-1", "Go on"), "Fine.", keeps=keeps)
        await suspended(await helix.execute(agent, "Hi", SESSION))
        if way == "interrupts":
            await helix.interrupt(SESSION)
        assert await completed(await helix.execute(agent, "Forget it", SESSION)) == "Fine."
        child = (await only_companion(parts)).sub_session_id
        _, _, *results, asked, _ = await spoken(helix, child)
        assert [line.split("_")[0] for line in results] == ["result work#work", "error locate#where"]
        assert asked == "user: Go on"

    async def test_whoever_is_rewound_to_before_a_companion_waited_leaves_it_without_a_question(
        self, helix: Executor, parts: Backend
    ) -> None:
        script = ("Hello.", spawn(), about("waitForResult", "helper-1", id="wait"), "Fine.")
        agent = boss(*script, keeps=careful(*DEPLOYING), mode="blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        before = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
        await suspended(await helix.execute(agent, "Start", SESSION))
        again = boss("Hello.", about("waitForResult", "helper-1", id="wait"), "Fine.", keeps=careful(*DEPLOYING))
        rewound = await helix.resume(again, SESSION, mode="from_checkpoint", checkpoint_id=before, message="Well?")
        assert await completed(rewound) == "Fine."
        ref = await only_companion(parts)
        assert (ref.status, (await helix.sessions.get(ref.sub_session_id)).status) == ("interrupted", "interrupted")
        assert (await helix.list_pending()).items == ()

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
        def cast() -> AnyAgent:
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

    @pytest.mark.parametrize("has_ended", [True, False], ids=["it_has_ended", "it_does_what_was_approved"])
    async def test_a_parent_goes_on_whose_companion_went_on_before_it(
        self, helix: Executor, parts: Backend, has_ended: bool
    ) -> None:
        gate = Gate()

        async def work() -> str:
            await gate.wait()
            return "deployed"

        def cast() -> AnyAgent:
            other = PersistentAgent(scripted(["x"], {}, name="other"))
            keeps = [PersistentAgent(careful(*DEPLOYING, work=work), mode="non_blocking"), other]
            script = [spawn(), "Started.", about("waitForResult", "helper-1", id="wait"), "Fine."]
            return scripted(script, {}, name="boss", persistent_agents=keeps)

        await completed(await helix.execute(cast(), "Hi", SESSION))
        call_id = await _until_it_waits(helix)
        await suspended(await helix.execute(cast(), "Wait", SESSION))
        await _approve(helix, call_id)
        # As `resume` does first; the companion is then faster than anything that checks its parent.
        go_on: Callable[[str], Awaitable[int]] = getattr(helix, "_by_name").drive_answered  # noqa: B009
        assert await go_on(SESSION) == 1
        if has_ended:
            gate.opened.set()
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
        else:
            await gate.until_reached()
        going = await helix.resume(cast(), SESSION)
        gate.opened.set()
        assert await completed(going) == "Fine."
        assert (await results(helix))["wait"] == "Deployed."

    async def test_a_parent_goes_on_whose_companion_did_while_it_was_suspending(self, helix: Executor) -> None:
        waiting: list[str] = []

        async def approve(ctx: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
            if waiting:
                await _approve(helix, waiting.pop())
                assert (await helix.resume(agent, SESSION)).run_id == event.run_id

        other = PersistentAgent(scripted(["x"], {}, name="other"))
        keeps = [PersistentAgent(careful(*DEPLOYING), mode="non_blocking"), other]
        script = [spawn(), "Started.", about("waitForResult", "helper-1", id="wait"), "Fine."]
        hooks = Hooks(on_agent_suspended=approve)
        agent = scripted(script, {}, name="boss", persistent_agents=keeps, hooks=hooks)
        await completed(await helix.execute(agent, "Hi", SESSION))
        waiting.append(await _until_it_waits(helix))
        assert await completed(await helix.execute(agent, "Wait", SESSION)) == "Fine."
        assert (await results(helix))["wait"] == "Deployed."

    @pytest.mark.parametrize("alone", [False, True], ids=["together", "the_lowest_first"])
    async def test_companions_that_wait_for_one_another_all_go_on(
        self, open_executor: OpenExecutor, parts: Backend, alone: bool
    ) -> None:
        def waits_for(name: str, keeps: AnyAgent, *more: Any) -> AnyAgent:
            # The tool for waiting exists if a companion is blocking.
            other = PersistentAgent(scripted(["x"], {}, name=f"other_of_{name}"))
            wait = about("waitForResult", f"{keeps.name}-1", id=f"{name}_waits")
            script = [spawn(keeps.name, id=f"{name}_spawns"), wait, *more]
            return scripted(
                script, {}, name=name, persistent_agents=[PersistentAgent(keeps, mode="non_blocking"), other]
            )

        def cast() -> AnyAgent:
            return waits_for("boss", waits_for("clerk", careful(*DEPLOYING), "Filed."), "Fine.")

        async with open_executor() as first:
            assert (await suspended(await first.execute(cast(), "Hi", SESSION))).kind == "suspended_awaiting_children"
            call_id = await _until_it_waits(first)
            await _approve(first, call_id)
        clerk = (await only_companion(parts)).sub_session_id
        if alone:
            # A process that knows none of the others, or that dies right after.
            async with open_executor(agents=[careful(*DEPLOYING)]) as narrow:
                go_on: Callable[[str], Awaitable[int]] = getattr(narrow, "_by_name").drive_answered  # noqa: B009
                assert await go_on(SESSION) == 1
                await until_ended(parts, (await only_companion(parts, clerk)).sub_session_id)
        async with open_executor() as second:
            assert await completed(await second.resume(cast(), SESSION)) == "Fine."
            assert (await results(second))["boss_waits"] == "Filed."

    async def test_a_companion_of_a_companion_is_answered_at_the_root(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        def cast() -> AnyAgent:
            clerk = scripted(
                [spawn(), "Clerk is done."], {}, name="clerk", persistent_agents=[PersistentAgent(careful(*DEPLOYING))]
            )
            return boss(spawn("clerk"), "Started.", "Next.", keeps=clerk, mode="non_blocking")

        async with open_executor() as first:
            await completed(await first.execute(cast(), "Hi", SESSION))
            call_id = await _until_it_waits(first)
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child, "suspended_awaiting_children")
        async with open_executor() as second:
            await _approve(second, call_id)
            await second.resume(cast(), SESSION)
            await until_ended(parts, child)
            await completed(await second.execute(cast(), "And?", SESSION))
            assert await notices(second) == ["Companion 'clerk-1' (clerk) is completed: Clerk is done."]
            assert (await only_companion(parts, child)).result == "Deployed."

    @pytest.mark.parametrize("paused", [False, True])
    async def test_a_terminated_companion_asks_nothing_any_more(
        self, helix: Executor, parts: Backend, paused: bool
    ) -> None:
        agent = _deployer("Started.", about("terminateChild", "helper-1"), "Fine.")
        await completed(await helix.execute(agent, "Hi", SESSION))
        await _until_it_waits(helix)
        child = (await only_companion(parts)).sub_session_id
        if paused:
            await parts.state.compare_and_set_status(child, ["active"], "paused")
        await completed(await helix.execute(agent, "Stop it", SESSION))
        assert (await helix.list_pending()).items == ()
        assert (await only_companion(parts)).status == "terminated"
        assert (await parts.state.load_state(child)).failure_reason == "terminated"

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_stop_of_the_parent_reaches_its_companions(
        self, open_executor: OpenExecutor, parts: Backend, kind: str
    ) -> None:
        gate, thinking = Gate(), Gate()

        agent = boss(
            spawn(),
            call("ponder"),
            "Never.",
            keeps=busy(gate, *WORKING),
            mode="non_blocking",
            tools=[pondering(thinking)],
        )
        async with open_executor(options=NO_GRACE) as helix:
            handle = await helix.execute(agent, "Hi", SESSION)
            await gate.until_reached()
            await thinking.until_reached()
            stop = helix.interrupt if kind == "interrupt" else helix.abort
            assert isinstance(await stop(SESSION, "enough"), InterruptSet)
            await (interrupted(handle) if kind == "interrupt" else failed(handle))
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child, "interrupted" if kind == "interrupt" else "failed")

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

    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_stop_of_a_parent_that_waits_keeps_what_a_companion_at_work_has_said(
        self, open_executor: OpenExecutor, parts: Backend, kind: str
    ) -> None:
        gate = PieceGate(3)
        keeps = helper(model=ScriptedModel(["One two three four five six."], pace=gate))
        where = call("locate", {"city": "Rome"}, id="where")
        agent = boss(spawn(), where, "Never.", keeps=keeps, mode="non_blocking", tools=[locate])
        async with open_executor(options=NO_GRACE) as helix, open_executor() as other:
            await suspended(await helix.execute(agent, "Hi", SESSION))
            await gate.until_reached()
            await (other.interrupt(SESSION, "enough") if kind == "interrupt" else other.abort(SESSION, "enough"))
            child = (await only_companion(parts)).sub_session_id
            assert (await other.sessions.get(child)).status == ("interrupted" if kind == "interrupt" else "failed")
            asked, said = await spoken(other, child)
            assert asked == "user: Do it"
            assert said.startswith("assistant: One") and said.endswith(f"({kind})")

    @pytest.mark.parametrize("mode", ["blocking", "non_blocking"])
    async def test_a_companion_is_spoken_to_before_its_parent_waits_for_other_calls(
        self, helix: Executor, open_executor: OpenExecutor, mode: CompanionMode
    ) -> None:
        @tool(require_approval=True)
        async def pay(amount: int) -> str:
            """Pay."""
            return f"paid {amount}"

        calls = [call("locate", {"city": "Rome"}, id="where"), spawn(id="spawn"), call("pay", {"amount": 5}, id="pay")]
        fields: dict[str, Any] = {"keeps": helper("Helped."), "mode": mode, "tools": [locate, pay]}
        agent = boss(reply(calls=calls), *["Done."] * 2, **fields)
        handle = await helix.execute(agent, "Hi", SESSION)
        told = [each for each in await chunks_of(handle) if isinstance(each, ToolStart | ToolApprovalRequest)]
        assert [each.tool_call_id for each in told] == ["where", "pay"]
        waits = await suspended(handle)
        assert (waits.kind, waits.tool_call_ids) == ("suspended_step_partial", ("where", "pay"))
        assert [each.approval_id for each in waits.pending[1:]] == [
            each.approval_id for each in told if isinstance(each, ToolApprovalRequest)
        ]
        context = (await helix.sessions.get(SESSION)).suspension_context
        assert context is not None
        assert [each.tool_call_id for each in context.calls if each.settled] == ["spawn"]
        async with open_executor() as other:
            await other.submit_tool_result(SESSION, "where", ToolAnswer(result="here"))
            await other.submit_tool_result(SESSION, "pay", APPROVED)
            assert await completed(await other.resume(agent, SESSION)) == "Done."
            said = [line.split(":")[0] for line in await spoken(other)]
            assert said[2:5] == ["result locate#where", "result companion__spawnAgent#spawn", "result pay#pay"]

    @pytest.mark.parametrize("mode", ["blocking", "non_blocking"])
    async def test_a_companion_has_the_hooks_of_its_parent_and_of_the_executor(
        self, open_executor: OpenExecutor, parts: Backend, mode: CompanionMode
    ) -> None:
        told: list[tuple[str, str]] = []

        def hears(whose: str) -> Hooks[Any, Any]:
            async def complete(ctx: RunContext[Any, Any], event: AgentCompleteEvent) -> None:
                told.append((whose, ctx.agent))

            return Hooks(on_agent_complete=complete)

        agent = boss(
            spawn(), "Started.", keeps=helper("Helped.", hooks=hears("own")), mode=mode, hooks=hears("parent's")
        )
        async with open_executor(hooks=hears("executor's")) as helix:
            await completed(await helix.execute(agent, "Hi", SESSION))
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
        heard = [whose for whose, name in told if name == "helper"]
        assert heard == ["parent's", "executor's", "own"]

    async def test_a_tool_that_fails_the_run_fails_it_before_a_companion_is_spoken_to(
        self, helix: Executor, parts: Backend
    ) -> None:
        @tool
        async def spend() -> str:
            """Spend."""
            raise FailRun("over budget")

        agent = boss(reply(calls=[spawn(), call("spend")]), "Never.", keeps=careful(*DEPLOYING), tools=[spend])
        assert "over budget" in (await failed(await helix.execute(agent, "Hi", SESSION))).error
        assert [line.split(":")[0] for line in (await spoken(helix))[2:]] == [
            "error companion__spawnAgent#call_1_1",
            "error spend#call_1_2",
        ]
        assert await parts.state.get_sub_session_refs(SESSION) == ()

    async def test_a_parent_that_fails_in_the_step_in_which_its_companion_waits_leaves_nobody_waiting(
        self, helix: Executor, parts: Backend
    ) -> None:
        async def refuse(ctx: Any, event: AfterToolEvent) -> None:
            if event.tool_call_id == "list":
                raise FailRun("over budget")

        batch = reply(calls=[spawn(), call("companion__listChildren", {}, id="list")])
        hooks = Hooks(after_tool=refuse)
        agent = boss(batch, "Never.", keeps=careful(*DEPLOYING), mode="blocking", hooks=hooks)
        assert "over budget" in (await failed(await helix.execute(agent, "Hi", SESSION))).error
        await spoken(helix)
        assert (await helix.list_pending()).items == ()
        ref = await only_companion(parts)
        assert ref.status == "interrupted"
        await until_ended(parts, ref.sub_session_id, "interrupted")

    async def test_hooks_are_told_of_each_call_of_a_companion_before_and_after(self, helix: Executor) -> None:
        told: list[tuple[str, str, Any]] = []

        async def note(ctx: RunContext[Any, Any], event: BeforeToolEvent | AfterToolEvent) -> None:
            if ctx.agent == "boss":
                told.append((event.hook, event.tool_call_id, event.input))

        hooks = Hooks(before_tool=note, after_tool=note)
        asking = call("companion__getChildStatus", {"name": "nobody"}, id="ask")
        agent = _deployer(asking, "Fine.", mode="blocking", hooks=hooks)
        await suspended(await helix.execute(agent, "Hi", SESSION))
        given = {"agent": "helper", "name": None, "initialMessage": "Do it"}
        assert told == [("before_tool", "call_1_1", given)]
        await _approve(helix, await _waiting_call(helix))
        await completed(await helix.resume(agent, SESSION))
        assert told[1:] == [
            ("after_tool", "call_1_1", given),
            ("before_tool", "ask", {"name": "nobody"}),
            ("after_tool", "ask", {"name": "nobody"}),
        ]

    async def test_a_hook_before_a_call_of_a_companion_may_fail_the_run_and_nobody_is_started(
        self, helix: Executor, parts: Backend
    ) -> None:
        async def refuse(*_: Any) -> None:
            raise FailRun("over budget")

        agent = _deployer("Never.", hooks=Hooks(before_tool=refuse))
        assert "over budget" in (await failed(await helix.execute(agent, "Hi", SESSION))).error
        assert (await spoken(helix))[-1] == "error companion__spawnAgent#call_1_1: tool_failed"
        assert await parts.state.get_sub_session_refs(SESSION) == ()

    async def test_companions_of_the_same_name_are_each_bosses_own(self, helix: Executor, parts: Backend) -> None:
        for words in ("One.", "Two."):
            kept = [PersistentAgent(helper(words), mode="non_blocking")]
            lead = scripted((spawn(), "Fine."), {}, name=f"boss-{words[:3]}", persistent_agents=kept)
            await completed(await helix.execute(lead, "Go", lead.name))
            child = (await only_companion(parts, lead.name)).sub_session_id
            await until_ended(parts, child)
            assert (await spoken(helix, child))[-1].endswith(words)
