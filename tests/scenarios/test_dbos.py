"""The DBOS runtime plays every scenario with its system database in SQLite, and in PostgreSQL where that matters."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import AgentAlreadyRunningError, DBOSInUseError, OtherEventLoopError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import ApprovalAnswer
from helix_agents.domain.sessions import CreateSession, SessionFilter
from helix_agents.engine.plain import EFFECT_SEQUENCE
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.dbos import DBOSAgentExecutor, instance, workflows
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.leases import lease_of_engine
from helix_agents.runtimes.executor.workflow_names import name_turn
from helix_agents.runtimes.in_process.executor import Executor as InProcess
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.companion_crashes import CompanionCrashesContract
from helix_agents.testing.contracts.executor.companion_lives import CompanionLivesContract
from helix_agents.testing.contracts.executor.companions import CompanionsContract
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.conversations import ConversationsContract
from helix_agents.testing.contracts.executor.deadlines import DeadlinesContract
from helix_agents.testing.contracts.executor.deploys import DeploysContract
from helix_agents.testing.contracts.executor.entry_table import EntryTableContract
from helix_agents.testing.contracts.executor.expiring import ExpiringContract
from helix_agents.testing.contracts.executor.family import agent, delegate, lead
from helix_agents.testing.contracts.executor.hooks import HooksContract
from helix_agents.testing.contracts.executor.household import (
    DEPLOYING,
    WORKING,
    boss,
    busy,
    careful,
    only_companion,
    results,
    spawn,
    until_ended,
    waiting_for_helper,
)
from helix_agents.testing.contracts.executor.janitors import JanitorsContract
from helix_agents.testing.contracts.executor.models import ModelsContract
from helix_agents.testing.contracts.executor.nested_answers import NestedAnswersContract
from helix_agents.testing.contracts.executor.refreshing import RefreshingContract
from helix_agents.testing.contracts.executor.returning import ReturningContract
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    OpenParts,
    completed,
    runs_of,
    until,
    within,
)
from helix_agents.testing.contracts.executor.stopping import StoppingContract
from helix_agents.testing.contracts.executor.sub_agents import SubAgentsContract
from helix_agents.testing.contracts.executor.tools import ToolsContract
from helix_agents.testing.contracts.executor.tree_stops import TreeStopsContract
from helix_agents.testing.contracts.executor.waiting import WaitingContract
from helix_agents.testing.contracts.executor.waking import WakingContract
from helix_agents.testing.postgres_service import PostgresService
from tests.scenarios.test_in_process import LONG_LEASE_MS

PREFIXES = itertools.count(1)
CONFIG = {"notification_listener_polling_interval_sec": 0.01}


def quick() -> AnyAgent:
    return Agent(name="quick", model=ScriptedModel(["Quick."]))


async def _steps_of(workflow: str) -> list[str]:
    """The steps that a workflow remembers, and the workflows it started."""
    steps = await DBOS.list_workflow_steps_async(workflow)
    return [step["function_name"].replace(f"helix_call_{EFFECT_SEQUENCE}", "call") for step in steps]


def _held_up(gate: Gate) -> AnyAgent:
    """An agent whose tool waits until the gate is opened."""

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    return Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])


async def _enqueue(helix: Executor, prefix: str) -> str:
    """Put a run into the queue of an application; says what its workflow is called."""
    name = name_turn(prefix, "quick", "s-2", 1)
    start = StartRun(
        session_id="s-2",
        run_id="r-2",
        create=CreateSession(agent_type="quick"),
        append_messages=(UserMessage(content="Hi"),),
        workflow_id=name,
    )
    started = await helix._services.store.start_run(start)
    await workflows.register_queue(prefix, poll_seconds=0.02, at_once=None, works=True)
    assert await workflows.start(prefix, started.run, prefix)
    return name


async def _until_taken(workflow: str) -> None:
    async def is_taken() -> bool:
        status = await DBOS.get_workflow_status_async(workflow)
        return status is not None and status.status == "PENDING"

    await until(is_taken)


async def _comes_to_its_end(open_executor: OpenExecutor, **settings: Any) -> None:
    """An executor that knows the agent drives the run that was put into the queue, without having to look for it."""
    async with open_executor(placement="shared", poll_seconds=0.02, agents=[quick()], **settings) as helix:
        handle = await helix.get_handle(quick(), "s-2")
        assert handle is not None
        assert await completed(handle) == "Quick."


class OnDBOS:
    """The scenarios of one class share a DBOS, as executors of one process do; their workflows have names apart."""

    @pytest.fixture(scope="class")
    @classmethod
    def dbos(cls, system_database_url: str) -> Iterator[str]:
        asyncio.run(instance.acquire(instance.Wanted(system_database_url=system_database_url, config=CONFIG), "tests"))
        yield system_database_url
        asyncio.run(instance.release())

    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, dbos: str, clock: ManualClock) -> OpenExecutor:
        prefix = f"test-{next(PREFIXES)}"

        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[DBOSAgentExecutor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            own = {"system_database_url": dbos, "prefix": prefix, "dbos_config": CONFIG}
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with DBOSAgentExecutor(**parts, **{**own, **given}) as executor:
                    yield executor

        return open_executor

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"


class TestDBOSOnSQLite(OnDBOS, ExecutorContract):
    backend = "sqlite"

    @pytest.fixture(scope="class")
    @classmethod
    def system_database_url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('dbos') / 'dbos.db'}"

    async def test_a_session_that_was_deleted_may_come_again(self, helix: DBOSAgentExecutor) -> None:
        """Workflows are named after sessions and turns; a name that is taken does not keep a run from starting."""
        for _ in range(2):
            assert await completed(await helix.execute(quick(), "Hi", SESSION)) == "Quick."
            await helix.sessions.delete(SESSION)

    async def test_runs_of_a_shared_queue_are_driven_by_whoever_takes_them(self, open_executor: OpenExecutor) -> None:
        async with open_executor(placement="shared", poll_seconds=0.02, agents=[quick()]) as helix:
            handle = await helix.execute(quick(), "Hi", SESSION)
            assert await completed(handle) == "Quick."
            (run,) = await runs_of(helix)
            status = await DBOS.get_workflow_status_async(run.workflow_id or "")
            assert status is not None
            assert status.queue_name is not None
            assert run.owner is not None

    async def test_who_only_submits_leaves_it_to_the_workers_how_much_each_takes(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(placement="elsewhere") as first:
            queue = await DBOS.retrieve_queue_async(vars(first._runtime)["_prefix"])
            assert queue is not None
            assert await queue.get_worker_concurrency_async() is None
            async with open_executor(placement="shared", max_running=1):
                assert await queue.get_worker_concurrency_async() == 1
                async with open_executor(placement="elsewhere"):
                    assert await queue.get_worker_concurrency_async() == 1

    async def test_a_companion_whose_answer_comes_to_who_only_submits_is_driven_by_a_worker_although_it_has_no_place(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        agent, worker = boss(spawn(), "Started.", keeps=careful(*DEPLOYING), mode="non_blocking"), _held_up(gate)
        works = {"placement": "shared", "poll_seconds": 0.02, "max_running": 1, "agents": [agent, worker]}
        async with open_executor(**works) as helix, open_executor(placement="elsewhere") as web:
            await completed(await web.execute(agent, "Hi", SESSION))
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child, "suspended_client_tool")
            busy = await web.execute(worker, "Hi", "s-2")
            await gate.until_reached()
            (waiting,) = (await web.list_pending()).items
            await web.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
            await web.resume(agent, SESSION)
            await until_ended(parts, child)
            run = await parts.state.get_current_run(child)
            assert run is not None
            assert run.owner == vars(helix._runtime)["_lease"].owner
            gate.opened.set()
            assert await completed(busy) == "Done."

    async def test_a_run_with_hooks_of_its_own_belongs_to_who_drives_it_although_others_share_the_queue(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, begun = Gate(), list[str]()

        @tool
        async def work() -> str:
            """Work."""
            begun.append("work")
            await gate.wait()
            return "worked"

        agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
        monkeypatch.setattr(workflows, "CLAIM_MS", 0)
        async with open_executor(placement="shared", agents=[agent]) as helix:
            handle = await helix.execute(agent, "Hi", SESSION, hooks=Hooks())
            await gate.until_reached()
            assert (await helix.recover()).run_ids == ()
            gate.opened.set()
            assert await completed(handle) == "Done."
        assert begun == ["work"]

    async def test_what_a_leaving_process_takes_from_the_queue_is_given_back(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, taken, find_host = Gate(), asyncio.Event(), workflows._find_host

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        def noticed(*run: Any) -> Any:
            if (host := find_host(*run)) is None:
                taken.set()
            return host

        monkeypatch.setattr(workflows, "_find_host", noticed)
        worker = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
        shared = {"placement": "shared", "poll_seconds": 0.02, "agents": [worker, quick()]}
        async with open_executor(**shared, grace=60.0) as leaving:
            await leaving.execute(worker, "Hi", SESSION)
            await gate.until_reached()
            closing = asyncio.create_task(leaving.close())
            await asyncio.sleep(0)
            assert leaving._runtime.leaving
            await _enqueue(leaving, vars(leaving._runtime)["_prefix"])
            await within(taken.wait())
            await _comes_to_its_end(open_executor)
            gate.opened.set()
            await closing

    async def test_what_a_process_takes_from_the_queue_of_another_application_is_given_back(
        self, open_executor: OpenExecutor
    ) -> None:
        theirs = f"theirs-{next(PREFIXES)}"
        async with open_executor(placement="shared") as helix:
            await _until_taken(await _enqueue(helix, theirs))
            await _comes_to_its_end(open_executor, prefix=theirs)

    async def test_what_a_process_takes_from_the_queue_for_an_agent_that_it_does_not_know_is_given_back(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused, give_back = asyncio.Event(), workflows.give_back

        async def noticed(*run: Any, **how: Any) -> None:
            refused.set()
            await give_back(*run, **how)

        monkeypatch.setattr(workflows, "give_back", noticed)
        async with open_executor(placement="shared", poll_seconds=0.02) as helix:
            await _enqueue(helix, vars(helix._runtime)["_prefix"])
            # What DBOS has taken, and nobody has looked at, is left to the janitor when the process ends.
            await within(refused.wait())
        await _comes_to_its_end(open_executor)

    async def test_what_a_process_takes_from_the_queue_and_has_no_place_for_is_left_to_others(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()
        worker = _held_up(gate)

        async def is_taken_again() -> bool:
            status = await DBOS.get_workflow_status_async(name)
            return status is not None and (status.dequeued_at or 0) > taken

        both = {"agents": [worker, quick()], "max_running": 1}
        async with open_executor(placement="shared", poll_seconds=0.02, **both) as helix:
            busy = await helix.execute(worker, "Hi", SESSION, hooks=Hooks())
            await gate.until_reached()
            name = await _enqueue(helix, vars(helix._runtime)["_prefix"])
            await _until_taken(name)
            status = await DBOS.get_workflow_status_async(name)
            assert status is not None
            taken = status.dequeued_at or 0
            await until(is_taken_again)
            gate.opened.set()
            assert await completed(busy) == "Done."
            handle = await helix.get_handle(quick(), "s-2")
            assert handle is not None
            assert await completed(handle) == "Quick."

    async def test_a_workflow_whose_run_was_taken_over_in_the_queue_is_revived_by_nobody(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()
        worker = _held_up(gate)

        async with open_executor(placement="shared", poll_seconds=0.02, agents=[worker]) as helix:
            handle = await helix.execute(worker, "Hi", SESSION)
            await gate.until_reached()
            (run,) = await runs_of(helix)
            # As another process does that took this one for dead.
            await helix._runtime.submit(await helix._services.store.claim_run(SESSION, run.fence, None))
            gate.opened.set()
            assert await completed(handle) == "Done."
            status = await DBOS.get_workflow_status_async(run.workflow_id or "")
            assert status is not None
            assert status.status == "CANCELLED"

    async def test_a_step_gets_its_grace_once_when_its_executor_leaves(self, open_executor: OpenExecutor) -> None:
        gate, loop, cut = Gate(), asyncio.get_running_loop(), list[float]()

        @tool
        async def work() -> str:
            """Work."""
            try:
                await gate.wait()
            finally:
                cut.append(loop.time())
            return "worked"

        agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
        async with open_executor(agents=[agent], grace=3.0) as helix:
            await helix.execute(agent, "Hi", SESSION)
            await gate.until_reached()
            left = loop.time()
        assert 3.0 <= cut[0] - left < 5.0

    async def test_a_session_that_is_deleted_while_it_runs_leaves_no_driver_and_no_complaint(
        self, helix: DBOSAgentExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
        await helix.execute(agent, "Hi", SESSION)
        await gate.until_reached()
        await helix.sessions.delete(SESSION)
        gate.opened.set()
        await within(helix.idle())
        background: set[asyncio.Task[Any]] = vars(helix._runtime)["_background"]
        left = await within(asyncio.gather(*background, return_exceptions=True))
        assert not any(isinstance(each, BaseException) for each in left)
        assert "run.workflow_failed" not in caplog.text

    async def test_a_run_that_died_here_and_goes_on_without_dbos_is_recovered_without_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gates = [Gate(), Gate()]
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}

        def boss(gate: Gate) -> AnyAgent:
            return agent("boss", delegate("helper"), "Fine.", tools=[busy(gate, *WORKING).as_tool()])

        async with open_executor(grace=0) as here:
            await here.execute(boss(gates[0]), "Go", SESSION)
            await gates[0].until_reached()
        async with InProcess(**stores, janitor_seconds=None, grace=0) as first:
            await first.resume(boss(gates[1]), SESSION)
            await gates[1].until_reached()
        gates[1].opened.set()
        async with InProcess(**stores, agents=[boss(gates[1])], janitor_seconds=None) as second:
            (run_id,) = (await second.recover()).run_ids
            handle = await second.get_handle(boss(gates[1]), SESSION)
            assert handle is not None
            assert handle.run_id == run_id
            assert await completed(handle) == "Fine."

    async def test_a_companion_that_died_here_goes_on_without_dbos_where_its_parent_waits_for_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with open_executor(grace=0) as here:
            await completed(await here.execute(waiting_for_helper(gate), "Go", SESSION))
            await gate.until_reached()
        gate.opened.set()
        async with InProcess(**stores, agents=[waiting_for_helper(gate)], janitor_seconds=None) as without:
            # As long as nobody goes on with the conversation without DBOS, it is DBOS' own.
            assert (await without.recover()).run_ids == ()
            handle = await without.execute(waiting_for_helper(gate), "Wait", SESSION)
            assert len((await without.recover()).run_ids) == 1
            assert await completed(handle) == "Fine."
            assert (await results(without))["wait"] == "Worked."

    async def test_a_run_that_waits_in_the_queue_of_a_dbos_that_is_gone_goes_on_without_it(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with open_executor(placement="elsewhere") as here:
            await here.execute(quick(), "Hi", SESSION)
            async with InProcess(**stores, janitor_seconds=None) as without:
                with pytest.raises(AgentAlreadyRunningError):
                    await without.resume(quick(), SESSION)
        clock.advance(LONG_LEASE_MS + 1)
        async with InProcess(**stores, janitor_seconds=None) as without:
            assert await completed(await without.resume(quick(), SESSION)) == "Quick."

    async def test_a_conversation_that_was_handed_over_keeps_its_name_and_goes_on_where_dbos_is_gone(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        billing = Agent(name="billing", description="Bills.", model=ScriptedModel(lambda _: "Billed."))
        desk = Agent(name="desk", model=ScriptedModel([call("handoff__billing")]), handoffs=[billing])
        async with InProcess(**stores, janitor_seconds=None) as without:
            assert await completed(await without.execute(desk, "Hi", SESSION)) == "Billed."
        async with open_executor(placement="elsewhere") as here:
            await here.execute(desk, "Again", SESSION)
            name = (await runs_of(here))[-1].workflow_id or ""
            assert name.endswith(f"__desk__{SESSION}__resume-2")
        clock.advance(LONG_LEASE_MS + 1)
        async with InProcess(**stores, janitor_seconds=None) as without:
            assert await completed(await without.resume(desk, SESSION)) == "Billed."

    async def test_a_run_that_temporal_may_know_by_such_a_name_is_left_to_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor(agents=[quick()]) as helix:
            prefix = vars(helix._runtime)["_prefix"]
            temporal = lease_of_engine("temporal", prefix)
            await parts.state.renew_lease(temporal, LONG_LEASE_MS)
            create = CreateSession(agent_type="quick")
            name = name_turn(prefix, "quick", SESSION, 1)
            await parts.state.start_run(StartRun(session_id=SESSION, run_id="r-1", create=create, workflow_id=name))
            assert (await helix.recover()).run_ids == ()
            with pytest.raises(AgentAlreadyRunningError):
                await helix.resume(quick(), SESSION)
            await parts.state.release_lease(temporal)
            assert (await helix.recover()).run_ids == ("r-1",)
            handle = await helix.get_handle(quick(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Quick."

    async def test_a_workflow_that_was_taken_away_under_its_process_is_told_in_a_line(
        self, helix: DBOSAgentExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="helix_agents")
        gate = Gate()
        handle = await helix.execute(_held_up(gate), "Hi", SESSION)
        await gate.until_reached()
        (run,) = await runs_of(helix)
        assert run.workflow_id is not None
        await DBOS.cancel_workflows_async([run.workflow_id])
        gate.opened.set()
        assert await completed(handle) == "Done."
        assert [(each.attempt, each.status) for each in await runs_of(helix)] == [(2, "completed")]
        told = [record for record in caplog.records if "run.workflow" in record.getMessage()]
        assert [(vars(record)["event"], record.exc_info) for record in told] == [("run.workflow_taken", None)]

    async def test_workflows_and_steps_have_names_that_tell(self, helix: DBOSAgentExecutor) -> None:
        @tool
        async def work() -> str:
            """Work."""
            return "worked"

        busy = Agent(name="busy", model=ScriptedModel([call("work", id="w1"), "Done.", "Again."]), tools=[work])
        await completed(await helix.execute(busy, "Go", SESSION))
        await completed(await helix.execute(busy, "Go", SESSION))
        first, second = (run.workflow_id or "" for run in await runs_of(helix))
        assert first.endswith(f"__busy__{SESSION}")
        assert second == f"{first}__resume-2"
        steps = await DBOS.list_workflow_steps_async(first)
        # The store knows which steps are committed; DBOS is spared keeping that, too.
        assert [step["function_name"] for step in steps] == ["open", "ask_model:1", "calls:1.0:w1", "ask_model:2"]

    async def test_a_call_to_a_sub_agent_is_a_workflow_below_that_of_its_caller(self, helix: DBOSAgentExecutor) -> None:
        await completed(await helix.execute(lead(pauses=False), "Go", SESSION))
        (run,) = await runs_of(helix)
        root = run.workflow_id or ""
        planner, worker = f"{root}__1.0.call_0", f"{root}__1.0.call_1"
        (below,) = (await helix.sessions.list(SessionFilter(root_session_id=SESSION, agent_type="planner"))).items
        ending = f"_{below.session_id[-6:]}"
        assert await _steps_of(root) == ["open", "ask_model:1", "call", "call", "ask_model:2"]
        assert await _steps_of(planner) == [
            *("calls:1.0:call_0.0", "open", "ask_model:1", "call", f"calls:1.0:call_1{ending}", "ask_model:2"),
            "calls:1.0:call_0.1",
        ]
        for caller, called in ((root, planner), (root, worker), (planner, f"{planner}__1.0.call_0{ending}")):
            status = await DBOS.get_workflow_status_async(called)
            assert status is not None
            assert (status.status, status.parent_workflow_id) == ("SUCCESS", caller)

    async def test_calls_wait_for_room_without_changing_places(self, open_executor: OpenExecutor) -> None:
        """DBOS knows steps by the numbers they begin with; whoever waits for room has begun."""
        async with open_executor(max_parallel_tools=1) as helix:
            await completed(await helix.execute(lead(pauses=False), "Go", SESSION))
            (run,) = await runs_of(helix)
            assert await _steps_of(run.workflow_id or "") == ["open", "ask_model:1", "call", "call", "ask_model:2"]

    @pytest.mark.parametrize("entry", ["execute", "resume", "recover"])
    async def test_who_begins_something_in_another_event_loop_is_told_and_nothing_is_begun(
        self, helix: DBOSAgentExecutor, entry: str
    ) -> None:
        async def begin() -> None:
            with pytest.raises(OtherEventLoopError, match="only in the event loop that opened it"):
                await getattr(helix, entry)(*([] if entry == "recover" else [quick(), SESSION]))

        await asyncio.to_thread(lambda: asyncio.run(begin()))
        assert (await helix.sessions.list()).items == ()

    async def test_an_executor_that_wants_another_dbos_is_told_why(self, open_executor: OpenExecutor) -> None:
        async with open_executor():
            for other in ({"system_database_url": "sqlite:///other.db"}, {"executor_id": "me"}, {"dbos_config": {}}):
                with pytest.raises(DBOSInUseError, match="one per process"):
                    async with open_executor(**other):
                        pass


class OnPostgres(OnDBOS):
    """DBOS and the sessions in one PostgreSQL server."""

    backend = "postgres"

    @pytest.fixture(scope="class")
    @classmethod
    def system_database_url(cls, postgres_service: PostgresService) -> str:
        return postgres_service.url

    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestDBOSOnPostgres(
    OnPostgres,
    WaitingContract,
    StoppingContract,
    ReturningContract,
    JanitorsContract,
    CompanionCrashesContract,
    NestedAnswersContract,
    TreeStopsContract,
):
    """What is told to a workflow from outside, races for one, dies and comes back: DBOS has other means for it here."""


@pytest.mark.chaos
class TestTheRestOfDBOSOnPostgres(
    OnPostgres,
    ConversationsContract,
    ToolsContract,
    ModelsContract,
    WakingContract,
    DeadlinesContract,
    EntryTableContract,
    HooksContract,
    RefreshingContract,
    DeploysContract,
    ExpiringContract,
    CompanionsContract,
    CompanionLivesContract,
    SubAgentsContract,
):
    """It plays on DBOS with SQLite, and in process on Postgres, each time; here now and then."""
