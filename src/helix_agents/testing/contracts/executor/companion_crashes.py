"""Scenarios of companions whose processes die: each is started once, finished once, and reported once."""

import asyncio
from typing import Any

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import ToolEnd
from helix_agents.domain.rendering import surviving
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.backend import Backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import (
    WORKING,
    about,
    boss,
    busy,
    companions,
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
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    scripted,
    spoken,
    until,
    within,
)


class CompanionCrashesContract(ScenarioContract):
    """Companions outlive the process of their parent, and their own."""

    async def test_a_companion_starts_only_after_the_step_that_announced_it_is_committed(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> AnyAgent:
            batch = reply(calls=[spawn(), call("ponder")])
            return boss(batch, "Fine.", keeps=helper("Helped."), tools=[pondering(gate)])

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

    async def test_what_readers_were_told_of_a_companion_is_not_told_again_after_a_crash(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> AnyAgent:
            slow = scripted(WORKING, {"tools": busy(gate).tools}, name="slow")
            keeps = [PersistentAgent(helper("Helped.")), PersistentAgent(slow)]
            batch = reply(calls=[spawn(id="quick"), spawn("slow", id="slow")])
            return scripted([batch, "Fine."], {}, name="boss", persistent_agents=keeps)

        async def told() -> list[str]:
            chunks = surviving(await parts.streams.get_all_chunks(SESSION))
            return [each.tool_call_id for each in chunks if isinstance(each, ToolEnd) and each.session_id == SESSION]

        async def is_told() -> bool:
            return await told() == ["quick"]

        async with open_executor(grace=0) as dying:
            await dying.execute(cast(), "Hi", SESSION)
            await gate.until_reached()
            await until(is_told)
        gate.opened.set()
        async with open_executor(agents=[cast()]) as other:
            await other.recover()
            handle = await other.get_handle(cast(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Fine."
            assert await told() == ["quick", "slow"]
            assert await results(other) == {"quick": "Helped.", "slow": "Worked."}

    async def test_a_companion_ends_while_its_parents_process_is_dead_and_the_next_turn_sees_it_once(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> AnyAgent:
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
        assert [run.attempt for run in (await parts.state.list_runs(child)).items] == [2]

    async def test_a_companion_that_died_and_is_told_more_knows_what_it_did(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> AnyAgent:
            @tool(effect="once")
            async def pay() -> str:
                """Pay."""
                return "paid"

            batch = reply("I pay. ", calls=[call("pay", id="pay"), call("work", id="work")])
            keeps = helper(batch, "Fine then.", tools=[pay, *busy(gate).tools])
            return boss(spawn(), "Started.", send("helper-1", "And now?"), "Fine.", keeps=keeps, mode="non_blocking")

        async def has_paid() -> bool:
            return [each.state for each in await parts.state.list_effects(child)] == ["done"]

        async with open_executor(grace=0) as dying:
            await completed(await dying.execute(cast(), "Hi", SESSION))
            await gate.until_reached()
            child = (await only_companion(parts)).sub_session_id
            await until(has_paid)
        async with open_executor() as other:
            await completed(await other.execute(cast(), "Go on", SESSION))
            await until_ended(parts, child)
            _, replied, paid, *_, told, _ = await spoken(other, child)
            assert replied.startswith("assistant: I pay. [pay#pay_")
            assert paid.startswith("result pay#pay_")
            assert told == "user: And now?"
            assert await parts.state.list_effects(child) == ()

    async def test_a_notice_survives_a_crash_of_the_step_that_took_it_and_is_not_doubled(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast() -> AnyAgent:
            script = [spawn(), "Started.", call("ponder"), "Second.", "Third."]
            return boss(*script, keeps=helper("Helped."), mode="non_blocking", tools=[pondering(gate)])

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

    @pytest.mark.parametrize("bound", ["max_running", "max_parallel_tools"])
    async def test_companions_do_not_starve_a_parent_that_waits_for_them(
        self, open_executor: OpenExecutor, bound: str
    ) -> None:
        @tool
        async def work() -> str:
            """Work."""
            await asyncio.sleep(0.2)
            return "worked"

        other = PersistentAgent(scripted(["x"], {}, name="other"))
        steps = [call("work") for _ in range(5)]
        keeps = [PersistentAgent(helper(*steps, "Worked.", tools=[work]), mode="non_blocking"), other]
        script = [spawn(), about("waitForResult", "helper-1", id="wait"), "Fine."]
        agent = scripted(script, {}, name="boss", persistent_agents=keeps)
        async with open_executor(**{bound: 1}) as helix:
            assert await completed(await within(helix.execute(agent, "Hi", SESSION))) == "Fine."
            assert (await results(helix))["wait"] == "Worked."

    async def test_a_companion_that_died_does_not_starve_behind_the_parent_that_waits_for_it(
        self, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        begun, gate = Gate(), Gate()
        other = PersistentAgent(scripted(["x"], {}, name="other"))

        def cast() -> AnyAgent:
            keeps = [PersistentAgent(busy(gate, *WORKING), mode="non_blocking"), other]
            script = [call("ponder"), spawn(), about("waitForResult", "helper-1", id="wait"), "Fine."]
            return scripted(script, {}, name="boss", persistent_agents=keeps, tools=[pondering(begun)])

        async with open_executor(grace=0) as dying:
            await dying.execute(cast(), "Hi", SESSION)
            await begun.until_reached()
            # The oldest run is recovered first, and gets the only place.
            clock.advance(1)
            begun.opened.set()
            await gate.until_reached()
        gate.opened.set()
        async with open_executor(agents=[cast()], max_running=1) as helix:
            assert len((await helix.recover()).run_ids) == 2
            handle = await helix.get_handle(cast(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Fine."
            assert (await results(helix))["wait"] == "Worked."

    async def test_a_companion_that_worked_for_a_turn_which_is_taken_back_works_for_nobody(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def cast(*script: Any) -> AnyAgent:
            return boss(*script, keeps=busy(gate, *WORKING))

        async with open_executor(grace=0) as dying:
            await completed(await dying.execute(cast("Hello."), "Hi", SESSION))
            before = (await dying.sessions.checkpoints(SESSION)).items[0].checkpoint_id
            await dying.execute(cast("Hello.", spawn()), "Go", SESSION)
            await gate.until_reached()
        async with open_executor() as other:
            script = ("Hello.", about("waitForResult", "helper-1", id="wait"), "Fine.")
            rewound = await other.resume(cast(*script), SESSION, mode="from_checkpoint", checkpoint_id=before)
            assert await completed(rewound) == "Fine."
            assert await results(other) == {"wait": "The sub-agent was interrupted."}
            assert (await only_companion(parts)).status == "interrupted"
