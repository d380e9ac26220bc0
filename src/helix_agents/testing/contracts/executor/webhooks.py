"""Scenarios of webhooks: how turns end and what waits is told to other services, from the store alone."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import DeliveryNotFoundError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.llm.scripted import call, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import DEPLOYING, boss, careful, spawn
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    scripted,
    suspended,
    until,
    within,
)
from helix_agents.testing.receiver import Receiver

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOUR = 3_600_000


@tool(require_approval=True, deadline=timedelta(hours=1))
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def _agent(*script: Any, name: str = "clerk", **fields: Any) -> AnyAgent:
    return scripted(script, fields, name=name, tools=[pay, ask_human()])


def _webhook(receiver: Receiver, **fields: Any) -> Webhook:
    return Webhook(receiver.url, secret=SECRET, **fields)


class WebhooksContract(ScenarioContract):
    """What webhooks are told, and when."""

    @pytest.fixture
    async def receiver(self) -> AsyncIterator[Receiver]:
        """Where messages arrive."""
        async with Receiver() as receiver:
            yield receiver

    @pytest.fixture
    async def telling(self, open_executor: OpenExecutor, receiver: Receiver) -> AsyncIterator[Executor]:
        """An executor that tells the receiver everything."""
        async with open_executor(webhooks=[_webhook(receiver, name="hook")]) as helix:
            yield helix

    async def test_a_turn_that_ended_is_told_once(
        self, telling: Executor, receiver: Receiver, clock: ManualClock
    ) -> None:
        handle = await telling.execute(_agent("Hello."), "Hi", SESSION, user_id="ann")
        assert await completed(handle) == "Hello."
        assert (await telling.sweep()).told == 1
        assert (await telling.sweep()).told == 0
        [told] = receiver.received
        assert told.type == "turn.completed"
        assert told.headers["webhook-id"].startswith("msg_")
        about = told.data
        assert (about["sessionId"], about["runId"], about["turn"]) == (SESSION, handle.run_id, 1)
        assert (about["status"], about["output"], about["agent"], about["userId"]) == (
            "completed",
            "Hello.",
            "clerk",
            "ann",
        )
        [delivery] = (await telling.webhooks.list()).items
        assert (delivery.delivery_id, delivery.state, delivery.attempts) == (told.id, "delivered", 1)
        clock.advance(2 * HOUR)
        await telling.sweep()
        assert (await telling.webhooks.list()).total == 0

    async def test_a_call_that_waits_is_told_once_with_its_deadline(
        self, telling: Executor, receiver: Receiver, clock: ManualClock
    ) -> None:
        asks = reply(calls=[call("pay", {"amount": 5}), call("ask_human", {"question": "Which?"})])
        agent, now = _agent(asks, "Done."), clock.now_ms()
        waits = await suspended(await telling.execute(agent, "Pay", SESSION))
        await telling.sweep()
        [told] = receiver.received
        assert (told.type, told.data["status"], told.data["sessionId"]) == ("calls.waiting", "suspended", SESSION)
        calls = {each["toolName"]: each for each in told.data["calls"]}
        assert calls["pay"]["kind"] == "approval"
        assert (calls["pay"]["input"], calls["pay"]["deadline"]) == ({"amount": 5}, now + HOUR)
        assert calls["ask_human"]["kind"] == "question"
        by_tool = {each.tool_name: each for each in waits.pending}
        assert calls["pay"]["approvalId"] == by_tool["pay"].approval_id
        answer = ApprovalAnswer(approved=True)
        await telling.submit_tool_result(SESSION, by_tool["pay"].tool_call_id, answer)
        await suspended(await telling.resume(agent, SESSION))
        assert (await telling.sweep()).told == 0
        await telling.submit_tool_result(SESSION, by_tool["ask_human"].tool_call_id, ToolAnswer(result="both"))
        assert await completed(await telling.resume(agent, SESSION)) == "Done."
        await telling.sweep()
        assert receiver.types == ["calls.waiting", "turn.completed"]
        assert [each.data["turn"] for each in receiver.received] == [1, 3]

    async def test_what_no_longer_waits_is_not_told(self, telling: Executor, receiver: Receiver) -> None:
        receiver.answer = 503
        agent = _agent(call("pay", {"amount": 5}), "Done.")
        waits = await suspended(await telling.execute(agent, "Pay", SESSION))
        assert (await telling.sweep()).told == 0
        [delivery] = (await telling.webhooks.list()).items
        await telling.submit_tool_result(SESSION, waits.pending[0].tool_call_id, ApprovalAnswer(approved=True))
        await telling.webhooks.retry(delivery.delivery_id)
        receiver.answer = 204
        await telling.sweep()
        found = await telling.webhooks.find(delivery.delivery_id)
        assert found is not None
        assert (found.state, len(receiver.received)) == ("dropped", 1)
        other = await suspended(await telling.execute(_agent(call("pay", {"amount": 6}), "Done."), "Pay", "s-2"))
        await telling.submit_tool_result("s-2", other.pending[0].tool_call_id, ApprovalAnswer(approved=True))
        assert (await telling.sweep()).told == 0
        assert len(receiver.received) == 1

    async def test_what_waits_in_a_sub_agent_is_told_with_its_conversation(
        self, telling: Executor, receiver: Receiver
    ) -> None:
        below = _agent(call("pay", {"amount": 7}), "Paid.", name="payer")
        helper = sub_agent_tool(below, description="Pays.")
        agent = scripted((call(helper.name, {"message": "Pay"}), "Done."), {}, name="clerk", tools=[helper])
        waits = await suspended(await telling.execute(agent, "Go", SESSION))
        await telling.sweep()
        [told] = receiver.received
        [asked] = told.data["calls"]
        assert (told.type, told.data["sessionId"], told.data["agent"]) == ("calls.waiting", SESSION, "payer")
        assert told.data["runSessionId"] == waits.pending[0].session_id != SESSION
        assert asked["toolCallId"] == waits.pending[0].tool_call_id
        await telling.submit_tool_result(SESSION, asked["toolCallId"], ApprovalAnswer(approved=True))
        await completed(await telling.resume(agent, SESSION))
        await telling.sweep()
        assert receiver.types == ["calls.waiting", "turn.completed"]

    async def test_what_waits_in_a_companion_is_told_with_its_conversation(
        self, telling: Executor, receiver: Receiver
    ) -> None:
        agent = boss(spawn(), "Spawned.", keeps=careful(*DEPLOYING), mode="non_blocking")
        assert await completed(await telling.execute(agent, "Go", SESSION)) == "Spawned."

        async def is_told() -> bool:
            await telling.sweep()
            return len(receiver.received) == 2

        await until(is_told)
        by_type = {each.type: each.data for each in receiver.received}
        [asked] = by_type["calls.waiting"]["calls"]
        assert (asked["toolName"], by_type["calls.waiting"]["sessionId"]) == ("deploy", SESSION)
        assert by_type["turn.completed"]["output"] == "Spawned."

    async def test_failures_stops_and_expiries_are_told(
        self, telling: Executor, receiver: Receiver, clock: ManualClock
    ) -> None:
        await failed(await telling.execute(_agent(RuntimeError("no model")), "Hi", "fails"))
        for name in ("aborted", "interrupted", "expires"):
            expires_in = timedelta(hours=3) if name == "expires" else None
            agent = _agent(call("ask_human", {"question": "Which?"}), "Done.")
            await suspended(await telling.execute(agent, "Ask", name, expires_in=expires_in))
        await telling.sweep()
        assert sorted(receiver.types) == ["calls.waiting"] * 3 + ["turn.failed"]
        [problem] = [each.data for each in receiver.received if each.type == "turn.failed"]
        assert problem["sessionId"] == "fails"
        assert problem["error"]
        receiver.received.clear()
        await telling.abort("aborted", "not wanted")
        await telling.interrupt("interrupted", "enough")
        clock.advance(4 * HOUR)
        await telling.sweep()
        ends = {each.data["sessionId"]: (each.type, each.data["status"]) for each in receiver.received}
        assert ends == {
            "aborted": ("turn.failed", "failed"),
            "interrupted": ("turn.interrupted", "interrupted"),
            "expires": ("turn.failed", "failed"),
        }
        assert len({each.id for each in receiver.received}) == 3

    async def test_a_message_that_is_not_taken_is_tried_again_later_under_the_same_id(
        self, telling: Executor, receiver: Receiver, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        receiver.answer = 500
        await completed(await telling.execute(_agent("Hello."), "Hi", SESSION))
        assert (await telling.sweep()).told == 0
        assert (await telling.sweep()).told == 0
        [delivery] = (await telling.webhooks.list(states=["owed"])).items
        assert (delivery.attempts, delivery.last_error) == (1, "it answered 500")
        assert len(receiver.received) == 1
        clock.advance(HOUR)
        receiver.answer = 204
        async with open_executor(webhooks=[_webhook(receiver, name="hook")]) as other:
            assert (await other.sweep()).told == 1
        first, second = receiver.received
        assert (first.id, first.body) == (second.id, second.body)
        assert (await telling.sweep()).told == 0

    async def test_a_webhook_that_never_answers_is_given_up_visibly(
        self, telling: Executor, receiver: Receiver, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver.answer = 302
        receiver.headers["location"] = receiver.url
        await completed(await telling.execute(_agent("Hello."), "Hi", SESSION))
        for _ in range(12):
            await telling.sweep()
            clock.advance(10 * HOUR)
        [delivery] = (await telling.webhooks.list(states=["given_up"])).items
        assert delivery.last_error == "it answered 302, and redirects are not followed"
        assert 3 <= delivery.attempts == len(receiver.received)
        assert "webhook.given_up" in caplog.text
        assert SECRET not in caplog.text
        receiver.answer = 200
        await telling.webhooks.retry(delivery.delivery_id)
        assert (await telling.sweep()).told == 1
        assert len({each.id for each in receiver.received}) == 1
        with pytest.raises(DeliveryNotFoundError):
            await telling.webhooks.retry("msg_unknown")

    async def test_a_receiver_that_is_gone_for_good_is_not_tried_again(
        self, telling: Executor, receiver: Receiver
    ) -> None:
        receiver.answer = 410
        await completed(await telling.execute(_agent("Hello."), "Hi", SESSION))
        await telling.sweep()
        [delivery] = (await telling.webhooks.list()).items
        assert (delivery.state, delivery.attempts) == ("given_up", 1)

    async def test_each_webhook_hears_what_it_asked_for_and_none_waits_for_another(
        self, open_executor: OpenExecutor, receiver: Receiver
    ) -> None:
        async with Receiver() as slow:
            slow.hold.clear()
            webhooks = [
                _webhook(slow, timeout=0.2),
                _webhook(receiver, events=["turn.completed"], name="ends"),
                _webhook(receiver, events=["calls.waiting"], name="waits"),
            ]
            async with open_executor(webhooks=webhooks) as helix:
                await completed(await helix.execute(_agent("Hello."), "Hi", SESSION))
                await suspended(await helix.execute(_agent(call("ask_human", {"question": "?"})), "Ask", "s-2"))
                assert (await helix.sweep()).told == 2
                told = {each.webhook: each.event for each in (await helix.webhooks.list(states=["delivered"])).items}
                assert told == {"ends": "turn.completed", "waits": "calls.waiting"}
                late = [each for each in (await helix.webhooks.list(states=["owed"])).items if each.attempts]
                assert {each.last_error for each in late} == {"no answer within 0.2 s"}

    async def test_a_conversation_stays_told_about_whoever_continues_it(
        self, telling: Executor, receiver: Receiver, open_executor: OpenExecutor
    ) -> None:
        agent = _agent(call("ask_human", {"question": "?"}), "Done.")
        waits = await suspended(await telling.execute(agent, "Ask", SESSION))
        async with open_executor(agents=[agent]) as other:
            await completed(await other.execute(_agent("Hello."), "Hi", "untold"))
            await other.submit_tool_result(SESSION, waits.pending[0].tool_call_id, ToolAnswer(result="yes"))
            await completed(await other.resume(agent, SESSION))
            assert (await other.sweep()).told == 0
        await telling.sweep()
        assert [(each.type, each.data["sessionId"]) for each in receiver.received] == [("turn.completed", SESSION)]

    async def test_a_rewind_is_not_told_and_the_conversation_stays_told_about_after_it(
        self, telling: Executor, receiver: Receiver, open_executor: OpenExecutor
    ) -> None:
        agent = _agent("One.", "Two.")
        await completed(await telling.execute(agent, "Hi", SESSION))
        await telling.sweep()
        async with open_executor(agents=[agent]) as other:
            await other.rewind(SESSION, "beginning")
            await completed(await other.execute(agent, "Hi again", SESSION))
        await telling.sweep()
        assert [(each.type, each.data["turn"]) for each in receiver.received] == [
            ("turn.completed", 1),
            ("turn.completed", 3),
        ]

    async def test_a_process_that_leaves_tells_what_it_did(
        self, open_executor: OpenExecutor, receiver: Receiver
    ) -> None:
        async with open_executor(webhooks=[_webhook(receiver)]) as helix:
            await completed(await helix.execute(_agent("Hello."), "Hi", SESSION))
        assert receiver.types == ["turn.completed"]

    async def test_an_end_is_told_without_anybody_asking(self, open_executor: OpenExecutor, receiver: Receiver) -> None:
        async with open_executor(webhooks=[_webhook(receiver)], janitor_seconds=600.0) as helix:
            await completed(await helix.execute(_agent("Hello."), "Hi", SESSION))
            await within(receiver.until(1))
            await suspended(await helix.execute(_agent(call("ask_human", {"question": "?"})), "Ask", "s-2"))
            await within(receiver.until(2))
            await helix.abort("s-2")
            await within(receiver.until(3))
        assert receiver.types == ["turn.completed", "calls.waiting", "turn.failed"]
