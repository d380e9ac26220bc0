"""Scenarios of messages for the running turn: it takes them in between two steps, or they are turns of their own."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.tools import tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import RunResumed, RunStarted, StepCommitted
from helix_agents.domain.errors import InvalidInputError, NotARootSessionError, QueuedTurnDroppedError
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.queued import (
    NotQueued,
    QueuedTurnBegun,
    QueuedTurnChanged,
    QueuedTurnDropped,
)
from helix_agents.domain.sessions import BranchPoint, InterruptSet
from helix_agents.engine.services import DAY_MS
from helix_agents.flows.flow import flow
from helix_agents.flows.flow_run import FlowRun
from helix_agents.llm.scripted import ScriptedModel, call
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing.clock import ManualClock
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
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
    until,
    within,
)


class Order(BaseModel):
    """What the model hands in."""

    items: list[str]


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _said(request: ModelRequest) -> list[str]:
    """What the user said since the last reply or result."""
    said: list[str] = []
    for message in reversed(request.messages):
        if not isinstance(message, UserMessage) or message.hidden:
            break
        said.append(str(message.content))
    return said[::-1]


def _answer(request: ModelRequest) -> Any:
    """Works when it is told to, and otherwise repeats what it heard."""
    match _said(request):
        case []:
            return "Done."
        case [*_, "Go" | "Once more"]:
            return call("work")
        case [*_, "Where?"]:
            return call("locate", {"city": "Bonn"})
        case said:
            return "Heard " + ", ".join(said)


def _hand_in(request: ModelRequest) -> Any:
    """Hands in everything it was told so far, once it has worked."""
    said = [str(each.content) for each in request.messages if isinstance(each, UserMessage)]
    worked = any(isinstance(each, ToolMessage) for each in request.messages)
    return call("__finish__", {"items": said}) if worked else call("work")


class _Desk:
    """An agent whose tool holds a turn in the middle until it is let go."""

    def __init__(self, answer: Callable[[ModelRequest], Any] = _answer, **fields: Any) -> None:
        self.gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await self.gate.wait()
            return "worked"

        defaults = {"name": "desk", "tools": [work, locate]}
        self.agent: AnyAgent = scripted((), {"model": ScriptedModel(answer), **fields}, **defaults)

    async def held(self, helix: Executor, text: str = "Go", **fields: Any) -> RunHandle[Any]:
        """A turn that is held in a tool of its first step."""
        handle = await helix.execute(self.agent, text, SESSION, **fields)
        await self.gate.until_reached()
        return handle

    async def steer(self, helix: Executor, text: str, **fields: Any) -> RunHandle[Any]:
        """A message for the turn that is running."""
        return await helix.execute(self.agent, text, SESSION, if_running="steer", **fields)

    def let_go(self) -> None:
        self.gate.opened.set()


async def _taken(helix: Executor) -> list[str]:
    """What the runs of the session took in, as the transcript marks it."""
    found = [each for each in await transcript(helix) if isinstance(each, UserMessage)]
    return [str(each.content) for each in found if each.metadata.get("helix") == "steered"]


async def _waiting(helix: Executor) -> list[str]:
    return [str(turn.messages[0].content) for turn in await helix.sessions.queued(SESSION)]


class SteeringContract(ScenarioContract):
    """A message for the turn that is running is shown to its model once, or it is a turn of its own."""

    async def test_the_running_turn_takes_a_message_in_with_its_next_step(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        second = await desk.steer(helix, "Tea, please")
        assert (first.was_queued, second.was_queued) == (False, True)
        assert [turn.steers for turn in await helix.sessions.queued(SESSION)] == [True]
        assert await spoken_until_now(helix) == ["user: Go"]
        desk.let_go()
        assert [await completed(each) for each in (first, second)] == ["Heard Tea, please"] * 2
        assert await spoken(helix) == [
            "user: Go",
            "assistant: [work#call_1_1]",
            "result work#call_1_1: worked",
            "user: Tea, please",
            "assistant: Heard Tea, please",
        ]
        assert await helix.sessions.queued(SESSION) == ()
        assert (await second.begun()).run_id == first.run_id
        chunks = await chunks_of(second)
        assert {chunk.run_id for chunk in chunks} == {first.run_id}
        told = [chunk.taken for chunk in chunks if isinstance(chunk, StepCommitted)]
        assert [[message.content for message in taken] for taken in told] == [["Tea, please"], []]
        found = await helix.get_handle(desk.agent, SESSION, second.run_id)
        assert found is not None
        assert found.run_id == first.run_id
        assert await _taken(helix) == ["Tea, please"]
        assert len(await runs_of(helix)) == 1

    async def test_several_messages_are_taken_in_in_their_order(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        later = await helix.execute(desk.agent, "Afterwards", SESSION, if_running="enqueue")
        both = [UserMessage(content="Two"), UserMessage(content="Three")]
        sent = [await desk.steer(helix, "One"), await helix.execute(desk.agent, both, SESSION, if_running="steer")]
        assert await _waiting(helix) == ["One", "Two", "Afterwards"]
        desk.let_go()
        assert [await completed(each) for each in (first, *sent)] == ["Heard One, Two, Three"] * 3
        assert await completed(later) == "Heard Afterwards"
        assert [run.run_id for run in await runs_of(helix)] == [first.run_id, later.run_id]

    async def test_a_turn_can_be_steered_with_every_step(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        again = await desk.steer(helix, "Once more")
        gate, desk.gate = desk.gate, Gate()
        gate.opened.set()
        await desk.gate.until_reached()
        last = await desk.steer(helix, "Enough")
        desk.let_go()
        assert [await completed(each) for each in (first, again, last)] == ["Heard Enough"] * 3
        assert await _taken(helix) == ["Once more", "Enough"]
        assert len(await runs_of(helix)) == 1

    async def test_messages_that_come_with_the_last_step_are_the_next_turn(self, helix: Executor) -> None:
        gate = PieceGate(2)
        agent = scripted((), {}, model=ScriptedModel(_answer, pace=gate), name="desk")
        first = await helix.execute(agent, "Hello", SESSION)
        await gate.until_reached()
        later = await helix.execute(agent, "Afterwards", SESSION, if_running="enqueue")
        sent = [await helix.execute(agent, text, SESSION, if_running="steer") for text in ("One", "Two")]
        gate.opened.set()
        assert await completed(first) == "Heard Hello"
        assert [await completed(each) for each in sent] == ["Heard One, Two"] * 2
        assert await completed(later) == "Heard Afterwards"
        assert [run.run_id for run in await runs_of(helix)] == [first.run_id, sent[0].run_id, later.run_id]
        assert [(await each.begun()).run_id for each in sent] == [sent[0].run_id] * 2
        assert (await spoken(helix))[2:5] == ["user: One", "user: Two", "assistant: Heard One, Two"]
        begun = [chunk for chunk in await chunks_of(sent[0]) if isinstance(chunk, RunStarted)]
        assert [[message.content for message in chunk.taken] for chunk in begun] == [["Two"]]

    async def test_where_nothing_goes_on_a_message_starts_a_turn_at_once(self, helix: Executor) -> None:
        desk = _Desk()
        for text in ("One", "Two"):
            handle = await desk.steer(helix, text)
            assert not handle.was_queued
            assert await completed(handle) == f"Heard {text}"
        assert await _taken(helix) == []

    async def test_another_process_can_steer_a_turn(self, open_executor: OpenExecutor) -> None:
        async with open_executor() as one, open_executor() as other:
            desk = _Desk()
            other.agents.replace(desk.agent)
            first = await desk.held(one)
            second = await desk.steer(other, "Tea")
            desk.let_go()
            assert await completed(second) == await completed(first) == "Heard Tea"
            assert await other.sessions.queued(SESSION) == ()

    async def test_a_message_waits_until_somebody_has_answered(self, helix: Executor) -> None:
        desk = _Desk()
        await suspended(await helix.execute(desk.agent, "Where?", SESSION))
        sent = await desk.steer(helix, "Quickly")
        assert sent.was_queued
        await helix.sweep()
        asked = (await helix.list_pending()).items[0]
        assert asked.state == "waiting"
        await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Beuel"))
        resumed = await helix.resume(desk.agent, SESSION)
        assert [await completed(each) for each in (resumed, sent)] == ["Heard Quickly"] * 2
        assert (await sent.begun()).run_id == resumed.run_id
        assert (await spoken(helix))[2:] == [
            "result locate#call_1_1: Beuel",
            "user: Quickly",
            "assistant: Heard Quickly",
        ]

    @hasty
    async def test_after_a_stop_the_run_that_continues_takes_the_message_in(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        sent = await desk.steer(helix, "Slowly")
        await helix.interrupt(SESSION)
        await interrupted(first)
        desk.let_go()
        await helix.sweep()
        assert await _waiting(helix) == ["Slowly"]
        resumed = await helix.resume(desk.agent, SESSION)
        assert [await completed(each) for each in (resumed, sent)] == ["Heard Slowly"] * 2
        assert (await sent.begun()).run_id == resumed.run_id
        assert (await spoken(helix))[-2:] == ["user: Slowly", "assistant: Heard Slowly"]
        begun = [chunk for chunk in await chunks_of(resumed) if isinstance(chunk, RunResumed)]
        assert [[message.content for message in chunk.taken] for chunk in begun] == [["Slowly"]]

    @hasty
    async def test_readers_hear_of_the_message_even_if_the_model_is_told_something_else_as_well(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        desk = _Desk()
        [asked] = (await suspended(await helix.execute(desk.agent, "Where?", SESSION))).pending
        clock.advance(8 * DAY_MS)
        await completed(await helix.resume(desk.agent, SESSION))
        first = await desk.held(helix)
        await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Beuel"))
        await desk.steer(helix, "Slowly")
        await helix.interrupt(SESSION)
        await interrupted(first)
        desk.let_go()
        resumed = await helix.resume(desk.agent, SESSION)
        await completed(resumed)
        assert (await spoken(helix))[-3:-1] == ["user: Slowly", "hidden: late_answer"]
        [begun] = [chunk for chunk in await chunks_of(resumed) if isinstance(chunk, RunResumed)]
        assert [message.content for message in begun.taken] == ["Slowly"]

    async def test_a_turn_that_fails_leaves_the_message_to_the_next_one(self, helix: Executor) -> None:
        desk = _Desk(max_steps=1)
        first = await desk.held(helix)
        sent = await desk.steer(helix, "Briefly")
        desk.let_go()
        assert (await failed(first)).code == "max_steps"
        assert await completed(sent) == "Heard Briefly"
        assert [run.run_id for run in await runs_of(helix)] == [first.run_id, sent.run_id]

    async def test_the_output_that_is_handed_in_knows_the_message(self, helix: Executor) -> None:
        desk = _Desk(_hand_in, output=Order)
        first = await desk.held(helix)
        sent = await desk.steer(helix, "And tea")
        desk.let_go()
        assert await completed(first) == await completed(sent) == Order(items=["Go", "And tea"])
        assert len(await runs_of(helix)) == 1

    async def test_the_same_message_is_taken_in_once_and_known_for_ever(self, helix: Executor) -> None:
        desk = _Desk()
        words: Any
        first = await desk.held(helix, idempotency_key="turn")
        sent = await desk.steer(helix, "Tea", idempotency_key="mine")
        assert (await desk.steer(helix, "Tea", idempotency_key="mine")).run_id == sent.run_id
        assert await _waiting(helix) == ["Tea"]
        desk.let_go()
        assert await completed(sent) == "Heard Tea"
        for later in (False, True):
            for words in ("reject", "enqueue", "steer", "interrupt"):
                for key in ("mine",) if later else ("mine", "turn"):
                    again = await helix.execute(desk.agent, "Tea", SESSION, idempotency_key=key, if_running=words)
                    assert (again.run_id, again.was_queued) == (first.run_id, False), (words, key)
            assert len(await runs_of(helix)) == 1 + later
            await completed(await helix.execute(desk.agent, "Next", SESSION))
        desk.gate = Gate()
        other = await desk.held(helix)
        for words in ("reject", "enqueue", "steer", "interrupt"):
            sending = helix.execute(desk.agent, "Tea", SESSION, idempotency_key="mine", if_running=words)
            assert (await within(sending)).run_id == first.run_id
        assert await helix.sessions.queued(SESSION) == ()
        desk.let_go()
        assert await completed(other) == "Done."

    async def test_a_message_that_waits_for_its_turn_is_taken_in_once_it_is_sent_to_steer(
        self, helix: Executor
    ) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        waits = await helix.execute(desk.agent, "Tea", SESSION, if_running="enqueue", idempotency_key="mine")
        again = await desk.steer(helix, "Tea", idempotency_key="mine")
        assert (again.run_id, await _waiting(helix)) == (waits.run_id, ["Tea"])
        desk.let_go()
        assert [await completed(each) for each in (first, waits, again)] == ["Heard Tea"] * 3
        assert len(await runs_of(helix)) == 1

    @hasty
    async def test_a_message_that_is_wanted_now_leaves_the_queue(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        waits = await desk.steer(helix, "Tea", idempotency_key="mine")
        await desk.steer(helix, "Milk", idempotency_key="yours")
        now: Any = {"idempotency_key": "mine", "if_running": "interrupt"}
        answered = await within(helix.execute(desk.agent, "Tea", SESSION, **now))
        await interrupted(first)
        assert answered.run_id == waits.run_id
        assert (await completed(answered)).startswith("Heard Tea")
        desk.let_go()
        await until(lambda: _holds(helix, []))
        said = await spoken(helix)
        assert (said.count("user: Tea"), said.count("user: Milk")) == (1, 1)

    async def test_a_message_that_waits_can_be_changed(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        tea = await helix.execute(desk.agent, "Tea", SESSION, if_running="enqueue", idempotency_key="tea")
        milk = await desk.steer(helix, "Milk")
        sugar = await desk.steer(helix, "Sugar")
        honey = await desk.steer(helix, "Honey")
        change = helix.sessions.change_queued
        match await change(SESSION, tea.run_id, steers=True, message="Green tea"):
            case QueuedTurnChanged(turn=turn):
                assert (turn.steers, turn.messages[0].content, turn.messages[0].id) == (True, "Green tea", "tea")
            case other:
                raise AssertionError(other)
        await change(SESSION, sugar.run_id, first=True)
        await change(SESSION, milk.run_id, steers=False)
        assert await helix.sessions.drop_queued(SESSION, honey.run_id) == QueuedTurnDropped(run_id=honey.run_id)
        assert await _waiting(helix) == ["Sugar", "Green tea", "Milk"]
        desk.let_go()
        assert [await completed(each) for each in (first, tea, sugar)] == ["Heard Sugar, Green tea"] * 3
        assert await completed(milk) == "Heard Milk"
        with pytest.raises(QueuedTurnDroppedError):
            await within(honey.result())
        for gone, became in (
            (tea.run_id, QueuedTurnBegun(run_id=first.run_id)),
            (milk.run_id, QueuedTurnBegun(run_id=milk.run_id)),
            (honey.run_id, NotQueued()),
            ("run-unknown", NotQueued()),
        ):
            assert await change(SESSION, gone, message="Too late") == became
            assert await change(SESSION, gone, first=True) == became
            assert await helix.sessions.drop_queued(SESSION, gone) == became
        with pytest.raises(InvalidInputError, match="changes nothing"):
            await change(SESSION, tea.run_id)
        again = await desk.steer(helix, "Tea", idempotency_key="tea")
        assert again.run_id == first.run_id

    @hasty
    async def test_a_turn_that_was_changed_is_answered_as_it_is_now(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        sent = await helix.execute(desk.agent, "Tea", SESSION, if_running="enqueue")
        other = await helix.execute(desk.agent, "Milk", SESSION, if_running="enqueue", idempotency_key="milk")
        for run_id, text in ((sent.run_id, "Green tea"), (other.run_id, "Oat milk")):
            await helix.sessions.change_queued(SESSION, run_id, message=text)
        now: Any = {"idempotency_key": "milk", "if_running": "interrupt"}
        assert await completed(await within(helix.execute(desk.agent, "Milk", SESSION, **now))) == "Heard Oat milk"
        await interrupted(first)
        desk.let_go()
        assert await completed(sent) == "Heard Green tea"

    @hasty
    async def test_the_handle_of_a_message_stops_the_run_that_took_it_in(self, helix: Executor) -> None:
        desk = _Desk()
        first = await desk.held(helix)
        dropped = await desk.steer(helix, "Never mind")
        assert await dropped.interrupt() == InterruptSet(run_id=dropped.run_id)
        sent = await desk.steer(helix, "Once more")
        gate, desk.gate = desk.gate, Gate()
        gate.opened.set()
        await desk.gate.until_reached()
        assert await sent.interrupt() == InterruptSet(run_id=first.run_id)
        await interrupted(first)
        await interrupted(sent)
        desk.let_go()
        assert await _taken(helix) == ["Once more"]

    async def test_a_message_is_part_of_the_history_that_a_rewind_takes_back(self, helix: Executor) -> None:
        desk = _Desk()
        await completed(await helix.execute(desk.agent, "Hello", SESSION))
        before = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
        await desk.held(helix)
        sent = await desk.steer(helix, "Tea")
        desk.let_go()
        assert await completed(sent) == "Heard Tea"
        after = (await helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=after)
        await completed(await helix.execute(desk.agent, "Branch", "s-2", branch=point))
        assert "user: Tea" in await spoken(helix, "s-2")
        await helix.rewind(SESSION, before)
        assert await spoken(helix) == ["user: Hello", "assistant: Heard Hello"]
        assert await helix.sessions.queued(SESSION) == ()
        assert await completed(await helix.execute(desk.agent, "Milk", SESSION)) == "Heard Milk"
        assert await spoken(helix) == ["user: Hello", "assistant: Heard Hello", "user: Milk", "assistant: Heard Milk"]

    async def test_the_task_of_a_turn_that_was_steered_outlives_a_summary(self, helix: Executor) -> None:
        desk = _Desk()

        @tool
        async def read() -> str:
            """Read something long."""
            return "x" * 1_000

        model = ScriptedModel([call("work"), *[call("read")] * 6, "Fertig."])
        short = Compaction(above_tokens=600, keep_tokens=300, model=ScriptedModel(lambda _: "They read."))
        agent = scripted((), {"model": model, "compaction": short}, name="desk", tools=[*desk.agent.tools, read])
        first = await helix.execute(agent, "Count the fish", SESSION)
        await desk.gate.until_reached()
        await helix.execute(agent, "In German", SESSION, if_running="steer")
        desk.let_go()
        assert await completed(first) == "Fertig."
        for each in model.requests:
            shown = str(each.messages)
            assert "Count the fish" in shown
            assert ("In German" in shown) == (each.request.step > 1)
        assert "They read." in str(model.requests[-1].messages)

    async def test_a_message_goes_to_the_agent_that_the_user_talks_to(self, helix: Executor) -> None:
        below = _Desk(name="helper", description="Helps.")

        def lead(request: ModelRequest) -> Any:
            said = _said(request)
            return call("subagent__helper", {"message": "Go"}) if said == ["Start"] else "Heard " + ", ".join(said)

        agent = scripted((), {}, model=ScriptedModel(lead), name="lead", tools=[below.agent.as_tool()])
        first = await helix.execute(agent, "Start", SESSION)
        await below.gate.until_reached()
        sent = await helix.execute(agent, "Tea", SESSION, if_running="steer")
        children = await helix.sessions.delegations(SESSION)
        with pytest.raises(NotARootSessionError):
            await helix.execute(below.agent, "Tea", children[0].sub_session_id, if_running="steer")
        below.let_go()
        assert await completed(first) == await completed(sent) == "Heard Tea"
        assert "user: Tea" not in await spoken(helix, children[0].sub_session_id)

    async def test_a_flow_gets_a_message_as_its_next_turn(self, helix: Executor) -> None:
        gate = Gate()

        @tool
        async def work(task: str) -> str:
            """Work."""
            await gate.wait()
            return f"did {task}"

        @flow(tools=[work])
        async def worker(run: FlowRun, task: str) -> str:
            """Work on it."""
            return await run.call(work, task)

        first = await helix.execute(worker, "one", SESSION)
        await gate.until_reached()
        sent = [await helix.execute(worker, text, SESSION, if_running="steer") for text in ("two", "three")]
        gate.opened.set()
        assert [await completed(each) for each in (first, *sent)] == ["did one", "did two", "did three"]
        assert [run.run_id for run in await runs_of(helix)] == [each.run_id for each in (first, *sent)]

    async def test_a_message_that_is_taken_in_keeps_its_session_alive(self, helix: Executor) -> None:
        desk = _Desk(session_ttl=60)
        first = await desk.held(helix)
        before = (await helix.sessions.get(SESSION)).expires_at
        second = await desk.steer(helix, "Tea", expires_in=3_600)
        after = (await helix.sessions.get(SESSION)).expires_at
        assert before is not None
        assert after is not None
        assert after > before + 3_000_000
        desk.let_go()
        assert [await completed(each) for each in (first, second)] == ["Heard Tea"] * 2
        assert await _taken(helix) == ["Tea"]

    async def test_what_only_a_turn_can_have_is_refused(self, helix: Executor) -> None:
        desk = _Desk()
        extras: list[dict[str, Any]] = [{"state": {}}, {"budget": Budget(model_calls=1)}]
        for extra in extras:
            with pytest.raises(InvalidInputError, match="takes in messages only"):
                await desk.steer(helix, "Tea", **extra)
        with pytest.raises(InvalidInputError, match="may start in another"):
            await desk.steer(helix, "Tea", model=ScriptedModel(["Hello."]))
        with pytest.raises(InvalidInputError, match="only a run can do"):
            await helix.execute(desk.agent, UserMessage(content="Tea", metadata={"helix": "steered"}), SESSION)
        assert not (await helix.sessions.list()).items


async def spoken_until_now(helix: Executor) -> list[str]:
    """The conversation of a turn whose first step is not committed yet."""
    return [f"user: {each.content}" for each in await transcript(helix) if isinstance(each, UserMessage)]


async def _holds(helix: Executor, waiting: list[str]) -> bool:
    return await _waiting(helix) == waiting and (await runs_of(helix))[-1].status != "running"
