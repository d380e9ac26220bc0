"""Two living drivers of one run on Temporal, histories that no longer fit, and what Temporal is told: all end right."""

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from helix_agents import (
    Agent,
    AnyAgent,
    Executor,
    ScriptedModel,
    Suspended,
    ToolAnswer,
    client_tool,
    sub_agent_tool,
    tool,
)
from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    MissingExtraError,
    OtherEventLoopError,
    RuntimeUnavailableError,
    StoreUnavailableError,
)
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor.leases import LeaseKeeper, lease_of_engine
from helix_agents.runtimes.executor.workflow_names import name_turn, prefix_of, workflow_of
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions, bodies, runtime, service, worker
from helix_agents.runtimes.temporal.executor import LEASE_MS
from helix_agents.testing import call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import Gate, completed, runs_of, spoken, until, within
from helix_agents.testing.service_process import free_port
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.recovery.temporal_jobs import QUICK

QUEUES = itertools.count(1)
SESSION = "s-1"
STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED

OpenHelix = Callable[..., Any]


@pytest.fixture
def open_helix(tmp_path: Path, temporal_address: str) -> OpenHelix:
    """Opens one more executor on the same store and queue."""
    queue = f"drivers-{os.getpid()}-{next(QUEUES)}"

    @asynccontextmanager
    async def open_helix(**settings: Any) -> AsyncGenerator[TemporalAgentExecutor]:
        url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
        own = {"address": temporal_address, "task_queue": queue, "prefix": queue, "temporal": QUICK, "grace": 0.0}
        given: dict[str, Any] = {**own, "janitor_seconds": None, **settings}
        opening = TemporalAgentExecutor(**given) if "state" in given else TemporalAgentExecutor.open(url, **given)
        async with opening as helix:
            yield helix

    return open_helix


def client_of(helix: TemporalAgentExecutor) -> Client:
    return vars(helix._runtime)["_client"]


async def is_dead(helix: Any) -> bool:
    return await helix._runtime.inspect((await runs_of(helix))[-1]) == "dead"


def held(gate: Gate, effect: Any = "repeatable") -> tuple[AnyAgent, list[str]]:
    """An agent whose tool waits at a gate; and how often it was begun."""
    begun: list[str] = []

    @tool(effect=effect)
    async def work() -> str:
        """Work."""
        begun.append("work")
        await gate.wait()
        return "worked"

    return Agent(name="worker", description="Works.", model=ScriptedModel([call("work"), "Done."]), tools=[work]), begun


# -- two living drivers


@asynccontextmanager
async def silent(timeout: timedelta | None) -> AsyncGenerator[None]:
    """Give no sign of life."""
    yield


@pytest.mark.parametrize("workers", ["the same worker", "either of two"])
@pytest.mark.parametrize("effect", ["repeatable", "once"])
async def test_an_effect_that_gives_no_sign_of_life_is_tried_again_and_both_tries_come_to_one_result(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch, effect: str, workers: str
):
    monkeypatch.setattr(worker, "_beating", silent)
    gate = Gate()
    agent, begun = held(gate, effect)
    async with AsyncExitStack() as opened:
        one = await opened.enter_async_context(open_helix(agents=[agent]))
        if workers == "either of two":
            await opened.enter_async_context(open_helix(agents=[agent]))
        handle = await one.execute(agent, "Go", SESSION)
        await gate.until_reached()
        described = client_of(one).get_workflow_handle(workflow_of((await runs_of(one))[0]))

        async def going_on() -> set[tuple[str, int]]:
            pending = (await described.describe()).raw_description.pending_activities
            return {(each.activity_id, each.attempt) for each in pending if each.state == STARTED}

        (first,) = await going_on()

        async def tried_again() -> bool:
            return bool(await going_on() - {first})

        await until(tried_again)
        # Time enough for the second try to begin the tool, if anything let it.
        await asyncio.sleep(0.3)
        gate.opened.set()
        assert await completed(handle) == "Done."
        assert (await spoken(one))[2] == "result work#call_1_1: worked"
        assert len(begun) == 1 if effect == "once" else len(begun) <= 2


async def test_a_child_goes_on_when_the_workflow_that_drives_it_is_replaced(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate()
    child, begun = held(gate, "once")
    script = [call("subagent__worker", {"message": "Work"}, id="c"), "All done."]
    parent = Agent(name="boss", model=ScriptedModel(script), tools=[sub_agent_tool(child)])
    # Nobody dies here: a busy machine must not look as if somebody had. Nor is there a sign of life, in answer to which
    # Temporal would cancel what a workflow that is gone had begun.
    monkeypatch.setattr(worker, "_beating", silent)
    patient = TemporalOptions(heartbeat_seconds=60.0, task_seconds=1.0, sticky_seconds=1.0)
    async with open_helix(agents=[parent], temporal=patient) as helix:
        handle = await helix.execute(parent, "Go", SESSION)
        await gate.until_reached()
        (run,) = await runs_of(helix)
        await client_of(helix).get_workflow_handle(workflow_of(run)).terminate("an operator was in a hurry")
        await until(lambda: is_dead(helix))
        assert (await helix.recover()).run_ids == (run.run_id,)
        gate.opened.set()
        assert await completed(handle) == "All done."
        (run,) = await runs_of(helix)
        assert (run.attempt, run.status) == (2, "completed")
        assert begun == ["work"]
        refs = await helix._services.store.get_sub_session_refs(SESSION)
        (child_run,) = await runs_of(helix, refs[0].sub_session_id)
        assert (child_run.attempt, child_run.status) == (2, "completed")


@pytest.mark.parametrize("effect", ["repeatable", "once"])
async def test_a_tool_is_not_lost_when_somebody_cancels_the_workflow(open_helix: OpenHelix, effect: str):
    gate = Gate()
    agent, begun = held(gate, effect)
    # Nobody dies here, and Temporal hears so seldom of the tool that it does not cancel that.
    patient = TemporalOptions(heartbeat_seconds=60.0, task_seconds=1.0, sticky_seconds=1.0)
    async with open_helix(agents=[agent], temporal=patient) as helix:
        handle = await helix.execute(agent, "Go", SESSION)
        await gate.until_reached()
        (run,) = await runs_of(helix)
        await client_of(helix).get_workflow_handle(workflow_of(run)).cancel()
        await until(lambda: is_dead(helix))
        assert (await helix.recover()).run_ids == (run.run_id,)
        gate.opened.set()
        assert await completed(handle) == "Done."
        assert (await spoken(helix))[2] == "result work#call_1_1: worked"
        assert begun == ["work"] * (1 if effect == "once" else 2)


# -- histories that do not fit


async def test_a_run_of_another_version_of_the_loop_goes_on_as_its_next_attempt(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch
):
    agent = Agent(name="worker", model=ScriptedModel(["Done."]))
    async with open_helix(agents=[agent]) as helix:
        monkeypatch.setattr(runtime, "TURN", "HelixTurn0")
        handle = await helix.execute(agent, "Go", SESSION)
        await until(lambda: is_dead(helix))
        monkeypatch.undo()
        await helix.recover()
        assert await completed(handle) == "Done."
        assert [(run.attempt, run.status) for run in await runs_of(helix)] == [(2, "completed")]


async def test_a_deploy_that_changes_the_loop_under_a_running_turn_fails_its_workflow_and_not_the_run(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate()
    agent, begun = held(gate)
    from helix_agents.engine import plain

    loop = plain.run_turn

    async def opens_twice(ops: Any) -> Any:
        await ops.open()
        return await loop(ops)

    async with open_helix(agents=[agent]) as before:
        await before.execute(agent, "Go", SESSION)
        await gate.until_reached()
    gate.opened.set()
    monkeypatch.setattr(plain, "run_turn", opens_twice)
    async with open_helix(agents=[agent]) as helix:
        await until(lambda: is_dead(helix))
        await helix.recover()
        handle = await helix.get_handle(agent, SESSION)
        assert handle is not None
        assert await completed(handle) == "Done."
        assert [(run.attempt, run.status) for run in await runs_of(helix)] == [(2, "completed")]
    assert len(begun) <= 2


async def test_what_waited_for_somebody_goes_on_under_another_loop(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch
):
    @client_tool
    def ask(what: str) -> str:
        """Ask."""
        raise NotImplementedError

    script = [call("ask", {"what": "name"}, id="name"), "Thanks."]
    agent = Agent(name="asker", model=ScriptedModel(script), tools=[ask])
    async with open_helix(agents=[agent]) as before:
        assert isinstance(await within((await before.execute(agent, "Go", SESSION)).result()), Suspended)
    from helix_agents.engine import plain

    loop = plain.run_turn

    async def opens_twice(ops: Any) -> Any:
        await ops.open()
        return await loop(ops)

    monkeypatch.setattr(plain, "run_turn", opens_twice)
    async with open_helix(agents=[agent]) as helix:
        await helix.submit_tool_result(SESSION, "name", ToolAnswer(result="Ann"))
        assert await completed(await helix.resume(agent, SESSION)) == "Thanks."


# -- what must not hang


class Escaping(BaseException):
    """What user code may raise although it should not."""


async def test_whatever_user_code_raises_the_run_ends(open_helix: OpenHelix):
    def answer(request: Any) -> str:
        raise Escaping("out of here")

    agent = Agent(name="worker", model=ScriptedModel(answer))
    async with open_helix(agents=[agent]) as helix:
        result = await within((await helix.execute(agent, "Go", SESSION)).result())
        assert (result.status, getattr(result, "code", "")) == ("failed", "internal_error")


@pytest.mark.parametrize("quicker", ["server", "worker"])
async def test_a_tool_whose_time_is_up_in_every_process_is_an_error_the_model_sees(
    open_helix: OpenHelix, monkeypatch: pytest.MonkeyPatch, quicker: str
):
    worker_seconds = 30.0 if quicker == "server" else 0.5
    monkeypatch.setattr(worker, "_seconds", lambda limit: worker_seconds)
    gate = Gate()
    agent, begun = held(gate)
    short = TemporalOptions(heartbeat_seconds=30.0, task_seconds=1.0, sticky_seconds=1.0, tool_seconds=1.0)
    async with open_helix(agents=[agent], temporal=short) as helix:
        agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=agent.tools, retries=1)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert (await spoken(helix))[2] == "error work#call_1_1: tool_timeout"
    assert len(begun) == 2


async def test_a_worker_that_leaves_in_the_middle_of_a_tool_is_nothing_to_warn_of(
    open_helix: OpenHelix, caplog: pytest.LogCaptureFixture
):
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    async with open_helix(agents=[agent]) as helix:
        await helix.execute(agent, "Go", SESSION)
        await gate.until_reached()
    assert "Completing activity as failed" not in caplog.text
    gate.opened.set()
    async with open_helix(agents=[agent]) as helix:
        handle = await helix.get_handle(agent, SESSION)
        assert handle is not None
        assert await completed(handle) == "Done."


class Watched:
    """Effects that somebody is told of before they are done."""

    def __init__(self, helix: Any, told: Callable[[str], Awaitable[None]]) -> None:
        bodies = vars(helix._runtime)["_bodies"]
        self._effects, self._told = bodies._effects, told
        bodies._effects = self

    async def perform(self, effect: str, *given: Any) -> Any:
        await self._told(effect)
        return await self._effects.perform(effect, *given)


async def test_a_store_that_is_away_for_a_moment_costs_no_attempt_whichever_effect_it_meets(open_helix: OpenHelix):
    met: set[str] = set()

    async def away_at_first(effect: str) -> None:
        if effect not in met:
            met.add(effect)
            raise StoreUnavailableError("The store", "away")

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    async with open_helix(agents=[agent]) as helix:
        Watched(helix, away_at_first)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert met == {"open", "ask_model", "run_calls", "commit"}
        assert [(run.attempt, run.status) for run in await runs_of(helix)] == [(1, "completed")]


async def test_a_commit_that_a_leaving_worker_did_not_get_to_is_made_by_the_next_one(open_helix: OpenHelix):
    reached = asyncio.Event()

    async def held(effect: str) -> None:
        if effect == "commit":
            reached.set()
            await asyncio.Event().wait()

    agent = Agent(name="worker", model=ScriptedModel(["Done."]))
    async with open_helix(agents=[agent]) as leaving:
        Watched(leaving, held)
        await leaving.execute(agent, "Go", SESSION)
        await within(reached.wait())
    async with open_helix(agents=[agent]) as helix:
        assert await completed(await helix.get_handle(agent, SESSION)) == "Done."
        assert [(run.attempt, run.status) for run in await runs_of(helix)] == [(1, "completed")]


async def test_a_name_that_another_run_has_is_left_to_it(open_helix: OpenHelix):
    agent = Agent(name="talker", model=ScriptedModel(lambda request: "Done."))
    async with open_helix(agents=[agent]) as helix:
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        await helix.sessions.delete(SESSION)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert [(run.attempt, run.status) for run in await runs_of(helix)] == [(2, "completed")]


async def test_a_session_whose_process_died_before_its_program_moved_to_temporal_goes_on(open_helix: OpenHelix):
    agent = Agent(name="speaker", model=ScriptedModel(["One.", "Two."]))
    async with open_helix(agents=[agent]) as helix:
        store = helix._services.store
        await store.renew_lease("living", 60_000)
        for session_id, owner in ((SESSION, "dead"), ("s-2", "living")):
            create = CreateSession(agent_type=agent.name)
            await store.start_run(StartRun(session_id=session_id, run_id=f"r-{owner}", create=create, owner=owner))
        assert await completed(await helix.execute(agent, "Speak.", SESSION)) == "One."
        assert [run.status for run in await runs_of(helix)] == ["interrupted", "completed"]
        with pytest.raises(AgentAlreadyRunningError):
            await helix.execute(agent, "Speak.", "s-2")


async def test_a_run_that_dbos_may_know_by_such_a_name_is_left_to_it(open_helix: OpenHelix):
    agent = Agent(name="speaker", model=ScriptedModel(["One."]))
    async with open_helix(agents=[agent]) as helix:
        store, prefix = helix._services.store, vars(helix._runtime)["_prefix"]
        dbos, name = lease_of_engine("dbos", prefix), name_turn(prefix, agent.name, SESSION, 1)
        await store.renew_lease(dbos, 3_600_000)
        create = CreateSession(agent_type=agent.name)
        await store.start_run(StartRun(session_id=SESSION, run_id="r-1", create=create, workflow_id=name))
        assert (await helix.recover()).run_ids == ()
        await store.release_lease(dbos)
        assert (await helix.recover()).run_ids == ("r-1",)
        handle = await helix.get_handle(agent, SESSION)
        assert await completed(handle) == "One."


async def test_a_session_whose_workflow_was_terminated_goes_on_where_temporal_is_gone(
    open_helix: OpenHelix, tmp_path: Path
):
    gate, clock = Gate(), ManualClock()
    agent, begun = held(gate)
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    async with await open_backend(url, clock=clock) as backend:
        stores: dict[str, Any] = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        async with open_helix(agents=[agent], **stores) as helix, Executor(**stores, janitor_seconds=None) as other:
            await helix.execute(agent, "Go", SESSION)
            await gate.until_reached()
            with pytest.raises(AgentAlreadyRunningError):
                await other.resume(agent, SESSION)
            (run,) = await runs_of(helix)
            await client_of(helix).get_workflow_handle(workflow_of(run)).terminate("an operator took it down")
        gate.opened.set()
        async with Executor(**stores, agents=[agent], janitor_seconds=None) as other:
            with pytest.raises(AgentAlreadyRunningError):
                await other.resume(agent, SESSION)
            clock.advance(LEASE_MS)
            assert (await other.recover()).run_ids == ()
            assert await completed(await other.resume(agent, SESSION)) == "Done."
            assert [(each.attempt, each.workflow_id) for each in await runs_of(other)] == [(2, None)]
    assert begun == ["work", "work"]


async def test_a_server_that_is_not_there_is_named(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RuntimeUnavailableError, match=address):
        async with TemporalAgentExecutor.open(f"sqlite:///{tmp_path / 'helix.db'}", address=address):
            raise AssertionError("nobody is there")


def test_without_the_extra_the_cure_is_named(monkeypatch: pytest.MonkeyPatch):
    import importlib

    from helix_agents.runtimes import temporal

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"helix-agents\[temporal\]"):
        importlib.reload(temporal)


# -- history


def chatty(steps: int, text: str) -> AnyAgent:
    @tool
    async def note(what: str) -> str:
        """Note something."""
        return what

    script = [*(reply(text, calls=[call("note", {"what": text})]) for _ in range(steps)), "Done."]
    return Agent(name="chatty", description="Talks.", model=ScriptedModel(script), tools=[note], max_steps=steps + 1)


async def history_of(helix: Any, session_id: str) -> list[bytes]:
    (run,) = await runs_of(helix, session_id)
    found = client_of(helix).get_workflow_handle(workflow_of(run)).fetch_history_events()
    return [event.SerializeToString() async for event in found]


async def test_a_step_adds_the_same_to_a_history_however_long_the_conversation_is(open_helix: OpenHelix):
    sizes: dict[int, int] = {}
    text = "not for histories " * 500
    async with open_helix(temporal=TemporalOptions(sticky_seconds=1.0)) as helix:
        for steps in (2, 6, 10):
            handle = await helix.execute(chatty(steps, text), "Go", f"s-{steps}")
            assert await completed(handle) == "Done."
            history = await history_of(helix, f"s-{steps}")
            assert not any(b"not for histories" in event for event in history)
            sizes[steps] = sum(map(len, history))
    first, later = (sizes[6] - sizes[2]) / 4, (sizes[10] - sizes[6]) / 4
    assert first < 3_000
    assert later < first * 1.2


async def test_a_history_does_not_tell_the_state_that_a_worker_cannot_read(open_helix: OpenHelix):
    class Case(BaseModel):
        name: str = ""

    class Numbered(BaseModel):
        name: int = 0

    async def was_refused() -> bool:
        return any(b"state_schema_changed" in event for event in await history_of(helix, SESSION))

    agent, other = (Agent(name="clerk", model=ScriptedModel(["Done."]), state=state) for state in (Case, Numbered))
    async with open_helix(agents=[agent], works=False) as helix:
        handle = await helix.execute(agent, "Go", SESSION, state={"name": "not for histories"})
        async with open_helix(agents=[other]):
            await until(was_refused)
        async with open_helix(agents=[agent]):
            assert await completed(handle) == "Done."
        assert not any(b"not for histories" in event for event in await history_of(helix, SESSION))


async def test_a_long_turn_goes_on_in_fresh_workflows_with_short_histories(open_helix: OpenHelix):
    short = TemporalOptions(sticky_seconds=1.0, history_events=30)
    agent = chatty(8, "hello")
    async with open_helix(agents=[agent], temporal=short) as helix:
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        (run,) = await runs_of(helix)
        assert (run.attempt, run.step_count) == (1, 9)
        last = await client_of(helix).get_workflow_handle(workflow_of(run)).describe()
        first_run = last.raw_description.workflow_execution_info.first_run_id
        assert last.run_id != first_run
        assert last.history_length < 60
        assert len(await spoken(helix)) == 2 + 8 * 2


async def test_a_child_with_a_long_turn_is_driven_on_by_fresh_workflows(open_helix: OpenHelix):
    short = TemporalOptions(sticky_seconds=1.0, history_events=30)
    tools = [sub_agent_tool(chatty(8, "hello"))]
    script = [call("subagent__chatty", {"message": "Talk"}), "All done."]
    parent = Agent(name="boss", model=ScriptedModel(script), tools=tools)
    async with open_helix(agents=[parent], temporal=short) as helix:
        assert await completed(await helix.execute(parent, "Go", SESSION)) == "All done."
        (run,) = await runs_of(helix)
        last = await client_of(helix).get_workflow_handle(workflow_of(run)).describe()
        assert last.run_id != last.raw_description.workflow_execution_info.first_run_id
        refs = await helix._services.store.get_sub_session_refs(SESSION)
        (child_run,) = await runs_of(helix, refs[0].sub_session_id)
        assert (child_run.status, child_run.step_count) == ("completed", 9)
        assert len(await spoken(helix, refs[0].sub_session_id)) == 2 + 8 * 2


# -- what operators see


async def test_a_turn_says_whose_it_is_and_can_be_searched_for(open_helix: OpenHelix, temporal_address: str):
    client = await Client.connect(temporal_address)
    agent = Agent(name="talker", model=ScriptedModel(lambda request: "Done."))
    async with open_helix() as plain:
        assert await completed(await plain.execute(agent, "Go", "unsearchable")) == "Done."
    await service.register_attributes(client)
    await service.register_attributes(client)
    await until(lambda: service.knows_attributes(client))
    session_id = f"searched-{os.getpid()}"
    async with open_helix() as helix:
        assert await completed(await helix.execute(agent, "Go", session_id, user_id="ann")) == "Done."
        (run,) = await runs_of(helix, session_id)
        assert workflow_of(run).endswith(f"__talker__{session_id}")
        memo = await (await client.get_workflow_handle(workflow_of(run)).describe()).memo()
        assert {name: memo[name] for name in ("session", "root", "agent", "turn", "user")} == {
            "session": session_id,
            "root": session_id,
            "agent": "talker",
            "turn": 1,
            "user": "ann",
        }
        assert await completed(await helix.execute(agent, "Again", session_id)) == "Done."

    async def found() -> bool:
        asked = f"HelixSession = '{session_id}' AND HelixAgent = 'talker'"
        names = {each.id async for each in client.list_workflows(asked)}
        return {name.rpartition("__")[2] for name in names} == {session_id, "resume-2"}

    await until(found)


async def test_a_session_may_have_an_id_that_is_too_long_for_a_workflow_and_no_end_of_grace(
    open_helix: OpenHelix, temporal_address: str
):
    client = await Client.connect(temporal_address)
    await service.register_attributes(client)
    await until(lambda: service.knows_attributes(client))
    session_id = "🐚" * 256
    agent = Agent(name="speaker", model=ScriptedModel(["One.", "Two."]))
    async with open_helix(agents=[agent], grace=float("inf")) as helix:
        for said in ("One.", "Two."):
            assert await completed(await helix.execute(agent, "Speak.", session_id)) == said
        names = [workflow_of(run) for run in await runs_of(helix, session_id)]
        assert [len(name.encode()) < 1_000 for name in names] == [True, True]
        assert prefix_of((await runs_of(helix, session_id))[1], agent.name) == vars(helix._runtime)["_prefix"]


# -- without a server


class TurnedAway:
    """Stands for Temporal's worker. The first one is turned away as theirs is: the task is cancelled, and told why."""

    made = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        type(self).made += 1
        self._is_first = type(self).made == 1

    async def __aenter__(self) -> "TurnedAway":
        if self._is_first and (task := asyncio.current_task()) is not None:
            asyncio.get_running_loop().call_soon(task.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_first:
            raise RuntimeError("the key has run out")


async def nothing(effect: Any, work: Any) -> Any:
    raise AssertionError("nobody asks")


async def test_a_worker_that_is_turned_away_comes_back(monkeypatch: pytest.MonkeyPatch):
    async def came_back() -> bool:
        return TurnedAway.made >= 2

    monkeypatch.setattr(worker, "Worker", TurnedAway)
    monkeypatch.setattr(worker, "backoff", lambda: itertools.repeat(0.01))
    client: Any = None
    polling = worker.WorkerThread(client, task_queue="q", options=TemporalOptions(), perform=nothing, grace=0.0)
    await polling.start()
    await until(came_back)
    await polling.stop()


class Reluctant:
    """Stands for the effects. The first one takes its time to stop."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_stopping, self.may_stop = asyncio.Event(), asyncio.Event()

    async def perform(self, *_: Any) -> Any:
        self.begun += 1
        if self.begun > 1:
            return {"done": self.begun}
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.may_stop.wait()


async def test_an_effect_that_is_asked_for_again_while_it_stops_is_done_anew(monkeypatch: pytest.MonkeyPatch):
    """So it is when a process was frozen: Temporal has given its effect up, and hands it out again at once."""
    effects = Reluctant()
    monkeypatch.setattr(bodies, "Effects", lambda *_: effects)
    runs: Any = SimpleNamespace(services=None)
    here = bodies.Bodies(runs, max_running=None, max_parallel_tools=None)
    work = {"session_id": SESSION, "run_id": "r-1", "attempt": 1, "name": "ask_model:1", "request": {}}
    first = asyncio.create_task(here.perform("ask_model", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await within(effects.is_stopping.wait())
    second = asyncio.create_task(here.perform("ask_model", work))
    await asyncio.sleep(0)
    effects.may_stop.set()
    assert await within(second) == {"done": 2}


def unconnected(*, works: bool) -> Any:
    return runtime.TemporalRuntime(
        LeaseKeeper(InMemoryStateStore(), "watcher", 1),
        address="",
        namespace="",
        task_queue="",
        prefix="",
        works=works,
        options=TemporalOptions(),
        client_settings={},
        open_deps=None,
        max_running=None,
        max_parallel_tools=None,
        grace=0.0,
    )


async def test_where_the_loop_that_does_the_effects_has_ended_nothing_is_begun():
    working, asking = unconnected(works=True), unconnected(works=False)
    working._loop = asking._loop = asyncio.get_running_loop()
    working.check_loop()
    working._loop = asking._loop = ended = asyncio.new_event_loop()
    ended.close()
    asking.check_loop()
    with pytest.raises(OtherEventLoopError, match=r"has ended, .* within one asyncio\.run"):
        working.check_loop()


async def test_a_watch_that_ends_late_takes_nothing_from_the_next_attempt(monkeypatch: pytest.MonkeyPatch):
    ends = {attempt: asyncio.get_running_loop().create_future() for attempt in (1, 2)}

    async def started(*_: Any, **__: Any) -> bool:
        return True

    async def load_state(_: str) -> None:
        return None

    def handle_of(_: Any, run: RunRecord) -> Any:
        return SimpleNamespace(result=lambda: ends[run.attempt])

    monkeypatch.setattr(service, "start", started)
    monkeypatch.setattr(service, "handle_of", handle_of)
    watching = unconnected(works=False)
    watching.services = SimpleNamespace(store=SimpleNamespace(load_state=load_state))
    watching._client, watching._searchable, watching._runs = None, False, SimpleNamespace(of_calls={})
    for attempt in (1, 2):
        run = RunRecord(session_id=SESSION, run_id="run", turn=1, attempt=attempt, started_at=0, workflow_id="w")
        await watching.submit(run, model=ScriptedModel([]))
    ends[1].set_result({"status": "superseded"})
    await asyncio.sleep(0.01)
    assert watching.find("run") is not None
    assert "run" in watching._runs.of_calls
    ends[2].set_result({"status": "superseded"})
    await within(watching.idle())
    assert watching._runs.of_calls == {}
