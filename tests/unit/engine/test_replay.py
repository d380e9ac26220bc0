"""The loop is replayable: given the same answers it asks for the same effects, whatever the answers are."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.failures import RetryTool
from helix_agents.agent.tools import tool
from helix_agents.backends.in_memory import open_backend
from helix_agents.domain.errors import ExecutorClosedError
from helix_agents.domain.pending import Answer, ApprovalAnswer, ToolAnswer
from helix_agents.domain.records import encode
from helix_agents.domain.results import RunResult, Suspended
from helix_agents.engine.effects import (
    ANSWERED_BY_SOMEBODY,
    Ask,
    Batch,
    CallKind,
    CallOutcome,
    CommitAck,
    CommitRequest,
    OpenBatch,
    PlannedCall,
    Position,
    Reply,
    RunEnd,
    RunFailed,
    Stopped,
)
from helix_agents.engine.turn import run_turn
from helix_agents.llm.script import Step
from helix_agents.testing import ScriptedModel, call, finish, reply
from helix_agents.testing.recording import (
    Effect,
    Recorder,
    RecordingExecutor,
    ReplayDivergedError,
    RunLog,
    StopAt,
    prove_replayable,
)

LARGEST_RECORD = 4_096


class World:
    """Effects that answer as drawn numbers say, within what a run could meet; it ends when the numbers do."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)
        self._over = False
        self._named = 0
        self._settled: set[str] = set()
        self._commits: list[tuple[int, int]] = []

    async def open(self) -> Position:
        batch = None
        if self._one_of(False, True):
            calls = self._calls()
            settled = tuple(each.tool_call_id for each in calls if self._one_of(False, True))
            self._settled |= set(settled)
            batch = OpenBatch(step=3, round=self._one_of(1, 2, 3), calls=calls, settled=settled)
        ended = self._one_of(None, None, None, "completed") if batch is None else None
        return Position(
            session_id="s", run_id="r", attempt=1, agent_type="a", step=3 if batch else 2, open_batch=batch, ended=ended
        )

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        kind = self._one_of("reply", "reply", "reply", "stopped", "failed")
        if kind == "stopped":
            return Stopped()
        return RunFailed(code="model_failed") if kind == "failed" else Reply(calls=self._calls())

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        assert batch.calls, "an effect without work"
        assert not {each.tool_call_id for each in batch.calls} & self._settled, "a call that has its result ran again"
        outcomes = tuple(self._outcome(each) for each in batch.calls)
        self._settled |= {outcome.tool_call_id for outcome in outcomes if outcome.state == "settled"}
        return outcomes

    async def commit(self, request: CommitRequest) -> CommitAck:
        name = (request.batch.step, request.batch.round)
        assert not self._commits or name > self._commits[-1], "steps and rounds only go up"
        self._commits.append(name)
        on = "continue" if not request.batch.unsettled else "again"
        answer = self._one_of(on, on, on, "ended", "superseded")
        if self._over or answer == "ended":
            return CommitAck(next="ended", status="completed")
        return CommitAck(next=answer)

    def should_yield(self) -> bool:
        return self._one_of(*[False] * 9, True)

    def _calls(self) -> tuple[PlannedCall, ...]:
        kinds = [self._one_of(*get_args(CallKind)) for _ in range(self._one_of(0, 1, 2, 3, 4))]
        calls: list[PlannedCall] = []
        for kind in kinds:
            self._named += 1
            calls.append(PlannedCall(tool_call_id=f"c{self._named}", tool_name=f"tool_{kind}", kind=kind))
        return tuple(calls)

    def _outcome(self, planned: PlannedCall) -> CallOutcome:
        waits = ("waiting", "waiting") if planned.kind in ANSWERED_BY_SOMEBODY else ()
        state = self._one_of("settled", "settled", "settled", "stopped", *waits)
        return CallOutcome(tool_call_id=planned.tool_call_id, state=state)

    def _one_of(self, *choices: Any) -> Any:
        number = next(self._numbers, None)
        self._over = number is None
        return choices[(number or 0) % len(choices)]


@given(st.lists(st.integers(0, 999), max_size=200))
async def test_whatever_the_world_answers_a_replay_asks_for_the_same_next_effect(numbers: list[int]):
    recorder = Recorder()
    end = await run_turn(recorder.wrap(World(numbers)))
    [log] = recorder.logs.values()
    assert log.end == end
    await prove_replayable(log)


async def test_a_log_with_another_answer_than_the_loop_can_follow_is_found_out():
    calls = (PlannedCall(tool_call_id="c1", tool_name="t", kind="server"),)
    recorder = Recorder()

    class OneCall(World):
        async def open(self) -> Position:
            return Position(session_id="s", run_id="r", attempt=1, agent_type="a", step=0)

        async def ask_model(self, ask: Ask) -> Reply:
            return Reply(calls=calls)

        async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
            return (CallOutcome(tool_call_id="c1", state="settled"),)

        async def commit(self, request: CommitRequest) -> CommitAck:
            return CommitAck(next="ended", status="completed")

        def should_yield(self) -> bool:
            return False

    await run_turn(recorder.wrap(OneCall([])))
    [log] = recorder.logs.values()
    await prove_replayable(log)
    forged = list(log.effects)
    forged[1] = Effect(asked=forged[1].asked, answer=Reply())
    with pytest.raises(ReplayDivergedError, match="effect 2 of the log"):
        await prove_replayable(RunLog(effects=forged, end=log.end))


# -- real conversations


class Notes(BaseModel):
    seen: list[str] = []


class Report(BaseModel):
    title: str


@tool
async def look(ctx: ToolContext[Notes], topic: str) -> str:
    """Look something up."""
    if topic == "again" and ctx.attempt == 1 and not ctx.state.seen:
        raise RetryTool("look for something first")
    ctx.state.seen.append(topic)
    return f"about {topic}"


@tool(effect="once")
async def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool(require_approval=True)
async def publish(title: str) -> str:
    """Publish a report."""
    return f"published {title}"


@tool(finish_with=True)
async def hand_in(title: str) -> Report:
    """Hand in the report."""
    return Report(title=title)


@client_tool
def where() -> str:
    """Where the client is."""
    raise NotImplementedError


LOOK, SEND = call("look", {"topic": "tides"}), call("send", {"to": "ann"})
PUBLISH, WHERE, HAND_IN = call("publish", {"title": "t"}), call("where"), call("hand_in", {"title": "t"})
DONE = finish({"title": "t"})

CONVERSATIONS: dict[str, list[Step]] = {
    "a result at once": [DONE],
    "several tools in parallel": [reply("Looking.", calls=[LOOK, LOOK, SEND]), DONE],
    "one step after another": [LOOK, SEND, LOOK, DONE],
    "an approval": [PUBLISH, DONE],
    "a client tool": [WHERE, DONE],
    "a mixed batch": [reply(calls=[LOOK, PUBLISH, SEND, WHERE]), LOOK, DONE],
    "a tool that finishes, after the others": [reply(calls=[HAND_IN, LOOK, PUBLISH])],
    "a tool that finishes, with another result": [reply(calls=[LOOK, DONE])],
    "malformed calls": [call("look", {"subject": 1}), call("no_such_tool"), finish("not json"), DONE],
    "a tool that asks for another try": [call("look", {"topic": "again"}), LOOK, DONE],
    "text where a result was due": ["All done.", DONE],
    "text again and again": ["Done.", "Done!", "Really."],
    "a script that ends too early": [LOOK],
}

YES: dict[str, Answer] = {"approval": ApprovalAnswer(approved=True), "client_tool": ToolAnswer(result="here")}


async def converse(script: list[Step], recorder: Recorder) -> list[RunResult[Report]]:
    """Every run of a conversation whose person agrees to everything."""
    agent = Agent(
        name="writer",
        model=ScriptedModel(script),
        tools=[look, send, publish, hand_in, where],
        state=Notes,
        output=Report,
    )
    backend = await open_backend("memory://")
    async with RecordingExecutor(
        recorder=recorder,
        state=backend.state,
        streams=backend.streams,
        usage=backend.usage,
        janitor_seconds=None,
    ) as helix:
        results = [await (await helix.execute(agent, "Write.", session_id="s-1")).result()]
        while isinstance(results[-1], Suspended):
            for waiting in results[-1].pending:
                answer: Answer = (
                    ToolAnswer(result="here") if waiting.kind != "approval" else ApprovalAnswer(approved=True)
                )
                await helix.submit_tool_result("s-1", waiting.tool_call_id, answer)
            results.append(await (await helix.resume(agent, "s-1")).result())
    await backend.close()
    return results


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_a_recorded_conversation_replays_effect_by_effect(conversation: str):
    recorder = Recorder()
    results = await converse(CONVERSATIONS[conversation], recorder)
    assert len(recorder.logs) == len(results)
    for log, result in zip(recorder.logs.values(), results, strict=True):
        assert log.end == RunEnd(status=result.status)
        await prove_replayable(log)


async def test_a_conversation_asks_for_the_same_effects_every_time():
    first, second = Recorder(), Recorder()
    script = CONVERSATIONS["a mixed batch"]
    await converse(script, first)
    await converse(script, second)
    asked = [[effect.asked for log in each.logs.values() for effect in log.effects] for each in (first, second)]
    assert asked[0] == asked[1]
    assert first.kinds == second.kinds


async def test_the_loop_sees_names_ids_and_kinds_but_no_text():
    recorder = Recorder()
    secret = "quicksilver " * 400
    await converse([reply(secret, calls=[call("look", {"topic": secret}), PUBLISH]), DONE], recorder)
    for log in recorder.logs.values():
        for effect in log.effects:
            for record in (effect.asked.request, effect.answer):
                stored = encode(record)
                assert b"quicksilver" not in stored
                assert len(stored) < LARGEST_RECORD


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_recorder_stops_a_run_at_the_effect_it_was_told(side: Any):
    stopped: list[str] = []
    recorder = Recorder(StopAt(effect=3, side=side), on_stop=lambda: stopped.append("here"))
    with pytest.raises(ExecutorClosedError):
        await converse([LOOK, DONE], recorder)
    assert recorder.has_stopped
    assert stopped == ["here"]
    assert recorder.kinds == ["open", "ask_model", "run_batch"]
    [log] = recorder.logs.values()
    assert len(log.effects) == (2 if side == "before" else 3)
    await prove_replayable(log)
