"""Scenarios of calls that are answered from outside: by clients, approvers and people who are asked."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import ask_human, client_tool
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import RetryTool
from helix_agents.agent.hook_events import AgentSuspendedEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import RunPaused, RunResumed, ToolApprovalRequest, ToolEnd, ToolError, ToolStart
from helix_agents.domain.errors import InvalidInputError, RunNotCompletedError, StillWaitingError
from helix_agents.domain.messages import EDITED_INPUT
from helix_agents.domain.pending import (
    AnswerAccepted,
    AnswerAlreadyCompleted,
    AnswerNotFound,
    AnswerRefused,
    ApprovalAnswer,
    PendingFilter,
    ToolAnswer,
)
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    lines,
    result_at,
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
    within,
)

APPROVED = ApprovalAnswer(approved=True)


class Ledger(BaseModel):
    """What was paid."""

    paid: list[int] = []


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
async def look_up(ctx: ToolContext[Ledger], name: str) -> str:
    """Look something up."""
    ctx.state.paid.append(0)
    return f"found {name}"


@tool
async def try_hard() -> str:
    """Try."""
    raise RetryTool("try again")


@tool(require_approval=True)
async def pay(ctx: ToolContext[Ledger], amount: int, currency: str = "EUR") -> str:
    """Pay."""
    ctx.state.paid.append(amount)
    return f"paid {amount} {currency}"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="clerk", tools=[locate, look_up, pay, ask_human()], state=Ledger)


PAYING = (call("pay", {"amount": 5}), "Paid.")
LOCATING = (call("locate", {"city": "Rome"}), "There.")
MIXED = (
    reply(
        "All at once.",
        calls=[
            call("pay", {"amount": 5}),
            call("look_up", {"name": "x"}),
            call("locate", {"city": "Rome"}),
            call("fly"),
        ],
    ),
    "Done.",
)


class WaitingContract(ScenarioContract):
    """A call that waits needs no process; its answer is stored once, and any process continues with it."""

    async def test_a_client_tool_suspends_the_run_and_its_result_completes_it_in_another_process(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor() as first:
            handle = await first.execute(_agent(*LOCATING), "Where?", SESSION)
            chunks = await chunks_of(handle)
            result = await suspended(handle)
            assert (result.kind, result.tool_call_ids) == ("suspended_client_tool", ("call_1_1",))
            assert result.pending[0].input == {"city": "Rome"}
            assert [type(chunk) for chunk in chunks if isinstance(chunk, (ToolStart, RunPaused))] == [
                ToolStart,
                RunPaused,
            ]
            assert [chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolStart)] == ["call_1_1"]
        async with open_executor() as second:
            answered = await second.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
            assert isinstance(answered, AnswerAccepted)
            assert (answered.next, answered.still_waiting) == ("resume", 0)
        async with open_executor() as third:
            resumed = await third.resume(_agent(*LOCATING), SESSION)
            chunks = await chunks_of(resumed)
            assert await completed(resumed) == "There."
            assert isinstance(chunks[0], RunResumed)
            assert chunks[0].previous_run_id == handle.run_id
            assert [chunk.result for chunk in chunks if isinstance(chunk, ToolEnd)] == ["41.9 N"]
            assert (await spoken(third))[2] == "result locate#call_1_1: 41.9 N"
            runs = await runs_of(third)
            assert [(run.status, run.previous_run_id) for run in runs] == [
                ("suspended_client_tool", None),
                ("completed", handle.run_id),
            ]

    async def test_a_client_may_report_an_error(self, helix: Executor) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(error="no signal"))
        await completed(await helix.resume(_agent(*LOCATING), SESSION))
        assert (await spoken(helix))[2] == "error locate#call_1_1: client_tool_error"
        assert result_at(await transcript(helix), 2).content == "no signal"

    async def test_an_approved_call_runs_once_with_the_input_that_was_shown(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        handle = await helix.execute(_agent(*PAYING), "Pay", SESSION)
        requests = [chunk for chunk in await chunks_of(handle) if isinstance(chunk, ToolApprovalRequest)]
        result = await suspended(handle)
        assert result.pending[0].kind == "approval"
        assert result.pending[0].input == {"amount": 5, "currency": "EUR"}
        assert [request.approval_id for request in requests] == [result.pending[0].approval_id]
        assert (await helix.sessions.get(SESSION)).custom_state["paid"] == []
        approval = result.pending[0].approval_id
        async with open_executor() as other:
            await other.submit_tool_result(SESSION, "call_1_1", APPROVED, approval_id=approval)
            assert await completed(await other.resume(_agent(*PAYING), SESSION)) == "Paid."
            assert (await spoken(other))[2] == "result pay#call_1_1: paid 5 EUR"
            assert (await other.sessions.get(SESSION)).custom_state["paid"] == [5]

    async def test_an_approval_is_used_up_by_a_call_that_may_be_repeated_too(
        self, helix: Executor, parts: Backend
    ) -> None:
        @tool(require_approval=True, effect="repeatable")
        async def show() -> str:
            """Show."""
            return "shown"

        agent = _agent(call("show", id="show"), "Seen.", tools=[show])
        await suspended(await helix.execute(agent, "Show", SESSION))
        await helix.submit_tool_result(SESSION, "show", APPROVED)
        assert await completed(await helix.resume(agent, SESSION)) == "Seen."
        row = await parts.state.get_pending_call(SESSION, "show")
        assert row is not None
        assert row.state == "consumed"

    async def test_asking_for_the_output_of_a_run_that_waits_says_for_what(self, helix: Executor) -> None:
        handle = await helix.execute(_agent(*PAYING), "Pay", SESSION)
        with pytest.raises(RunNotCompletedError, match=r"waits for pay \(call_1_1\); answer with submit_tool_result"):
            await within(handle.output())

    async def test_a_denied_call_never_runs_and_the_model_is_told_why(self, helix: Executor) -> None:
        await suspended(await helix.execute(_agent(*PAYING), "Pay", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=False, reason="too much"))
        handle = await helix.resume(_agent(*PAYING), SESSION)
        errors = [chunk for chunk in await chunks_of(handle) if isinstance(chunk, ToolError)]
        assert [error.code for error in errors] == ["not_approved"]
        assert result_at(await transcript(helix), 2).content == ("Tool call was not approved by the user: too much")
        assert (await helix.sessions.get(SESSION)).custom_state["paid"] == []

    async def test_an_approver_may_edit_the_input(self, helix: Executor) -> None:
        await suspended(await helix.execute(_agent(*PAYING), "Pay", SESSION))
        bad = ApprovalAnswer(approved=True, edited_input={"amount": "lots"})
        refused = await helix.submit_tool_result(SESSION, "call_1_1", bad)
        assert isinstance(refused, AnswerRefused)
        edited = ApprovalAnswer(approved=True, edited_input={"amount": 3, "currency": "USD"})
        assert isinstance(await helix.submit_tool_result(SESSION, "call_1_1", edited), AnswerAccepted)
        await completed(await helix.resume(_agent(*PAYING), SESSION))
        assert (await spoken(helix))[2] == "result pay#call_1_1: paid 3 USD"
        # The call stays as the model wrote it, so the input it ran with is beside the result.
        assert result_at(await transcript(helix), 2).metadata == {EDITED_INPUT: {"amount": 3, "currency": "USD"}}

    @pytest.mark.parametrize(
        "given",
        [
            True,
            ApprovalAnswer(approved=cast("bool", "yes")),
            ApprovalAnswer(approved=False, edited_input={"amount": 3, "currency": "USD"}),
            ToolAnswer(result="paid", error="not paid"),
        ],
        ids=["bool", "field", "edited denial", "failed result"],
    )
    async def test_what_is_no_answer_is_refused_and_the_call_waits_on(self, helix: Executor, given: Any) -> None:
        await suspended(await helix.execute(_agent(*PAYING), "Pay", SESSION))
        with pytest.raises(InvalidInputError):
            await helix.submit_tool_result(SESSION, "call_1_1", given)
        assert [waiting.tool_call_id for waiting in (await helix.list_pending()).items] == ["call_1_1"]
        await helix.submit_tool_result(SESSION, "call_1_1", APPROVED)
        assert await completed(await helix.resume(_agent(*PAYING), SESSION)) == "Paid."

    async def test_a_predicate_decides_which_calls_need_approval_and_one_that_raises_means_yes(
        self, helix: Executor
    ) -> None:
        def risky(values: Mapping[str, Any], ctx: RunContext[Any, Any]) -> bool:
            return values["amount"] > 10 or 1 / values["amount"] > 1

        @tool(require_approval=risky)
        async def spend(amount: int) -> str:
            """Spend."""
            return f"spent {amount}"

        calls = [call("spend", {"amount": amount}) for amount in (5, 50, 0)]
        agent = _agent(reply(calls=calls), "Done.", tools=[spend])
        result = await suspended(await helix.execute(agent, "Go", SESSION))
        assert (result.kind, set(result.tool_call_ids)) == ("suspended_step_partial", {"call_1_2", "call_1_3"})

    async def test_a_question_takes_only_an_answer_of_its_kind(self, helix: Executor) -> None:
        agent = _agent(call("ask_human", {"question": "Which?", "options": ["eu", "us"]}), "Thanks.")
        result = await suspended(await helix.execute(agent, "Go", SESSION))
        assert result.pending[0].kind == "question"
        assert isinstance(await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="mars")), AnswerRefused)
        assert isinstance(await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="eu")), AnswerAccepted)
        assert await completed(await helix.resume(agent, SESSION)) == "Thanks."
        assert (await spoken(helix))[2] == "result ask_human#call_1_1: eu"

    async def test_in_a_mixed_batch_the_others_run_and_their_results_are_kept(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        result = await suspended(await helix.execute(_agent(*MIXED), "Go", SESSION))
        assert (result.kind, result.tool_call_ids) == ("suspended_step_partial", ("call_1_1", "call_1_3"))
        # Until the batch is complete, the transcript ends in the open calls; a state write counts at once.
        assert len(await transcript(helix)) == 2
        assert (await helix.sessions.get(SESSION)).custom_state["paid"] == [0]
        async with open_executor() as other:
            first = await other.submit_tool_result(SESSION, "call_1_1", APPROVED)
            assert isinstance(first, AnswerAccepted)
            assert (first.next, first.still_waiting) == ("wait", 1)
            second = await other.submit_tool_result(SESSION, "call_1_3", ToolAnswer(result="41.9 N"))
            assert isinstance(second, AnswerAccepted)
            assert second.next == "resume"
            assert await completed(await other.resume(_agent(*MIXED), SESSION)) == "Done."
            assert (await spoken(other))[1:] == [
                "assistant: All at once.[pay#call_1_1, look_up#call_1_2, locate#call_1_3, fly#call_1_4]",
                "result pay#call_1_1: paid 5 EUR",
                "result look_up#call_1_2: found x",
                "result locate#call_1_3: 41.9 N",
                "error fly#call_1_4: unknown_tool",
                "assistant: Done.",
            ]
            assert (await other.sessions.get(SESSION)).custom_state["paid"] == [0, 5]

    async def test_what_waits_is_listed_in_the_models_order(self, helix: Executor) -> None:
        calls = [call("locate", {"city": name}, id=name) for name in ("c", "a", "b")]
        result = await suspended(await helix.execute(_agent(reply(calls=calls)), "Go", SESSION))
        assert result.tool_call_ids == ("c", "a", "b")

    async def test_answers_may_come_one_run_at_a_time(self, helix: Executor, open_executor: OpenExecutor) -> None:
        await suspended(await helix.execute(_agent(*MIXED), "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_3", ToolAnswer(result="41.9 N"))
        again = await suspended(await helix.resume(_agent(*MIXED), SESSION))
        assert again.tool_call_ids == ("call_1_1",)
        with pytest.raises(StillWaitingError) as waiting:
            await helix.resume(_agent(*MIXED), SESSION)
        assert waiting.value.tool_call_ids == ("call_1_1",)
        await helix.submit_tool_result(SESSION, "call_1_1", APPROVED)
        async with open_executor() as other:
            assert await completed(await other.resume(_agent(*MIXED), SESSION)) == "Done."
            assert lines(await transcript(other))[2:6] == [
                "result pay#call_1_1: paid 5 EUR",
                "result look_up#call_1_2: found x",
                "result locate#call_1_3: 41.9 N",
                "error fly#call_1_4: unknown_tool",
            ]
            runs = await runs_of(other)
            assert [run.status for run in runs] == ["suspended_step_partial", "suspended_step_partial", "completed"]
            assert [run.previous_run_id for run in runs] == [None, runs[0].run_id, runs[1].run_id]

    async def test_an_answer_that_comes_while_a_run_is_suspending_again_is_taken_in_by_the_same_run(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        await suspended(await helix.execute(_agent(*MIXED), "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_3", ToolAnswer(result="41.9 N"))
        async with open_executor() as other:

            async def approve(ctx: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
                answered = await other.submit_tool_result(SESSION, "call_1_1", APPROVED)
                assert isinstance(answered, AnswerAccepted)
                assert answered.next == "nothing"

            hooks: Hooks[Any, Any] = Hooks(on_agent_suspended=approve)
            assert await completed(await helix.resume(_agent(*MIXED), SESSION, hooks=hooks)) == "Done."
            assert [run.status for run in await runs_of(other)] == ["suspended_step_partial", "completed"]
            assert (await spoken(other))[2] == "result pay#call_1_1: paid 5 EUR"

    async def test_a_finishing_tool_waits_for_the_calls_of_others(self, helix: Executor) -> None:
        @tool(finish_with=True)
        async def publish(ctx: ToolContext[Ledger]) -> str:
            """Publish."""
            return f"published {ctx.state.paid}"

        def agent() -> AnyAgent:
            calls = [call("publish"), call("pay", {"amount": 7})]
            return _agent(reply(calls=calls), "Never.", tools=[publish, pay])

        result = await suspended(await helix.execute(agent(), "Go", SESSION))
        assert result.tool_call_ids == ("call_1_2",)
        await helix.submit_tool_result(SESSION, "call_1_2", APPROVED)
        assert await completed(await helix.resume(agent(), SESSION)) == "published [7]"
        assert (await spoken(helix))[2:] == [
            "result publish#call_1_1: published [7]",
            "result pay#call_1_2: paid 7 EUR",
        ]

    async def test_the_output_handed_in_beside_an_open_call_counts_when_the_batch_is_whole(
        self, helix: Executor
    ) -> None:
        class Result(BaseModel):
            place: str

        def agent() -> AnyAgent:
            calls = [call("__finish__", {"place": "Rome"}), call("locate", {"city": "Rome"})]
            return _agent(reply(calls=calls), output=Result)

        await suspended(await helix.execute(agent(), "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))
        assert await completed(await helix.resume(agent(), SESSION)) == Result(place="Rome")

    async def test_the_first_answer_stands_also_after_a_restart(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="first"))
        for given in ("first", "second"):
            async with open_executor() as other:
                again = await other.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result=given))
                assert isinstance(again, AnswerAlreadyCompleted)
        await completed(await helix.resume(_agent(*LOCATING), SESSION))
        assert isinstance(
            await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="third")), AnswerAlreadyCompleted
        )
        assert (await spoken(helix))[2] == "result locate#call_1_1: first"

    async def test_an_answer_of_the_wrong_kind_or_with_another_approval_id_is_refused(self, helix: Executor) -> None:
        await suspended(await helix.execute(_agent(*MIXED), "Go", SESSION))
        for call_id, answer, approval in (
            ("call_1_1", ToolAnswer(result="x"), None),
            ("call_1_1", ToolAnswer(error="x"), None),
            ("call_1_3", APPROVED, None),
            ("call_1_1", APPROVED, "another"),
            ("call_1_3", ToolAnswer(result=5), None),
            ("call_1_3", ToolAnswer(result="x" * 1_100_000), None),
            ("call_1_3", ToolAnswer(error="x" * 9_000), None),
        ):
            refused = await helix.submit_tool_result(SESSION, call_id, answer, approval_id=approval)
            assert isinstance(refused, AnswerRefused), (call_id, type(answer))
        assert isinstance(await helix.submit_tool_result(SESSION, "call_9_9", APPROVED), AnswerNotFound)
        assert isinstance(await helix.submit_tool_result("nobody", "call_1_1", APPROVED), AnswerNotFound)
        waiting = (await helix.list_pending()).items
        assert {row.tool_call_id for row in waiting} == {"call_1_1", "call_1_3"}

    async def test_a_decision_that_has_no_room_beside_the_result_is_refused_before_the_tool_runs(
        self, helix: Executor
    ) -> None:
        @tool(require_approval=True)
        async def send(text: str) -> int:
            """Send."""
            return len(text)

        agent = _agent(call("send", {"text": "short"}), "Sent.", tools=[send])
        await suspended(await helix.execute(agent, "Go", SESSION))
        for decision in (
            ApprovalAnswer(approved=True, edited_input={"text": "x" * 1_100_000}),
            ApprovalAnswer(approved=True, edited_input={"text": "x" * 600_000}),
            ApprovalAnswer(approved=False, reason="x" * 9_000),
        ):
            assert isinstance(await helix.submit_tool_result(SESSION, "call_1_1", decision), AnswerRefused)
        edited = ApprovalAnswer(approved=True, edited_input={"text": "x" * 400_000}, reason="x" * 8_000)
        await helix.submit_tool_result(SESSION, "call_1_1", edited)
        assert await completed(await helix.resume(agent, SESSION)) == "Sent."
        assert (await spoken(helix))[2] == "result send#call_1_1: 400000"

    async def test_an_operator_sees_everything_that_waits(self, helix: Executor, clock: ManualClock) -> None:
        await suspended(await helix.execute(_agent(*PAYING), "Pay", "s-1", user_id="ann"))
        clock.advance(1_000)
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", "s-2", user_id="bob"))

        async def found(**where: Any) -> list[str]:
            return [row.session_id for row in (await helix.list_pending(PendingFilter(**where))).items]

        assert await found() == ["s-2", "s-1"]
        assert await found(user_id="ann") == ["s-1"]
        assert await found(kind="client_tool") == ["s-2"]
        assert await found(tool_name="pay") == ["s-1"]
        assert await found(created_before=clock.now_ms()) == ["s-1"]

    async def test_the_budget_of_a_turn_spans_its_suspensions(self, helix: Executor) -> None:
        def agent() -> AnyAgent:
            return _agent(*LOCATING[:1], call("look_up", {"name": "x"}), "Never.", max_steps=2)

        await suspended(await helix.execute(agent(), "Where?", SESSION))
        context = (await helix.sessions.get(SESSION)).suspension_context
        assert context is not None
        assert (context.step, context.remaining_steps) == (1, 1)
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="here"))
        result = await failed(await helix.resume(agent(), SESSION))
        assert result.code == "max_steps"

    @pytest.mark.parametrize("name", ["try_hard", "fly"])
    async def test_a_tool_the_model_does_not_get_right_fails_the_run_although_others_wait(
        self, helix: Executor, name: str
    ) -> None:
        batch = reply(calls=[call(name), call("locate", {"city": "Rome"})])
        agent = _agent(call(name), batch, "Never.", tools=[locate, try_hard], retries=1)
        result = await failed(await helix.execute(agent, "Go", SESSION))
        assert result.code == "tool_retries_exhausted"
        assert (await spoken(helix))[-1] == "error locate#call_2_2: run_stopped"
        assert (await helix.list_pending()).items == ()

    @pytest.mark.parametrize("beside", [[], [call("locate", {"city": "Rome"})]], ids=["the last", "others wait"])
    async def test_tries_of_one_step_are_counted_across_its_rounds(self, helix: Executor, beside: list[Any]) -> None:
        @tool(require_approval=lambda given, _: given["approved"])
        async def try_to(approved: bool) -> str:
            """Try."""
            raise RetryTool("try again")

        calls = [call("try_to", {"approved": approved}) for approved in (False, True)]
        agent = _agent(reply(calls=[*calls, *beside]), "Never.", tools=[try_to, locate], retries=1)
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_2", APPROVED)
        assert (await failed(await helix.resume(agent, SESSION))).code == "tool_retries_exhausted"

    async def test_a_message_that_waited_behind_open_calls_begins_with_fresh_tries(self, helix: Executor) -> None:
        batch = reply(calls=[call("try_hard"), call("locate", {"city": "Rome"})])
        script = (batch, call("try_hard"), "Done.")
        agent = _agent(*script, tools=[locate, try_hard], retries=1)
        await suspended(await helix.execute(agent, "Go", SESSION))
        assert await completed(await helix.execute(agent, "Never mind", SESSION)) == "Done."

    async def test_the_time_a_person_took_is_counted(self, helix: Executor, clock: ManualClock) -> None:
        await suspended(await helix.execute(_agent(*LOCATING), "Where?", SESSION))
        clock.advance(90_000)
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="here"))
        clock.advance(50_000)
        handle = await helix.resume(_agent(*LOCATING), SESSION)
        await completed(handle)
        waits = [each for each in (await handle.usage()).sources if each.source_type == "client_tool_wait_ms"]
        assert [(wait.source_name, wait.amount) for wait in waits] == [("locate", 90_000)]
