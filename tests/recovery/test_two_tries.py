"""Two tries of one effect that are both alive: an engine gave the first one up, and it was only slow."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun, RetryOutput
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import ChunkHeader, TextDelta, ToolArgStreamEnd
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import ModelRefusedError, RecordTooNewError, StoreUnavailableError
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.records import Record
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.usage import TokenCount, UsageFilter
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.effects import (
    Advance,
    Announce,
    Ask,
    CallOutcome,
    CommitAck,
    CommitRequest,
    Fail,
    OpenBatch,
    PlannedCall,
    Reply,
    RunEnd,
    RunFailed,
    StepOutcome,
    Stop,
    Suspend,
)
from helix_agents.engine.live_runs import LiveRuns
from helix_agents.engine.plain import CallOutcomes, CallsRequest, EffectName, answer_of, to_plain
from helix_agents.engine.services import EngineOptions
from helix_agents.engine.store_desk import REPLY
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, finish, reply
from helix_agents.testing.contracts.executor.stage import SESSION, Gate, spoken, until, within

RUN = Fence(run_id="r-1")


class Diary(BaseModel):
    done: list[str] = []


class Titled(BaseModel):
    title: str


class Headed(BaseModel):
    heading: str


class Process:
    """A process that does effects of a run which others do effects of, too."""

    def __init__(
        self, helix: Executor, *, frozen: bool = False, options: EngineOptions | None = None, **settings: Any
    ) -> None:
        """One that is `frozen` has timers that never fire, so it renews nothing."""
        services = helix._services  # pyright: ignore[reportPrivateUsage]
        if options is not None:
            services = dataclasses.replace(services, options=options)
        if frozen:
            services = dataclasses.replace(services, sleep=_for_ever)
        self.runs = LiveRuns(services=services, alone=False, **settings)
        self._effects = Effects(self.runs.services, self.runs)

    async def do(self, effect: EffectName, request: Record | None = None) -> Record:
        plain = {} if request is None else to_plain(request)
        return answer_of(await self._effects.perform(effect, SESSION, RUN, plain))

    async def ask(self, step: int = 1) -> tuple[PlannedCall, ...]:
        answer = await self.do("ask_model", Ask(step=step))
        assert isinstance(answer, Reply), answer
        return answer.calls

    async def run(self, *calls: PlannedCall, round: int = 0) -> tuple[CallOutcome, ...]:
        answer = await self.do("run_calls", CallsRequest(step=1, round=round, calls=calls))
        assert isinstance(answer, CallOutcomes), answer
        return answer.outcomes

    async def commit(self, calls: Sequence[PlannedCall], settled: int, outcome: StepOutcome, round: int = 0) -> str:
        done = tuple(call.tool_call_id for call in calls[:settled])
        batch = OpenBatch(step=1, round=round, calls=tuple(calls), settled=done)
        answer = await self.do("commit", CommitRequest(batch=batch, outcome=outcome))
        assert isinstance(answer, CommitAck), answer
        return answer.next


class Stage:
    """One run on one store, and as many processes as a test wants."""

    def __init__(self, helix: Executor, parts: Backend) -> None:
        self.helix = helix
        self.parts = parts

    def process(self, **settings: Any) -> Process:
        return Process(self.helix, **settings)

    async def begin(self, agent: AnyAgent, *before: Message) -> None:
        self.helix.agents.replace(agent)
        session = CreateSession(agent_type=agent.name, custom_state=agent.initial_state())
        start = StartRun(session_id=SESSION, run_id=RUN.run_id, create=session, append_messages=(*before, GO))
        await self.parts.state.start_run(start)

    async def has_said(self, kind: type[ChunkHeader]) -> bool:
        return any(isinstance(chunk, kind) for chunk in await self.parts.streams.get_all_chunks(SESSION))


async def _for_ever(_: float) -> None:
    await asyncio.Event().wait()


GO = UserMessage(content="Go.")


@pytest.fixture(params=["memory://", "sqlite"])
async def stage(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Stage]:
    url = request.param if request.param != "sqlite" else f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    async with await open_backend(url) as parts:
        named: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(janitor_seconds=None, **named) as helix:
            yield Stage(helix, parts)


async def test_what_a_late_try_of_a_tool_leaves_is_not_taken_for_a_result_of_the_next_round(stage: Stage):
    """Its result is committed already, with what it wrote and used, and the same run goes on with the same step."""
    gate, runs = Gate(), iter((True, False))

    @tool
    async def note(ctx: ToolContext[Diary, Any]) -> str:
        """Take a note."""
        ctx.state.done.append("noted")
        if next(runs):
            await gate.wait()
        return "noted"

    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(["Helped."]))
    said = reply(calls=[call("note", {}, id="note"), call("companion__listChildren", {}, id="list")])
    agent = Agent(
        name="boss",
        model=ScriptedModel([said]),
        state=Diary,
        tools=[note],
        persistent_agents=[PersistentAgent(helper, mode="blocking")],
    )
    await stage.begin(agent)
    slow, quick = stage.process(), stage.process()
    await quick.do("open")
    calls = await quick.ask()
    late = asyncio.create_task(slow.run(calls[0]))
    await gate.until_reached()
    assert (await quick.run(calls[0]))[0].state == "settled"
    assert await quick.commit(calls, 1, Announce()) == "again"
    gate.opened.set()
    await within(late)
    assert (await quick.run(calls[1], round=1))[0].state == "settled"
    assert await quick.commit(calls, 2, Advance(), round=1) == "continue"
    session = await stage.parts.state.load_state(SESSION)
    assert session.custom_state["done"] == ["noted"]
    used = await stage.parts.usage.query_usage(UsageFilter(session_id=SESSION, source_type="tool"))
    assert [entry.source_name for entry in used.items].count("note") == 1


async def test_what_a_newer_process_left_is_for_newer_processes_and_does_not_fail_the_run(stage: Stage):
    """During a deploy, old processes take effects of runs that new ones have begun."""
    await stage.begin(Agent(name="writer", model=ScriptedModel(["Done."])))
    old = stage.process()
    await old.do("open")
    left = {"message": {"content": "Done."}, "since_then": True}
    row = StagedChange(step_id=f"{RUN.run_id}.1", tool_call_id=f"{REPLY}9.9", data=left)
    await stage.parts.state.stage_changes(SESSION, row, fence=RUN)
    with pytest.raises(RecordTooNewError):
        await old.ask()
    with pytest.raises(RecordTooNewError):
        await old.commit((), 0, Advance())
    # Kinds of calls that were added since come with the request itself.
    request = to_plain(
        CallsRequest(step=1, round=0, calls=(PlannedCall(tool_call_id="a", tool_name="b", kind="server"),))
    )
    request["calls"][0]["kind"] = "of_tomorrow"
    with pytest.raises(RecordTooNewError):
        await Effects(old.runs.services, old.runs).perform("run_calls", SESSION, RUN, request)
    run = await stage.parts.state.get_current_run(SESSION)
    assert run is not None
    assert (run.status, run.attempt) == ("running", 1)


async def test_a_late_try_of_a_model_call_does_not_replace_the_reply_that_the_run_goes_on_with(stage: Stage):
    """The first try has its reply and all of it is in the stream; it is held up before it leaves it at the desk."""
    gate, asked = Gate(), iter((True, False))

    async def hold(*_: Any) -> None:
        if next(asked):
            await gate.wait()

    @tool
    async def note(text: str) -> str:
        """Take a note."""
        return text

    script = [
        reply("First.", calls=[call("note", {"text": "a"}, id="a")]),
        reply("Second.", calls=[call("note", {"text": "b"}, id="b")]),
    ]
    agent = Agent(
        name="writer", model=ScriptedModel(script, by="calls"), tools=[note], hooks=Hooks(after_llm_call=hold)
    )
    await stage.begin(agent)
    slow, quick = stage.process(), stage.process()
    await quick.do("open")
    late = asyncio.create_task(slow.do("ask_model", Ask(step=1)))
    await gate.until_reached()
    # Nothing of it is left to be stored, so its next flush has nothing that could be refused.
    await until(lambda: stage.has_said(ToolArgStreamEnd))
    calls = await quick.ask()
    assert [each.tool_call_id for each in calls] == ["b"]
    gate.opened.set()
    await within(late)
    assert (await quick.run(*calls))[0].state == "settled"
    assert await quick.commit(calls, 1, Advance()) == "continue"
    assert await spoken(stage.helix) == ["user: Go.", "assistant: Second.[note#b]", "result note#b: b"]


async def test_a_summary_that_a_failed_try_made_is_not_made_again(stage: Stage):
    """It rests with the step, and is told and counted once."""
    away = iter((True, False))

    def say(request: ModelRequest) -> str:
        if next(away):
            raise StoreUnavailableError("this process", "died")
        return f"I see {len(request.messages)}."

    summariser = ScriptedModel(lambda _: "In short.", name="summariser")
    compaction = Compaction(above_tokens=50, keep_tokens=0, model=summariser)
    agent = Agent(name="writer", model=ScriptedModel(say), compaction=compaction)
    await stage.begin(agent, UserMessage(content="Long ago. " * 50), AssistantMessage(text="Yes."))
    dying, other = stage.process(), stage.process()
    await dying.do("open")
    with pytest.raises(StoreUnavailableError):
        await dying.ask()
    assert await other.ask() == ()
    assert await other.commit((), 0, Advance()) == "ended"
    assert summariser.asked == 1
    assert (await spoken(stage.helix))[2:] == ["user: Go.", "hidden: summary", "assistant: I see 2."]
    used = await stage.parts.usage.query_usage(UsageFilter(session_id=SESSION, source_type="tokens"))
    assert [entry.source_name for entry in used.items].count("summariser") == 1


async def test_a_reply_that_comes_after_the_run_was_told_that_there_is_none_is_not_kept(stage: Stage):
    gate, asked = Gate(), iter((True, False))

    async def hold(*_: Any) -> None:
        if next(asked):
            await gate.wait()

    @tool
    async def note(text: str) -> str:
        """Take a note."""
        return text

    script = [reply("First.", calls=[call("note", {"text": "a"}, id="a")]), ModelRefusedError("scripted", "no credit")]
    agent = Agent(
        name="writer", model=ScriptedModel(script, by="calls"), tools=[note], hooks=Hooks(after_llm_call=hold)
    )
    await stage.begin(agent)
    slow, quick = stage.process(), stage.process()
    await quick.do("open")
    late = asyncio.create_task(slow.do("ask_model", Ask(step=1)))
    await gate.until_reached()
    await until(lambda: stage.has_said(ToolArgStreamEnd))
    assert await quick.do("ask_model", Ask(step=1)) == RunFailed(code="provider_refused")
    gate.opened.set()
    await within(late)
    failing = CommitRequest(batch=OpenBatch(step=1), outcome=Fail(code="provider_refused"))
    assert await quick.do("commit", failing) == CommitAck(next="ended", status="failed")
    assert await spoken(stage.helix) == ["user: Go."]


async def test_a_reply_that_was_checked_is_committed_elsewhere_as_the_check_left_it(stage: Stage):
    checked: list[str] = []

    def picky(ctx: RunContext[Diary, Any], output: str) -> None:
        checked.append(output)
        ctx.state.done.append(output)
        if output == "One.":
            raise RetryOutput("not that")

    model = ScriptedModel(["One.", "Two."], by="calls")
    await stage.begin(Agent(name="writer", model=model, state=Diary, output_checks=[picky]))
    process, other = stage.process(), stage.process(keep_seconds=0)
    await process.do("open")
    for each in (process, other):
        assert await each.ask() == ()
    assert await other.commit((), 0, Advance()) == "continue"
    for each in (other, process):
        assert await each.ask(2) == ()
    ends = CommitRequest(batch=OpenBatch(step=2), outcome=Advance())
    assert await process.do("commit", ends) == CommitAck(next="ended", status="completed")
    assert checked == ["One.", "Two."]
    assert await spoken(stage.helix) == ["user: Go.", "assistant: One.", "hidden: output_reminder", "assistant: Two."]
    assert (await stage.helix.sessions.get(SESSION)).custom_state == {"done": ["One.", "Two."]}


async def test_a_reply_that_a_check_forbade_is_forbidden_and_paid_for_elsewhere_too(stage: Stage):
    def forbid(ctx: RunContext[Any, Any], output: str) -> None:
        raise FailRun("no")

    model = ScriptedModel([reply("One.", usage=TokenCount(prompt=1, completion=1, total=2))], by="calls")
    await stage.begin(Agent(name="writer", model=model, output_checks=[forbid]))
    process, other = stage.process(), stage.process(keep_seconds=0)
    await process.do("open")
    for each in (process, other):
        assert await each.do("ask_model", Ask(step=1)) == RunFailed(code="output_refused")
    failing = CommitRequest(batch=OpenBatch(step=1), outcome=Fail(code="output_refused"))
    assert await other.do("commit", failing) == CommitAck(next="ended", status="failed")
    assert await spoken(stage.helix) == ["user: Go."]
    assert not await stage.has_said(TextDelta)
    used = await stage.parts.usage.get_usage_rollup(SESSION)
    assert used.tokens.total == 2
    assert (await stage.parts.state.load_state(SESSION)).error == "no"


async def test_a_late_try_that_forbids_its_reply_takes_nothing_back_of_the_reply_that_the_run_goes_on_with(
    stage: Stage,
):
    gate = Gate()

    async def forbid(ctx: RunContext[Any, Any], output: str) -> None:
        if output == "One.":
            await gate.wait()
            raise FailRun("no")

    model = ScriptedModel(["One.", "Two."], by="calls")
    await stage.begin(Agent(name="writer", model=model, output_checks=[forbid]))
    slow, quick = stage.process(), stage.process()
    await quick.do("open")
    late = asyncio.create_task(slow.do("ask_model", Ask(step=1)))
    await gate.until_reached()
    assert await quick.ask() == ()
    gate.opened.set()
    assert await within(late) == RunEnd(status="superseded")
    ends = CommitRequest(batch=OpenBatch(step=1), outcome=Advance())
    assert await quick.do("commit", ends) == CommitAck(next="ended", status="completed")
    assert await spoken(stage.helix) == ["user: Go.", "assistant: Two."]
    said = [chunk.delta for chunk in await stage.parts.streams.get_all_chunks(SESSION) if isinstance(chunk, TextDelta)]
    assert said == ["Two."]


@pytest.mark.parametrize("ran", ["with the old agent", "with the new agent"])
@pytest.mark.parametrize("output", [Headed, None], ids=["another type", "a text"])
async def test_an_output_that_a_deploy_made_invalid_before_its_commit_is_an_error_the_model_sees(
    stage: Stage, output: type[Headed] | None, ran: str
):
    model = ScriptedModel([finish({"title": "Tides"})], by="calls")
    await stage.begin(Agent(name="writer", model=model, output=Titled))
    process = stage.process()
    await process.do("open")
    calls = await process.ask()
    if ran == "with the old agent":
        await process.run(*calls)
    stage.helix.agents.replace(Agent[Any, Any](name="writer", model=model, output=cast("Any", output)))
    other = stage.process(keep_seconds=0)
    if ran == "with the new agent":
        await other.run(*calls)
    assert await other.commit(calls, 1, Advance()) == "continue"
    code = "unknown_tool_since_deploy" if output is None else "input_refused_since_deploy"
    assert (await spoken(stage.helix))[2] == f"error __finish__#call_1_1: {code}"


async def test_a_model_call_that_is_asked_for_again_after_its_step_was_committed_asks_nobody(stage: Stage):
    model = ScriptedModel(["Only."], by="calls")
    await stage.begin(Agent(name="writer", model=model))
    process, other = stage.process(), stage.process(keep_seconds=0)
    await process.do("open")
    calls = await process.ask()
    answer = await process.do("commit", CommitRequest(batch=OpenBatch(step=1, calls=calls), outcome=Advance()))
    assert answer == CommitAck(next="ended", status="completed")
    for late in (process, other):
        assert await late.do("ask_model", Ask(step=1)) == RunEnd(status="completed")


async def test_who_asks_for_a_step_again_that_the_run_has_left_is_told_that_it_is_superseded(stage: Stage):
    @tool
    async def note() -> str:
        """Take a note."""
        return "noted"

    model = ScriptedModel([call("note", {}, id="a"), call("note", {}, id="never")], by="calls")
    await stage.begin(Agent(name="writer", model=model, tools=[note]))
    process, other = stage.process(), stage.process(keep_seconds=0)
    await process.do("open")
    calls = await process.ask()
    await process.run(*calls)
    assert await process.commit(calls, 1, Advance()) == "continue"
    for late in (other, process):
        assert await late.do("ask_model", Ask(step=1)) == RunEnd(status="superseded")
    assert len(model.requests) == 1


async def test_a_result_that_comes_after_its_outcome_was_declared_unknown_is_not_taken_for_one(stage: Stage):
    """Whoever is asked about the outcome decides; the step does not hold a result beside the question."""
    gate = Gate()

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        await gate.wait()
        return "paid"

    options = EngineOptions(effect_lease_ms=50)
    agent = Agent(name="payer", model=ScriptedModel([call("pay", {}, id="pay"), "Done."]), tools=[pay])
    await stage.begin(agent)
    frozen = stage.process(frozen=True, options=options)
    quick = stage.process(options=options)
    await quick.do("open")
    calls = await quick.ask()
    late = asyncio.create_task(frozen.do("run_calls", CallsRequest(step=1, round=0, calls=calls)))
    await gate.until_reached()
    assert (await within(quick.run(*calls)))[0].state == "waiting"
    gate.opened.set()
    assert await within(late) == RunEnd(status="superseded")
    answer = await quick.do("commit", CommitRequest(batch=OpenBatch(step=1, calls=calls), outcome=Suspend()))
    assert answer == CommitAck(next="ended", status="suspended_client_tool")
    staged = await stage.parts.state.get_staged_changes(SESSION, f"{RUN.run_id}.1")
    assert [row.tool_call_id for row in staged if row.message is not None] == []
    [effect] = await stage.parts.state.list_effects(SESSION)
    assert (effect.state, effect.late_result is not None) == ("unknown", True)


class Deps:
    """What a run has open in its process."""

    def __init__(self) -> None:
        self.open = 0

    @asynccontextmanager
    async def __call__(self, *_: Any) -> AsyncIterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


async def test_a_run_that_an_effect_was_cancelled_in_is_let_go_of_in_time(stage: Stage):
    gate, deps = Gate(), Deps()

    @tool
    async def note() -> str:
        """Take a note."""
        await gate.wait()
        return "noted"

    await stage.begin(Agent(name="writer", model=ScriptedModel([call("note", {}, id="a")]), tools=[note]))
    process = stage.process(open_deps=deps, keep_seconds=0.05)
    await process.do("open")
    calls = await process.ask()
    working = asyncio.create_task(process.run(*calls))
    await gate.until_reached()
    working.cancel()
    # Once more while the run is being put back.
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    async with asyncio.timeout(5):
        while deps.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("effect", ["repeatable", "once"])
async def test_a_run_that_cannot_be_driven_on_keeps_a_step_only_if_it_has_begun_what_cannot_be_undone(
    stage: Stage, effect: Any
):
    @asynccontextmanager
    async def broken(*_: Any) -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    @tool(effect=effect)
    async def note() -> str:
        """Take a note."""
        return "noted"

    await stage.begin(Agent(name="writer", model=ScriptedModel([call("note", {}, id="a"), "Done."]), tools=[note]))
    process, unlucky = stage.process(), stage.process(open_deps=broken)
    await process.do("open")
    calls = await process.ask()
    await process.run(*calls)
    assert await unlucky.do("commit", CommitRequest(batch=OpenBatch(step=1), outcome=Advance())) == RunEnd(
        status="failed"
    )
    kept = ["assistant: [note#a] (crash)", "result note#a: noted"] if effect == "once" else []
    assert await spoken(stage.helix) == ["user: Go.", *kept]


async def test_a_last_commit_whose_process_died_is_found_by_one_that_kept_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The stream has ended with that commit. The run did, too: nobody took it over, and an abort is still owed."""
    await stage.begin(Agent(name="writer", model=ScriptedModel(["Done."])))
    kept, dying = stage.process(), stage.process()
    await kept.do("open")
    assert await kept.ask() == ()
    await stage.parts.state.set_interrupt_flag(SESSION, "enough")
    store = stage.parts.state.save_state_and_promote_staging

    async def abort_and_commit(*args: Any, **fields: Any) -> Any:
        await stage.parts.state.set_interrupt_flag(SESSION, "now", kind="abort")
        await store(*args, **fields)
        raise StoreUnavailableError("this process", "died")

    batch = OpenBatch(step=1, calls=())
    with monkeypatch.context() as dies:
        dies.setattr(stage.parts.state, "save_state_and_promote_staging", abort_and_commit)
        with pytest.raises(StoreUnavailableError):
            await dying.do("commit", CommitRequest(batch=batch, outcome=Stop()))
    answer = await kept.do("commit", CommitRequest(batch=batch, outcome=Stop()))
    assert answer == RunEnd(status="interrupted")
    assert (await stage.parts.state.load_state(SESSION)).status == "failed"
