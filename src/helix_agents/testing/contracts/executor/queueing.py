"""Scenarios of messages that arrive while a turn is running: refused, sent after it, or sent instead of it."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    InvalidInputError,
    QueuedTurnDroppedError,
    SessionNotFoundError,
)
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.queued import NotQueued, QueuedTurnBegun, QueuedTurnDropped
from helix_agents.domain.sessions import InterruptSet
from helix_agents.llm.scripted import ScriptedModel, call
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    interrupted,
    runs_of,
    scripted,
    spoken,
    suspended,
    until,
    within,
)


class Desk(BaseModel):
    """What is known at the desk."""

    priority: str = "low"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
async def priority(ctx: ToolContext[Desk]) -> str:
    """How urgent it is."""
    return ctx.state.priority


def _answer(request: ModelRequest) -> Any:
    """Repeats what it was asked; calls `locate` and `priority` when it is told to."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return "Now I know."
    match last.content:
        case "Where?":
            return call("locate", {"city": "Bonn"})
        case "How urgent?":
            return call("priority")
        case said:
            return f"You said {said}"


def _agent(**fields: Any) -> AnyAgent:
    model = fields.pop("model", None) or ScriptedModel(_answer, pace=fields.pop("pace", None))
    return scripted((), fields, model=model, name="desk", tools=[locate, priority], state=Desk)


async def _held(helix: Executor, text: str = "One") -> tuple[AnyAgent, Gate, Any]:
    """A turn that is held in the middle of its reply."""
    gate = PieceGate(2)
    agent = _agent(pace=gate)
    handle = await helix.execute(agent, text, SESSION)
    await gate.until_reached()
    return agent, gate, handle


class QueueingContract(ScenarioContract):
    """A message that arrives while a turn is running is not lost, not doubled, and answered in its turn."""

    async def test_messages_that_are_queued_are_answered_one_after_another(self, helix: Executor) -> None:
        agent, gate, first = await _held(helix)
        later = [await helix.execute(agent, text, SESSION, if_running="enqueue") for text in ("Two", "Three")]
        assert [handle.was_queued for handle in (first, *later)] == [False, True, True]
        assert [turn.run_id for turn in await helix.sessions.queued(SESSION)] == [each.run_id for each in later]
        with pytest.raises(AgentAlreadyRunningError):
            await helix.execute(agent, "Now!", SESSION)
        assert await spoken(helix) == ["user: One"]
        gate.opened.set()
        await within(helix.idle())
        assert await helix.sessions.queued(SESSION) == ()
        assert [await completed(each) for each in (first, *later)] == ["You said One", "You said Two", "You said Three"]
        assert [run.run_id for run in await runs_of(helix)] == [each.run_id for each in (first, *later)]
        assert {chunk.run_id for chunk in await chunks_of(later[0])} == {later[0].run_id}
        assert await helix.sessions.queued(SESSION) == ()

    async def test_where_nothing_goes_on_a_message_is_not_queued(self, helix: Executor) -> None:
        agent = _agent()
        for text in ("One", "Two"):
            handle = await helix.execute(agent, text, SESSION, if_running="enqueue")
            assert not handle.was_queued
            assert await completed(handle) == f"You said {text}"

    async def test_a_queued_message_gives_up_nothing_that_somebody_is_asked(self, helix: Executor) -> None:
        agent = _agent()
        await suspended(await helix.execute(agent, "Where?", SESSION))
        later = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        assert later.was_queued
        await helix.sweep()
        asked = (await helix.list_pending()).items[0]
        assert asked.state == "waiting"
        await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Beuel"))
        resumed = await helix.resume(agent, SESSION)
        assert await completed(resumed) == "Now I know."
        assert await completed(later) == "You said Two"

    async def test_what_waits_behind_a_pause_begins_in_the_process_that_ends_it(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor() as first:
            agent = _agent()
            await suspended(await first.execute(agent, "Where?", SESSION))
            sent = await first.execute(agent, "How urgent?", SESSION, state={"priority": "high"}, if_running="enqueue")
        async with open_executor() as other, open_executor() as third:
            asked = (await other.list_pending()).items[0]
            await other.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Beuel"))
            await completed(await other.resume(_agent(), SESSION))
            await until(lambda: _is_over(third, sent.run_id))
            assert (await spoken(third))[-2:] == ["result priority#call_3_1: high", "assistant: Now I know."]
            assert len(await runs_of(third)) == 3

    async def test_an_interrupting_message_stops_the_turn_and_is_answered_at_once(self, helix: Executor) -> None:
        agent, _, first = await _held(helix)
        second = await within(helix.execute(agent, "Two", SESSION, if_running="interrupt"))
        await interrupted(first)
        assert await completed(second) == "You said Two"
        said = await spoken(helix)
        assert said[0] == "user: One"
        assert said[1].endswith("(interrupt)")
        assert said[2:] == ["user: Two", "assistant: You said Two"]

    async def test_a_stop_holds_what_waits_until_somebody_goes_on(self, helix: Executor) -> None:
        agent, gate, first = await _held(helix)
        later = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await helix.interrupt(SESSION, "enough")
        await interrupted(first)
        gate.opened.set()
        await helix.sweep()
        assert len(await helix.sessions.queued(SESSION)) == 1
        assert await completed(await helix.execute(agent, "Now!", SESSION)) == "You said Now!"
        assert await completed(later) == "You said Two"

    async def test_the_next_message_goes_on_with_what_a_stop_held(self, helix: Executor) -> None:
        agent, gate, first = await _held(helix)
        second = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await helix.abort(SESSION)
        await within(first.result())
        gate.opened.set()
        third = await helix.execute(agent, "Three", SESSION, if_running="enqueue")
        assert [await completed(each) for each in (second, third)] == ["You said Two", "You said Three"]

    async def test_a_turn_that_fails_does_not_keep_the_next_one_waiting(self, helix: Executor) -> None:
        gate = Gate()

        @tool
        async def hold() -> str:
            """Hold."""
            await gate.wait()
            return "held"

        def hold_then(request: ModelRequest) -> Any:
            last = request.messages[-1]
            return call("hold") if isinstance(last, UserMessage) and last.content == "One" else fail_last(request)

        def fail_last(request: ModelRequest) -> Any:
            return _answer(request) if isinstance(request.messages[-1], UserMessage) else ValueError("no idea")

        agent = scripted((), {}, model=ScriptedModel(hold_then), name="desk", tools=[hold])
        await helix.execute(agent, "One", SESSION)
        await gate.until_reached()
        later = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        gate.opened.set()
        assert await completed(later) == "You said Two"
        assert [run.status for run in await runs_of(helix)] == ["failed", "completed"]

    async def test_the_same_message_is_queued_once_and_known_for_ever(self, helix: Executor) -> None:
        agent, gate, first = await _held(helix)

        async def send(key: str) -> Any:
            return await helix.execute(agent, "Two", SESSION, idempotency_key=key, if_running="enqueue")

        sent = await send("mine")
        assert (await send("mine")).run_id == sent.run_id
        other = await send("yours")
        assert len(await helix.sessions.queued(SESSION)) == 2
        gate.opened.set()
        for handle in (first, sent, other):
            await completed(handle)
        again = await send("mine")
        assert (again.run_id, await completed(again)) == (sent.run_id, "You said Two")
        assert len(await runs_of(helix)) == 3

    async def test_of_processes_that_begin_the_same_turn_at_once_one_drives_it(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor() as one, open_executor() as other:
            model = ScriptedModel(_answer)
            agent = _agent(model=model)
            for helix in (one, other):
                helix.agents.replace(agent)
            for number in range(5):
                key = f"key-{number}"
                sent = await asyncio.gather(
                    *(
                        each.execute(agent, key, SESSION, idempotency_key=key, if_running="enqueue")
                        for each in (one, other)
                    )
                )
                assert len({each.run_id for each in sent}) == 1
                assert await completed(sent[0]) == await completed(sent[1]) == f"You said {key}"
            await suspended(await one.execute(agent, "Where?", SESSION))
            for text in ("Two", "Three"):
                await one.execute(agent, text, SESSION, if_running="enqueue")
            await one.interrupt(SESSION)
            await completed(await other.execute(agent, "Now!", SESSION))
            while await one.sessions.queued(SESSION):
                await asyncio.gather(one.sweep(), other.sweep())
                await asyncio.gather(one.idle(), other.idle())
            await until(lambda: _ends_in(one, "assistant: You said Three"))
            assert model.asked == len([run for run in await runs_of(one) if run.status in ("completed", "interrupted")])

    async def test_a_turn_that_is_stopped_before_it_begins_never_does(self, helix: Executor) -> None:
        agent, gate, first = await _held(helix)
        dropped, kept, gone = [
            await helix.execute(agent, text, SESSION, if_running="enqueue") for text in ("Two", "Three", "Four")
        ]
        assert await dropped.interrupt() == InterruptSet(run_id=dropped.run_id)
        assert await helix.sessions.drop_queued(SESSION, gone.run_id) == QueuedTurnDropped(run_id=gone.run_id)
        assert await helix.sessions.drop_queued(SESSION, gone.run_id) == NotQueued()
        for handle in (dropped, gone):
            with pytest.raises(QueuedTurnDroppedError):
                await within(handle.result())
        gate.opened.set()
        await completed(first)
        assert await completed(kept) == "You said Three"
        assert await spoken(helix) == [
            "user: One",
            "assistant: You said One",
            "user: Three",
            "assistant: You said Three",
        ]
        assert await helix.sessions.drop_queued(SESSION, kept.run_id) == QueuedTurnBegun(run_id=kept.run_id)

    async def test_what_cannot_wait_is_refused(self, helix: Executor) -> None:
        agent = _agent()
        later: Any = "later"
        with pytest.raises(InvalidInputError, match="'later' is not one of 'reject', 'enqueue', 'steer', 'interrupt'"):
            await helix.execute(agent, "One", SESSION, if_running=later)
        with pytest.raises(InvalidInputError, match="may start in another"):
            await helix.execute(agent, "One", SESSION, if_running="enqueue", model=ScriptedModel(["Hello."]))
        with pytest.raises(SessionNotFoundError):
            await helix.sessions.queued(SESSION)


async def _ends_in(helix: Executor, line: str) -> bool:
    return (await spoken(helix))[-1] == line


async def _is_over(helix: Executor, run_id: str) -> bool:
    return any(run.run_id == run_id and run.status == "completed" for run in await runs_of(helix))
