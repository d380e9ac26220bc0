"""A parent with two children, one of which needs somebody's consent, and a companion that it speaks to twice: who they
are, how a person talks with them, and what must be true of all of them in the end."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StreamChunk, TextDelta, ToolEnd, ToolError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.pending import ApprovalAnswer, PendingFilter
from helix_agents.domain.rendering import surviving
from helix_agents.domain.results import Completed, Suspended
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import SessionFilter
from helix_agents.domain.transcript import heal
from helix_agents.domain.usage import UsageFilter
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.contracts.executor.family import assert_well_told
from tests.recovery.lives import Conversation
from tests.recovery.reference_conversation import Traces

SESSION = "s-1"
QUESTIONS = ("Begin.", "Go on.", "And?")


class Diary(BaseModel):
    done: list[str] = []


@tool
def look_up(ctx: ToolContext[Diary, Traces], topic: str) -> str:
    """Look something up; twice does no harm."""
    ctx.deps.leave(topic)
    ctx.state.done.append(topic)
    return f"a page about {topic}"


@tool(effect="once")
def send_letter(ctx: ToolContext[Diary, Traces], to: str) -> str:
    """Send a letter, which cannot be taken back."""
    ctx.deps.leave(to)
    ctx.state.done.append(to)
    return f"sent to {to}"


@tool(require_approval=True)
def publish(ctx: ToolContext[Diary, Traces], title: str) -> str:
    """Publish a report, if somebody agrees."""
    ctx.deps.leave(title)
    ctx.state.done.append(title)
    return f"published {title}"


SCRIPTS = {
    "chief": [
        reply(
            "You go and look. ",
            calls=[
                call("look_up", {"topic": "tides"}, id="look"),
                call("companion__spawnAgent", {"agent": "scout", "initialMessage": "Look", "name": "eve"}, id="spawn"),
            ],
        ),
        reply(
            "And you two, please. ",
            calls=[
                call("subagent__writer", {"message": "Write"}, id="write"),
                call("subagent__publisher", {"message": "Publish"}, id="publish"),
            ],
        ),
        reply("It began. "),
        reply("Further. ", calls=[call("companion__sendMessage", {"name": "eve", "message": "Look again"}, id="send")]),
        reply("It goes on. "),
        reply("All told. "),
    ],
    "writer": [
        reply(
            "I look and write. ",
            calls=[call("look_up", {"topic": "moon"}, id="moon"), call("send_letter", {"to": "ann"}, id="ann")],
        ),
        reply("Written. "),
    ],
    "publisher": [reply("May I? ", calls=[call("publish", {"title": "Tides"}, id="Tides")]), reply("Published. ")],
    "scout": [
        reply("I write to him. ", calls=[call("send_letter", {"to": "bob"}, id="bob")]),
        reply("Found it. "),
        reply("Found more. "),
    ],
}
# How many replies answer each message of a user, or of the parent.
TURNS = {"chief": (3, 2, 1), "writer": (2,), "publisher": (2,), "scout": (2, 1)}
MESSAGES = {"chief": QUESTIONS, "writer": ("Write",), "publisher": ("Publish",), "scout": ("Look", "Look again")}
DEEDS = {"chief": ["tides"], "writer": ["moon", "ann"], "publisher": ["Tides"], "scout": ["bob"]}
ONCE = {"ann", "bob", "Tides"}
FOUND = ("Found it. ", "Found more. ")


def _agent(name: str, **fields: Any) -> Agent[Diary, str, Traces]:
    model = ScriptedModel(SCRIPTS[name], chunk=5)
    return Agent(name=name, description=f"The {name}.", model=model, state=Diary, **fields)


class Crew:
    """The conversation, with a companion of one mode."""

    def __init__(self, mode: CompanionMode) -> None:
        self.mode = mode
        writer, publisher = _agent("writer", tools=[look_up, send_letter]), _agent("publisher", tools=[publish])
        self.scout = scout = _agent("scout", tools=[send_letter])
        self.chief = _agent(
            "chief",
            tools=[look_up, writer.as_tool(), publisher.as_tool()],
            persistent_agents=[PersistentAgent(scout, mode=mode)],
        )
        # A child is found by its name where its parent was never run: answers are checked against its tools.
        agents = [self.chief, writer, publisher, scout]
        self.conversation = Conversation(agents=agents, go_on=self.go_on, check_end=self.check_end)

    async def go_on(self, helix: Executor) -> None:
        """Take the conversation from wherever it stands to its end, knowing nothing but what is stored."""
        await helix.recover()
        handle = await helix.get_handle(self.chief, SESSION) or await helix.execute(self.chief, QUESTIONS[0], SESSION)
        while True:
            match await handle.result():
                case Suspended():
                    await _answer(helix)
                    handle = await helix.resume(self.chief, SESSION)
                case Completed():
                    await self._let_the_companion_finish(helix)
                    asked = await _questions_asked(helix)
                    if asked == len(QUESTIONS):
                        await self._look_at_the_companion(helix)
                        return
                    handle = await helix.execute(self.chief, QUESTIONS[asked], SESSION)
                case other:
                    raise AssertionError(f"the conversation came to {other}")

    async def _let_the_companion_finish(self, helix: Executor) -> None:
        async with asyncio.timeout(15):
            while not await _everybody_is_done(helix):
                if await _answer(helix):
                    await helix.resume(self.chief, SESSION)
                await asyncio.sleep(0.005)

    async def _look_at_the_companion(self, helix: Executor) -> None:
        """Whoever looks at a run ends its stream, if the process that ended the run died in between."""
        page = await helix.sessions.list(SessionFilter(root_session_id=SESSION, agent_type="scout"))
        for each in page.items:
            await helix.get_handle(self.scout, each.session_id)

    # -- what must be true at the end, however often it was cut

    async def check_end(self, backend: Backend, traces: Traces) -> set[str]:
        """Everything that must hold; answers the deeds whose outcome stayed unknown."""
        ids = {"chief": SESSION}
        for ref in await backend.state.get_sub_session_refs(SESSION):
            assert ref.agent_type not in ids, f"a second {ref.agent_type}"
            assert ref.status == "completed"
            ids[ref.agent_type] = ref.sub_session_id
        assert ids.keys() == SCRIPTS.keys()
        assert (await backend.state.list_sessions()).total == len(ids), "a session that belongs to nobody"
        unknown: set[str] = set()
        for name, session_id in ids.items():
            unknown |= await self._check_session(backend, name, session_id)
        _check_deeds(traces.counted(), unknown)
        await _check_nothing_is_left(backend, ids)
        await self._check_streams(backend, ids)
        return unknown

    async def _check_session(self, backend: Backend, name: str, session_id: str) -> set[str]:
        """One conversation: every message, reply and result once and in its place, and runs that all ended."""
        transcript = [stored.message for stored in await backend.state.load_transcript(session_id)]
        assert heal(transcript) == ()
        suffix = "" if name == "chief" else f"_{session_id[-6:]}"
        shown = [_shown(message) for message in transcript]
        told = [each for each in shown if each.startswith("told: ")]
        assert [each for each in shown if each not in told] == _expected(name, suffix)
        results = {each.tool_call_id: each for each in transcript if isinstance(each, ToolMessage)}
        self._check_notices(name, shown, told, results)
        assert all(message.code == "outcome_unknown" for message in results.values() if message.error)
        unknown = {call_id.removesuffix(suffix) for call_id, message in results.items() if message.error}
        session = await backend.state.load_state(session_id)
        assert session.custom_state == {"done": [deed for deed in DEEDS[name] if deed not in unknown]}
        runs = (await backend.state.list_runs(session_id)).items
        ended = [run.status for run in runs if run.status not in SUSPENDED]
        assert ended == ["completed"] * len(TURNS[name])
        waits = 1 if name == "publisher" else 0
        assert name == "chief" or len(runs) - len(ended) <= waits + len(unknown)
        return unknown

    def _check_notices(self, name: str, shown: list[str], told: list[str], results: dict[str, ToolMessage]) -> None:
        """Every end of the companion is told once, after the call it answers and before the next one."""
        if name != "chief" or self.mode == "blocking":
            assert told == []
            if name == "chief":
                assert (results["spawn"].content, results["send"].content) == FOUND
            return
        assert results["spawn"].content == results["send"].content == {"name": "eve", "status": "running"}
        assert told == [f"told: Companion 'eve' (scout) is completed: {found}" for found in FOUND]
        assert shown.index("spawn") < shown.index(told[0]) < shown.index("send") < shown.index(told[1])

    async def _check_streams(self, backend: Backend, ids: dict[str, str]) -> None:
        """Readers of the streams alone have seen each agent say what it said, once, and every result once."""
        alone = {"scout"} if self.mode == "non_blocking" else set[str]()
        streams = {SESSION: ids.keys() - alone, **{ids[name]: {name} for name in alone}}
        for stream_id, names in streams.items():
            info = await backend.streams.get_stream_info(stream_id)
            assert info is not None
            assert (info.status, info.end_status) == ("ended", "completed")
            chunks = surviving(await backend.streams.get_all_chunks(stream_id))
            said: defaultdict[str, str] = defaultdict(str)
            for chunk in chunks:
                if isinstance(chunk, TextDelta):
                    said[chunk.agent_type] += chunk.delta
            assert said == {name: "".join(each.text for each in SCRIPTS[name]) for name in names}
            assert _results_in(chunks) == Counter(
                f"{name} {each.id}" for name in names for said in SCRIPTS[name] for each in said.calls
            )
        # A companion is not begun and ended by one call, so nothing frames its words.
        framed = (each for each in await backend.streams.get_all_chunks(SESSION) if each.agent_type != "scout")
        assert_well_told(framed, SESSION)


def _expected(name: str, suffix: str) -> list[str]:
    expected: list[str] = []
    at = 0
    for message, replies in zip(MESSAGES[name], TURNS[name], strict=True):
        expected.append(f"user: {message}")
        for said in SCRIPTS[name][at : at + replies]:
            expected += [said.text, *(f"{each.id}{suffix}" for each in said.calls)]
        at += replies
    return expected


def _results_in(chunks: list[StreamChunk]) -> Counter[str]:
    """Which calls of whom came to a result, and how often that was said."""
    ended = (chunk for chunk in chunks if isinstance(chunk, ToolEnd | ToolError))
    return Counter(f"{chunk.agent_type} {chunk.tool_call_id.partition('_')[0]}" for chunk in ended)


def _check_deeds(done: Counter[str], unknown: set[str]) -> None:
    assert set(done) <= {"tides", "moon", *ONCE}
    assert done["tides"] >= 1
    assert done["moon"] >= 1
    for deed in ONCE:
        assert done[deed] <= 1, f"{deed} was done twice"
        assert done[deed] == 1 or deed in unknown, f"{deed} has a result but was not done"


async def _check_nothing_is_left(backend: Backend, ids: dict[str, str]) -> None:
    assert await backend.state.list_orphans() == ()
    rows = (await backend.state.list_pending(PendingFilter(root_session_id=SESSION, states=()))).items
    assert {row.state for row in rows} == {"consumed"}
    for name, session_id in ids.items():
        session = await backend.state.load_state(session_id)
        assert (session.status, session.suspension_context) == ("completed", None)
        assert await backend.state.list_effects(session_id) == ()
        assert not await backend.state.has_staged_changes(session_id)
        entries = (await backend.usage.query_usage(UsageFilter(session_id=session_id), limit=200)).items
        assert len([entry for entry in entries if entry.source_type == "tokens"]) == len(SCRIPTS[name])


async def _answer(helix: Executor) -> bool:
    """Consent to what was asked for; where a crash left open whether something was done, it is not to be done again."""
    waiting = (await helix.list_pending(PendingFilter(root_session_id=SESSION, states=("waiting",)))).items
    for each in waiting:
        answer = ApprovalAnswer(approved=each.reason is None, reason=each.reason)
        await helix.submit_tool_result(SESSION, each.tool_call_id, answer)
    return bool(waiting)


async def _everybody_is_done(helix: Executor) -> bool:
    page = await helix.sessions.list(SessionFilter(root_session_id=SESSION))
    runs = [(await helix.sessions.runs(each.session_id)).items[0] for each in page.items]
    return all(run.status not in ("running", *SUSPENDED) for run in runs)


async def _questions_asked(helix: Executor) -> int:
    page = await helix.sessions.messages(SESSION, limit=200)
    return sum(isinstance(each.message, UserMessage) and not each.message.hidden for each in page.items)


def _shown(message: Message) -> str:
    match message:
        case UserMessage(hidden=True):
            return f"told: {message.content}"
        case UserMessage():
            return f"user: {message.content}"
        case AssistantMessage(text=text):
            return text or ""
        case ToolMessage(tool_call_id=call_id):
            return call_id


BLOCKING = Crew("blocking").conversation
NON_BLOCKING = Crew("non_blocking").conversation
