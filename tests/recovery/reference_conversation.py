"""The conversation that is cut wherever it can be cut: its agent, its person, and what must be true at its end."""

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.pending import OPEN, Answer, ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.rendering import render, surviving
from helix_agents.domain.results import Completed, Suspended
from helix_agents.domain.usage import UsageFilter
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, finish, reply

SESSION = "s-1"
QUESTIONS = ("Write about the tides and tell Ann.", "And a shorter one, please.")


class Desk(BaseModel):
    looked_up: list[str] = []
    letters: list[str] = []
    published: list[str] = []


class Report(BaseModel):
    title: str
    body: str


class Traces:
    """What tools did to the world outside the store: one line per deed, which no crash takes back."""

    def __init__(self, path: Path, *, reached: Callable[[int, Literal["before", "after"]], None] | None = None) -> None:
        self._path = path
        self._reached = reached
        self._count = 0

    def leave(self, deed: str) -> None:
        """Do it. Whoever wants to die beside a deed is told before and after."""
        self._count += 1
        number = self._count
        if self._reached is not None:
            self._reached(number, "before")
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{deed}\n".encode())
        finally:
            os.close(file)
        if self._reached is not None:
            self._reached(number, "after")

    def counted(self) -> Counter[str]:
        """How often each deed was done, by call."""
        return Counter(self._path.read_text().split() if self._path.exists() else [])


def dependencies(traces: Traces) -> Callable[[str, str | None], AbstractAsyncContextManager[Traces]]:
    """Hands the traces to every run."""

    @asynccontextmanager
    async def opened(session_id: str, user_id: str | None) -> AsyncGenerator[Traces]:
        yield traces

    return opened


@tool
def look_up(ctx: ToolContext[Desk, Traces], topic: str) -> str:
    """Look something up; twice does no harm."""
    ctx.deps.leave(ctx.tool_call_id)
    ctx.state.looked_up.append(topic)
    return f"a page about {topic}"


@tool(effect="once")
def send_letter(ctx: ToolContext[Desk, Traces], to: str) -> str:
    """Send a letter, which cannot be taken back."""
    ctx.deps.leave(ctx.tool_call_id)
    ctx.state.letters.append(to)
    return f"sent to {to}"


@tool(require_approval=True)
def publish(ctx: ToolContext[Desk, Traces], title: str) -> str:
    """Publish a report, if somebody agrees."""
    ctx.deps.leave(ctx.tool_call_id)
    ctx.state.published.append(title)
    return f"published {title}"


@client_tool
def locate(city: str) -> str:
    """Where the person is."""
    raise NotImplementedError


SCRIPT = [
    reply(
        "I look around. ",
        calls=[
            call("look_up", {"topic": "tides"}, id="look_tides"),
            call("publish", {"title": "Tides"}, id="publish_tides"),
            call("send_letter", {"to": "ann"}, id="send_ann"),
            call("locate", {"city": "Brest"}, id="locate_brest"),
            call("look_up", {"topic": "moon"}, id="look_moon"),
        ],
    ),
    reply(
        "Now the rest of it. ",
        calls=[
            call("send_letter", {"to": "ben"}, id="send_ben"),
            call("look_up", {"topic": "sun"}, id="look_sun"),
        ],
    ),
    reply("There it is. ", calls=[finish({"title": "Tides", "body": "Twice a day."}, id="finish_1")]),
    reply("Shorter, then. ", calls=[call("look_up", {"topic": "haiku"}, id="look_haiku")]),
    reply("Here. ", calls=[finish({"title": "Tides", "body": "Up. Down."}, id="finish_2")]),
]

AGENT = Agent(
    name="clerk",
    model=ScriptedModel(SCRIPT, chunk=5),
    instructions="You are a clerk.",
    tools=[look_up, send_letter, publish, locate],
    state=Desk,
    output=Report,
)
AGENTS = [AGENT]

ONCE = {"send_ann", "send_ben", "publish_tides"}
REPEATABLE = {"look_tides", "look_moon", "look_sun", "look_haiku"}
RUNS = 3
"""Two turns, of which the first waits for somebody once."""


def answer_to(waiting: PendingCall) -> Answer:
    """A person who agrees, but does not want anything done again that may have been done."""
    if waiting.kind == "approval":
        return ApprovalAnswer(approved=waiting.reason is None, reason=waiting.reason)
    return ToolAnswer(result="at the harbour")


async def go_on(helix: Executor) -> None:
    """Take the conversation from wherever it stands to its end, knowing nothing but what is stored."""
    await helix.recover()
    handle = await helix.get_handle(AGENT, SESSION) or await helix.execute(AGENT, QUESTIONS[0], SESSION)
    while True:
        match await handle.result():
            case Suspended(pending=pending):
                for waiting in pending:
                    if waiting.state == "waiting":
                        await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
                handle = await helix.resume(AGENT, SESSION)
            case Completed():
                asked = [message for message in await transcript_of(helix) if isinstance(message, UserMessage)]
                if len(asked) == len(QUESTIONS):
                    return
                handle = await helix.execute(AGENT, QUESTIONS[len(asked)], SESSION)
            case other:
                raise AssertionError(f"the conversation came to {other}")


async def transcript_of(helix: Executor) -> list[Message]:
    page = await helix.sessions.messages(SESSION, limit=200)
    return [stored.message for stored in reversed(page.items)]


# -- what must be true at the end, however often it was cut


async def check_end(backend: Backend, traces: Traces) -> set[str]:
    """Everything that must hold; answers the calls whose outcome stayed unknown."""
    transcript = [stored.message for stored in await backend.state.load_transcript(SESSION)]
    unknown = check_transcript(transcript)
    check_deeds(traces.counted(), unknown)
    await check_state(backend, unknown)
    await check_runs(backend, unknown)
    await check_nothing_is_left(backend)
    await check_stream(backend, transcript)
    await check_usage(backend)
    return unknown


def check_transcript(transcript: list[Message]) -> set[str]:
    """Every question and reply is there once, each reply followed by the results of its calls in call order."""
    assert [message.content for message in transcript if isinstance(message, UserMessage)] == list(QUESTIONS)
    replies = [message for message in transcript if isinstance(message, AssistantMessage)]
    assert [message.text for message in replies] == [said.text for said in SCRIPT]
    assert [[each.id for each in message.tool_calls] for message in replies] == [
        [each.id for each in said.calls] for said in SCRIPT
    ]
    assert all(message.interrupted is None for message in replies)
    expected = [QUESTIONS[0]]
    for place, said in enumerate(SCRIPT):
        if place == 3:
            expected.append(QUESTIONS[1])
        expected += [said.text, *(str(each.id) for each in said.calls)]
    assert [_shown(message) for message in transcript] == expected
    results = [message for message in transcript if isinstance(message, ToolMessage)]
    unknown = {message.tool_call_id for message in results if message.code == "outcome_unknown"}
    failed = {message.tool_call_id for message in results if message.error}
    assert failed == unknown
    assert unknown <= ONCE
    return unknown


def _shown(message: Message) -> Any:
    match message:
        case UserMessage(content=content):
            return content
        case AssistantMessage(text=text):
            return text
        case ToolMessage(tool_call_id=call_id):
            return call_id


def check_deeds(done: Counter[str], unknown: set[str]) -> None:
    assert set(done) <= ONCE | REPEATABLE, "a deed that no call in the transcript asked for"
    assert all(done[deed] >= 1 for deed in REPEATABLE)
    for deed in ONCE:
        assert done[deed] <= 1, f"{deed} was done twice"
        assert done[deed] == 1 or deed in unknown, f"{deed} has a result but was not done"


async def check_state(backend: Backend, unknown: set[str]) -> None:
    state = (await backend.state.load_state(SESSION)).custom_state
    assert state["looked_up"] == ["tides", "moon", "sun", "haiku"]
    assert state["letters"] == [to for to in ("ann", "ben") if f"send_{to}" not in unknown]
    assert state["published"] == (["Tides"] if "publish_tides" not in unknown else [])


async def check_runs(backend: Backend, unknown: set[str]) -> None:
    """Recovery continues a run, it does not add one; only a question about an unknown outcome costs another turn."""
    page = await backend.state.list_runs(SESSION, limit=100)
    runs = list(reversed(page.items))
    assert [run.turn for run in runs] == list(range(1, len(runs) + 1))
    asked_again = 0
    for run in runs:
        assert run.status != "running"
        assert run.ended_at is not None
        asked_again += run.status.startswith("suspended")
    assert len(runs) == RUNS - 1 + asked_again
    assert asked_again <= 1 + len(unknown)
    assert runs[-1].status == "completed"
    session = await backend.state.load_state(SESSION)
    assert session.status == "completed"
    assert session.output == {"title": "Tides", "body": "Up. Down."}
    assert session.current_run_id == runs[-1].run_id


async def check_nothing_is_left(backend: Backend) -> None:
    state = await backend.state.load_state(SESSION)
    assert state.suspension_context is None
    assert state.suspended_step_id is None
    open_rows = PendingFilter(root_session_id=SESSION, states=tuple(OPEN))
    assert (await backend.state.list_pending(open_rows)).items == ()
    used = PendingFilter(root_session_id=SESSION, states=("consumed", "dropped"))
    rows = {row.tool_call_id: row.state for row in (await backend.state.list_pending(used)).items}
    assert {"publish_tides", "locate_brest"} <= set(rows)
    assert set(rows.values()) == {"consumed"}
    assert await backend.state.list_effects(SESSION) == ()
    runs = (await backend.state.list_runs(SESSION, limit=100)).items
    for run in runs:
        for step in range(1, 6):
            assert await backend.state.get_staged_changes(SESSION, f"{run.run_id}.{step}") == ()
    assert await backend.state.list_orphans() == ()


async def check_stream(backend: Backend, transcript: list[Message]) -> None:
    """What a reader of the stream alone has seen, in the end, is what was committed: nothing less, more or twice."""
    info = await backend.streams.get_stream_info(SESSION)
    assert info is not None
    assert (info.status, info.end_status) == ("ended", "completed")
    chunks = await backend.streams.get_all_chunks(SESSION)
    assert len({chunk.sequence for chunk in chunks}) == len(chunks)
    assert [chunk.sequence for chunk in chunks] == sorted(chunk.sequence for chunk in chunks)
    assert _texts(surviving(chunks)) == [said.text for said in SCRIPT]
    seen = render((), chunks)
    committed = [message for message in transcript if not isinstance(message, UserMessage)]
    assert [_visible(message) for message in seen] == [_visible(message) for message in committed]


def _texts(chunks: Iterable[StreamChunk]) -> list[str]:
    deltas = (chunk for chunk in chunks if isinstance(chunk, TextDelta))
    return [
        "".join(delta.delta for delta in step) for _, step in groupby(deltas, lambda each: (each.run_id, each.step))
    ]


def _visible(message: Message) -> Any:
    match message:
        case AssistantMessage(text=text, tool_calls=calls):
            return (text, [(each.id, each.name, each.arguments) for each in calls])
        case ToolMessage(tool_call_id=call_id, content=content, error=error):
            return (call_id, content, error)
        case UserMessage():
            raise AssertionError("a stream holds no questions")


async def check_usage(backend: Backend) -> None:
    """Each committed reply is counted once."""
    entries = (await backend.usage.query_usage(UsageFilter(session_id=SESSION), limit=200)).items
    tokens = [entry for entry in entries if entry.source_type == "tokens"]
    assert len(tokens) == len(SCRIPT)
