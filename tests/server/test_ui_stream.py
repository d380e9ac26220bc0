"""The UI stream is a pure function of log and transcript: whoever is cut off anywhere and comes back holds the same."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from helix_agents import Agent, ApprovalAnswer, Executor, ScriptedModel, Suspended, ToolAnswer, client_tool, tool
from helix_agents.domain.chunks import (
    ToolApprovalRequest,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.messages import AssistantMessage, Thinking, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.pending import AnsweredElsewhere, OnDeadline, PendingCall
from helix_agents.domain.rendering import surviving
from helix_agents.engine.steps.answers import DENIAL, NOT_APPROVED
from helix_agents.llm.scripted import call, finish, reply
from helix_agents.server.chat.streams import UISource, replay
from helix_agents.server.chat.turns import ChildCall, Conversation, Turn, read_conversation, split_turns, stream_for
from helix_agents.server.chat.ui_messages import assistant_message
from helix_agents.server.chat.ui_parts import UIPart, UIStream, Version
from tests.server.recorded import RUN, SERVER_TOOLS, Log, logs


def new_stream(version: Version = 6) -> UIStream:
    return UIStream(runs_here=lambda name: name in SERVER_TOOLS, version=version)


def whole(log: Log, version: Version) -> list[UIPart]:
    stream = new_stream(version)
    return [part for chunk in log.chunks for part in stream.feed(chunk)] + stream.finish("completed")


def from_cut(log: Log, cut: int, version: Version) -> list[UIPart]:
    """A page that comes at this moment: the messages so far, what the stream said since, then what comes."""
    messages, since = log.at(cut)
    stream = new_stream(version)
    parts: list[UIPart] = []
    for place, message in enumerate(messages):
        parts += stream.message(message, f"m{place}") if isinstance(message, AssistantMessage) else []
        parts += stream.result(message) if isinstance(message, ToolMessage) else []
    for chunk in [*surviving(since), *log.chunks[cut:]]:
        parts += stream.feed(chunk)
    return parts + stream.finish("completed")


def shown(parts: list[UIPart]) -> list[dict[str, Any]]:
    return assistant_message("a", parts)["parts"]


@given(logs(), st.data())
def test_any_cut_and_reconnect_yields_the_same_message(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log.chunks)))
    assert shown(from_cut(log, cut, 7)) == shown(whole(log, 7)) == shown(from_cut(log, len(log.chunks), 7))


@given(logs(), st.data())
def test_a_page_that_cannot_take_parts_back_shows_the_same_once_it_leaves_out_what_was_void(
    log: Log, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log.chunks)))
    final = shown(from_cut(log, len(log.chunks), 6))
    assert without_void(from_cut(log, cut, 6)) == without_void(whole(log, 6)) == final


def without_void(parts: list[UIPart]) -> list[dict[str, Any]]:
    """The message without the steps that were named as discarded."""
    kept: list[UIPart] = []
    for part in parts:
        if part["type"] == "data-step-discarded":
            last = max(place for place, each in enumerate(kept) if each["type"] == "start-step")
            del kept[last:]
            kept.append({"type": "void"})
        elif part["type"] == "finish-step" and kept and kept[-1]["type"] == "void":
            kept.pop()
        else:
            kept.append(part)
    return shown([part for part in kept if part["type"] != "void"])


@given(logs())
def test_a_client_never_meets_a_part_it_cannot_place(log: Log) -> None:
    """What the AI SDK's own reader insists on: blocks are begun before they grow, and end before their step does."""
    for version in (6, 7):
        open_blocks: set[str] = set()
        calls: set[str] = set()
        in_step = False
        for part in whole(log, version):
            kind = part["type"]
            if kind == "start-step":
                assert not in_step
                in_step = True
            elif kind == "finish-step":
                assert in_step
                assert not open_blocks
                in_step = False
            elif kind in ("text-start", "reasoning-start"):
                assert part["id"] not in open_blocks
                open_blocks.add(part["id"])
            elif kind in ("text-delta", "reasoning-delta"):
                assert part["id"] in open_blocks
            elif kind in ("text-end", "reasoning-end"):
                open_blocks.remove(part["id"])
            elif kind.startswith("tool-input"):
                calls.add(part["toolCallId"])
            elif kind.startswith("tool-"):
                assert part["toolCallId"] in calls
        assert not open_blocks
        assert not in_step


# ---------------------------------------------------------------------------------------------------------
# Logs of the real engine
# ---------------------------------------------------------------------------------------------------------


@tool
async def search(query: str, pages: int = 2) -> str:
    """Search."""
    return query * pages


@tool(require_approval=True)
async def publish(report: str) -> str:
    """Publish."""
    return report


@client_tool
def locate(accuracy: int = 3) -> str:
    """Where."""
    raise NotImplementedError


SCRIPT = [
    reply("first ", thinking="hm", calls=[call("search", {"query": "a"}), call("search", "{broken")]),
    reply("second ", calls=[call("publish", {"report": "r"}), call("locate", {}), call("search", {"query": "b"})]),
    "and last.",
]


@pytest.mark.parametrize("approved", [True, False])
async def test_pages_that_come_at_any_moment_of_a_real_conversation_agree(approved: bool) -> None:
    agent = Agent(name="writer", model=ScriptedModel(SCRIPT, chunk=3), tools=[search, publish, locate])
    async with Executor.open("memory://", agents=[agent], janitor_seconds=None) as helix:
        first = await helix.execute(agent, "go", "s", idempotency_key="m-1")
        suspended = await first.result()
        assert isinstance(suspended, Suspended)
        early = await read_conversation(helix, "s")
        for waiting in suspended.pending:
            answer = ApprovalAnswer(approved=approved) if waiting.kind == "approval" else ToolAnswer(result="here")
            await helix.submit_tool_result("s", waiting.tool_call_id, answer)
        second = await helix.resume(agent, "s")
        await second.result()
        chunks = [chunk async for chunk in second.stream(from_sequence=0)]
        final = await read_conversation(helix, "s")

        live = stream_for(helix, "writer")
        seen = assistant_message(
            first.run_id, [part for chunk in chunks for part in live.feed(chunk)] + live.finish("completed")
        )
        refreshed = stream_for(helix, "writer")
        late = assistant_message(first.run_id, final.replay(refreshed) + refreshed.finish("completed"))
        middle = stream_for(helix, "writer")
        replayed = early.replay(middle)
        rest = [part for chunk in chunks if chunk.sequence > early.sequence for part in middle.feed(chunk)]
        between = assistant_message(first.run_id, [*replayed, *rest, *middle.finish("completed")])

    for message in (seen, late, between):
        # Who answers notes the decision in the page, and a page that comes later is told what became of it.
        for part in message["parts"]:
            part.pop("approval", None)
    assert seen == late == between
    assert early.message_id == final.message_id == f"msg_{first.run_id}"
    states = [part.get("state") for part in seen["parts"] if part["type"].startswith("tool-")]
    decided = "output-available" if approved else "output-denied"
    assert states == ["output-available", "output-error", decided, "output-available", "output-available"]


class Report(BaseModel):
    title: str
    pages: int


async def test_structured_output_is_data_of_the_answer_and_none_of_its_tools() -> None:
    script = [reply("Here.", calls=[finish({"title": "Tides"})]), finish({"title": "Tides", "pages": 3})]
    agent = Agent(name="writer", model=ScriptedModel(script, chunk=3), output=Report)
    async with Executor.open("memory://", agents=[agent], janitor_seconds=None) as helix:
        run = await helix.execute(agent, "go", "s")
        assert await run.output() == Report(title="Tides", pages=3)
        live, late = stream_for(helix, "writer"), stream_for(helix, "writer")
        seen = [part async for chunk in run.stream(from_sequence=0) for part in live.feed(chunk)]
        replayed = (await read_conversation(helix, "s")).replay(late)
    for parts in (seen, replayed):
        said = [part for part in parts if not part["type"].startswith(("start", "finish", "text"))]
        assert said == [{"type": "data-output", "id": "output", "data": {"title": "Tides", "pages": 3}}]


def test_thoughts_end_before_words_begin_however_they_come() -> None:
    """Some models never say that a thought is over; the text that follows does."""
    ended, open_ended = Log(), Log()
    for log in (ended, open_ended):
        log.step(1, ["Hm."], ["It is ", "so."], [], 1)
    del open_ended.chunks[2]
    message = AssistantMessage(id=f"{RUN}.1", thinking=(Thinking(text="Hm."),), text="It is so.")
    thought = ["start-step", "reasoning-start", "reasoning-delta", "reasoning-end"]
    words = ["text-delta", "text-delta"]
    for parts, deltas in (
        (whole(ended, 6), words),
        (whole(open_ended, 6), words),
        ([*(stream := new_stream()).message(message, "m"), *stream.finish("completed")], words[:1]),
    ):
        kinds = [part["type"] for part in parts]
        assert kinds == [*thought, "text-start", *deltas, "text-end", "finish-step", "finish"]
    two = Log()
    two.step(1, ["Hm.", "Well."], [], [], 1)
    assert [part["type"] for part in whole(two, 6)].count("reasoning-start") == 2


def test_what_is_told_twice_of_a_call_is_shown_once() -> None:
    """A chunk that repeats what a page was shown, and one that comes after a call's end, change nothing."""
    stream = new_stream()
    header: dict[str, Any] = {"session_id": "s", "run_id": RUN, "agent_type": "a", "step": 1, "sequence": 1}
    about: dict[str, Any] = {"tool_call_id": "c", "tool_name": "publish"}
    asked = ToolApprovalRequest(**header, **about, approval_id="approve-c", input={"n": 1})
    began = stream.feed(ToolStart(**header, **about, arguments={"n": 1})) + stream.feed(asked)
    assert [part["type"] for part in began] == ["start-step", "tool-input-available", "tool-approval-request"]
    late = [
        asked,
        ToolStart(**header, **about, arguments={"n": 1}),
        ToolArgStreamDelta(**header, tool_call_id="c", delta="{"),
        ToolArgStreamEnd(**header, tool_call_id="c"),
    ]
    assert [part for chunk in late for part in stream.feed(chunk)] == []
    assert [part["type"] for part in stream.feed(ToolEnd(**header, **about, result=1))] == ["tool-output-available"]
    assert stream.feed(asked) == []


def approval_row(call_id: str, state: Any, answer: Any = None, **more: Any) -> PendingCall:
    return PendingCall(
        tool_call_id=call_id, kind="approval", session_id="s", root_session_id="s", run_id=RUN, step_id=f"{RUN}.1",
        tool_name="publish", input={"n": 1}, approval_id=f"approve-{call_id}", created_at=1, state=state,
        answer=answer, **more,
    )  # fmt: skip


def shown_with(version: Version, *rows: PendingCall) -> list[dict[str, Any]]:
    """The parts of a reply whose calls wait or waited for a decision."""
    calls = tuple(ToolCall(id=row.tool_call_id, name="publish", arguments={"n": 1}) for row in rows)
    return shown(new_stream(version).message(AssistantMessage(id=f"{RUN}.1", tool_calls=calls), "m", rows))


YES, NO = ApprovalAnswer(approved=True, reason="fine"), ApprovalAnswer(approved=False, reason="no")


@pytest.mark.parametrize(
    ("version", "state", "answer", "shown_as", "told"),
    [
        (7, "waiting", None, "approval-requested", {}),
        (7, "expired", None, "approval-requested", {}),
        (7, "answered", YES, "approval-responded", {"approved": True, "reason": "fine"}),
        (7, "consumed", YES, "approval-responded", {"approved": True, "reason": "fine"}),
        (7, "consumed", NO, "approval-responded", {"approved": False, "reason": "no"}),
        (7, "dropped", NO, "input-available", None),
        (7, "dropped", None, "input-available", None),
        (7, "consumed", None, "input-available", None),
        (7, "consumed", AnsweredElsewhere(), "input-available", None),
        (6, "waiting", None, "approval-requested", {}),
        (6, "expired", None, "approval-requested", {}),
        (6, "answered", YES, "input-available", None),
        (6, "consumed", YES, "input-available", None),
        (6, "answered", NO, "output-denied", {}),
        (6, "consumed", NO, "output-denied", {}),
        (6, "consumed", None, "input-available", None),
    ],
)
def test_a_decided_call_is_shown_as_far_as_the_client_can_be_told(
    version: Version, state: Any, answer: Any, shown_as: str, told: dict[str, Any] | None
) -> None:
    """The older chunk set has no word for a decision. A call that was decided is not asked about, in either, and one
    that nobody decided is not after it was given up."""
    [_, tool] = shown_with(version, approval_row("c", state, answer))
    assert (tool["state"], tool["input"], tool["providerExecuted"]) == (shown_as, {"n": 1}, True)
    assert tool.get("approval") == (None if told is None else {"id": "approve-c", **told})


@pytest.mark.parametrize("version", [6, 7])
def test_an_approval_that_its_deadline_denied_is_shown_with_that_decision(version: Version) -> None:
    row = approval_row("c", "consumed", on_deadline=OnDeadline(action="deny"))
    [_, tool] = shown_with(version, row)
    assert tool["state"] == ("output-denied" if version == 6 else "approval-responded")
    decision = {} if version == 6 else {"approved": False, "reason": "nobody decided in time"}
    assert tool["approval"] == {"id": "approve-c", **decision}


def test_a_deadline_that_passes_before_the_eyes_of_a_page_is_told_as_a_denial() -> None:
    stream = new_stream(7)
    parts = stream.message(AssistantMessage(id=f"{RUN}.1", tool_calls=(ToolCall(id="c", name="publish"),)), "m")
    parts += stream.waits(approval_row("c", "expired", on_deadline=OnDeadline(action="deny")), below=False)
    error = f"{DENIAL}: nobody decided in time"
    header: dict[str, Any] = {"session_id": "s", "run_id": RUN, "agent_type": "a", "step": 1, "sequence": 9}
    about: dict[str, Any] = {"tool_call_id": "c", "tool_name": "publish"}
    parts += stream.feed(ToolError(**header, **about, error=error, code=NOT_APPROVED))
    [_, tool] = shown(parts)
    assert tool["state"] == "output-denied"
    assert tool["approval"] == {"id": "approve-c", "approved": False, "reason": "nobody decided in time"}


@pytest.mark.parametrize("below", [False, True])
def test_an_approved_call_stands_in_a_step_before_those_that_are_still_asked_about(below: bool) -> None:
    """Pages look at their last step, and keep an answer to themselves while a call of it has none."""
    rows = [approval_row("a", "waiting"), approval_row("b", "answered", YES), approval_row("c", "answered", NO)]
    assert [part.get("state") for part in shown_with(7, *rows)[1:]] == [
        "approval-requested", "approval-responded", "approval-responded",
    ]  # fmt: skip
    if below:
        parts = [part for part in conversation_with_children(rows) if part["type"] != "tool-subagent__editor"]
        assert parts.pop(0) == {"type": "step-start"}
    else:
        parts = shown_with(6, *rows)
    assert [(part["type"], part.get("toolCallId"), part.get("state")) for part in parts] == [
        ("step-start", None, None),
        ("tool-publish", "b", "input-available"),
        ("step-start", None, None),
        ("tool-publish", "a", "approval-requested"),
        ("tool-publish", "c", "output-denied"),
    ]


def test_what_a_page_was_shown_in_two_steps_counts_as_the_one_it_is() -> None:
    calls = tuple(ToolCall(id=call_id, name="subagent__editor") for call_id in ("d", "e"))
    replies = [AssistantMessage(tool_calls=calls), AssistantMessage(tool_calls=(ToolCall(id="f", name="publish"),))]
    rows = [approval_row("a", "consumed", YES), approval_row("b", "consumed", YES)]
    counted = conversation_of(replies, rows).count_steps
    assert counted([{"d", "e"}, {"a", "b"}, {"f"}]) == 3
    assert counted([{"e"}, {"d"}, {"b"}, {"a"}, {"f"}]) == 3
    assert counted([set(), {"d", "e"}, {"of another answer"}]) == 3
    assert counted([]) == 0


def conversation_with_children(rows: list[PendingCall]) -> list[dict[str, Any]]:
    """The answer of an agent whose delegate waits for these."""
    reply = AssistantMessage(id=f"{RUN}.1", tool_calls=(ToolCall(id="d", name="subagent__editor"),))
    return shown(conversation_of([reply], rows).replay(new_stream(6)))


def conversation_of(replies: list[AssistantMessage], rows: list[PendingCall]) -> Conversation:
    """One turn with these replies, the first of which delegated to who waits or waited for the rows."""
    return Conversation(
        session=cast("Any", None), run=None, turns=[Turn(asked=None, first=0, messages=tuple(replies))], held=(),
        chunks=(), rows={}, sequence=0, stream_status=None,
        children=tuple(ChildCall(row=row, round=1, delegated_by="d", result=None) for row in rows),
    )  # fmt: skip


@pytest.mark.parametrize("state", ["waiting", "answered"])
def test_who_runs_a_childs_tool_is_not_told_by_the_tools_of_its_root(state: Any) -> None:
    stream = new_stream()
    common = {"session_id": "child", "root_session_id": "s", "run_id": RUN, "step_id": f"{RUN}.1", "created_at": 1}
    asked = PendingCall(
        tool_call_id="a", kind="approval", tool_name="locate", input={}, approval_id="a", state="waiting", **common
    )
    answer = ToolAnswer(result="here") if state == "answered" else None
    run_there = PendingCall(
        tool_call_id="b", kind="client_tool", tool_name="search", input={}, state=state, answer=answer, **common
    )
    tools = shown([*stream.waits(asked, below=True), *stream.waits(run_there, below=True)])[1:]
    assert [tool.get("providerExecuted", False) for tool in tools] == [True, False]


async def test_an_answer_that_is_read_slowly_ends_where_the_next_one_begins() -> None:
    agent = Agent(name="talker", model=ScriptedModel(["One.", "Two."]))
    async with Executor.open("memory://", agents=[agent], janitor_seconds=None) as helix:
        first = await helix.execute(agent, "1", "s")
        await first.result()
        await (await helix.execute(agent, "2", "s")).result()
        call: Any = SimpleNamespace(executor=helix)
        frames = [frame async for frame in UISource(call, stream_for(helix, "talker"), [], first).frames()]
    assert b"One." in b"".join(frames)
    assert b"Two." not in b"".join(frames)
    assert b'"finishReason":"stop"' in frames[-1]


async def test_a_page_that_comes_back_while_the_next_answer_begins_is_shown_that_one() -> None:
    agent = Agent(name="talker", model=ScriptedModel(["One.", "Two."]))
    async with Executor.open("memory://", agents=[agent], janitor_seconds=None) as helix:
        await (await helix.execute(agent, "1", "s")).result()
        before = await read_conversation(helix, "s")
        await (await helix.execute(agent, "2", "s")).result()
        sources: list[UISource] = []
        call: Any = SimpleNamespace(
            executor=helix, agent_of=lambda _: agent, stream=lambda source, *_: sources.append(source)
        )
        await replay(call, before, 6)
        frames = b"".join([frame async for frame in sources[0].frames()])
    assert b"Two." in frames
    assert b"One." not in frames


def test_a_transcript_splits_at_what_the_user_said() -> None:
    hidden = UserMessage(content="go on", hidden=True)
    one, two = UserMessage(content="1", id="u1"), UserMessage(content="2", id="u2")
    a, b = AssistantMessage(id="run_1.1", text="a"), AssistantMessage(id="run_2.1", text="b")
    turns = split_turns([one, a, hidden, b], [two])
    assert [turn.asked.id if turn.asked else None for turn in turns] == ["u1", "u2"]
    assert turns[0].messages == (a, hidden, b)
    assert (turns[0].first, turns[1].first) == (0, 4)
    assert turns[0].message_id(None) == "msg_run_1"


def test_reading_does_not_change_what_was_read() -> None:
    parts = [{"type": "start-step"}, {"type": "text-start", "id": "t"}, {"type": "text-delta", "id": "t", "delta": "x"}]
    before = deepcopy(parts)
    assistant_message("a", parts)
    assert parts == before
