"""Scenarios of handoffs: another agent takes over a conversation, in this run and the next ones, in any process."""

import logging
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypeForm

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.handoffs import Handoff
from helix_agents.agent.hook_events import MessageEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.errors import AgentMismatchError, InvalidInputError, InvalidStateError, UnknownAgentError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import BranchPoint, SessionFilter
from helix_agents.domain.usage import UsageFilter
from helix_agents.llm.script import Call
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.family import delegate
from helix_agents.testing.contracts.executor.household import boss, spawn
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    hasty,
    interrupted,
    result_at,
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
    until,
    within,
)
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.receiver import Receiver

HOUR_MS = 60 * 60 * 1000


class Case(BaseModel):
    """What agents that share their state know of a case."""

    notes: list[str] = []


class Invoice(BaseModel):
    """The state of an agent that has one of its own."""

    number: str = ""
    lines: list[str] = []


class Refund(BaseModel):
    """An output."""

    amount: float


class Apology(BaseModel):
    """Another one."""

    text: str


@tool
async def note(ctx: ToolContext[Any], text: str) -> str:
    """Write something down."""
    ctx.state.notes.append(f"{ctx.agent}: {text}")
    return "noted"


@tool(require_approval=True)
async def pay(ctx: ToolContext[Any], amount: int) -> str:
    """Pay, if somebody agrees."""
    ctx.state.notes.append(f"{ctx.agent}: paid {amount}")
    return f"paid {amount}"


def hand_to(name: str, *, id: str | None = None, **given: Any) -> Call:
    """The call with which a model hands over."""
    return call(f"handoff__{name}", given, id=id)


def desk_and_billing(
    *script: Any, desk: dict[str, Any] | None = None, billing: dict[str, Any] | None = None
) -> tuple[AnyAgent, AnyAgent]:
    """Two agents that hand over to each other and follow one script: each reply is whoever's turn it is."""
    model = ScriptedModel(script)
    common: dict[str, Any] = {"model": model, "state": Case, "tools": [note, pay]}
    back = Handoff("desk", description="Whatever is not about money.")
    theirs: dict[str, Any] = {
        **common,
        "name": "billing",
        "description": "Money.",
        "handoffs": [back],
        **(billing or {}),
    }
    second: AnyAgent = Agent(**theirs)
    ours: dict[str, Any] = {**common, "name": "desk", "handoffs": [second], **(desk or {})}
    first: AnyAgent = Agent(**ours)
    return first, second


def model_of(agent: AnyAgent) -> ScriptedModel:
    """What the agent's model was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


async def held_by(helix: Executor, session_id: str = SESSION) -> str:
    """Who has the conversation."""
    session = await helix.sessions.get(session_id)
    assert session.held_by != session.agent_type
    return session.worked_by


class HandingOverContract(ScenarioContract):
    """A handoff is part of a step's commit: it happens once, and from then on every process finds the other agent."""

    async def test_a_message_for_the_running_turn_is_heard_by_who_has_the_conversation_then(
        self, helix: Executor
    ) -> None:
        gate = Gate()

        @tool
        async def look_up() -> str:
            """Look the invoice up."""
            await gate.wait()
            return "found"

        script = [reply(calls=[call("look_up"), hand_to("billing")]), "The one of May, then."]
        desk, billing = desk_and_billing(*script, desk={"tools": [look_up]})
        first = await helix.execute(desk, "My invoice!", SESSION)
        await gate.until_reached()
        second = await helix.execute(desk, "The one of May", SESSION, if_running="steer")
        gate.opened.set()
        assert [await completed(each) for each in (first, second)] == ["The one of May, then."] * 2
        assert (await spoken(helix))[-3:] == [
            "result handoff__billing#call_1_2: billing has the conversation from here on.",
            "user: The one of May",
            "assistant: The one of May, then.",
        ]
        assert model_of(billing).requests[-1].request.agent_type == "billing"
        assert len(await runs_of(helix)) == 1

    async def test_another_agent_takes_over_in_this_turn_and_speaks_in_the_next_ones(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        script = [
            reply(
                "A moment. ", calls=[call("note", {"text": "angry"}), hand_to("billing", reason="It is about money.")]
            ),
            call("note", {"text": "late"}),
            "I see your invoice.",
            "It is paid now.",
            "You are welcome.",
        ]
        desk, billing = desk_and_billing(*script)
        async with open_executor() as helix:
            handle = await helix.execute(desk, "My invoice!", SESSION)
            assert await completed(handle) == "I see your invoice."
            assert (await spoken(helix)) == [
                "user: My invoice!",
                "assistant: A moment. [note#call_1_1, handoff__billing#call_1_2]",
                "result note#call_1_1: noted",
                "result handoff__billing#call_1_2: billing has the conversation from here on.",
                "assistant: [note#call_2_1]",
                "result note#call_2_1: noted",
                "assistant: I see your invoice.",
            ]
            session = await helix.sessions.get(SESSION)
            assert (session.agent_type, session.held_by, session.step_count) == ("desk", "billing", 3)
            assert session.custom_state == {"notes": ["desk: angry", "billing: late"]}
            assert [(run.status, run.attempt) for run in await runs_of(helix)] == [("completed", 1)]
            told = [(chunk.step, chunk.agent_type) for chunk in await chunks_of(handle)]
            assert {step: {name for at, name in told if at == step} for step, _ in told} == {
                0: {"desk"}, 1: {"desk"}, 2: {"billing"}, 3: {"billing"}
            }  # fmt: skip
        desk, billing = desk_and_billing(*script)
        async with open_executor() as other:
            assert await completed(await other.execute(desk, "And now?", SESSION)) == "It is paid now."
            assert await completed(await other.execute(billing, "Thanks.", SESSION)) == "You are welcome."
            assert [each.request.agent_type for each in model_of(desk).requests] == ["billing", "billing"]
            stranger = scripted(["No."], {}, name="stranger")
            with pytest.raises(AgentMismatchError):
                await other.execute(stranger, "And you?", SESSION)
            ours = await other.sessions.list(SessionFilter(agent_type="desk"))
            assert [each.session_id for each in ours.items] == [SESSION]
        used = await parts.usage.query_usage(UsageFilter(session_id=SESSION))
        assert sorted((each.step, each.agent_type) for each in used.items if each.source_type == "tokens") == [
            (1, "billing"), (1, "billing"), (1, "desk"), (2, "billing"), (3, "billing")
        ]  # fmt: skip

    async def test_each_agent_has_its_own_instructions_tools_and_model(self, helix: Executor) -> None:
        def written(ctx: RunContext[Any]) -> str:
            return f"You are {ctx.agent}."

        ours: dict[str, Any] = {"instructions": "You are the desk.", "tools": [note]}
        theirs: dict[str, Any] = {"instructions": written, "tools": [pay], "model": ScriptedModel(["", "Hi."])}
        desk, billing = desk_and_billing(hand_to("billing"), desk=ours, billing=theirs)
        assert await completed(await helix.execute(desk, "Hello", SESSION)) == "Hi."
        [before], [after] = model_of(desk).requests, model_of(billing).requests
        assert (before.instructions, [each.name for each in before.tools]) == (
            "You are the desk.", ["note", "handoff__billing"]
        )  # fmt: skip
        assert (after.instructions, [each.name for each in after.tools]) == (
            "You are billing.",
            ["pay", "handoff__desk"],
        )
        assert before.tools[1].description == "Hand this conversation over to billing, who answers from now on. Money."

    async def test_a_conversation_goes_back_and_forth_in_one_turn(self, helix: Executor) -> None:
        desk, billing = desk_and_billing(
            hand_to("billing"), hand_to("desk"), hand_to("billing"), hand_to("desk"), "Here."
        )
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "Here."
        assert [each.request.agent_type for each in model_of(desk).requests] == ["desk", "billing"] * 2 + ["desk"]
        assert await held_by(helix) == "desk"
        with pytest.raises(AgentMismatchError):
            await helix.execute(billing, "And you?", SESSION)

    async def test_a_process_that_dies_after_a_handoff_is_replaced_by_one_in_which_the_other_agent_goes_on(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Any]) -> str:
            """Work."""
            await gate.wait()
            return f"{ctx.agent} worked"

        script = [hand_to("billing"), call("work"), "Done."]
        theirs = {"tools": [work]}
        async with open_executor(grace=0) as dying:
            desk, _ = desk_and_billing(*script, billing=theirs)
            await dying.execute(desk, "Go", SESSION)
            await gate.until_reached()
            assert await held_by(dying) == "billing"
        gate.opened.set()
        async with open_executor(agents=[scripted(["No."], {}, name="desk")]) as older:
            assert (await older.recover()).unknown_agent == (SESSION,)
        desk, _ = desk_and_billing(*script, billing=theirs)
        async with open_executor(agents=[desk]) as other:
            await other.recover()
            handle = await other.get_handle(desk, SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."
            assert "result work#call_2_1: billing worked" in await spoken(other)
            assert sum("handoff__billing" in line for line in await spoken(other)) == 2
            assert len(await runs_of(other)) == 1

    async def test_a_session_whose_agent_is_not_known_here_is_refused_and_left_alone(
        self, open_executor: OpenExecutor
    ) -> None:
        desk, _ = desk_and_billing(hand_to("billing"), "Yes?", "Of course.")
        async with open_executor() as helix:
            await completed(await helix.execute(desk, "Go", SESSION))
        alone = scripted(["No.", "No.", "No."], {}, name="desk")
        async with open_executor() as other:
            with pytest.raises(UnknownAgentError):
                await other.execute(alone, "Well?", SESSION)
            assert len(await spoken(other)) == 4
        desk, billing = desk_and_billing(hand_to("billing"), "Yes?", "Of course.")
        async with open_executor(agents=[billing, desk]) as third:
            assert await completed(await third.execute(desk, "Well?", SESSION)) == "Of course."

    async def test_a_janitor_that_does_not_know_who_has_the_conversation_leaves_it_to_others(
        self, open_executor: OpenExecutor, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        script = [hand_to("billing"), call("pay", {"amount": 5}, id="pay"), "Paid.", "That too."]
        async with open_executor() as first:
            desk, _ = desk_and_billing(*script)
            await suspended(await first.execute(desk, "Go", SESSION))
            waiting = await first.execute(desk, "And this", SESSION, if_running="enqueue")
            await first.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
        clock.advance(HOUR_MS)
        with caplog.at_level(logging.WARNING, logger="helix_agents"):
            async with open_executor(agents=[scripted(["No."], {}, name="desk")]) as older:
                swept = await older.sweep()
                assert (swept.resumed, swept.recovered, swept.dequeued) == (0, 0, 0)
        assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
        desk, _ = desk_and_billing(*script)
        async with open_executor(agents=[desk]) as other:
            assert (await other.sweep()).resumed == 1
            handle = await other.get_handle(desk, SESSION, waiting.run_id)
            assert handle is not None
            assert await completed(handle) == "That too."

    # -- what else the reply asks for

    async def test_calls_beside_a_handoff_are_answered_first_in_whichever_process(
        self, open_executor: OpenExecutor
    ) -> None:
        where = ask_human("Where are you?", name="where")
        ours: dict[str, Any] = {"tools": [note, pay, where]}
        calls = [hand_to("billing", id="hand"), call("pay", {"amount": 5}, id="pay"), call("where", {}, id="where")]
        script = [reply(calls=[*calls, call("note", {"text": "x"}, id="note")]), "Welcome.", "Again."]
        async with open_executor() as first:
            desk, _ = desk_and_billing(*script, desk=ours)
            waits = await suspended(await first.execute(desk, "Go", SESSION))
            assert {each.tool_call_id for each in waits.pending} == {"pay", "where"}
            assert await held_by(first) == "desk"
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, "where", ToolAnswer(result="at sea"))
            desk, _ = desk_and_billing(*script, desk=ours)
            waits = await suspended(await second.resume(desk, SESSION))
            assert (waits.tool_call_ids, await held_by(second)) == (("pay",), "desk")
        async with open_executor() as third:
            await third.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
            desk, billing = desk_and_billing(*script, desk=ours)
            assert await completed(await third.resume(desk, SESSION)) == "Welcome."
            assert (await spoken(third))[1:] == [
                "assistant: [handoff__billing#hand, pay#pay, where#where, note#note]",
                "result handoff__billing#hand: billing has the conversation from here on.",
                "result pay#pay: paid 5",
                "result where#where: at sea",
                "result note#note: noted",
                "assistant: Welcome.",
            ]
            assert sorted((await third.sessions.get(SESSION)).custom_state["notes"]) == ["desk: paid 5", "desk: x"]
            assert await completed(await third.execute(billing, "Hi", SESSION)) == "Again."

    async def test_of_two_handoffs_in_one_reply_the_first_counts(self, helix: Executor) -> None:
        script = [reply(calls=[hand_to("billing"), hand_to("repairs")]), "Billing."]
        repairs = scripted(["No."], {}, name="repairs", description="Repairs.", state=Case)
        desk, billing = desk_and_billing(*script)
        desk = Agent(name="desk", model=desk.model, state=Case, handoffs=[billing, repairs])
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "Billing."
        assert (await spoken(helix))[3] == "error handoff__repairs#call_1_2: not_handed_over"
        assert result_at(await transcript(helix), 3).content == (
            "billing has the conversation already: only the first handoff counts."
        )

    async def test_a_reply_that_hands_in_the_output_does_not_hand_over(self, helix: Executor) -> None:
        @tool(finish_with=True)
        async def close(amount: float) -> Refund:
            """Close the case."""
            return Refund(amount=amount)

        for place, ends in enumerate((finish({"amount": 2.0}), call("close", {"amount": 2.0}))):
            calls = [hand_to("billing"), ends]
            desk, _ = desk_and_billing(
                reply(calls=calls), desk={"output": Refund, "tools": [close]}, billing={"output": Refund}
            )
            session_id = f"s-{place}"
            assert await completed(await helix.execute(desk, "Go", session_id)) == Refund(amount=2.0)
            assert await held_by(helix, session_id) == "desk"
            assert (await spoken(helix, session_id))[2] == "error handoff__billing#call_1_1: not_handed_over"

    async def test_a_sub_agent_works_for_the_one_who_hands_over_in_the_same_reply(self, helix: Executor) -> None:
        clerk = scripted(["Found it."], {}, name="clerk", description="Looks things up.")
        calls = [hand_to("billing"), delegate("clerk")]
        desk, _ = desk_and_billing(reply(calls=calls), "Thanks.", desk={"tools": [clerk.as_tool()]})
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "Thanks."
        assert (await spoken(helix))[2:4] == [
            "result handoff__billing#call_1_1: billing has the conversation from here on.",
            "result subagent__clerk#call_1_2: Found it.",
        ]

    async def test_the_next_agent_answers_a_message_that_came_while_calls_beside_the_handoff_were_open(
        self, helix: Executor
    ) -> None:
        calls = [hand_to("billing"), call("pay", {"amount": 5}, id="pay")]
        desk, _ = desk_and_billing(reply(calls=calls), "Never mind the payment.")
        await suspended(await helix.execute(desk, "Go", SESSION))
        assert await completed(await helix.execute(desk, "Forget it", SESSION)) == "Never mind the payment."
        assert (await spoken(helix))[2:] == [
            "result handoff__billing#call_1_1: billing has the conversation from here on.",
            "error pay#pay: client_tool_abandoned",
            "user: Forget it",
            "assistant: Never mind the payment.",
        ]
        assert [each.request.agent_type for each in model_of(desk).requests] == ["desk", "billing"]

    async def test_a_handoff_that_a_deploy_took_away_is_not_made(self, open_executor: OpenExecutor) -> None:
        calls = [hand_to("billing"), call("pay", {"amount": 5}, id="pay")]
        desk, _ = desk_and_billing(reply(calls=calls), "Then I do it.")
        async with open_executor() as helix:
            await suspended(await helix.execute(desk, "Go", SESSION))
        desk, _ = desk_and_billing(reply(calls=calls), "Then I do it.", desk={"handoffs": []})
        async with open_executor() as other:
            await other.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
            assert await completed(await other.resume(desk, SESSION)) == "Then I do it."
            assert (await spoken(other))[2] == "error handoff__billing#call_1_1: unknown_tool_since_deploy"
            assert await held_by(other) == "desk"

    async def test_a_handoff_is_offered_only_where_it_is_available(self, helix: Executor) -> None:
        desk, billing = desk_and_billing(hand_to("billing"), "I stay.")
        closed = Handoff(billing, available=lambda ctx: False)
        desk = Agent(name="desk", model=desk.model, state=Case, handoffs=[closed])
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "I stay."
        assert (await spoken(helix))[2] == "error handoff__billing#call_1_1: unknown_tool"
        assert model_of(desk).requests[0].tools == ()

    # -- what it waits for, stops and going back

    async def test_what_the_next_agent_waits_for_is_answered_and_continued_like_anything_else(
        self, open_executor: OpenExecutor
    ) -> None:
        script = [hand_to("billing"), call("pay", {"amount": 5}, id="pay"), "Paid."]
        async with open_executor() as first:
            desk, _ = desk_and_billing(*script)
            [waiting] = (await suspended(await first.execute(desk, "Go", SESSION))).pending
            assert waiting.tool_name == "pay"
        async with open_executor() as second:
            desk, billing = desk_and_billing(*script)
            await second.submit_tool_result(SESSION, "pay", ApprovalAnswer(approved=True))
            assert await second.can_resume(billing, SESSION) is None
            handle = await second.resume(desk, SESSION)
            assert await completed(handle) == "Paid."
            assert (await second.sessions.get(SESSION)).custom_state == {"notes": ["billing: paid 5"]}
            assert {chunk.agent_type for chunk in await chunks_of(handle)} == {"billing"}

    @hasty
    async def test_a_stopped_run_is_resumed_by_the_agent_that_has_the_conversation(self, helix: Executor) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        desk, _ = desk_and_billing(hand_to("billing"), call("work"), "Where was I?", billing={"tools": [work]})
        handle = await helix.execute(desk, "Go", SESSION)
        await gate.until_reached()
        await handle.interrupt()
        await interrupted(handle)
        assert await completed(await helix.resume(desk, SESSION)) == "Where was I?"
        assert model_of(desk).requests[-1].request.agent_type == "billing"

    async def test_a_turn_that_waited_in_the_queue_is_for_whoever_has_the_conversation_then(
        self, helix: Executor
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        desk, _ = desk_and_billing(call("work"), hand_to("billing"), "Yes?", "Sure.", desk={"tools": [work]})
        handle = await helix.execute(desk, "Go", SESSION)
        await gate.until_reached()
        waiting = await helix.execute(desk, "And this", SESSION, if_running="enqueue")
        gate.opened.set()
        assert await completed(handle) == "Yes?"
        assert await completed(waiting) == "Sure."
        assert model_of(desk).requests[-1].request.agent_type == "billing"

    async def test_a_turn_that_waits_may_bring_state_for_the_agent_that_has_the_conversation(
        self, helix: Executor
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        model = ScriptedModel([hand_to("billing"), "Yes?", call("work"), "Worked.", "Noted."])
        billing = Agent(name="billing", description="Money.", model=model, state=Invoice, tools=[work])
        to = Handoff(billing, state=lambda case, given: Invoice(number="7"))
        desk = Agent(name="desk", model=model, state=Case, handoffs=[to])
        await completed(await helix.execute(desk, "Go", SESSION))
        first = await helix.execute(desk, "Work", SESSION)
        await gate.until_reached()
        waiting = await helix.execute(desk, "And", SESSION, state={"number": "8"}, if_running="enqueue")
        with pytest.raises(InvalidStateError):
            await helix.execute(desk, "Or", SESSION, state={"notes": []}, if_running="enqueue")
        gate.opened.set()
        assert [await completed(each) for each in (first, waiting)] == ["Worked.", "Noted."]
        assert (await helix.sessions.get(SESSION)).custom_state == {"number": "8", "lines": []}

    async def test_whoever_goes_back_to_before_the_handoff_finds_the_agent_of_then(
        self, open_executor: OpenExecutor
    ) -> None:
        script: list[Any] = ["Hello.", reply(calls=[call("note", {"text": "x"}), hand_to("billing")]), "Yes?"]
        desk, _ = desk_and_billing(*script)
        async with open_executor() as helix:
            for said in ("Hi", "My invoice!"):
                await completed(await helix.execute(desk, said, SESSION))
            first, handed, last = [each.checkpoint_id for each in (await helix.sessions.checkpoints(SESSION)).items][
                ::-1
            ]
        script[1:] = ["The desk again.", "Still.", "And again."]
        desk, billing = desk_and_billing(*script)
        async with open_executor(agents=[desk]) as other:
            before, after = (
                BranchPoint(from_session_id=SESSION, checkpoint_id=first),
                BranchPoint(from_session_id=SESSION),
            )
            with pytest.raises(AgentMismatchError):
                await other.execute(billing, "Go", "b-0", branch=before)
            assert await completed(await other.execute(desk, "Go", "b-1", branch=before)) == "The desk again."
            at_message = BranchPoint(from_session_id=SESSION, message_count=2)
            assert await completed(await other.execute(desk, "Go", "b-2", branch=at_message)) == "The desk again."
            with pytest.raises(InvalidInputError):
                await other.execute(desk, "Go", "b-3", branch=at_message, state={"notes": ["y"]})
            assert await completed(await other.execute(billing, "Go", "b-4", branch=after)) == "And again."
            assert [await held_by(other, f"b-{place}") for place in (1, 2, 4)] == ["desk", "desk", "billing"]
            # A branch can be taken back to where its source was with another agent.
            at_beginning: dict[str, Any] = {"mode": "from_checkpoint", "message": "Anew"}
            handle = await other.resume(desk, "b-4", checkpoint_id=BEGINNING, **at_beginning)
            assert (await completed(handle), await held_by(other, "b-4")) == ("Hello.", "desk")
            with pytest.raises(AgentMismatchError):
                await other.resume(billing, SESSION, mode="from_checkpoint", checkpoint_id=first)
            assert (await other.rewind(SESSION, first)).held_by is None
            assert (await other.rewind(SESSION, handed)).held_by == "billing"
            handle = await other.resume(desk, SESSION, mode="from_checkpoint", checkpoint_id=first, message="Again")
            assert await completed(handle) == "The desk again."
            session = await other.sessions.get(SESSION)
            assert (session.held_by, session.custom_state) == (None, {"notes": []})
            handle = await other.resume(desk, SESSION, mode="from_checkpoint", checkpoint_id=last, message="On")
            assert (await completed(handle), await held_by(other)) == ("And again.", "billing")

    # -- limits, output and hooks

    async def test_the_steps_of_a_turn_are_counted_on_and_the_limit_is_that_of_the_agent_at_work(
        self, helix: Executor
    ) -> None:
        desk, _ = desk_and_billing(hand_to("billing"), "Done.", desk={"max_steps": 1})
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "Done."
        desk, _ = desk_and_billing(hand_to("billing"), hand_to("desk"), "Done.", desk={"max_steps": 2})
        result = await failed(await helix.execute(desk, "Go", "s-2"))
        assert (result.code, result.retryable, await held_by(helix, "s-2")) == ("max_steps", True, "desk")
        assert await completed(await helix.retry(desk, "s-2")) == "Done."

    async def test_the_output_is_what_the_agent_says_that_has_the_conversation_at_the_end(
        self, helix: Executor
    ) -> None:
        for name, last, draft, output in (
            ("refunds", finish({"amount": 3.0}), {"amount": 3.0}, Refund(amount=3.0)),
            ("plain", "Nothing to pay.", "Nothing ", "Nothing to pay."),
        ):
            # Held before its last piece.
            gate = PieceGate(7 if name == "refunds" else 5)
            model = ScriptedModel([hand_to(name), last], pace=gate)
            refunds = Agent(name="refunds", description="Pays back.", model=model, output=Refund)
            plain = Agent(name="plain", description="Talks.", model=model)
            desk = Agent[Any, Any](
                name="desk", model=model, handoffs=[refunds, plain], output=TypeForm(Refund | Apology | str)
            )
            run = await helix.execute(desk, "Go", name)
            await gate.until_reached()
            drafts = run.partial_output()
            while await within(anext(drafts)) != draft:
                pass
            gate.opened.set()
            assert await completed(run) == output
            again = await helix.get_handle(desk, name)
            assert again is not None
            assert await completed(again) == output

    async def test_a_stop_before_the_handoff_leaves_the_conversation_where_it_is(self, helix: Executor) -> None:
        calls = [hand_to("billing"), call("pay", {"amount": 5}, id="pay")]
        desk, _ = desk_and_billing(reply(calls=calls), "The desk again.")
        await suspended(await helix.execute(desk, "Go", SESSION))
        await helix.interrupt(SESSION)
        assert (await spoken(helix))[2] == "error handoff__billing#call_1_1: run_stopped"
        assert await held_by(helix) == "desk"
        assert await completed(await helix.execute(desk, "Well?", SESSION)) == "The desk again."

    async def test_a_run_that_fails_with_its_handoff_has_handed_over(self, helix: Executor) -> None:
        def fails(ctx: RunContext[Any], event: MessageEvent) -> None:
            raise FailRun("not today")

        desk, _ = desk_and_billing(hand_to("billing"), "Yes?", desk={"hooks": Hooks[Any, Any](on_message=fails)})
        assert (await failed(await helix.execute(desk, "Go", SESSION))).code == "hook_failed_run"
        assert (await spoken(helix))[2].startswith("result handoff__billing")
        assert await held_by(helix) == "billing"
        assert await completed(await helix.retry(desk, SESSION)) == "Yes?"

    async def test_webhooks_and_listings_say_who_has_the_conversation(self, open_executor: OpenExecutor) -> None:
        desk, _ = desk_and_billing(hand_to("billing"), "Yes?")
        async with Receiver() as receiver:
            hook = Webhook(receiver.url, secret=SECRET, name="hook")
            async with open_executor(webhooks=[hook]) as helix:
                await completed(await helix.execute(desk, "Go", SESSION))
                await helix.sweep()
                [told] = await receiver.until(1)
                assert (told.type, told.data["agent"], told.data["heldBy"]) == ("turn.completed", "desk", "billing")
                [listed] = (await helix.sessions.list()).items
                found = await helix.sessions.find(SESSION)
                assert found is not None
                assert (listed.held_by, found.held_by, listed.worked_by) == ("billing", "billing", "billing")

    # -- below other agents

    async def test_a_sub_agent_hands_over_within_its_own_session(self, open_executor: OpenExecutor) -> None:
        def head() -> AnyAgent:
            desk, _ = desk_and_billing(hand_to("billing"), call("pay", {"amount": 5}), "Paid.")
            desk = Agent(name="desk", description="A desk.", model=desk.model, state=Case, handoffs=desk.handoffs)
            return scripted([delegate("desk"), "All done."], {}, name="head", tools=[desk.as_tool()])

        async with open_executor() as first:
            [waiting] = (await suspended(await first.execute(head(), "Go", SESSION))).pending
            child = await first.sessions.get(waiting.session_id)
            assert (child.agent_type, child.held_by, child.parent_session_id) == ("desk", "billing", SESSION)
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
            handle = await second.resume(head(), SESSION)
            assert await completed(handle) == "All done."
            assert (await spoken(second))[2] == "result subagent__desk#call_1_1: Paid."
            child = await second.sessions.get(waiting.session_id)
            assert (child.custom_state, child.status) == ({"notes": ["billing: paid 5"]}, "completed")

    async def test_a_companion_that_handed_over_keeps_its_conversation(self, helix: Executor) -> None:
        again = call("companion__sendMessage", {"name": "h", "message": "And?"})
        keeper = boss(spawn(name="h"), again, "Thanks.", keeps=_handing_on())
        assert await completed(await helix.execute(keeper, "Go", SESSION)) == "Thanks."
        said = [line for line in await spoken(helix) if line.startswith("result")]
        assert ["Billing here." in said[0], "Billing again." in said[1]] == [True, True]
        [child] = (await helix.sessions.list(SessionFilter(parent_session_id=SESSION))).items
        session = await helix.sessions.get(child.session_id)
        assert (session.agent_type, session.held_by, session.agent_version) == ("helper", "billing", 3)
        assert session.custom_state == {"number": "7", "lines": []}

    async def test_a_companion_whose_agent_a_deploy_took_away_is_left_alone(self, open_executor: OpenExecutor) -> None:
        again = call("companion__sendMessage", {"name": "h", "message": "And?"})
        async with open_executor() as first:
            keeper = boss(spawn(name="h"), "Good.", keeps=_handing_on())
            await completed(await first.execute(keeper, "Go", SESSION))
        async with open_executor() as second:
            keeper = boss("", "", again, "So be it.", keeps=scripted([], {}, name="helper", description="Helps."))
            assert await completed(await second.execute(keeper, "And?", SESSION)) == "So be it."
            [refused] = [line for line in await spoken(second) if line.startswith("error")]
            assert refused == "error companion__sendMessage#call_3_1: companion_refused"
            [child] = (await second.sessions.list(SessionFilter(parent_session_id=SESSION))).items
            session = await second.sessions.get(child.session_id)
            assert (session.status, session.custom_state) == ("completed", {"number": "7", "lines": []})

    async def test_a_companion_in_the_background_goes_on_though_its_keeper_handed_over(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        helper = scripted([call("work"), "Worked."], {}, name="helper", description="Helps.", tools=[work])
        script = [reply(calls=[hand_to("billing"), spawn(name="h")]), "Yes?", hand_to("desk"), "It is done."]
        model = ScriptedModel(script)
        keeper = boss(keeps=helper, mode="non_blocking")
        clerk = boss(keeps=scripted([], {}, name="clerk", description="Counts."), mode="non_blocking")
        back = Handoff("desk", description="All else.")
        theirs = clerk.persistent_agents
        billing = Agent(name="billing", description="Money.", model=model, handoffs=[back], persistent_agents=theirs)
        desk = Agent(name="desk", model=model, handoffs=[billing], persistent_agents=keeper.persistent_agents)
        async with open_executor() as helix:
            assert await completed(await helix.execute(desk, "Go", SESSION)) == "Yes?"
            await gate.until_reached()
            gate.opened.set()
            [ref] = await helix._services.store.get_sub_session_refs(SESSION)  # pyright: ignore[reportPrivateUsage]
            await until(lambda: _has_status(helix, ref.sub_session_id, "completed"))
            assert await completed(await helix.execute(desk, "And?", SESSION)) == "It is done."
            # Who keeps it hears of it, and nobody else.
            assert (await spoken(helix))[-3:] == [
                "result handoff__desk#call_3_1: desk has the conversation from here on.",
                "hidden: companion_notice",
                "assistant: It is done.",
            ]


def _handing_on() -> AnyAgent:
    """A companion that hands its conversation over at once, to an agent with a state of its own."""
    model = ScriptedModel([hand_to("billing"), "Billing here.", "Billing again."])
    billing = Agent(name="billing", description="Money.", model=model, state=Invoice, version=3)
    to = Handoff(billing, state=lambda state, given: Invoice(number="7"))
    return Agent(name="helper", description="Helps.", model=model, state=Case, handoffs=[to])


async def _has_status(helix: Executor, session_id: str, status: str) -> bool:
    return (await helix.sessions.get(session_id)).status == status
