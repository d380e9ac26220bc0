"""Scenarios of companions: starting them, talking to them, asking about them, and ending them."""

import asyncio
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.companions import PersistentAgent
from helix_agents.domain.errors import ModelRefusedError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.usage import UsageFilter
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import (
    DEPLOYING,
    WORKING,
    about,
    boss,
    busy,
    careful,
    companions,
    heard,
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
    ScenarioContract,
    completed,
    scripted,
    spoken,
    transcript,
    until,
)


class CompanionsContract(ScenarioContract):
    """A companion has its own name and conversation, and its parent talks to it with tools."""

    async def test_a_blocking_companion_answers_the_call_that_started_it(self, helix: Executor, parts: Backend) -> None:
        agent = boss(spawn(), "Fine.", keeps=helper("Helped."))
        assert await completed(await helix.execute(agent, "Hi", SESSION, user_id="ann")) == "Fine."
        assert await spoken(helix) == [
            "user: Hi",
            "assistant: [companion__spawnAgent#call_1_1]",
            "result companion__spawnAgent#call_1_1: Helped.",
            "assistant: Fine.",
        ]
        ref = await only_companion(parts)
        assert (ref.name, ref.status, ref.result) == ("helper-1", "completed", "Helped.")
        child = await helix.sessions.get(ref.sub_session_id)
        assert (child.mode, child.parent_session_id, child.root_session_id) == ("persistent", SESSION, SESSION)
        assert child.user_id == "ann"
        assert await spoken(helix, ref.sub_session_id) == ["user: Do it", "assistant: Helped."]

    async def test_a_non_blocking_companion_outlives_the_turn_and_its_end_is_told_once(
        self, helix: Executor, parts: Backend
    ) -> None:
        gate = Gate()
        agent = boss(spawn(), "Started.", "Second.", "Third.", keeps=busy(gate, *WORKING), mode="non_blocking")
        assert await completed(await helix.execute(agent, "Hi", SESSION)) == "Started."
        assert await results(helix) == {"call_1_1": {"name": "helper-1", "status": "running"}}
        await gate.until_reached()
        assert await notices(helix) == []
        gate.opened.set()
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        for number, text in enumerate(("Second.", "Third.")):
            assert await completed(await helix.execute(agent, f"Turn {number}", SESSION)) == text
            assert await notices(helix) == ["Companion 'helper-1' (helper) is completed: Worked."]
        assert (await spoken(helix))[4:] == [
            "user: Turn 0",
            "hidden: companion_notice",
            "assistant: Second.",
            "user: Turn 1",
            "assistant: Third.",
        ]
        assert (await only_companion(parts)).status == "completed"

    async def test_the_end_of_a_companion_is_told_again_to_who_went_back_to_before_it_was_told(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        gate = Gate()
        agent = boss(
            spawn(), "Started.", "Second.", "Third.", "Fourth.", keeps=busy(gate, *WORKING), mode="non_blocking"
        )
        assert await completed(await helix.execute(agent, "Hi", SESSION)) == "Started."
        gate.opened.set()
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        before = (await helix.sessions.get(SESSION)).checkpoint_id
        clock.advance(1)
        await completed(await helix.execute(agent, "And?", SESSION))
        assert await notices(helix) == ["Companion 'helper-1' (helper) is completed: Worked."]
        await helix.rewind(SESSION, str(before))
        assert await notices(helix) == []
        for text in ("Second.", "Third."):
            assert await completed(await helix.execute(agent, "And now?", SESSION)) == text
            assert await notices(helix) == ["Companion 'helper-1' (helper) is completed: Worked."]
        told = (await helix.sessions.get(SESSION)).checkpoint_id
        handle = await helix.resume(agent, SESSION, mode="from_checkpoint", checkpoint_id=told, message="Once more")
        assert await completed(handle) == "Fourth."
        assert len(await notices(helix)) == 1

    async def test_names_are_given_or_counted_and_never_taken_twice(self, helix: Executor, parts: Backend) -> None:
        batch = reply(calls=[spawn(), spawn(name="eve"), spawn(), spawn(name="eve", id="twin")])
        gate = Gate()
        agent = boss(batch, spawn(), "Fine.", keeps=busy(gate, *WORKING), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        names = sorted(str(ref.name) for ref in await companions(parts))
        assert names == ["eve", "helper-1", "helper-2", "helper-3"]
        errors = [line for line in await spoken(helix) if line.startswith("error")]
        assert errors == ["error companion__spawnAgent#twin: companion_refused"]
        gate.opened.set()

    async def test_names_are_taken_in_the_order_of_the_calls_however_long_a_look_takes(
        self, helix: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[str] = []
        store = vars(helix)["_services"].store
        get_run = store.get_run

        async def get_slowly(run_id: str) -> RunRecord | None:
            looked.append(run_id)
            # The first call takes longest, so that calls that did not wait for each other would overtake it.
            await asyncio.sleep(0.2 / len(looked))
            return await get_run(run_id)

        monkeypatch.setattr(store, "get_run", get_slowly)
        batch = reply(calls=[spawn(name="eve"), spawn(name="eve", id="twin")])
        gate = Gate()
        agent = boss(batch, "Fine.", keeps=busy(gate, *WORKING), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        errors = [line for line in await spoken(helix) if line.startswith("error")]
        assert errors == ["error companion__spawnAgent#twin: companion_refused"]
        gate.opened.set()

    @pytest.mark.parametrize("how", ["spawnAgent", "sendMessage"])
    async def test_a_finished_companion_goes_on_where_it_was_with_a_fresh_budget(
        self, helix: Executor, parts: Backend, open_executor: OpenExecutor, how: str
    ) -> None:
        again = spawn(message="More", name="eve") if how == "spawnAgent" else send("eve", "More")

        def cast() -> AnyAgent:
            return boss(spawn(name="eve"), "One.", again, "Two.", keeps=helper("First.", heard, max_steps=1))

        await completed(await helix.execute(cast(), "Hi", SESSION))
        async with open_executor() as other:
            await completed(await other.execute(cast(), "Again", SESSION))
            assert (await results(other))["call_3_1"] == "heard More"
        ref = await only_companion(parts)
        assert await spoken(helix, ref.sub_session_id) == [
            "user: Do it",
            "assistant: First.",
            "user: More",
            "assistant: heard More",
        ]
        runs = (await helix.sessions.runs(ref.sub_session_id)).items
        assert [(run.turn, run.status) for run in runs] == [(2, "completed"), (1, "completed")]

    async def test_a_companion_that_failed_starts_anew(self, helix: Executor, parts: Backend) -> None:
        def refuses_first(request: ModelRequest) -> Any:
            said = heard(request)
            return said if "Once more" in said else ModelRefusedError("scripted", "no credit")

        broken = helper(refuses_first)
        agent = boss(spawn(name="eve"), spawn(message="Once more", name="eve"), "Fine.", keeps=broken)
        await completed(await helix.execute(agent, "Hi", SESSION))
        found = await results(helix)
        assert "provider_refused" in found["call_1_1"]
        assert found["call_2_1"] == "heard Once more"
        first, second = await companions(parts)
        assert (first.status, second.status) == ("failed", "completed")
        assert first.sub_session_id != second.sub_session_id
        assert [ref.name for ref in (first, second)] == ["eve", "eve"]

    async def test_a_terminated_companion_stops_for_good_and_starts_anew(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        agent = boss(
            spawn(name="eve"),
            about("terminateChild", "eve"),
            call("companion__listChildren"),
            send("eve", "Anew"),
            call("companion__listChildren"),
            "Fine.",
            keeps=busy(gate, *WORKING),
            mode="non_blocking",
        )
        async with open_executor(options=NO_GRACE) as helix:
            await completed(await helix.execute(agent, "Hi", SESSION))
            found = await results(helix)
            assert found["call_2_1"] == {"name": "eve", "status": "terminated"}
            assert [each["status"] for each in found["call_3_1"]] == ["terminated"]
            assert found["call_4_1"] == {"name": "eve", "status": "running"}
            assert [each["status"] for each in found["call_5_1"]] == ["running"]
            first, second = await companions(parts)
            assert (first.status, second.status) == ("terminated", "running")
            gate.opened.set()
            await until_ended(parts, second.sub_session_id)
            assert (await spoken(helix, second.sub_session_id))[0] == "user: Anew"
            assert await notices(helix) == []

    async def test_a_companion_at_work_is_not_started_again(self, helix: Executor) -> None:
        gate, again = Gate(), spawn(name="eve", id="again")
        agent = boss(spawn(name="eve"), again, "Fine.", keeps=busy(gate, *WORKING), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        assert "still working" in (await results(helix))["again"]
        gate.opened.set()

    async def test_a_message_interrupts_a_companion_at_work_which_goes_on_with_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        script = [spawn(name="eve"), "Started.", send("eve", "Stop that"), "Sent."]
        agent = boss(*script, keeps=busy(gate, WORKING[0], heard), mode="non_blocking")
        async with open_executor(options=NO_GRACE) as helix:
            await completed(await helix.execute(agent, "Hi", SESSION))
            await gate.until_reached()
            await completed(await helix.execute(agent, "Stop it", SESSION))
            ref = await only_companion(parts)
            await until_ended(parts, ref.sub_session_id)
            said = await spoken(helix, ref.sub_session_id)
            work = said[1].removeprefix("assistant: [").removesuffix("]")
            assert said == [
                "user: Do it",
                f"assistant: [{work}]",
                f"error {work}: run_stopped",
                "user: Stop that",
                "assistant: heard Stop that",
            ]
            # Whether its parent hears about the new work depends on which is faster; what was cut off is not reported.
            assert all("heard Stop that" in each for each in await notices(helix))

    async def test_a_message_to_a_companion_that_has_just_finished_brings_what_it_found(
        self, helix: Executor, parts: Backend
    ) -> None:
        working, thinking = Gate(), Gate()
        script = [spawn(name="eve"), reply(calls=[call("ponder"), send("eve", "More", id="send")]), "Sent.", "Next."]
        keeps = busy(working, *WORKING)
        agent = boss(*script, keeps=keeps, mode="non_blocking", tools=[pondering(thinking)])
        handle = await helix.execute(agent, "Hi", SESSION)
        await thinking.until_reached()
        working.opened.set()
        child = (await only_companion(parts)).sub_session_id
        await until_ended(parts, child)
        thinking.opened.set()
        await completed(handle)
        sent = {"name": "eve", "status": "running", "previous_output": "Worked."}
        assert (await results(helix))["send"] == sent
        await until_ended(parts, child)
        await completed(await helix.execute(agent, "And?", SESSION))
        assert await notices(helix) == ["Companion 'eve' (helper) is completed: Again."]

    async def test_a_message_to_a_companion_that_waits_takes_the_place_of_its_question(
        self, helix: Executor, parts: Backend
    ) -> None:
        script = [spawn(name="eve"), "Started.", send("eve", "Never mind"), "Sent."]
        agent = boss(*script, keeps=careful(DEPLOYING[0], heard), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        child = (await only_companion(parts)).sub_session_id
        await until_ended(parts, child, "suspended_client_tool")
        await completed(await helix.execute(agent, "Go on", SESSION))
        await until_ended(parts, child)
        assert (await spoken(helix, child))[-2:] == ["user: Never mind", "assistant: heard Never mind"]
        assert (await helix.list_pending()).items == ()

    async def test_children_are_listed_and_asked_after(self, helix: Executor) -> None:
        agent = boss(
            spawn(name="eve"),
            reply(calls=[call("companion__listChildren", id="list"), about("getChildStatus", "eve", id="status")]),
            about("waitForResult", "eve", id="wait"),
            "Fine.",
            keeps=helper("Helped."),
        )
        await completed(await helix.execute(agent, "Hi", SESSION))
        found = await results(helix)
        standing = {"name": "eve", "agent": "helper", "status": "completed", "output": "Helped."}
        assert (found["list"], found["status"], found["wait"]) == ([standing], standing, "Helped.")

    async def test_whoever_waits_for_a_companion_has_its_result_and_gets_no_notice(
        self, helix: Executor, parts: Backend
    ) -> None:
        gate = Gate()
        model = ScriptedModel([spawn(name="eve"), about("waitForResult", "eve", id="wait"), "Fine.", "Next."])

        async def begins_to_wait() -> bool:
            return model.asked > 1

        agent = Agent(
            name="boss",
            model=model,
            persistent_agents=[
                PersistentAgent(busy(gate, *WORKING), mode="non_blocking"),
                PersistentAgent(scripted(["x"], {}, name="other")),
            ],
        )
        handle = await helix.execute(agent, "Hi", SESSION)
        await gate.until_reached()
        # If a companion finished before its parent asked its model, the model is told.
        await until(begins_to_wait)
        gate.opened.set()
        assert await completed(handle) == "Fine."
        assert (await results(helix))["wait"] == "Worked."
        await completed(await helix.execute(agent, "Go on", SESSION))
        assert await notices(helix) == []
        assert (await only_companion(parts)).status == "completed"

    def test_waiting_is_offered_only_where_a_companion_is_blocking(self) -> None:
        offered = {each.name for each in boss("x", keeps=helper("y")).tool_specs}
        assert offered == {
            f"companion__{name}"
            for name in (
                "spawnAgent",
                "sendMessage",
                "listChildren",
                "getChildStatus",
                "terminateChild",
                "waitForResult",
            )
        }
        without = {each.name for each in boss("x", keeps=helper("y"), mode="non_blocking").tool_specs}
        assert offered - without == {"companion__waitForResult"}

    async def test_what_cannot_be_done_is_a_result_that_teaches(self, helix: Executor) -> None:
        other = scripted(["Other."], {}, name="other")
        calls = [
            spawn("nobody", id="kind"),
            send("adam", "Hi", id="send"),
            about("getChildStatus", "adam", id="status"),
            about("terminateChild", "adam", id="terminate"),
            spawn("other", name="eve", id="taken"),
        ]
        agent = scripted(
            [spawn(name="eve"), reply(calls=calls), "Fine."],
            {},
            name="boss",
            persistent_agents=[PersistentAgent(helper("Helped.")), PersistentAgent(other)],
        )
        await completed(await helix.execute(agent, "Hi", SESSION))
        found = await results(helix)
        assert "Kinds: helper, other" in found["kind"]
        for each in ("send", "status", "terminate"):
            assert "Yours: eve" in found[each]
        assert "is of kind 'helper'" in found["taken"]

    async def test_too_many_companions_are_a_result_that_names_the_limit(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor(options=EngineOptions(max_children_per_root=2)) as helix:
            batch = reply(calls=[spawn(), spawn(), spawn(id="third")])
            await completed(await helix.execute(boss(batch, "Fine.", keeps=helper("Helped.")), "Hi", SESSION))
            assert "error companion__spawnAgent#third: sub_agent_limit" in await spoken(helix)
            assert len(await companions(parts)) == 2

    async def test_usage_of_companions_counts_for_the_root(self, helix: Executor, parts: Backend) -> None:
        agent = boss(spawn(), send("helper-1", "More"), "Fine.", keeps=helper("One.", "Two."))
        await completed(await helix.execute(agent, "Hi", SESSION))
        entries = (await parts.usage.query_usage(UsageFilter(root_session_id=SESSION), limit=200)).items
        spent = [str(entry.agent_type) for entry in entries if entry.source_type == "tokens"]
        assert sorted(spent) == ["boss"] * 3 + ["helper"] * 2

    async def test_a_deleted_session_takes_its_companions_along(self, helix: Executor, parts: Backend) -> None:
        gate = Gate(2)
        batch = reply(calls=[spawn(), spawn()])
        agent = boss(batch, "Fine.", keeps=busy(gate, *WORKING), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        await gate.until_reached()
        refs = await companions(parts)
        await helix.sessions.delete(SESSION)
        for ref in refs:
            assert not await parts.state.session_exists(ref.sub_session_id)
            assert await parts.streams.get_stream_info(ref.sub_session_id) is None
        gate.opened.set()

    async def test_a_notice_is_a_hidden_message(self, helix: Executor, parts: Backend) -> None:
        agent = boss(spawn(), "Started.", heard, keeps=helper("Helped."), mode="non_blocking")
        await completed(await helix.execute(agent, "Hi", SESSION))
        await until_ended(parts, (await only_companion(parts)).sub_session_id)
        # The turn may still have been running when the companion ended; the next one tells it at the latest.
        await completed(await helix.execute(agent, "Go on", SESSION))
        told = [each for each in await transcript(helix) if isinstance(each, UserMessage) and each.hidden]
        assert [each.content for each in told] == ["Companion 'helper-1' (helper) is completed: Helped."]
