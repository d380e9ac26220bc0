"""A stop that comes in the worst moment: while its run is suspending, ending, dying, or going on after a wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import RunContext
from helix_agents.agent.hook_events import AgentSuspendedEvent, BeforeLLMCallEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.backends.in_memory import (
    InMemoryLockManager,
    InMemoryStateStore,
    InMemoryStreamManager,
    InMemoryUsageStore,
    Memory,
)
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import Committed, SettleSession, StepCommit
from helix_agents.domain.errors import NothingToResumeError, StoreUnavailableError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import Message, ToolMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.results import Interrupted, Suspended
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptFlag, InterruptSet, SessionState, StatusOutcome, StopKind
from helix_agents.engine.requests import stopping
from helix_agents.engine.requests.stopping import stop_session
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor.stage import Gate, PieceGate
from helix_agents.testing.recording import StopAt
from helix_agents.testing.scattered import ScatteredExecutor
from tests.recovery.deaths import die_at, settings_on

SESSION = "s-1"

StoreT = TypeVar("StoreT", bound=InMemoryStateStore)


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def seeker(**settings: Any) -> AnyAgent:
    model = ScriptedModel([call("locate", {"city": "Rome"}, id="where"), "There."])
    return Agent(name="seeker", model=model, tools=[locate], **settings)


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_outlives_a_process_that_dies_while_its_run_suspends(kind: StopKind):
    async with await open_backend(f"memory://stop-{kind}") as parts:

        async def stop(_: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
            told = await parts.state.set_interrupt_flag(SESSION, "now", kind=kind)
            assert told == InterruptSet(run_id=event.run_id)

        agent = seeker(hooks=Hooks(on_agent_suspended=stop))
        run = await die_at(StopAt(kind="commit", effect=1, side="after"), parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            await second.recover()
            again = await second.get_handle(agent, SESSION)
            assert again is not None
            assert again.run_id == run.run_id
            assert (await again.result()).status == ("interrupted" if kind == "interrupt" else "failed")
            assert (await second.list_pending()).items == ()


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_reaches_a_companion_whose_driver_died(kind: StopKind):
    """The call had begun to wait for it, and nobody had written that down."""
    steady = Agent(name="steady", description="Keeps.", model=ScriptedModel(["Kept."]))
    spawn = call("companion__spawnAgent", {"agent": "steady", "initialMessage": "Keep."}, id="spawn")
    agent = Agent(name="boss", model=ScriptedModel([spawn, "Done."]), persistent_agents=[PersistentAgent(steady)])
    async with await open_backend(f"memory://stop-companion-{kind}") as parts:
        await die_at(StopAt(kind="ask_model", effect=2, side="after"), parts, agent, SESSION)
        assert isinstance(await parts.state.set_interrupt_flag(SESSION, "now", kind=kind), InterruptSet)
        async with Executor(**settings_on(parts, agent)) as second:
            await second.recover()
            again = await second.get_handle(agent, SESSION)
            assert again is not None
            ended = "interrupted" if kind == "interrupt" else "failed"
            assert (await again.result()).status == ended
            (ref,) = await parts.state.get_sub_session_refs(SESSION)
            companion = await parts.state.get_current_run(ref.sub_session_id)
            assert companion is not None
            assert (companion.status, ref.status) == (ended, "interrupted")


def executor(store: type[StoreT], agent: AnyAgent) -> tuple[StoreT, Executor]:
    memory = Memory()
    state, streams, usage = store(memory), InMemoryStreamManager(memory), InMemoryUsageStore(memory)
    return state, Executor(state=state, streams=streams, usage=usage, agents=[agent], janitor_seconds=None)


class Silent(InMemoryStateStore):
    """A store that never says how one run stands."""

    about: RunId | None = None

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        if run_id == self.about:
            await asyncio.Event().wait()
        return await super().get_run(run_id)


async def test_a_session_that_waits_is_stopped_in_time_however_long_its_companions_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
):
    gate, memory = Gate(), Memory()
    monkeypatch.setattr(stopping, "_COMMITS_SECONDS", 0.1)

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    busy = Agent(name="busy", description="Works.", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    spawn = call("companion__spawnAgent", {"agent": "busy", "initialMessage": "Work."})
    model, kept = ScriptedModel([spawn, call("locate", {"city": "Rome"})]), PersistentAgent(busy, mode="non_blocking")
    agent = Agent(name="boss", model=model, tools=[locate], persistent_agents=[kept])
    stores = InMemoryStateStore(memory), Silent(memory)
    of_both: dict[str, Any] = {"streams": InMemoryStreamManager(memory), "usage": InMemoryUsageStore(memory)}
    of_both |= {"janitor_seconds": None, "grace": 0.0, "options": EngineOptions(cancel_grace_seconds=0.1)}
    async with Executor(state=stores[0], **of_both) as first, Executor(state=stores[1], **of_both) as second:
        assert isinstance(await (await first.execute(agent, "Go.", SESSION)).result(), Suspended)
        await gate.until_reached()
        (ref,) = await stores[0].get_sub_session_refs(SESSION)
        stores[1].about = (await stores[0].load_state(ref.sub_session_id)).current_run_id
        async with asyncio.timeout(20):
            assert isinstance(await second.interrupt(SESSION, "enough"), InterruptSet)
        assert (await stores[0].load_state(SESSION)).status == "interrupted"


class HardOfHearing(InMemoryStateStore):
    """A store that wakes no watcher in the time that an effect takes, and counts commits."""

    commits = 0

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        await asyncio.sleep(0.5)
        return await super().wait_for_interrupt(session_id, timeout)

    async def save_state_and_promote_staging(self, *given: Any, **named: Any) -> Committed:
        self.commits += 1
        return await super().save_state_and_promote_staging(*given, **named)


async def test_a_suspension_that_meets_a_stop_takes_one_more_round_also_where_every_effect_opens_its_run_anew():
    memory = Memory()
    store = HardOfHearing(memory)

    async def stop(_: RunContext[Any, Any], event: AgentSuspendedEvent) -> None:
        assert isinstance(await store.set_interrupt_flag(SESSION, "now"), InterruptSet)

    agent = seeker(hooks=Hooks(on_agent_suspended=stop))
    parts: dict[str, Any] = {"streams": InMemoryStreamManager(memory), "usage": InMemoryUsageStore(memory)}
    async with ScatteredExecutor(state=store, **parts, janitor_seconds=None, keep_seconds=0.0) as helix:
        run = await helix.execute(agent, "Go.", SESSION)
        async with asyncio.timeout(20):
            assert isinstance(await run.result(), Interrupted)
    assert store.commits == 2


class AbortedLate(InMemoryStateStore):
    """A store in which somebody aborts the run between its look at the stop and the commit that ends it."""

    answers = True

    async def save_state_and_promote_staging(
        self,
        session_id: SessionId,
        state: SessionState,
        append_messages: Sequence[Message],
        checkpoint_meta: CheckpointMeta,
        *,
        expected_version: int | None = None,
        commit: StepCommit | None = None,
    ) -> Committed:
        stops = commit is not None and commit.take_stop
        if stops:
            assert isinstance(await self.set_interrupt_flag(session_id, "for good", kind="abort"), InterruptSet)
        committed = await super().save_state_and_promote_staging(
            session_id, state, append_messages, checkpoint_meta, expected_version=expected_version, commit=commit
        )
        if stops and not self.answers:
            raise StoreUnavailableError("memory", "the line is dead")
        return committed


class AbortedUnheard(AbortedLate):
    """The same, but the answer to that commit is lost on its way."""

    answers = False


@pytest.mark.parametrize("store", [AbortedLate, AbortedUnheard])
async def test_an_abort_that_an_interrupt_did_not_see_is_for_good(store: type[InMemoryStateStore]):
    gate = PieceGate(1)
    agent = Agent(name="talker", model=ScriptedModel(["One two three."], pace=gate))
    _, helix = executor(store, agent)
    async with helix:
        handle = await helix.execute(agent, "Count.", SESSION)
        await gate.until_reached()
        await handle.interrupt("enough")
        # The run had seen the interrupt and nothing else; the session is as the later wish says.
        assert isinstance(await handle.result(), Interrupted)
        session = await helix.sessions.get(SESSION)
        assert (session.status, session.error) == ("failed", "for good")
        with pytest.raises(NothingToResumeError):
            await helix.resume(agent, SESSION)


async def test_an_abort_that_an_interrupt_did_not_see_outlives_the_process_that_dies_right_there():
    memory = Memory()
    state = AbortedLate(memory)

    async def stop(_: RunContext[Any, Any], event: BeforeLLMCallEvent) -> None:
        assert isinstance(await state.set_interrupt_flag(SESSION, "enough"), InterruptSet)

    model = ScriptedModel(["One two three."], pace=PieceGate(1))
    agent = Agent(name="talker", model=model, hooks=Hooks(before_llm_call=stop))
    parts = Backend(
        url="memory://",
        state=state,
        streams=InMemoryStreamManager(memory),
        locks=InMemoryLockManager(memory),
        usage=InMemoryUsageStore(memory),
    )
    await die_at(StopAt(kind="commit", effect=1, side="after"), parts, agent, SESSION)
    assert (await state.load_state(SESSION)).status == "interrupted"
    async with Executor(**settings_on(parts, agent)) as second:
        assert isinstance(await second.can_resume(agent, SESSION), NothingToResumeError)
        session = await second.sessions.get(SESSION)
        assert (session.status, session.error) == ("failed", "for good")
        with pytest.raises(NothingToResumeError, match="it was aborted"):
            await second.resume(agent, SESSION)


class GoesOnMeanwhile(InMemoryStateStore):
    """A store in which something happens right after somebody looked at which run is current."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        found = await super().get_current_run(session_id)
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return found


async def test_a_stop_reaches_a_session_that_goes_on_while_it_is_asked_for():
    agent, gate = seeker(), PieceGate(1)
    store, helix = executor(GoesOnMeanwhile, agent)
    async with helix:
        assert isinstance(await (await helix.execute(agent, "Go.", SESSION)).result(), Suspended)
        await helix.submit_tool_result(SESSION, "where", ToolAnswer(result="here"))
        held = ScriptedModel([call("locate", {"city": "Rome"}, id="where"), "There it is."], pace=gate)
        store.meanwhile = partial(helix.resume, agent, SESSION, model=held)
        told = await helix.interrupt(SESSION, "enough")
        run = await store.get_current_run(SESSION)
        assert run is not None
        assert told == InterruptSet(run_id=run.run_id)
        resumed = await helix.get_handle(agent, SESSION)
        assert resumed is not None
        assert isinstance(await resumed.result(), Interrupted)


class MeetingPoint(InMemoryStateStore):
    """A store that settles nothing before two want to."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._others = 2
        self._met = asyncio.Event()

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        self._others -= 1
        if self._others <= 0:
            self._met.set()
        await self._met.wait()
        return await super().settle_session(request)


@pytest.mark.parametrize("kinds", [("interrupt", "interrupt"), ("interrupt", "abort"), ("abort", "abort")])
async def test_of_two_who_stop_a_session_that_waits_one_gives_its_calls_their_results(kinds: tuple[StopKind, StopKind]):
    agent = seeker()
    store, helix = executor(MeetingPoint, agent)
    async with helix:
        assert isinstance(await (await helix.execute(agent, "Go.", SESSION)).result(), Suspended)
        first, second = (stop_session(helix._services, SESSION, kind, "enough") for kind in kinds)
        told = await asyncio.gather(first, second)
        assert any(isinstance(each, InterruptSet) for each in told)
        transcript = [stored.message for stored in await store.load_transcript(SESSION)]
        assert [each.tool_call_id for each in transcript if isinstance(each, ToolMessage)] == ["where"]


@pytest.mark.parametrize(("kind", "left"), [("interrupt", "ended"), ("abort", "failed")])
async def test_the_stream_of_a_run_that_was_stopped_while_it_waited_ends_though_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch, kind: StopKind, left: str
):
    agent = seeker()
    async with await open_backend("memory://") as parts, Executor(**settings_on(parts, agent)) as helix:
        assert isinstance(await (await helix.execute(agent, "Go.", SESSION)).result(), Suspended)

        async def away(*_: Any, **__: Any) -> None:
            raise StoreUnavailableError("memory", "it is away")

        with monkeypatch.context() as gone:
            gone.setattr(parts.streams, "end_stream", away)
            gone.setattr(parts.streams, "fail_stream", away)
            with pytest.raises(StoreUnavailableError):
                await stop_session(helix._services, SESSION, kind, None)
        handle = await helix.get_handle(agent, SESSION)
        assert handle is not None
        async with asyncio.timeout(20):
            seen = [chunk.type async for chunk in handle.stream()]
        info = await parts.streams.get_stream_info(SESSION)
        assert info is not None
        assert (info.status, (await handle.result()).status, bool(seen)) == (
            left,
            "interrupted" if kind == "interrupt" else "failed",
            True,
        )
