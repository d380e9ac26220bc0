"""The events of AG-UI for any history, as the protocol's own client checks and keeps them."""

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import groupby
from operator import itemgetter
from types import MethodType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents import Agent, ApprovalAnswer, Executor, ScriptedModel, tool
from helix_agents.domain.chunks import StatePatch, StreamChunk
from helix_agents.domain.messages import AssistantMessage, ToolMessage, UserMessage
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.server.agui.events import messages_of
from helix_agents.server.agui.inputs import RunAgentInput
from helix_agents.server.agui.routes import AGUISource
from helix_agents.server.calls import Call
from helix_agents.testing.service_process import tied_to_us
from tests.frontend.conftest import CLIENTS, command_of_node, installed
from tests.server.recorded import RUN, Log, logs

pytestmark = pytest.mark.may_block("a client of AG-UI is asked in the test's own thread")

Fold = Callable[[list[dict[str, Any]]], dict[str, Any]]
ASKED = UserMessage(content="go", id="m-1")


@pytest.fixture(scope="module")
def fold() -> Iterator[Fold]:
    """What a client holds after these events."""
    folder = installed("agui")
    command = tied_to_us([str(command_of_node("node")), str(CLIENTS / "agui" / "fold.mjs"), str(folder)])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        given, answered = client.stdin, client.stdout

        def ask(events: list[dict[str, Any]]) -> dict[str, Any]:
            given.write(json.dumps(events) + "\n")
            given.flush()
            held = json.loads(answered.readline())
            assert held["error"] is None, held["error"]
            return held

        yield ask
        client.kill()


def source_of(executor: Any, run: Any) -> AGUISource:
    body = RunAgentInput(thread_id="s", run_id="r", messages=[], protocol_version="1.0")
    call = SimpleNamespace(executor=executor)
    call.waiting = MethodType(Call.waiting, call)
    return AGUISource(cast("Any", call), body, run)


async def events_of(source: AGUISource) -> list[dict[str, Any]]:
    frames = b"".join([each async for each in source.frames()]).decode()
    return [json.loads(line.removeprefix("data: ")) for line in frames.splitlines() if line]


# -- any log, read at any pace


class Told:
    """A run that is being recorded while somebody reads it, at whatever pace: at every look, so much more is there."""

    def __init__(self, log: Log, paces: Iterator[int]) -> None:
        self._log = log
        self._paces = paces
        self._there = 0
        self.run_id, self.session_id = RUN, "s"
        self.sessions = self

    async def begun(self) -> "Told":
        return self

    async def queued(self, _: str) -> tuple[QueuedTurn, ...]:
        return ()

    async def snapshot(self, _: str) -> SessionSnapshot:
        self._go_on()
        messages, since = self._log.at(self._there)
        return SessionSnapshot(
            session_id="s",
            status="active",
            run=RunRecord(run_id=RUN, session_id="s", turn=1, started_at=0),
            messages=(ASKED, *messages),
            held=(),
            chunks=tuple(since),
            custom_state=state_after(self._log, sum(isinstance(each, AssistantMessage) for each in messages)),
            sequence=self._there,
            stream_status="active",
        )

    async def stream(self, *, from_sequence: int) -> AsyncGenerator[StreamChunk, None]:
        for chunk in self._log.chunks[from_sequence:]:
            self._go_on()
            self._there = max(self._there, chunk.sequence)
            yield chunk

    async def runs(self, _: str, *, limit: int) -> Any:
        over = RunRecord(run_id=RUN, session_id="s", turn=1, started_at=0, status="completed")
        return SimpleNamespace(items=(over,))

    def _go_on(self) -> None:
        self._there = min(self._there + next(self._paces, 0), len(self._log.chunks))


def state_after(log: Log, committed: int) -> dict[str, Any]:
    """The state that so many committed steps left: what the last attempt at each of them set."""
    set_by = {chunk.step: cast("Any", chunk.patch)[0]["value"] for chunk in log.chunks if isinstance(chunk, StatePatch)}
    return {"done": set_by[committed]} if committed else {}


@given(logs(rich=True), st.lists(st.integers(0, 12), max_size=40))
def test_a_client_takes_every_history_and_holds_what_is_stored_in_the_end(
    fold: Fold, log: Log, paces: list[int]
) -> None:
    told = Told(log, iter(paces))
    held = fold(asyncio.run(events_of(source_of(told, told))))
    stored = messages_of((ASKED, *(message for _, messages in log.committed for message in messages)))

    assert spoken(held["messages"]) == spoken(stored)
    assert thought(held["messages"]) == thought(stored)
    assert held["state"] == state_after(log, len(log.committed))


def spoken(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what a client does not take over: that a result is an error, and how arguments were spaced. Of a
    step that was begun twice, it keeps results that it has met before ahead of new ones."""
    for asked in (asked for each in messages for asked in each.get("toolCalls", ())):
        asked["function"]["arguments"] = json.loads(asked["function"]["arguments"])
    shown = [{**each, "error": None, "content": each.get("content", "")} for each in messages]
    said = [each for each in shown if each["role"] != "reasoning"]
    runs = (list(run) for _, run in groupby(said, key=lambda each: each["role"] == "tool"))
    return [each for run in runs for each in (sorted(run, key=itemgetter("id")) if run[0]["role"] == "tool" else run)]


def thought(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Reasoning by its id; words of the reply may stand before it or after it."""
    return {each["id"]: each["content"] for each in messages if each["role"] == "reasoning" and each["content"]}


# -- what the engine says


@tool(require_approval=True)
async def publish(report: str) -> str:
    """Publish."""
    return f"published {report}"


def work(request: ModelRequest) -> Any:
    """Publishes what it is asked for, and says so."""
    match request.messages[-1]:
        case UserMessage(content=report):
            return reply("Well. ", calls=[call("publish", {"report": report})])
        case _:
            return "It is out."


def lead(request: ModelRequest) -> Any:
    """Has two others publish, and publishes itself."""
    if isinstance(request.messages[-1], ToolMessage):
        return "Done."
    asked = [call(f"subagent__{name}", {"message": name}) for name in ("ann", "ben")]
    return reply("All three. ", calls=[*asked, call("publish", {"report": "mine"})])


async def test_what_children_and_the_root_itself_ask_for_is_told_apart_and_each_call_once(fold: Fold) -> None:
    others = [
        Agent(name=name, description="Publishes.", model=ScriptedModel(work), tools=[publish])
        for name in ("ann", "ben")
    ]
    tools = [publish, *(each.as_tool() for each in others)]
    agent = Agent(name="lead", model=ScriptedModel(lead), tools=tools)
    async with Executor.open("memory://", agents=[agent], janitor_seconds=None) as helix:
        asked = await events_of(source_of(helix, await helix.execute(agent, "go", "s", idempotency_key="m-1")))
        held = fold(asked)
        by_report = {each["metadata"]["input"]["report"]: each for each in held["interrupts"]}
        begun = {each["name"]: each["subagentRunId"] for each in asked if each["type"] == "SUBAGENT_STARTED"}
        assert by_report["ann"]["subagentRunId"] == begun["ann"]
        assert "subagentRunId" not in by_report["mine"]
        ended = {each["subagentRunId"]: each["outcome"] for each in asked if each["type"] == "SUBAGENT_FINISHED"}
        assert {name: ended[begun[name]]["interruptIds"] for name in begun} == {
            name: [by_report[name]["id"]] for name in ("ann", "ben")
        }

        for waiting in (await helix.list_pending()).items:
            await helix.submit_tool_result("s", waiting.tool_call_id, ApprovalAnswer(approved=True))
        went_on = await events_of(source_of(helix, await helix.resume(agent, "s")))
        whole = spoken(fold(went_on)["messages"])
        run = await helix.get_handle(agent, "s")
        again = spoken(fold(await events_of(source_of(helix, run)))["messages"])
        # Results are told as they come, and stored in the order of their calls.
        assert sorted(again, key=itemgetter("id")) == sorted(whole, key=itemgetter("id"))
        assert whole[1]["toolCalls"][2]["function"]["arguments"] == {"report": "mine"}
