"""A conversation that goes anywhere: a model that asks for whatever it likes, people who do what they like, and a
process that dies now and then. What must hold however it goes is checked whenever all is at rest."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, TypeAlias

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun, OutcomeUnknown, RetryTool, ToolFailed
from helix_agents.agent.handoffs import Handoff
from helix_agents.agent.history import ForgetToolResults, LastTurns
from helix_agents.agent.outcomes import DidNotHappen, Happened, StillUnknown
from helix_agents.agent.skills import Skill
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.chunks import SubagentEnd, SubagentStart
from helix_agents.domain.errors import CallerError, ConflictError, ModelRefusedError, StoreUnavailableError
from helix_agents.domain.ids import RunId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import BranchPoint, SessionFilter, SessionState
from helix_agents.domain.transcript import HANDOFF, hands_over
from helix_agents.domain.usage import UsageFilter
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.script import Call, Step
from helix_agents.memory.learning import MemoryGeneration
from helix_agents.memory.memory import Memory
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import assert_legal
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from tests.recovery.talk_books import Books
from tests.recovery.talk_ends import Ends
from tests.recovery.talk_pad import Pad, check_pad, pad_tools, written_outside
from tests.recovery.talk_plans import LONGEST_MS, Plans
from tests.recovery.troubled_parts import Trouble

ROOT = "root"
ANN = "ann"
MODEL = "talker"
TROUBLE = 0.01
OPTIONS = EngineOptions(
    pending_deadline_ms=50_000, effect_lease_ms=1, cancel_grace_seconds=0.01, first_retry_seconds=0.001
)
# What whoever asks for something that cannot be is told.
REFUSALS = (CallerError, ConflictError)
FEW_CALLS = 2
MOST_ROUNDS = 60
MOST_MOVES = 200_000


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


# Made only once somebody makes it: a process may die before.
Move: TypeAlias = Callable[[], Awaitable[Any]]


class Talk:
    """One conversation, whose every choice follows from a seed and from what was said before.

    In one that is `crowded` two processes live on the store, and people do something in both at the same time. In a
    `troubled` one the store loses an answer now and then, and people lose their patience.
    """

    def __init__(
        self, seed: int, parts: Backend, clock: ManualClock, *, crowded: bool = False, troubled: bool = False
    ) -> None:
        self._seed = seed
        self._crowded = crowded
        self._troubled = troubled
        self._parts = parts
        self._clock = clock
        self._random = Random(seed)
        self._numbers = itertools.count(1)
        self._trouble = Trouble(Random(seed))
        self.books = Books(parts, ROOT, MODEL)
        self.sent: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        # Calls of which nobody knew what had become, until somebody said that they were done.
        self.vouched_for: set[str] = set()
        # Whoever comes after one who died may want something else than to go on with what was begun.
        self._misses = True
        # What a model was shown that no provider would take.
        self.illegal: list[str] = []
        self.agent = self._boss()
        # Turns whose models may answer a few times only.
        self.thrifty: set[RunId] = set()
        self.plans = Plans(parts, ROOT, self.agent, ANN)
        self.ends = Ends(parts, clock, Random(seed))
        self.did: list[str] = []

    # -- who talks

    def _tools(self) -> list[Any]:
        talk = self

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
            talk.take_effect(ctx)
            await asyncio.sleep(0)
            talk.lose_the_answer()
            return f"sent {text}"

        @tool(require_approval=True)
        async def pay(ctx: ToolContext[Pad], amount: int) -> str:
            """Pay."""
            talk.take_effect(ctx, gated=True)
            await asyncio.sleep(0)
            talk.lose_the_answer()
            return f"paid {amount}"

        def look(given: Mapping[str, Any], ctx: ToolContext[Pad]) -> Happened | DidNotHappen | StillUnknown:
            was_posted = talk.sent[_named(ctx.session_id, ctx.tool_call_id)] > 0
            known = Happened(f"posted {given['text']}") if was_posted else DidNotHappen()
            return talk._random.choice((known, known, StillUnknown()))

        @tool(effect="once", unknown_outcome="fail")
        async def wire(ctx: ToolContext[Pad], text: str) -> str:
            """Send a wire, which is given up when nobody knows what became of it."""
            talk.take_effect(ctx)
            ctx.state.notes.append(f"wire {ctx.tool_call_id}")
            await asyncio.sleep(0)
            talk.lose_the_answer()
            return f"wired {text}"

        @tool(effect="once", unknown_outcome="retry")
        async def ping(text: str) -> str:
            """Ping, as often as it takes."""
            await asyncio.sleep(0)
            talk.lose_the_answer()
            return f"pinged {text}"

        @tool(effect="once", unknown_outcome=look)
        async def post(ctx: ToolContext[Pad], text: str) -> str:
            """Post something that can be looked for."""
            talk.lose_the_answer()
            talk.take_effect(ctx)
            await asyncio.sleep(0)
            talk.lose_the_answer()
            return f"posted {text}"

        return [*pad_tools(), fail, send, pay, locate, wire, ping, post]

    def take_effect(self, ctx: ToolContext[Pad], *, gated: bool = False) -> None:
        """Do something once; again only if somebody allows it, and the first time, too, where it is `gated`."""
        name = _named(ctx.session_id, ctx.tool_call_id)
        self.allowed[name] += not gated and not self.sent[name]
        self.sent[name] += 1

    def lose_the_answer(self) -> None:
        """What a tool asked for was sent, and sometimes nobody answers."""
        if self._random.random() < 0.15:
            raise OutcomeUnknown("nobody answers")

    def _boss(self) -> AnyAgent:
        @tool(finish_with=True)
        async def hand_in(text: str) -> str:
            """Hand the work in."""
            return text

        scribe = self._agent("scribe", self._tools())
        clerk = self._agent("clerk", self._tools(), handoffs=[scribe])
        helper = self._agent("helper", [*self._tools(), sub_agent_tool(clerk)])
        steady, eager = self._agent("steady", self._tools()), self._agent("eager", self._tools())
        keeps = [PersistentAgent(steady, mode="blocking"), PersistentAgent(eager, mode="non_blocking")]
        back = Handoff("boss", description="Whatever else.", state=lambda pad, given: Pad(**_without_moves(pad)))
        deputy = self._agent(
            "deputy",
            [*self._tools(), sub_agent_tool(helper)],
            state=Moved,
            handoffs=[back],
            history_processors=self._processors(),
        )
        quiet = MemoryGeneration(every_turns=2, model=ScriptedModel(lambda _: "Nothing.", name="learner"))
        return self._agent(
            "boss",
            [*self._tools(), hand_in, sub_agent_tool(helper)],
            persistent_agents=keeps,
            handoffs=[Handoff(deputy, state=lambda pad, given: Moved(**pad.model_dump(), moves=1))],
            memory=Memory(generation=quiet),
            skills=[Skill(name="tides", description="Reads tides.", body="Look at the moon. " * 8)],
            history_processors=self._processors(),
        )

    def _processors(self) -> list[Any]:
        """What chooses what the model is shown: nothing in some talks, and in others whatever it likes."""
        return [[], [ForgetToolResults(keep=2, batch=2)], [LastTurns(turns=2), self._choose]][self._seed % 3]

    def _choose(self, ctx: RunContext[Any, Any], messages: Sequence[Message]) -> Sequence[Message]:
        random = Random(f"{self._seed}/{len(messages)}/{messages[-1]}")
        if random.random() < 0.02:
            raise ValueError("nothing to choose from")
        return [each for each in messages[:-1] if random.random() < 0.8] + [messages[-1]]

    def _agent(self, name: str, tools: list[Any], **settings: Any) -> AnyAgent:
        common: dict[str, Any] = {
            "name": name,
            "description": "Works.",
            "model": ScriptedModel(self._reply, name=MODEL),
            "tools": tools,
            "state": Pad,
            "max_steps": 5,
            "retries": 1,
            "compaction": Compaction(above_tokens=250, model=ScriptedModel(self._summarise, name="summariser")),
        }
        return Agent(**(common | settings))

    def _summarise(self, request: ModelRequest) -> Step:
        random = Random(f"{self._seed}/{len(request.messages)}")
        return "They talked." if random.random() < 0.8 else ModelRefusedError("summariser", "not today")

    def _reply(self, request: ModelRequest) -> Step:
        self._look_at(request)
        random = Random(f"{self._seed}/{request.agent_type}/{len(request.messages)}/{request.step}")
        if random.random() < 0.05:
            return ModelRefusedError("scripted", "not today")
        if random.random() < 0.35:
            return reply("Done.")
        names = _ASKED_FOR.get(request.agent_type, _SIMPLE)
        return reply("Well. ", calls=calls_of(random, names))

    def _look_at(self, request: ModelRequest) -> None:
        try:
            assert_legal(request.messages)
        except AssertionError as problem:
            # What a model raises fails its run, and is kept for whoever looks at everything.
            self.illegal.append(f"{request.session_id}: {problem}")
        said = holder_by(request.messages)
        if self._seed % 3 == 0 and said not in (None, request.agent_type):
            self.illegal.append(f"{request.agent_type} is asked in {request.session_id}, which {said} has")

    # -- what people do

    async def go(self, moves: Sequence[int]) -> None:
        """Make the moves, each in a process of its own, and look at everything after each."""
        async with self.ends.listening():
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
            self._trouble.chance = TROUBLE if self._troubled else 0.0
            moves = [partial(self._move, *each) for each in zip(here, choices, strict=True)]
            await self._let_be(here, *moves)
        # Who died leaves leases behind, which run out.
        self._clock.advance(10)
        if not dies or not self._misses:
            return
        async with self._executor(Recorder()) as helix:
            await helix.recover()
            await helix.idle()
            await self.check(helix)

    async def _let_be(self, here: Sequence[RecordingExecutor], *moves: Move) -> None:
        """Make moves at the same time, and look at everything once all is at rest, unless a process dies before."""
        making = asyncio.gather(*(self._make(partial(self._impatiently, each)) for each in moves))
        while not making.done() and not here[0].recorder.has_stopped:
            await asyncio.wait((making,), timeout=0.02)
        if not making.done():
            # Whoever waits for a run of the dead waits until its lease is over.
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        self._trouble.chance = 0.0
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

    async def _make(self, move: Move) -> None:
        try:
            await move()
        except REFUSALS as refusal:
            # Whoever asks for something that cannot be is told so, and nothing happens.
            self.did.append(type(refusal).__name__)
        except StoreUnavailableError:
            self.did.append("lost")

    async def _impatiently(self, move: Move) -> None:
        """Make a move, unless whoever makes it goes away in the middle of it."""
        making = asyncio.ensure_future(move())
        if self._troubled and self._random.random() < 0.3:
            try:
                for _ in range(self._random.randrange(60)):
                    await asyncio.sleep(0)
            finally:
                # They also go away when the process dies meanwhile: no move goes on in a dead process.
                if making.cancel():
                    self.did.append("left")
                    await asyncio.wait((making,))
        if not making.cancelled():
            await making

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
            self._change_state_at_work,
            self._go_back,
            self._look_after_everything,
            self._plan,
            self._plan_otherwise,
            self._steer,
        )
        move = moves[number % len(moves)]
        self.did.append(move.__name__)
        await move(helix, number // len(moves))

    async def _execute(self, helix: Executor, number: int) -> None:
        if number % 3 != 1:
            await self._say(helix, "Message")
            return
        scope = "run" if number % 2 else "tree"
        self.thrifty.add(await self._say(helix, "Briefly", budget=Budget(model_calls=FEW_CALLS, scope=scope)))

    async def _say(self, helix: Executor, kind: str, **options: Any) -> RunId:
        """Say something that nobody has said before."""
        text = f"{kind} {next(self._numbers)}"
        with self.books.saying(text):
            return (await helix.execute(self.agent, text, ROOT, user_id=ANN, **options)).run_id

    async def _queue(self, helix: Executor, number: int) -> None:
        """Say several things, each of which waits for what was said before."""
        for each in range(number % 3 + 1):
            key = f"key {next(self._numbers)}" if each else None
            await self._say(helix, "Queued", if_running="enqueue", idempotency_key=key)

    async def _steer(self, helix: Executor, number: int) -> None:
        """Say several things to a turn that works, perhaps otherwise than they were sent."""
        await self._say(helix, "Work", if_running="enqueue")
        for each in range(number % 3 + 1):
            for _ in range(number % 37):
                await asyncio.sleep(0)
            key = f"key {next(self._numbers)}" if each else None
            await self._say(helix, "Steer", if_running="steer", idempotency_key=key)
        waiting = await helix.sessions.queued(ROOT)
        if waiting and number % 2:
            last = waiting[-1]
            await helix.sessions.change_queued(ROOT, last.run_id, steers=not last.steers, first=number % 4 == 1)

    async def _barge_in(self, helix: Executor, number: int) -> None:
        await self._say(helix, "Work")
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await self._say(helix, "No,", if_running="interrupt")

    async def _resume(self, helix: Executor, number: int) -> None:
        await helix.resume(self.agent, ROOT)

    async def _go_on_with_words(self, helix: Executor, number: int) -> None:
        text = f"Words {next(self._numbers)}"
        with self.books.saying(text):
            await helix.resume(self.agent, ROOT, mode="with_message", message=text)

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
        await self._say(helix, "Work")
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await self._stop(helix, number // 40)

    async def _retry(self, helix: Executor, number: int) -> None:
        await helix.retry(self.agent, ROOT)

    async def _rewind(self, helix: Executor, number: int) -> None:
        found = (await helix.sessions.checkpoints(ROOT)).items
        if found:
            to = found[number % len(found)].checkpoint_id
            self._forget()
            await helix.resume(self.agent, ROOT, mode="from_checkpoint", checkpoint_id=to)

    async def _go_back(self, helix: Executor, number: int) -> None:
        """Bring the conversation back, and leave it there."""
        found = (await helix.sessions.checkpoints(ROOT)).items
        if found:
            self._forget()
            await helix.rewind(ROOT, found[number % len(found)].checkpoint_id)

    def _forget(self) -> None:
        """What happened since is not taken back, but the model may ask for it anew."""
        self.books.go_back()
        self.sent.clear()

    async def _two_at_once(self, helix: Executor, number: int) -> None:
        for each in await self._waiting(helix):
            await self._submit(helix, each, number)
        await side_by_side(helix.resume(self.agent, ROOT), helix.resume(self.agent, ROOT))

    async def _pause(self, helix: Executor, number: int) -> None:
        await self._say(helix, "Work")
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
            name = _named(each.session_id, each.tool_call_id)
            self.allowed[name] += each.kind == "approval"
            if number % 4 == 0:
                self.vouched_for.add(name)
            await helix.submit_tool_result(ROOT, each.tool_call_id, (*strange, edited)[number % 4])
        await helix.resume(self.agent, ROOT)

    async def _change_state(self, helix: Executor, number: int) -> None:
        """Somebody else writes into the state, beside whatever goes on."""
        await helix.resume(self.agent, ROOT) if number % 2 else None
        note = f"outside {next(self._numbers)}"
        with self.books.changing(note):
            await helix.sessions.update_state(ROOT, written_outside(note))

    async def _change_state_at_work(self, helix: Executor, number: int) -> None:
        await self._say(helix, "Work")
        for _ in range(number % 40):
            await asyncio.sleep(0)
        await self._change_state(helix, 0)

    async def _look_after_everything(self, helix: Executor, number: int) -> None:
        """Somebody's round goes beside what goes on; and theirs may be the one that is left."""
        await side_by_side(self._say(helix, "Beside"), helix.sweep() if number % 2 else helix.recover())

    async def _plan(self, helix: Executor, number: int) -> None:
        """Things are to be said at set times; then nobody looks, or somebody does, or several at once."""
        for each in range(number % 3 + 1):
            await self.plans.make(helix, number + each)
        self._clock.advance(number % LONGEST_MS)
        await side_by_side(*(helix.sweep() for _ in range(number % 4)))

    async def _plan_otherwise(self, helix: Executor, number: int) -> None:
        """What is planned is planned otherwise, while it is begun."""
        self._clock.advance(number % LONGEST_MS)
        await side_by_side(helix.sweep(), self.plans.meddle(helix, number))

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
        parts = self._trouble.befall(self._parts) if self._troubled else self._parts
        named = parts_of(parts)
        return RecordingExecutor(
            recorder=recorder,
            agents=[self.agent],
            webhooks=self.ends.webhooks,
            janitor_seconds=None,
            grace=0.0,
            options=OPTIONS,
            **named,
        )

    # -- what has to hold

    async def _come_to_an_end(self) -> None:
        """Whatever is open can be brought to an end by answering it."""
        async with self._executor(Recorder()) as helix:
            await helix.recover()
            await self.plans.come_to_an_end(helix)
            self._clock.advance(LONGEST_MS)
            await helix.sweep()
            for number in range(MOST_ROUNDS):
                await helix.idle()
                await self.check(helix)
                waiting = await self._waiting(helix)
                run = await self._parts.state.get_current_run(ROOT) if await self._is_there() else None
                if not waiting and (run is None or run.status not in SUSPENDED):
                    if run is None or not await helix.sessions.queued(ROOT):
                        await self._check_end(helix)
                        return
                    # A stop may hold what waits in the queue: until somebody goes on.
                    await self._let_be([helix], partial(self._say, helix, "Go on", if_running="enqueue"))
                    continue
                for each in waiting:
                    await self._submit(helix, each, number)
                await self._let_be([helix], partial(helix.resume, self.agent, ROOT))
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
            self._check_holder(session, transcript)
            await self.books.check(session, transcript)
            assert is_open or not waiting[session.session_id], f"{session.session_id} waits and is over: {self.did}"
            if session.parent_session_id is None:
                self._check_state(session, transcript)
            if session.root_session_id == ROOT:
                self._check_sent(session, transcript)
            await self._check_children(session, transcript, is_open=is_open)
        await self._check_ends()
        await self.books.check_whole()
        await self.plans.check()
        await self.ends.check()
        assert not self.illegal, f"{self.illegal}: {self.did}"
        run = await self._parts.state.get_current_run(ROOT)
        if run is not None and run.status in SUSPENDED and not waiting:
            reason = await helix.can_resume(self.agent, ROOT)
            assert reason is None, f"it waits for nothing: {self.did}"
        await self._check_thrifty()
        for call_id, times in self.sent.items():
            assert times <= self.allowed[call_id], f"{call_id} took effect {times} times: {self.did}"

    async def _check_thrifty(self) -> None:
        """A model answered in no more steps than its turn may spend."""
        for run_id in self.thrifty:
            used = await self._parts.usage.query_usage(UsageFilter(run_id=run_id, source_type="tokens"), limit=200)
            answered = {each.step for each in used.items if each.source_name == MODEL and each.session_id == ROOT}
            assert len(answered) <= FEW_CALLS, f"{run_id} spent more than it may: {self.did}"

    async def _check_end(self, helix: Executor) -> None:
        if await self._is_there():
            await self.books.check_end([row.message for row in await self._parts.state.load_transcript(ROOT)])
        await self.plans.check_end(went_back=self.books.went_back)
        await self._check_told(helix)

    async def _check_told(self, helix: Executor) -> None:
        async def look_after_everything() -> None:
            await helix.sweep()
            await helix.idle()

        await self.ends.check_end(look_after_everything)

    def _check_state(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """The state has what the calls wrote that say so, and what came from outside."""
        # A call of a step that is open may have written, and its result is held.
        if session.suspension_context is None:
            outside = [note for note in session.custom_state["notes"] if self.books.is_from_outside(note)]
            check_pad(session.custom_state, transcript, outside, f"{session.session_id}: {self.did}")

    def _check_holder(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """Whoever the transcript says has the session has it, with a state of its own."""
        holder, about = holder_by(transcript) or session.agent_type, f"{session.session_id}: {self.did}"
        assert session.worked_by == holder, f"{holder} does not have {about}"
        assert session.held_by != session.agent_type, about
        assert ("moves" in session.custom_state) == (holder == "deputy"), f"the state of another agent in {about}"

    def _check_sent(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """Of a call that took effect nobody says that it did not, nor the other way round."""
        for message in transcript:
            if not isinstance(message, ToolMessage) or message.tool_name not in ("send", "pay", "wire", "post"):
                continue
            name = _named(session.session_id, message.tool_call_id)
            times, about = self.sent[name], f"{name}: {self.did}"
            if message.content == "This call was not executed.":
                assert times == 0, f"it was executed: {about}"
            if not message.error and not self.books.went_back and name not in self.vouched_for:
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
            if run.status == "completed" and result is not None and not self.books.went_back:
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


class Moved(Pad):
    """The state of one that takes over."""

    moves: int = 0


def _without_moves(pad: Moved) -> dict[str, Any]:
    return pad.model_dump(exclude={"moves"})


def holder_by(messages: Sequence[Message]) -> str | None:
    """To whom the conversation was handed over last, as far as these messages show."""
    handed = [each.tool_name for each in messages if isinstance(each, ToolMessage) and hands_over(each)]
    return handed[-1].removeprefix(HANDOFF) if handed else None


def parts_of(parts: Backend) -> dict[str, Any]:
    """What an executor is given of a backend."""
    return {"state": parts.state, "streams": parts.streams, "usage": parts.usage, "memories": parts.memories}


def _named(session_id: str, call_id: str) -> str:
    """A call among all sessions: those of a branch go by the same ids as those it was made from."""
    return f"{session_id}/{call_id}"


async def side_by_side(*moves: Awaitable[Any]) -> None:
    """Make moves at the same time, and each of them to its end: one that was still under way when another had failed
    could start a run after everything had been found at rest.

    Raises:
        Exception: what went wrong; if several things did, rather one that nobody expected.
    """
    outcomes = await asyncio.gather(*moves, return_exceptions=True)
    problems = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for problem in sorted(problems, key=lambda each: isinstance(each, (*REFUSALS, StoreUnavailableError))):
        raise problem


async def _come_to_rest(here: Sequence[RecordingExecutor]) -> None:
    """Wait until nobody drives anything, or is about to; what one of them finishes may set another one going."""
    while any(vars(each._runtime)["_running"] or vars(each._runtime)["_background"] for each in here):
        await asyncio.gather(*(each.idle() for each in here))
        # Who waits for another process looks now and then.
        await asyncio.sleep(0.001)


_WRITING = ("note", "spend", "mark", "shelve", "clear")
_SIMPLE = (*_WRITING, "fail", "send", "pay", "wire", "ping", "post", "locate", "nonsense", "wrong")
_OF_BOSS = ("helper", "helper", "steady", "eager", "hand_in", "wait", "tell", "end", "save", "look", "skill")
_ASKED_FOR = {
    "boss": (*_SIMPLE, *_OF_BOSS, "deputy", "deputy"),
    "deputy": (*_SIMPLE, "helper", "boss", "boss", "boss"),
    "helper": (*_SIMPLE, "clerk"),
    "clerk": (*_SIMPLE, "scribe", "scribe"),
}


def calls_of(random: Random, names: Sequence[str]) -> list[Call]:
    """One to three calls, each to one of these. What writes is called twice: side by side it has to be merged."""
    chosen = [random.choice(names) for _ in range(random.randint(1, 3))]
    return [_call(random, name) for name in (*chosen, *(each for each in chosen if each in _WRITING))]


def _call(random: Random, name: str) -> Call:
    match name:
        case "note" | "send" | "wire" | "ping" | "post":
            return call(name, {"text": str(random.randint(1, 9))})
        case "spend":
            return call(name, {"amount": random.randint(-9, 9)})
        case "mark":
            return call(name, {"text": random.choice("ab")})
        case "shelve" | "clear":
            return call(name, {"name": random.choice("xy")})
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
        case "deputy" | "boss" | "scribe":
            return call(f"{HANDOFF}{name}", {"reason": "It is yours."})
        case "tell":
            return call("companion__sendMessage", {"name": random.choice(_NAMES), "message": "And this."})
        case "wait":
            return call("companion__waitForResult", {"name": random.choice(_NAMES)})
        case "end":
            return call("companion__terminateChild", {"name": random.choice(_NAMES)})
        case "save":
            return call("save_memory", {"text": f"Fact {random.random()}"})
        case "look":
            return call("search_memory", {"query": "fact"})
        case "skill":
            return call("load_skill", {"name": "tides"})
        case "hand_in":
            return call(name, {"text": "All of it."})
        case _:
            return call("nonsense", {})


_NAMES = ("steady-1", "eager-1", "eager-2")
