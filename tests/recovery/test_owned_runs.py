"""A run that a living process owns is driven by it: whatever answer was lost, and whoever was cancelled."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore, Memory
from helix_agents.domain.commits import Committed, RunStartCommitted, SettleSession, StartRun
from helix_agents.domain.errors import (
    ConflictError,
    HelixError,
    SchemaTooNewError,
    SessionCorruptError,
    SessionNotFoundError,
    StoreUnavailableError,
)
from helix_agents.domain.ids import RunId, SessionId, StreamId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import Page
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.runs import Fence, KnownAs, RunRecord
from helix_agents.domain.sessions import CreateSession, StatusOutcome
from helix_agents.engine.children.detached import begin_detached
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.requests.settling import fail_run
from helix_agents.runtimes.executor import rewinds
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.executor.owned_runs import claim
from helix_agents.runtimes.executor.recovery import Recovered, recover
from helix_agents.runtimes.in_process import Executor
from helix_agents.runtimes.in_process.drivers import MOST_CANCELLED, Drivers
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor import stage
from helix_agents.testing.contracts.executor.stage import Gate, completed, failed, runs_of, suspended
from helix_agents.testing.scenes import start as begin

SESSION = "s-1"


class Answers(InMemoryStateStore):
    """A store whose answers can be lost: what was asked for is done, and nobody is told."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.lose: set[str] = set()
        self.refuse: list[Exception] = []
        self.refuse_then: Sequence[Exception] = ()
        self.released: list[str] = []
        self.hold_start: Gate | None = None
        self.is_broken = False
        self.is_damaged = False
        self.before_settling: Callable[[], Awaitable[object]] | None = None
        self.breaks_after = False

    def _lost(self, operation: str) -> None:
        if operation == "get_current_run" and self.refuse:
            raise self.refuse.pop(0)
        if operation in self.lose:
            self.lose.discard(operation)
            self.refuse.extend(self.refuse_then)
            raise StoreUnavailableError("memory", "the answer was lost")

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        self._lost("before_start")
        started = await super().start_run(start)
        if self.hold_start is not None:
            await self.hold_start.wait()
        self._lost("start_run")
        return started

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        claimed = await super().claim_run(session_id, fence, owner, known_as=known_as)
        self._lost("claim_run")
        return claimed

    async def save_state_and_promote_staging(self, *step: Any, **about: Any) -> Committed:
        self._lost("commit")
        if self.is_broken:
            self.lose = {"get_current_run"}
            raise RuntimeError("out of order")
        committed = await super().save_state_and_promote_staging(*step, **about)
        if self.breaks_after:
            raise RuntimeError("out of order")
        return committed

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        if self.before_settling is not None:
            await self.before_settling()
        self._lost("settle_session")
        settled = await super().settle_session(request)
        self._lost("settled")
        return settled

    async def get_messages(self, session_id: SessionId, **page: Any) -> Page[StoredMessage]:
        if self.is_damaged:
            raise SessionCorruptError("message", "it is cut off")
        return await super().get_messages(session_id, **page)

    async def release_lease(self, owner: str) -> None:
        self._lost("release_lease")
        self.released.append(owner)
        await super().release_lease(owner)

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        self._lost("get_current_run")
        return await super().get_current_run(session_id)


class Streams(InMemoryStreamManager):
    """Streams that can refuse to be made active."""

    is_down = False

    async def reactivate_stream(self, stream_id: StreamId, run_id: RunId, *, turn: int = 0, attempt: int = 1) -> None:
        if self.is_down:
            raise StoreUnavailableError("memory", "it is down")
        await super().reactivate_stream(stream_id, run_id, turn=turn, attempt=attempt)


class World:
    """One process and its stores."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.store = Answers(self.memory)
        self.streams = Streams(self.memory)

    @asynccontextmanager
    async def opened(self, *agents: AnyAgent, **settings: Any) -> AsyncGenerator[Executor]:
        given = {"janitor_seconds": None, "lease_ms": 3_600_000, "grace": 1.0, **settings}
        usage = InMemoryUsageStore(self.memory)
        async with Executor(state=self.store, streams=self.streams, usage=usage, agents=agents, **given) as helix:
            yield helix

    async def run(self) -> RunRecord:
        run = await self.store.get_current_run(SESSION)
        assert run is not None
        return run


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for what never comes."""
    monkeypatch.setattr(stage, "PATIENCE", 5.0)


def speaker() -> Agent[Any, str, Any]:
    return Agent(name="speaker", model=ScriptedModel(["One.", "Two."]))


async def handle(helix: Executor, agent: Agent[Any, str, Any]) -> RunHandle[str]:
    found = await helix.get_handle(agent, SESSION)
    assert found is not None
    return found


async def background(helix: Executor) -> None:
    """Wait for what a process does beside its runs."""
    assert isinstance(helix._runtime, Drivers)
    await stage.within(asyncio.gather(*helix._runtime._background))


async def test_a_run_is_driven_whose_start_was_not_answered(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        world.store.lose = {"start_run"}
        with pytest.raises(StoreUnavailableError):
            await helix.execute(agent, "Speak.", SESSION)
        assert await completed(await handle(helix, agent)) == "One."
        assert [run.attempt for run in await runs_of(helix)] == [1]


@pytest.mark.parametrize("time", range(12))
async def test_whoever_begins_runs_in_the_background_is_cancelled_with_the_process_that_leaves(world: World, time: int):
    """As the waker does, which waits for a start that is cancelled with it. Which of both is first, a set decides."""
    agent, heard = speaker(), asyncio.Event()
    world.store.hold_start = Gate()

    async def begin_for_ever(helix: Executor) -> None:
        while True:
            try:
                await helix.execute(agent, "Speak.", SESSION)
            except HelixError:
                heard.set()
                await asyncio.sleep(60)

    async with asyncio.timeout(10):
        async with world.opened(agent, grace=0.0) as helix:
            helix._runtime.in_background(begin_for_ever(helix))
            await world.store.hold_start.until_reached()
    assert not heard.is_set()


async def test_a_run_is_driven_whose_caller_was_cancelled_while_it_started(world: World):
    agent = speaker()
    world.store.hold_start = Gate()
    async with world.opened(agent) as helix:
        calling = asyncio.create_task(helix.execute(agent, "Speak.", SESSION))
        await world.store.hold_start.until_reached()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        world.store.hold_start.opened.set()
        assert await completed(await handle(helix, agent)) == "One."


async def test_what_fails_after_its_caller_was_cancelled_is_logged_by_name(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate()

    async def away(**_: object) -> None:
        await gate.wait()
        raise StoreUnavailableError("memory", "it went away")

    monkeypatch.setattr(world.store, "expire_pending", away)
    async with world.opened(speaker()) as helix:
        calling = asyncio.create_task(helix.sweep())
        await gate.until_reached()
        calling.cancel()
        await asyncio.wait((calling,))
        assert isinstance(helix._runtime, Drivers)
        left = tuple(helix._runtime._background)
        gate.opened.set()
        await asyncio.wait(left)
        del left
        gc.collect()
    [told] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert vars(told)["event"] == "caller_left.failed"
    assert "it went away" in str(told.exc_info)


async def test_a_run_is_driven_whose_stream_could_not_be_made_active(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        assert await completed(await helix.execute(agent, "Speak.", SESSION)) == "One."
        world.streams.is_down = True
        assert await completed(await helix.execute(agent, "Speak.", SESSION)) == "Two."


async def test_a_run_is_driven_whose_claim_was_not_answered_when_it_was_recovered(world: World):
    agent = speaker()
    await world.store.start_run(
        StartRun(
            session_id=SESSION, run_id="r-1", create=CreateSession(agent_type=agent.name), owner="somebody who died"
        )
    )
    async with world.opened(agent) as helix:
        world.store.lose = {"claim_run", "get_current_run"}
        await helix.recover()
        assert await completed(await handle(helix, agent)) == "One."
        assert (await world.run()).attempt == 2


class Held:
    """An agent with a tool that can be held, and a note of every run of it."""

    def __init__(self) -> None:
        self.gates = [Gate(), Gate()]
        self.runs = 0

    def agent(self) -> Agent[Any, str, Any]:
        @tool
        async def work() -> str:
            """Work."""
            self.runs += 1
            await self.gates[min(self.runs, len(self.gates)) - 1].wait()
            return "done"

        return Agent(name="worker", model=ScriptedModel([call("work"), "Finished."]), tools=[work])


async def test_a_run_that_another_process_took_first_is_counted_as_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    await world.store.start_run(
        StartRun(session_id=SESSION, run_id="r-1", create=CreateSession(agent_type="speaker"), owner="dead")
    )
    listed = world.store.list_orphans

    async def list_and_lose(**about: Any) -> tuple[RunRecord, ...]:
        page = await listed(**about)
        for run in page:
            await world.store.claim_run(run.session_id, run.fence, "another")
        return page

    monkeypatch.setattr(world.store, "list_orphans", list_and_lose)
    async with world.opened(speaker()) as helix:
        assert await helix.recover() == Recovered(taken_by_others=1)


async def test_one_round_of_recovery_takes_no_more_than_its_share(world: World):
    for number in range(3):
        create = CreateSession(agent_type="speaker")
        await world.store.start_run(StartRun(session_id=f"s-{number}", run_id=f"r-{number}", create=create))
    async with world.opened(speaker()) as helix:
        first = await recover(helix._services, helix._runtime, helix._left, limit=2)
        second = await recover(helix._services, helix._runtime, helix._left, limit=2)
    assert (len(first.run_ids), len(second.run_ids)) == (2, 1)


async def test_a_process_whose_lease_ran_out_goes_on_with_the_runs_it_drives(world: World):
    """A machine that slept, or a store that was away: the janitor looks before the lease is renewed."""
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        owner = (await world.run()).owner
        assert owner is not None
        await world.store.release_lease(owner)
        assert (await helix.recover()).run_ids == ()
        held.gates[0].opened.set()
        assert await completed(run) == "Finished."
    assert held.runs == 1


async def test_a_process_that_leaves_while_the_store_is_away_closes_everything_it_has(world: World):
    closed: list[str] = []

    async def close_backend() -> None:
        closed.append("backend")

    async with world.opened(speaker(), on_close=close_backend):
        world.store.lose = {"release_lease"}
    assert closed == ["backend"]


async def test_a_run_that_comes_back_to_its_first_process_is_driven_there_beside_what_is_left_of_it(world: World):
    """Another process took the run over and died, while the first one was still in its tool."""
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        await world.store.claim_run(SESSION, (await world.run()).fence, "another that died")
        assert (await helix.recover()).run_ids == (run.run_id,)
        held.gates[1].opened.set()
        assert await completed(await handle(helix, agent)) == "Finished."
        held.gates[0].opened.set()
        assert await completed(run) == "Finished."
        assert (await world.run()).attempt == 3
    assert held.runs == 2


@asynccontextmanager
async def come_back(
    world: World, held: Held, **settings: Any
) -> AsyncGenerator[tuple[Executor, "asyncio.Task[RunEnd]", "asyncio.Task[RunEnd]"]]:
    """A run that came back to a process in which an earlier attempt of it is still at work, and the tasks of both."""
    agent = held.agent()
    async with world.opened(agent, **settings) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        earlier = helix._runtime.find(run.run_id)
        await world.store.claim_run(SESSION, (await world.run()).fence, "another that died")
        await helix.recover()
        await held.gates[1].until_reached()
        later = helix._runtime.find(run.run_id)
        assert earlier is not None
        assert later is not None
        yield helix, earlier, later


async def test_an_earlier_attempt_that_ends_leaves_the_later_one_known(world: World):
    held = Held()
    async with come_back(world, held) as (helix, earlier, later):
        held.gates[0].opened.set()
        await stage.within(asyncio.wait((earlier,)))
        run = await world.run()
        assert helix._runtime.find(run.run_id) is later
        assert await helix._services.inspect(run) == "alive"
        held.gates[1].opened.set()
        await stage.within(asyncio.wait((later,)))


async def test_whoever_leaves_ends_every_attempt_that_is_at_work_here(world: World):
    async with come_back(world, Held(), grace=0.0) as (_, earlier, later):
        pass
    assert (earlier.done(), later.done()) == (True, True)


async def test_whoever_leaves_looks_for_no_runs_any_more(world: World):
    held = Held()
    agent = held.agent()
    async with world.opened(agent, janitor_seconds=0.01, grace=10.0) as helix:
        await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        closing = asyncio.create_task(helix.close())
        await asyncio.sleep(0)
        session = CreateSession(agent_type=agent.name)
        await world.store.start_run(StartRun(session_id="s-2", run_id="r-2", create=session, owner="dead"))
        # Time for several rounds of a janitor.
        await asyncio.sleep(0.1)
        held.gates[0].opened.set()
        await stage.within(closing)
    left = await world.store.get_current_run("s-2")
    assert left is not None
    assert (left.attempt, left.owner) == (1, "dead")


async def test_a_driver_that_broke_does_not_fail_a_run_that_another_process_took_meanwhile(world: World):
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        driver = helix._runtime.find(run.run_id)
        assert driver is not None
        await world.store.claim_run(SESSION, (await world.run()).fence, "another")
        world.store.is_broken = True
        held.gates[0].opened.set()
        await stage.within(asyncio.wait((driver,)))
        await background(helix)
        assert (await world.run()).status == "running"


async def test_a_claim_that_another_process_made_is_not_taken_for_ones_own(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    begun = StartRun(session_id=SESSION, run_id="r-1", create=CreateSession(agent_type="speaker"), owner="dead")
    dead = (await world.store.start_run(begun)).run
    claim_run = world.store.claim_run

    async def be_too_late(*about: Any, **known_as: Any) -> RunRecord:
        monkeypatch.setattr(world.store, "claim_run", claim_run)
        await claim_run(SESSION, dead.fence, "another")
        raise StoreUnavailableError("memory", "it is away")

    monkeypatch.setattr(world.store, "claim_run", be_too_late)
    with pytest.raises(ConflictError):
        await stage.within(claim(world.store, dead, "ours"))
    assert (await world.run()).owner == "another"


async def test_a_claim_that_was_not_answered_is_given_up_when_its_session_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    begun = StartRun(session_id=SESSION, run_id="r-1", create=CreateSession(agent_type="speaker"), owner="dead")
    dead = (await world.store.start_run(begun)).run
    claim_run = world.store.claim_run

    async def be_too_late(*about: Any, **known_as: Any) -> RunRecord:
        monkeypatch.setattr(world.store, "claim_run", claim_run)
        await claim_run(*about, **known_as)
        await world.store.delete_session(SESSION)
        raise StoreUnavailableError("memory", "it is away")

    monkeypatch.setattr(world.store, "claim_run", be_too_late)
    with pytest.raises(SessionNotFoundError):
        await stage.within(claim(world.store, dead, "ours"))


async def test_a_claim_for_nobody_whose_answer_was_lost_is_told_at_once(world: World):
    begun = StartRun(session_id=SESSION, run_id="r-1", create=CreateSession(agent_type="speaker"), owner="dead")
    dead = (await world.store.start_run(begun)).run
    world.store.lose = {"claim_run"}
    with pytest.raises(StoreUnavailableError):
        await claim(world.store, dead, None)


async def test_a_driver_that_lost_the_store_goes_on_though_its_claim_was_not_answered(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        world.store.lose = {"commit", "claim_run"}
        run = await helix.execute(agent, "Speak.", SESSION)
        assert await completed(run) == "One."


async def test_a_driver_that_broke_while_the_store_was_away_fails_its_run_once_it_is_back(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        world.store.is_broken = True
        run = await helix.execute(agent, "Speak.", SESSION)
        assert (await failed(run)).error == "out of order"
        await background(helix)
        stream = await world.streams.get_stream_info(SESSION)
        assert stream is not None
        assert stream.status == "failed"


NO_ANSWERS = [SchemaTooNewError("memory", 9, 8), RuntimeError("a fault in the store")]
"""What a store says that is not worth asking again; an operator may have mended it by the next time."""


@pytest.mark.parametrize("refused", NO_ANSWERS, ids=lambda problem: type(problem).__name__)
async def test_a_driver_that_broke_fails_its_run_though_the_store_refused_to_say_anything_at_first(
    world: World, refused: Exception
):
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        driver = helix._runtime.find(run.run_id)
        assert driver is not None
        world.store.is_broken, world.store.refuse = True, [refused]
        held.gates[0].opened.set()
        await stage.within(asyncio.wait((driver,)))
        assert (await failed(run)).error == "out of order"
        assert world.store.refuse == []


@pytest.mark.parametrize("refused", NO_ANSWERS, ids=lambda problem: type(problem).__name__)
async def test_a_run_is_driven_whose_start_was_not_answered_though_the_store_refused_to_say_anything_at_first(
    world: World, refused: Exception
):
    agent = speaker()
    async with world.opened(agent) as helix:
        world.store.lose, world.store.refuse = {"start_run"}, [refused]
        with pytest.raises(StoreUnavailableError):
            await helix.execute(agent, "Speak.", SESSION)
        await background(helix)
        assert await completed(await handle(helix, agent)) == "One."


async def test_a_run_is_driven_whose_claim_was_not_answered_though_the_store_refused_to_say_whose_it_is(world: World):
    agent = speaker()
    create = CreateSession(agent_type=agent.name)
    await world.store.start_run(StartRun(session_id=SESSION, run_id="r-1", create=create, owner="somebody who died"))
    async with world.opened(agent) as helix:
        world.store.lose, world.store.refuse = {"claim_run"}, [SchemaTooNewError("memory", 9, 8)]
        await helix.recover()
        assert await completed(await handle(helix, agent)) == "One."
        assert (await world.run()).attempt == 2


async def test_a_companions_start_that_was_not_answered_is_sent_again_though_the_store_refused_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    start_run = world.store.start_run
    troubles: list[HelixError] = [StoreUnavailableError("memory", "lost"), SchemaTooNewError("memory", 9, 8)]

    async def troubled(start: StartRun) -> RunStartCommitted:
        started = await start_run(start)
        if troubles:
            raise troubles.pop(0)
        return started

    monkeypatch.setattr(world.store, "start_run", troubled)
    create = CreateSession(agent_type="speaker")
    async with world.opened(speaker()) as helix:
        start = StartRun(session_id=SESSION, run_id="r-1", create=create, owner=helix._runtime.owner)
        assert (await stage.within(begin_detached(helix._services, start))).run_id == "r-1"


async def test_a_driver_that_broke_fails_its_run_though_its_last_step_cannot_be_read(
    world: World, caplog: pytest.LogCaptureFixture
):
    agent = speaker()
    async with world.opened(agent) as helix:
        world.store.is_broken = world.store.is_damaged = True
        with caplog.at_level(logging.INFO, "helix_agents"):
            assert (await failed(await helix.execute(agent, "Speak.", SESSION))).error == "out of order"
            await background(helix)
        assert "run.end_unread" in [getattr(record, "event", "") for record in caplog.records]
        assert (await world.run()).status == "failed"


async def test_a_driver_that_broke_fails_its_run_though_an_operator_paused_the_session(world: World):
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        run = await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        await world.store.compare_and_set_status(SESSION, ["active"], "paused")
        world.store.is_broken = True
        held.gates[0].opened.set()
        assert (await failed(run)).error == "out of order"


async def test_who_rewinds_a_session_that_is_paused_meanwhile_leaves_no_run_behind(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        await completed(await helix.execute(agent, "Speak.", SESSION))
        world.store.hold_start = Gate()
        rewinding = asyncio.create_task(helix.rewind(SESSION, "beginning"))
        await world.store.hold_start.until_reached()
        await world.store.compare_and_set_status(SESSION, ["active"], "paused")
        world.store.hold_start.opened.set()
        assert (await stage.within(rewinding)).status == "interrupted"
        assert (await world.run()).status == "interrupted"


async def test_a_rewind_is_completed_though_its_caller_was_cancelled_while_it_began(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        await completed(await helix.execute(agent, "Speak.", SESSION))
        world.store.hold_start = Gate()
        rewinding = asyncio.create_task(helix.rewind(SESSION, "beginning"))
        await world.store.hold_start.until_reached()
        rewinding.cancel()
        await asyncio.wait((rewinding,))
        assert rewinding.cancelled()
        world.store.hold_start.opened.set()
        await background(helix)
        assert (await world.run()).status == "interrupted"
        assert (await world.store.load_state(SESSION)).message_count == 0


@pytest.mark.parametrize("lost", ["start_run", "settle_session", "settled"])
async def test_a_rewind_of_which_an_answer_was_lost_stays_where_it_went(
    world: World, lost: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewinds, "backoff", lambda: repeat(0.0))
    agent = speaker()
    async with world.opened(agent) as helix:
        await completed(await helix.execute(agent, "Speak.", SESSION))
        world.store.lose, world.store.refuse_then = {lost}, [StoreUnavailableError("memory", "it is away")] * 1_000
        with pytest.raises(StoreUnavailableError):
            await helix.rewind(SESSION, "beginning")
        # While the store does not say what is current, nobody takes the rewind for a run whose process died.
        assert (await helix.recover()).run_ids == ()
        assert world.store.refuse
        assert not world.store.released
        world.store.refuse.clear()
        await background(helix)
        assert len(world.store.released) == 1
        assert (await world.run()).status == "interrupted"
        assert (await world.store.load_state(SESSION)).message_count == 0
        assert await completed(await helix.execute(agent, "Speak again.", SESSION)) == "One."


async def test_a_rewind_that_never_began_does_not_end_the_turn_that_began_instead(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewinds, "backoff", lambda: repeat(0.0))
    agent = speaker()
    async with world.opened(agent) as helix:
        await completed(await helix.execute(agent, "Speak.", SESSION))
        away = [StoreUnavailableError("memory", "it is away")] * 1_000
        world.store.lose, world.store.refuse_then = {"before_start"}, away
        with pytest.raises(StoreUnavailableError):
            await helix.rewind(SESSION, "beginning")
        await begin(world.store, SESSION, "r-another", owner="another")
        assert world.store.refuse
        world.store.refuse.clear()
        await background(helix)
        run = await world.run()
        assert (run.run_id, run.status) == ("r-another", "running")


async def test_a_rewind_that_was_made_is_told_though_its_lease_could_not_be_given_up(world: World):
    agent = speaker()
    async with world.opened(agent) as helix:
        await completed(await helix.execute(agent, "Speak.", SESSION))
        world.store.lose = {"release_lease"}
        assert (await helix.rewind(SESSION, "beginning")).status == "interrupted"
        assert not world.store.lose


async def orphaned_child(world: World) -> RunRecord:
    """A child's run that nobody drives, whose parent's run has ended."""
    await begin(world.store, SESSION, "r-1")
    child = CreateSession(parent_session_id=SESSION, root_session_id=SESSION)
    await begin(world.store, "child", "r-child", create=child, parent_run_id="r-1")
    await world.store.update_run_status("r-1", "failed")
    run = await world.store.get_run("r-child")
    assert run is not None
    return run


async def test_a_child_whose_parent_has_ended_is_let_go_of_though_it_was_paused(world: World):
    await orphaned_child(world)
    await world.store.compare_and_set_status("child", ["active"], "paused")
    async with world.opened() as helix:
        await helix.recover()
    assert (await world.store.load_state("child")).status == "interrupted"


async def test_a_child_that_somebody_took_up_meanwhile_is_not_let_go_of(world: World):
    orphan = await orphaned_child(world)
    world.store.before_settling = lambda: world.store.claim_run("child", orphan.fence, "another")
    async with world.opened() as helix:
        await helix.recover()
    run = await world.store.get_run("r-child")
    assert run is not None
    assert (run.status, run.attempt) == ("running", 2)


async def test_a_run_that_came_to_rest_stays_as_it_is_though_its_driver_broke_after_that(world: World):
    agent = Agent(
        name="asking", model=ScriptedModel([call("ask_human", {"question": "Well?"}), "Good."]), tools=[ask_human()]
    )
    async with world.opened(agent) as helix:
        world.store.breaks_after = True
        (asked,) = (await suspended(await helix.execute(agent, "Ask.", SESSION))).pending
        await background(helix)
        assert (await world.run()).status == "suspended_client_tool"
        world.store.breaks_after = False
        await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="Yes."))
        assert await completed(await helix.resume(agent, SESSION)) == "Good."


async def test_whoever_lost_a_run_does_not_fail_it(world: World):
    held = Held()
    agent = held.agent()
    async with world.opened(agent) as helix:
        await helix.execute(agent, "Work.", SESSION)
        await held.gates[0].until_reached()
        lost = (await world.run()).fence
        await world.store.claim_run(SESSION, lost, "another")
        await fail_run(helix._services, SESSION, lost, RuntimeError("out of order"))
        assert (await world.run()).status == "running"
        held.gates[0].opened.set()


async def test_a_run_whose_driver_is_cancelled_by_what_it_runs_again_and_again_fails_with_a_reason() -> None:
    async def give_up(_: Any, __: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    agent = Agent(name="tired", model=ScriptedModel(["Never."]), hooks=Hooks(before_llm_call=give_up))
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        result = await stage.within(failed(await helix.execute(agent, "Go", SESSION)))
        assert "cancelled the task that drives it" in result.error
        (run,) = await runs_of(helix, SESSION)
        assert run.attempt == MOST_CANCELLED


async def test_whoever_waits_until_nothing_is_driven_waits_for_runs_that_began_meanwhile(world: World) -> None:
    gates = {"first": Gate(), "second": Gate()}

    @tool
    async def work(name: str) -> str:
        """Work."""
        await gates[name].wait()
        return name

    agents = [
        Agent(name=name, model=ScriptedModel([call("work", {"name": name}), "Done."]), tools=[work]) for name in gates
    ]
    async with world.opened(*agents) as helix:
        first = await helix.execute(agents[0], "Work.")
        waiting = asyncio.create_task(helix.idle())
        await gates["first"].until_reached()
        second = await helix.execute(agents[1], "Work.")
        gates["first"].opened.set()
        await completed(first)
        await gates["second"].until_reached()
        assert not waiting.done()
        gates["second"].opened.set()
        await completed(second)
        await stage.within(waiting)
