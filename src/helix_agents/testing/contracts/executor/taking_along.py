"""Scenarios of what goes along in a handoff: the state, and all that an agent has of its own beside it."""

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.handoffs import Handoff
from helix_agents.agent.hook_events import (
    AgentCompleteEvent,
    AgentFailEvent,
    AgentStartEvent,
    HandoffEvent,
    MessageEvent,
)
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.skills import Skill
from helix_agents.agent.tools import tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import StatePatch
from helix_agents.domain.errors import DefinitionError, InvalidStateError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.usage import TokenCount
from helix_agents.domain.writes import Append, Replace, StepWrites
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.memory.hashing import HashingEmbedder
from helix_agents.memory.memory import Memory
from helix_agents.memory.memory_manager import MemoryManager
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelSettings
from helix_agents.ports.state_store import StoreLimits
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.family import delegate
from helix_agents.testing.contracts.executor.handing_over import (
    Case,
    Invoice,
    desk_and_billing,
    hand_to,
    held_by,
    model_of,
    note,
)
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    scripted,
    spoken,
)

HUNDRED = TokenCount(prompt=60, completion=40, total=100)


class TakingAlongContract(ScenarioContract):
    """The state goes along, in whichever form the next agent wants it; instructions, tools, hooks, skills, memory and
    budgets are those of the agent at work."""

    async def test_state_of_another_type_is_made_from_this_one_and_the_input(self, helix: Executor) -> None:
        class Given(BaseModel):
            number: str

        def opened(case: Case, given: Any) -> Invoice:
            assert isinstance(case, Case)
            return Invoice(number=given["number"], lines=list(case.notes))

        def closed(invoice: Invoice, _: Any) -> dict[str, Any]:
            return {"notes": [f"paid {invoice.number}"]}

        @tool
        async def add(ctx: ToolContext[Invoice], line: str) -> str:
            """Add a line."""
            ctx.state.lines.append(line)
            return ctx.state.number

        script = [
            reply(calls=[call("note", {"text": "late"}), hand_to("billing", number="7")]),
            call("add", {"line": "fee"}),
            "One moment.",
            hand_to("desk"),
            "Settled.",
        ]
        back = Handoff("desk", description="When it is paid.", state=closed)
        model = ScriptedModel(script)
        billing = Agent(name="billing", model=model, state=Invoice, version=3, tools=[add], handoffs=[back])
        to = Handoff(billing, description="Money.", input=Given, state=opened)
        desk = Agent(name="desk", model=model, state=Case, version=2, tools=[note], handoffs=[to])
        handle = await helix.execute(desk, "My invoice!", SESSION)
        assert await completed(handle) == "One moment."
        session = await helix.sessions.get(SESSION)
        assert session.custom_state == {"number": "7", "lines": ["desk: late", "fee"]}
        assert session.agent_version == 3
        patched = [chunk for chunk in await chunks_of(handle) if isinstance(chunk, StatePatch) and chunk.step == 1]
        assert {"op": "remove", "path": "/notes"} in patched[-1].patch
        assert await completed(await helix.execute(desk, "Thanks", SESSION)) == "Settled."
        session = await helix.sessions.get(SESSION)
        assert (session.custom_state, session.agent_version) == ({"notes": ["paid 7"]}, 2)
        given = await helix.execute(desk, "More", "s-2", state={"notes": ["known"]})
        await completed(given)
        assert (await helix.sessions.get("s-2")).custom_state["lines"][0] == "known"

    async def test_an_agent_without_state_leaves_it_as_it_is(self, helix: Executor) -> None:
        plain: dict[str, Any] = {"state": None, "tools": []}
        script = [reply(calls=[call("note", {"text": "one"}), hand_to("billing")]), "Yes.", hand_to("desk")]
        desk, billing = desk_and_billing(*script, call("note", {"text": "two"}), "There.", billing=plain)
        await completed(await helix.execute(desk, "Go", SESSION))
        assert (await helix.sessions.get(SESSION)).custom_state == {"notes": ["desk: one"]}
        await completed(await helix.execute(billing, "Back", SESSION))
        assert (await helix.sessions.get(SESSION)).custom_state == {"notes": ["desk: one", "desk: two"]}

    async def test_state_that_an_agent_without_state_left_alone_is_migrated_where_it_is_wanted_again(
        self, open_executor: OpenExecutor
    ) -> None:
        def migrate(state: dict[str, Any], version: int) -> dict[str, Any]:
            return {"lines": [f"{version}: {each}" for each in state["notes"]]}

        script = [reply(calls=[call("note", {"text": "one"}), hand_to("billing")]), "Yes.", hand_to("desk"), "There."]
        plain: dict[str, Any] = {"state": None, "tools": []}
        async with open_executor() as first:
            desk, _ = desk_and_billing(*script, billing=plain)
            await completed(await first.execute(desk, "Go", SESSION))
        async with open_executor() as second:
            newer: dict[str, Any] = {"state": Invoice, "version": 2, "migrate_state": migrate, "tools": []}
            desk, _ = desk_and_billing(*script, desk=newer, billing=plain)
            assert await completed(await second.execute(desk, "Back", SESSION)) == "There."
            session = await second.sessions.get(SESSION)
            assert session.custom_state == {"number": "", "lines": ["1: desk: one"]}
            assert (session.held_by, session.agent_version) == (None, 2)

    async def test_what_was_written_from_outside_is_handed_over_as_well(self, helix: Executor) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        async def outside(text: str) -> None:
            await helix.sessions.update_state(SESSION, StepWrites(ops=(Append(key="notes", items=[text]),)))

        def fails(ctx: RunContext[Any], event: HandoffEvent) -> None:
            raise FailRun("not today")

        async def at_the_last_moment(ctx: RunContext[Any], event: AgentFailEvent) -> None:
            await outside("at the end")

        billing = Agent(name="billing", description="Money.", model=ScriptedModel([]), state=Invoice)
        to = Handoff(billing, state=lambda case, given: Invoice(lines=list(case.notes)))
        calls = [call("work"), call("note", {"text": "inside"})]
        desk = Agent(
            name="desk",
            model=ScriptedModel([reply(calls=calls), hand_to("billing")]),
            state=Case,
            tools=[work, note],
            handoffs=[to],
            hooks=Hooks[Any, Any](on_handoff=fails, on_agent_fail=at_the_last_moment),
        )
        handle = await helix.execute(desk, "Go", SESSION)
        await gate.until_reached()
        await outside("meanwhile")
        gate.opened.set()
        assert (await failed(handle)).code == "hook_failed_run"
        session = await helix.sessions.get(SESSION)
        assert (session.held_by, session.custom_state["number"]) == ("billing", "")
        assert sorted(session.custom_state["lines"]) == ["at the end", "desk: inside", "meanwhile"]
        assert "notes" not in session.custom_state

    async def test_state_that_cannot_be_carried_over_fails_the_run_and_a_retry_hands_over_after_a_fix(
        self, open_executor: OpenExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        def agents(*, fixed: bool) -> tuple[AnyAgent, AnyAgent]:
            def opened(case: Case, _: Any) -> Any:
                return Invoice(lines=list(case.notes)) if fixed else {"lines": 1 / 0}

            billing = Agent(name="billing", description="Money.", model=model, state=Invoice)
            to = Handoff(billing, state=opened)
            return Agent(name="desk", model=model, state=Case, tools=[note], handoffs=[to]), billing

        model = ScriptedModel(
            [reply(calls=[call("note", {"text": "x"}), hand_to("billing")]), hand_to("billing"), "Yes?"]
        )
        desk, _ = agents(fixed=False)
        with caplog.at_level(logging.ERROR):
            async with open_executor() as helix:
                result = await failed(await helix.execute(desk, "Go", SESSION))
                assert (result.code, result.retryable) == ("handoff_failed", False)
                assert "'desk' could not hand over to 'billing': ZeroDivisionError" in result.error
                assert await held_by(helix) == "desk"
                assert (await spoken(helix))[-1] == "error handoff__billing#call_1_2: handoff_failed"
                assert (await helix.sessions.get(SESSION)).custom_state == {"notes": ["desk: x"]}
        assert "handoff.failed" in caplog.text
        desk, _ = agents(fixed=True)
        async with open_executor() as other:
            assert await completed(await other.retry(desk, SESSION)) == "Yes?"
            assert (await other.sessions.get(SESSION)).custom_state == {"number": "", "lines": ["desk: x"]}

    async def test_state_that_is_too_large_for_its_store_is_not_carried_over(self, open_executor: OpenExecutor) -> None:
        billing = Agent(name="billing", description="Money.", model=ScriptedModel([]), state=Invoice)
        to = Handoff(billing, state=lambda state, given: Invoice(number="9" * 3_000))
        desk = Agent(name="desk", model=ScriptedModel([hand_to("billing")]), state=Case, handoffs=[to])
        async with open_executor(limits=StoreLimits(state_bytes=2_000)) as helix:
            result = await failed(await helix.execute(desk, "Go", SESSION))
            assert (result.code, await held_by(helix)) == ("handoff_failed", "desk")
            assert "StateSizeExceededError" in result.error
            assert (await helix.sessions.get(SESSION)).custom_state == {"notes": []}

    async def test_what_others_write_to_the_state_is_checked_by_the_agent_that_has_it(self, helix: Executor) -> None:
        billing = Agent(name="billing", description="Money.", model=ScriptedModel(["", "Yes?"]), state=Invoice)
        to = Handoff(billing, state=lambda state, given: Invoice(number="7"))
        desk = Agent(name="desk", model=ScriptedModel([hand_to("billing")]), state=Case, handoffs=[to])
        await completed(await helix.execute(desk, "Go", SESSION))
        await helix.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="number", value="8"),)))
        with pytest.raises(InvalidStateError):
            await helix.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="notes", value=[]),)))
        assert (await helix.sessions.get(SESSION)).custom_state["number"] == "8"

    async def test_a_budget_counts_what_the_whole_turn_used_and_holds_while_its_agent_works(
        self, helix: Executor
    ) -> None:
        script = [reply(calls=[hand_to("billing")], usage=HUNDRED), reply(calls=[hand_to("desk")], usage=HUNDRED)]
        spent = [*script, reply("Done.", usage=HUNDRED)]
        desk, _ = desk_and_billing(*spent, desk={"budget": Budget(tokens=100)})
        result = await failed(await helix.execute(desk, "Go", SESSION))
        assert (result.code, model_of(desk).asked, await held_by(helix)) == ("budget_exhausted", 2, "desk")
        assert "200 of 100 tokens used" in result.error
        desk, _ = desk_and_billing(*spent, billing={"budget": Budget(tokens=100)})
        result = await failed(await helix.execute(desk, "Go", "s-2"))
        assert (result.code, model_of(desk).asked, await held_by(helix, "s-2")) == ("budget_exhausted", 1, "billing")
        desk, _ = desk_and_billing(*spent)
        result = await failed(await helix.execute(desk, "Go", "s-3", budget=Budget(tokens=200)))
        assert (result.code, model_of(desk).asked) == ("budget_exhausted", 2)

    async def test_a_budget_counts_what_sub_agents_used_before_its_agent_took_over(self, helix: Executor) -> None:
        clerk = scripted([reply("Found it.", usage=HUNDRED)], {}, name="clerk", description="Looks things up.")
        calls = reply(calls=[delegate("clerk"), hand_to("billing")])
        limited: dict[str, Any] = {"budget": Budget(tokens=100)}
        desk, _ = desk_and_billing(calls, "Done.", desk={"tools": [clerk.as_tool()]}, billing=limited)
        result = await failed(await helix.execute(desk, "Go", SESSION))
        assert (result.code, model_of(desk).asked) == ("budget_exhausted", 1)

    async def test_a_budget_in_dollars_of_a_call_needs_a_price_for_each_agent_that_may_take_over(
        self, helix: Executor
    ) -> None:
        def price(model: str, tokens: TokenCount) -> float:
            return 0.01

        desk, _ = desk_and_billing("Hi.", desk={"prices": price}, billing={"model": "test:free"})
        for budget in (Budget(cost_usd=1.0), Budget(cost_usd=1.0, scope="run")):
            with pytest.raises(DefinitionError, match="of 'billing' is unknown"):
                await helix.execute(desk, "Go", SESSION, budget=budget)
        assert await helix.sessions.find(SESSION) is None

    async def test_a_new_agent_has_its_own_chances_to_get_a_call_right(self, helix: Executor) -> None:
        wrong = call("note", {"texts": 1})
        settings = ModelSettings(tool_choice="required")
        desk, _ = desk_and_billing(
            wrong, wrong, hand_to("billing"), wrong, wrong, call("note", {"text": "x"}), "There.",
            billing={"settings": settings},
        )  # fmt: skip
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "There."
        asked = [each.request.settings.tool_choice for each in model_of(desk).requests]
        assert asked == [None, None, None, "required", "required", "required", None]

    async def test_hooks_are_those_of_the_agent_at_work_and_hear_of_the_handoff(
        self, open_executor: OpenExecutor
    ) -> None:
        heard: list[str] = []

        def hooks(whose: str) -> Hooks[Any, Any]:
            def handed(ctx: RunContext[Any], event: HandoffEvent) -> None:
                heard.append(f"{whose}: {ctx.agent} to {event.to} {dict(event.input)}")
                ctx.state.notes.append(whose)

            def started(ctx: RunContext[Any], event: AgentStartEvent) -> None:
                heard.append(f"{whose}: {ctx.agent} starts")

            def ended(ctx: RunContext[Any], event: AgentCompleteEvent) -> None:
                heard.append(f"{whose}: {ctx.agent} says {event.output}")

            return Hooks(on_handoff=handed, on_agent_start=started, on_agent_complete=ended)

        desk, _ = desk_and_billing(
            hand_to("billing", reason="money"),
            "Yes?",
            desk={"hooks": hooks("desk")},
            billing={"hooks": hooks("billing")},
        )
        async with open_executor(hooks=hooks("all")) as helix:
            await completed(await helix.execute(desk, "Go", SESSION))
            assert heard == [
                "all: desk starts",
                "desk: desk starts",
                "all: desk to billing {'reason': 'money'}",
                "desk: desk to billing {'reason': 'money'}",
                "all: billing says Yes?",
                "billing: billing says Yes?",
            ]
            assert (await helix.sessions.get(SESSION)).custom_state == {"notes": ["all", "desk"]}

    async def test_hooks_hear_of_a_handoff_that_was_not_made_as_of_any_call(self, helix: Executor) -> None:
        refused: list[str] = []
        results: list[str] = []
        hooks = Hooks[Any, Any](
            on_tool_refused=lambda ctx, event: refused.append(f"{event.tool_name} {event.code}"),
            on_message=lambda ctx, event: results.append(MessageEvent.__name__),
        )
        desk, _ = desk_and_billing(reply(calls=[hand_to("billing"), hand_to("billing")]), "Yes?", desk={"hooks": hooks})
        await completed(await helix.execute(desk, "Go", SESSION))
        assert (refused, len(results)) == (["handoff__billing not_handed_over"], 3)

    async def test_the_next_agent_is_told_of_its_own_skills(self, helix: Executor) -> None:
        def skill(name: str) -> Skill:
            return Skill(name=name, description=f"About {name}.", body=name)

        desk, _ = desk_and_billing(
            hand_to("billing"), hand_to("desk"), "There.",
            desk={"skills": [skill("greeting")]}, billing={"skills": [skill("adding")]},
        )  # fmt: skip
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "There."
        told = [each.instructions for each in model_of(desk).requests]
        assert [("greeting" in each, "adding" in each) for each in told] == [
            (True, False),
            (False, True),
            (True, False),
        ]

    async def test_the_next_agent_is_shown_a_summary_in_place_of_what_it_replaces(self, helix: Executor) -> None:
        short = Compaction(above_tokens=600, keep_tokens=20, model=ScriptedModel(lambda _: "They talked."))
        desk, _ = desk_and_billing("x" * 2_000, "Yes?", hand_to("billing"), "Here.", desk={"compaction": short})
        for said in ("y" * 2_000, "More.", "My invoice!"):
            await completed(await helix.execute(desk, said, SESSION))
        seen = [str(each.content) for each in model_of(desk).requests[-1].messages if isinstance(each, UserMessage)]
        assert "They talked." in seen[0]
        assert seen[1:] == ["More.", "My invoice!"]

    @pytest.mark.parametrize("steered", [False, True])
    async def test_the_next_agent_remembers_what_the_user_said_to_the_one_before(
        self, open_executor: OpenExecutor, parts: Backend, steered: bool
    ) -> None:
        if parts.memories is None:
            return
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        memories = MemoryManager(parts.memories, embedder=HashingEmbedder())
        for text in ("Sails to Brest", "Eats no fish"):
            await memories.save("ann", text)
        memory = Memory(embedder=HashingEmbedder(), limit=2 if steered else 1)
        calls = [hand_to("billing"), call("work")]
        theirs, ours = {"memory": memory}, {"tools": [work]}
        desk, _ = desk_and_billing(reply(calls=calls), "To Brest.", desk=ours, billing=theirs)
        async with open_executor(memories=parts.memories) as helix:
            handle = await helix.execute(desk, "Who sails to Brest?", SESSION, user_id="ann")
            await gate.until_reached()
            if steered:
                await helix.execute(desk, "And eats no fish?", SESSION, if_running="steer")
            gate.opened.set()
            await completed(handle)
            assert (await spoken(helix))[-2:] == ["hidden: recollection", "assistant: To Brest."]
            told = str(model_of(desk).requests[-1].messages)
            assert ["Sails to Brest" in told, "Eats no fish" in told] == [True, steered]
