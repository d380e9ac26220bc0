"""A parent with one companion that it speaks to twice, and what must be true of both in the end."""

import asyncio
from collections import Counter
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import ToolEnd
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.pending import ApprovalAnswer, PendingFilter
from helix_agents.domain.rendering import surviving
from helix_agents.domain.results import Completed
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import SessionFilter
from helix_agents.domain.usage import UsageFilter
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from tests.recovery.lives import Conversation
from tests.recovery.reference_conversation import Traces

SESSION = "s-1"
QUESTIONS = ("Begin.", "Go on.", "And?")


@tool
def look_up(ctx: ToolContext[Any, Traces], topic: str) -> str:
    """Look something up; twice does no harm."""
    ctx.deps.leave(topic)
    return f"a page about {topic}"


@tool(effect="once")
def send_letter(ctx: ToolContext[Any, Traces], to: str) -> str:
    """Send a letter, which cannot be taken back."""
    ctx.deps.leave(to)
    return f"sent to {to}"


SCOUT_SCRIPT = [
    reply("I write to her. ", calls=[call("send_letter", {"to": "ann"}, id="letter")]),
    reply("Found it. "),
    reply("Found more. "),
]
BOSS_SCRIPT = [
    reply(
        "You go and look. ",
        calls=[
            call("look_up", {"topic": "tides"}, id="look"),
            call("companion__spawnAgent", {"agent": "scout", "initialMessage": "Look", "name": "eve"}, id="spawn"),
        ],
    ),
    reply("It began. "),
    reply("Further. ", calls=[call("companion__sendMessage", {"name": "eve", "message": "Look again"}, id="send")]),
    reply("It goes on. "),
    reply("All told. "),
]
FOUND = ("Found it. ", "Found more. ")
# Steps of the parent, by question.
TURNS = (2, 2, 1)


class Household:
    """The conversation, with a companion of one mode."""

    def __init__(self, mode: CompanionMode) -> None:
        self.mode = mode
        scout: Agent[Any, Any, Traces] = Agent(
            name="scout",
            description="Looks for things.",
            model=ScriptedModel(SCOUT_SCRIPT, chunk=5),
            tools=[send_letter],
        )
        self.boss: Agent[Any, Any, Traces] = Agent(
            name="boss",
            model=ScriptedModel(BOSS_SCRIPT, chunk=5),
            tools=[look_up],
            persistent_agents=[PersistentAgent(scout, mode=mode)],
        )
        self.conversation = Conversation(agents=[self.boss], go_on=self.go_on, check_end=self.check_end)

    async def go_on(self, helix: Executor) -> None:
        """Take the conversation from wherever it stands to its end, knowing nothing but what is stored."""
        await helix.recover()
        handle = await helix.get_handle(self.boss, SESSION) or await helix.execute(self.boss, QUESTIONS[0], SESSION)
        while True:
            result = await handle.result()
            assert isinstance(result, Completed), result
            await self._let_the_companion_finish(helix)
            page = await helix.sessions.messages(SESSION, limit=200)
            asked = [each for each in page.items if isinstance(each.message, UserMessage) and not each.message.hidden]
            if len(asked) == len(QUESTIONS):
                return
            handle = await helix.execute(self.boss, QUESTIONS[len(asked)], SESSION)

    async def _let_the_companion_finish(self, helix: Executor) -> None:
        """Wait for it; where a crash left open whether its letter was sent, say that it shall not be sent again."""
        async with asyncio.timeout(15):
            while True:
                page = await helix.sessions.list(SessionFilter(root_session_id=SESSION))
                children = [each.session_id for each in page.items if each.session_id != SESSION]
                runs = [(await helix.sessions.runs(child)).items[0] for child in children]
                if all(run.status not in ("running", *SUSPENDED) for run in runs):
                    return
                for waiting in (await helix.list_pending(PendingFilter(states=("waiting",)))).items:
                    answer = ApprovalAnswer(approved=False, reason=waiting.reason)
                    await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer)
                    await helix.resume(self.boss, SESSION)
                await asyncio.sleep(0.005)

    async def check_end(self, backend: Backend, traces: Traces) -> set[str]:
        """Everything that must hold; no deed may stay unknown."""
        (ref,) = await backend.state.get_sub_session_refs(SESSION)
        assert (ref.name, ref.status, ref.mode) == ("eve", "completed", "persistent")
        assert (await backend.state.list_sessions()).total == 2, "a session that belongs to nobody"
        self._check_boss([stored.message for stored in await backend.state.load_transcript(SESSION)])
        child = [stored.message for stored in await backend.state.load_transcript(ref.sub_session_id)]
        letter = f"letter_{ref.sub_session_id[-6:]}"
        assert [_shown(each) for each in child] == [
            *("user: Look", "I write to her. ", letter, "Found it. "),
            *("user: Look again", "Found more. "),
        ]
        done = traces.counted()
        unknown = {each.tool_call_id for each in child if isinstance(each, ToolMessage) and each.error}
        assert unknown <= {letter}
        assert done <= Counter(tides=done["tides"], ann=1)
        assert done["ann"] == 1 or unknown
        await self._check_runs(backend, ref.sub_session_id, unknown)
        await self._check_stream(backend)
        return unknown

    def _check_boss(self, transcript: list[Message]) -> None:
        """Every question, reply and result once; every end of the companion told once, after the call it answers."""
        shown = [_shown(each) for each in transcript]
        told = [each for each in shown if each.startswith("told: ")]
        expected: list[str] = []
        at = 0
        for question, steps in zip(QUESTIONS, TURNS, strict=True):
            expected.append(f"user: {question}")
            for said in BOSS_SCRIPT[at : at + steps]:
                expected += [said.text, *(str(each.id) for each in said.calls)]
            at += steps
        assert [each for each in shown if each not in told] == expected
        results = {each.tool_call_id: each.content for each in transcript if isinstance(each, ToolMessage)}
        assert results["look"] == "a page about tides"
        if self.mode == "blocking":
            assert told == []
            assert (results["spawn"], results["send"]) == FOUND
            return
        assert results["spawn"] == results["send"] == {"name": "eve", "status": "running"}
        assert told == [f"told: Companion 'eve' (scout) is completed: {found}" for found in FOUND]
        assert shown.index("spawn") < shown.index(told[0]) < shown.index("send") < shown.index(told[1])

    async def _check_runs(self, backend: Backend, child: str, unknown: set[str]) -> None:
        assert await backend.state.list_orphans() == ()
        for session_id, turns, replies in ((SESSION, 3, BOSS_SCRIPT), (child, 2, SCOUT_SCRIPT)):
            runs = (await backend.state.list_runs(session_id)).items
            ended = [run.status for run in runs if run.status not in SUSPENDED]
            assert ended == ["completed"] * turns
            assert len(runs) - len(ended) <= len(unknown)
            assert (await backend.state.load_state(session_id)).suspension_context is None
            assert await backend.state.list_effects(session_id) == ()
            assert not await backend.state.has_staged_changes(session_id)
            entries = (await backend.usage.query_usage(UsageFilter(session_id=session_id), limit=200)).items
            assert len([entry for entry in entries if entry.source_type == "tokens"]) == len(replies)

    async def _check_stream(self, backend: Backend) -> None:
        info = await backend.streams.get_stream_info(SESSION)
        assert info is not None
        assert (info.status, info.end_status) == ("ended", "completed")
        chunks = surviving(await backend.streams.get_all_chunks(SESSION))
        ends = Counter(chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolEnd))
        own = {each: count for each, count in ends.items() if not each.startswith("letter")}
        assert own == {"look": 1, "spawn": 1, "send": 1}


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
