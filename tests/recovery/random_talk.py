"""A conversation that goes anywhere: a model that asks for whatever it likes, people who do what they like, and a
process that dies now and then. What must hold however it goes is checked whenever all is at rest."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.failures import FailRun, RetryTool, ToolFailed
from helix_agents.agent.outcomes import DidNotHappen, Happened, StillUnknown
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import SubagentEnd, SubagentStart
from helix_agents.domain.errors import CallerError, ConflictError, ModelRefusedError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import BranchPoint, SessionFilter, SessionState
from helix_agents.domain.writes import Append, StepWrites
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.script import Call, Step
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt

ROOT = "root"
OUTSIDE = "from outside"
OPTIONS = EngineOptions(
    pending_deadline_ms=50_000, effect_lease_ms=1, cancel_grace_seconds=0.01, first_retry_seconds=0.001
)
MOST_ROUNDS = 60
MOST_MOVES = 200_000

_numbers = itertools.count(1)


class Pad(BaseModel):
    """What was written down."""

    notes: list[str] = []


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


class Talk:
    """One conversation, whose every choice follows from a seed and from what was said before.

    In one that is `crowded` two processes live on the store, and people do something in both at the same time.
    """

    def __init__(self, seed: int, parts: Backend, clock: ManualClock, *, crowded: bool = False) -> None:
        self._seed = seed
        self._crowded = crowded
        self._parts = parts
        self._clock = clock
        self._random = Random(seed)
        self.sent: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.queued: list[str] = []
        self.rewound = False
        # Whoever comes after one who died may want something else than to go on with what was begun.
        self._misses = True
        self.agent = self._boss()
        self.did: list[str] = []

    # -- who talks

    def _tools(self) -> list[Any]:
        talk = self

        @tool
        async def note(ctx: ToolContext[Pad], text: str) -> str:
            """Write something down."""
            ctx.state.notes.append(text)
            return f"noted {text}"

        @tool
        async def fail(how: str) -> str:
            """Go wrong."""
            problems = {
                "for good": ToolFailed("no"),
                "again": RetryTool("otherwise"),
                "badly": ValueError("caf\udce9"),
                "whole": FailRun("all of it"),
            }
            raise problems[how]

        @tool(effect="once")
        async def send(ctx: ToolContext[Pad], text: str) -> str:
            """Send a letter."""
            talk.sent[_named(ctx.session_id, ctx.tool_call_id)] += 1
            await asyncio.sleep(0)
            return f"sent {text}"

        @tool(require_approval=True)
        async def pay(ctx: ToolContext[Pad], amount: int) -> str:
            """Pay."""
            talk.sent[_named(ctx.session_id, ctx.tool_call_id)] += 1
            await asyncio.sleep(0)
            return f"paid {amount}"

        def look(given: Mapping[str, Any], ctx: ToolContext[Pad]) -> Happened | DidNotHappen | StillUnknown:
            was_posted = talk.sent[_named(ctx.session_id, ctx.tool_call_id)] > 0
            known = Happened(f"posted {given['text']}") if was_posted else DidNotHappen()
            return talk._random.choice((known, known, StillUnknown()))

        @tool(effect="once", unknown_outcome="fail")
        async def wire(ctx: ToolContext[Pad], text: str) -> str:
            """Send a wire, which is given up when nobody knows what became of it."""
            talk.sent[_named(ctx.session_id, ctx.tool_call_id)] += 1
            ctx.state.notes.append(f"wire {ctx.tool_call_id}")
            await asyncio.sleep(0)
            return f"wired {text}"

        @tool(effect="once", unknown_outcome="retry")
        async def ping(text: str) -> str:
            """Ping, as often as it takes."""
            await asyncio.sleep(0)
            return f"pinged {text}"

        @tool(effect="once", unknown_outcome=look)
        async def post(ctx: ToolContext[Pad], text: str) -> str:
            """Post something that can be looked for."""
            talk.sent[_named(ctx.session_id, ctx.tool_call_id)] += 1
            await asyncio.sleep(0)
            return f"posted {text}"

        return [note, fail, send, pay, locate, wire, ping, post]

    def _boss(self) -> AnyAgent:
        @tool(finish_with=True)
        async def hand_in(text: str) -> str:
            """Hand the work in."""
            return text

        clerk = self._agent("clerk", self._tools())
        helper = self._agent("helper", [*self._tools(), sub_agent_tool(clerk)])
        steady, eager = self._agent("steady", self._tools()), self._agent("eager", self._tools())
        keeps = [PersistentAgent(steady, mode="blocking"), PersistentAgent(eager, mode="non_blocking")]
        return self._agent("boss", [*self._tools(), hand_in, sub_agent_tool(helper)], persistent_agents=keeps)

    def _agent(self, name: str, tools: list[Any], **settings: Any) -> AnyAgent:
        model = ScriptedModel(self._reply)
        return Agent(
            name=name, description="Works.", model=model, tools=tools, state=Pad, max_steps=5, retries=1, **settings
        )

    def _reply(self, request: ModelRequest) -> Step:
        random = Random(f"{self._seed}/{request.agent_type}/{len(request.messages)}/{request.step}")
        if random.random() < 0.05:
            return ModelRefusedError("scripted", "not today")
        if random.random() < 0.35:
            return reply("Done.")
        names = {"boss": _CALLS, "helper": (*_SIMPLE, "clerk")}.get(request.agent_type, _SIMPLE)
        return reply("Well. ", calls=calls_of(random, names))

    # -- what people do

    async def go(self, moves: Sequence[int]) -> None:
        """Make the moves, each in a process of its own, and look at everything after each."""
        for number in moves:
            await self._in_a_process(number)
        await self._come_to_an_end()

    async def _in_a_process(self, number: int) -> None:
        dies = number % 5 == 0
        is_missed, self._misses = self._misses, number // 240 % 2 == 0
        at = StopAt(effect=number // 5 % 12 + 1, side="after" if number // 60 % 2 else "before")
        async with AsyncExitStack() as living:
            recorders = [Recorder(at if dies else None), *([Recorder()] if self._crowded else [])]
            here = [await living.enter_async_context(self._executor(each)) for each in recorders]
            for helix in here if is_missed else ():
                await helix.recover()
            choices = [number // 120, *(self._random.randrange(MOST_MOVES) for _ in here[1:])]
            await self._let_be(here, *map(self._move, here, choices))
        # Who died leaves leases behind, which run out.
        self._clock.advance(10)
        if not dies or not self._misses:
            return
        async with self._executor(Recorder()) as helix:
            await helix.recover()
            await helix.idle()
            await self.check(helix)

    async def _let_be(self, here: Sequence[RecordingExecutor], *moves: Awaitable[Any]) -> None:
        """Make moves at the same time, and look at everything once all is at rest, unless a process dies before."""
        making = asyncio.gather(*map(self._make, moves))
        while not making.done() and not here[0].recorder.has_stopped:
            await asyncio.wait((making,), timeout=0.02)
        if not making.done():
            # Whoever waits for a run of the dead waits until its lease is over.
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        resting = asyncio.create_task(_come_to_rest(here))
        while not here[0].recorder.has_stopped:
            await asyncio.wait((resting,), timeout=0.02)
            if resting.done():
                break
            # What is left may be what somebody here waits for; a janitor comes sooner or later.
            await here[-1].recover()
            resting = asyncio.create_task(_come_to_rest(here)) if resting.done() else resting
        resting.cancel()
        if not here[0].recorder.has_stopped and not await self._is_left():
            await self.check(here[0])

    async def _is_left(self) -> bool:
        """Whether a run is going that nobody here drives: its process died, and nobody came to go on with it."""
        return bool(await self._parts.state.list_orphans(limit=1))

    async def _make(self, move: Awaitable[Any]) -> None:
        try:
            await move
        except (CallerError, ConflictError) as refusal:
            # Whoever asks for something that cannot be is told so, and nothing happens.
            self.did.append(type(refusal).__name__)

    async def _move(self, helix: Executor, number: int) -> None:
        moves = (
            self._execute,
            self._resume,
            self._answer,
            self._answer_all,
            self._stop,
            self._stop_at_work,
            self._go_on_with_words,
            self._retry,
            self._rewind,
            self._two_at_once,
            self._pause,
            self._let_time_pass,
            self._answer_strangely,
            self._change_state,
            self._branch,
            self._queue,
            self._barge_in,
        )
        move = moves[number % len(moves)]
        self.did.append(move.__name__)
        await move(helix, number // len(moves))

    async def _execute(self, helix: Executor, number: int) -> None:
        await helix.execute(self.agent, f"Message {number}", ROOT)

    async def _queue(self, helix: Executor, number: int) -> None:
        """Say several things, each of which waits for what was said before."""
        for each in range(number % 3 + 1):
            text = f"Queued {next(_numbers)}"
            await helix.execute(self.agent, text, ROOT, if_running="enqueue", idempotency_key=text if each else None)
            self.queued.append(text)

    async def _barge_in(self, helix: Executor, number: int) -> None:
        await helix.execute(self.agent, "Work.", ROOT)
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await helix.execute(self.agent, "No, this.", ROOT, if_running="interrupt")

    async def _resume(self, helix: Executor, number: int) -> None:
        await helix.resume(self.agent, ROOT)

    async def _go_on_with_words(self, helix: Executor, number: int) -> None:
        await helix.resume(self.agent, ROOT, mode="with_message", message=f"Words {number}")

    async def _answer(self, helix: Executor, number: int) -> None:
        calls = await self._waiting(helix)
        if calls:
            await self._submit(helix, calls[number % len(calls)], number)
            await helix.resume(self.agent, ROOT)

    async def _answer_all(self, helix: Executor, number: int) -> None:
        for each in await self._waiting(helix):
            await self._submit(helix, each, number)
        await helix.resume(self.agent, ROOT)

    async def _stop(self, helix: Executor, number: int) -> None:
        await (helix.abort if number % 3 == 0 else helix.interrupt)(ROOT, "enough")

    async def _stop_at_work(self, helix: Executor, number: int) -> None:
        await helix.execute(self.agent, "Work.", ROOT)
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await self._stop(helix, number // 40)

    async def _retry(self, helix: Executor, number: int) -> None:
        await helix.retry(self.agent, ROOT)

    async def _rewind(self, helix: Executor, number: int) -> None:
        found = (await helix.sessions.checkpoints(ROOT)).items
        if found:
            to = found[number % len(found)].checkpoint_id
            # What happened since is not taken back, but the model may ask for it anew.
            self.rewound = True
            self.sent.clear()
            self.allowed.clear()
            await helix.resume(self.agent, ROOT, mode="from_checkpoint", checkpoint_id=to)

    async def _two_at_once(self, helix: Executor, number: int) -> None:
        for each in await self._waiting(helix):
            await self._submit(helix, each, number)
        outcomes = await asyncio.gather(
            helix.resume(self.agent, ROOT), helix.resume(self.agent, ROOT), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, CallerError | ConflictError):
                raise outcome

    async def _pause(self, helix: Executor, number: int) -> None:
        await helix.execute(self.agent, "Work.", ROOT)
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await self._parts.state.compare_and_set_status(ROOT, ("active",), "paused")

    async def _let_time_pass(self, helix: Executor, number: int) -> None:
        """Some of what waits is answered by its deadline, and the janitor goes on with it."""
        self._clock.advance(number % 100_000)
        await helix.sweep()

    async def _answer_strangely(self, helix: Executor, number: int) -> None:
        for each in await self._waiting(helix):
            strange = (ToolAnswer(result=[number]), ToolAnswer(error="no"), ApprovalAnswer(approved=False, reason="no"))
            edited = ApprovalAnswer(approved=True, edited_input={"amount": 7} if number % 2 else {"amount": "all"})
            self.allowed[_named(each.session_id, each.tool_call_id)] += each.kind == "approval"
            await helix.submit_tool_result(ROOT, each.tool_call_id, (*strange, edited)[number % 4])
        await helix.resume(self.agent, ROOT)

    async def _change_state(self, helix: Executor, number: int) -> None:
        """Somebody else writes into the state, beside whatever goes on."""
        await helix.resume(self.agent, ROOT) if number % 2 else None
        await helix.sessions.update_state(ROOT, StepWrites(ops=(Append(key="notes", items=[OUTSIDE]),)))

    async def _branch(self, helix: Executor, number: int) -> None:
        """Another conversation begins as a copy of this one, whatever that is doing."""
        found = (await helix.sessions.checkpoints(ROOT)).items
        at = found[number % len(found)].checkpoint_id if found and number % 3 else None
        branch = BranchPoint(from_session_id=ROOT, checkpoint_id=at)
        await helix.execute(self.agent, "And otherwise?", f"branch-{len(self.did)}", branch=branch)

    async def _submit(self, helix: Executor, waiting: PendingCall, number: int) -> None:
        if waiting.kind != "approval":
            await helix.submit_tool_result(ROOT, waiting.tool_call_id, ToolAnswer(result="here"))
            return
        approves = number % 3 != 0
        self.allowed[_named(waiting.session_id, waiting.tool_call_id)] += approves
        await helix.submit_tool_result(ROOT, waiting.tool_call_id, ApprovalAnswer(approved=approves))

    async def _waiting(self, helix: Executor) -> tuple[PendingCall, ...]:
        return (await helix.list_pending(PendingFilter(root_session_id=ROOT))).items

    def _executor(self, recorder: Recorder) -> RecordingExecutor:
        parts = self._parts
        named: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        return RecordingExecutor(
            recorder=recorder, agents=[self.agent], janitor_seconds=None, grace=0.0, options=OPTIONS, **named
        )

    # -- what has to hold

    async def _come_to_an_end(self) -> None:
        """Whatever is open can be brought to an end by answering it."""
        async with self._executor(Recorder()) as helix:
            await helix.recover()
            for number in range(MOST_ROUNDS):
                await helix.idle()
                await self.check(helix)
                waiting = await self._waiting(helix)
                run = await self._parts.state.get_current_run(ROOT) if await self._is_there() else None
                if not waiting and (run is None or run.status not in SUSPENDED):
                    if run is None or not await helix.sessions.queued(ROOT):
                        await self._check_queued()
                        return
                    # A stop may hold what waits in the queue: until somebody goes on.
                    await self._let_be([helix], helix.execute(self.agent, "Go on.", ROOT, if_running="enqueue"))
                    continue
                for each in waiting:
                    await self._submit(helix, each, number)
                await self._let_be([helix], helix.resume(self.agent, ROOT))
        raise AssertionError(f"it never ends: {self.did}")

    async def _is_there(self) -> bool:
        return await self._parts.state.session_exists(ROOT)

    async def check(self, helix: Executor) -> None:
        """Everything at rest is as it has to be."""
        if not await self._is_there():
            return
        waiting = Counter(each.session_id for each in await self._waiting(helix))
        for summary in (await self._parts.state.list_sessions(SessionFilter(), limit=200)).items:
            session = await self._parts.state.load_state(summary.session_id)
            run = await self._parts.state.get_current_run(session.session_id)
            assert run is not None
            assert run.status != "running", f"{session.session_id} is driven by nobody: {self.did}"
            is_open = run.status in SUSPENDED
            transcript = [row.message for row in await self._parts.state.load_transcript(session.session_id)]
            self._check_transcript(session, transcript, is_open=is_open)
            assert is_open or not waiting[session.session_id], f"{session.session_id} waits and is over: {self.did}"
            if session.parent_session_id is None:
                self._check_notes(session, transcript)
            if session.root_session_id == ROOT:
                self._check_sent(session, transcript)
            await self._check_children(session, transcript, is_open=is_open)
        await self._check_ends()
        run = await self._parts.state.get_current_run(ROOT)
        if run is not None and run.status in SUSPENDED and not waiting:
            reason = await helix.can_resume(self.agent, ROOT)
            assert reason is None, f"it waits for nothing: {self.did}"
        for call_id, times in self.sent.items():
            assert times <= max(1, self.allowed[call_id]), f"{call_id} took effect {times} times: {self.did}"

    async def _check_queued(self) -> None:
        """Whatever was sent to the queue was said once, unless somebody went back to before it."""
        if not await self._is_there():
            return
        transcript = [row.message for row in await self._parts.state.load_transcript(ROOT)]
        said = Counter(each.content for each in transcript if isinstance(each, UserMessage))
        for text in self.queued:
            assert said[text] == 1 or (self.rewound and said[text] == 0), (
                f"{text} was said {said[text]} times: {self.did}"
            )

    def _check_notes(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """The state has what the calls wrote that say so, once each."""
        results = [each for each in transcript if isinstance(each, ToolMessage) and not each.error]
        noted = Counter(str(each.content).removeprefix("noted ") for each in results if each.tool_name == "note")
        noted += Counter(f"wire {each.tool_call_id}" for each in results if each.tool_name == "wire")
        kept = Counter(note for note in session.custom_state["notes"] if note != OUTSIDE)
        # A call of a step that is open may have written, and its result is held.
        assert session.suspension_context is not None or kept == noted, f"{session.session_id}: {kept} is not {noted}"

    def _check_sent(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """Of a call that took effect nobody says that it did not, nor the other way round."""
        for message in transcript:
            if not isinstance(message, ToolMessage) or message.tool_name not in ("send", "pay", "wire", "post"):
                continue
            name = _named(session.session_id, message.tool_call_id)
            times, about = self.sent[name], f"{name}: {self.did}"
            if message.content == "This call was not executed.":
                assert times == 0, f"it was executed: {about}"
            if not message.error and not self.rewound:
                assert times > 0, f"it was not executed: {about}"

    async def _check_children(self, session: SessionState, transcript: Sequence[Message], *, is_open: bool) -> None:
        """What a child came to is what its caller was told, and what its reference says."""
        results = {each.tool_call_id: each for each in transcript if isinstance(each, ToolMessage)}
        for ref in await self._parts.state.get_sub_session_refs(session.session_id):
            run = await self._parts.state.get_current_run(ref.sub_session_id)
            if run is None or ref.mode != "ephemeral":
                continue
            about = f"{ref.sub_session_id} is {run.status}: {self.did}"
            result = results.get(ref.tool_call_id)
            if run.status == "completed" and result is not None and not self.rewound:
                assert result.content == run.output, f"{result.content} was told of a child that completed: {about}"
            if session.status == "completed":
                assert ref.status != "running", f"the reference says {ref.status}, {about}"
            if ref.status == "completed":
                assert run.status == "completed", f"the reference says {ref.status}, {about}"

    async def _check_ends(self) -> None:
        """Readers were told once of every delegation that it begins, and once that it is over."""
        chunks = await self._parts.streams.get_all_chunks(ROOT)
        begun = Counter(each.child_session_id for each in chunks if isinstance(each, SubagentStart))
        over = Counter(each.child_session_id for each in chunks if isinstance(each, SubagentEnd))
        run = await self._parts.state.get_current_run(ROOT)
        assert max(begun.values(), default=1) == 1, f"begins twice: {begun}, {self.did}"
        assert max(over.values(), default=1) == 1, f"is over twice: {over}, {self.did}"
        assert over.keys() <= begun.keys(), f"is over and never began: {self.did}"
        if run is not None and run.status == "completed":
            assert over.keys() == begun.keys(), f"never ends: {begun.keys() - over.keys()}, {self.did}"

    def _check_transcript(self, session: SessionState, transcript: Sequence[Message], *, is_open: bool) -> None:
        """Each call has one result, after the reply that asked for it and before anything else is said."""
        open_calls: list[str] = []
        for message in transcript:
            if isinstance(message, ToolMessage):
                assert open_calls, f"a result without a call in {session.session_id}: {self.did}"
                assert message.tool_call_id == open_calls.pop(0), f"out of order in {session.session_id}: {self.did}"
                continue
            assert not open_calls, f"a call without a result in {session.session_id}: {self.did}"
            if isinstance(message, AssistantMessage):
                open_calls = [each.id for each in message.tool_calls]
        # Of a child that was let go of nobody reads on; a companion's calls get results when it is spoken to again.
        may_be_open = is_open or session.parent_session_id is not None
        assert may_be_open or not open_calls, f"{session.session_id} ends in open calls: {self.did}"


def _named(session_id: str, call_id: str) -> str:
    """A call among all sessions: those of a branch go by the same ids as those it was made from."""
    return f"{session_id}/{call_id}"


async def _come_to_rest(here: Sequence[RecordingExecutor]) -> None:
    """Wait until nobody drives anything; what one of them finishes may set another one going."""
    while any(vars(each._runtime)["_running"] or vars(each._queue)["_attended"] for each in here):
        await asyncio.gather(*(each.idle() for each in here))
        # Who waits for another process looks now and then.
        await asyncio.sleep(0.001)


_SIMPLE = ("note", "note", "fail", "send", "pay", "wire", "ping", "post", "locate", "nonsense", "wrong")
_CALLS = (*_SIMPLE, "helper", "helper", "steady", "eager", "hand_in", "wait", "tell", "end")


def calls_of(random: Random, names: Sequence[str]) -> list[Call]:
    """One to three calls, each to one of these."""
    return [_call(random, random.choice(names)) for _ in range(random.randint(1, 3))]


def _call(random: Random, name: str) -> Call:
    match name:
        case "note" | "send" | "wire" | "ping" | "post":
            return call(name, {"text": str(random.randint(1, 9))})
        case "fail":
            return call(name, {"how": random.choice(("for good", "again", "badly", "badly", "for good", "whole"))})
        case "pay":
            return call(name, {"amount": random.randint(1, 9)})
        case "locate":
            return call(name, {"city": "Rome"})
        case "wrong":
            return call("pay", {"amount": "much"})
        case "helper" | "clerk":
            return call(f"subagent__{name}", {"message": "Do it."})
        case "steady" | "eager":
            return call("companion__spawnAgent", {"agent": name, "initialMessage": "Do it."})
        case "tell":
            return call("companion__sendMessage", {"name": random.choice(_NAMES), "message": "And this."})
        case "wait":
            return call("companion__waitForResult", {"name": random.choice(_NAMES)})
        case "end":
            return call("companion__terminateChild", {"name": random.choice(_NAMES)})
        case "hand_in":
            return call(name, {"text": "All of it."})
        case _:
            return call("nonsense", {})


_NAMES = ("steady-1", "eager-1", "eager-2")
