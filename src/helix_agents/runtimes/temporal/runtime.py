"""The Temporal runtime: submits turns as workflows, and does effects of any workflows that ask for them."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import ConflictError, HelixError, OtherEventLoopError
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.inline import drive_child
from helix_agents.engine.live_runs import LiveRuns, OfOneCall
from helix_agents.engine.log import log_exception
from helix_agents.engine.plain import from_plain
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Liveness, OpenDeps, Services
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import Begun
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.leases import (
    LeaseKeeper,
    inspect_elsewhere,
    is_anothers,
    lease_of_engine,
    lease_of_workers,
)
from helix_agents.runtimes.executor.queues import UnattendedQueues
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.workflow_names import belongs_to, name_turn
from helix_agents.runtimes.temporal import service
from helix_agents.runtimes.temporal.bodies import Bodies
from helix_agents.runtimes.temporal.options import TemporalOptions
from helix_agents.runtimes.temporal.turns import TURN, order_for
from helix_agents.runtimes.temporal.worker import WorkerThread

T = TypeVar("T")

# How long, in seconds, effects have after their grace period to end by themselves, as Temporal cancels them.
A_MOMENT = 1.0


class TemporalRuntime:
    """One process of many: it may submit runs, and it may work for itself and for others."""

    services: Services
    owner = None

    def __init__(
        self,
        lease: LeaseKeeper,
        *,
        address: str,
        namespace: str,
        task_queue: str,
        prefix: str,
        works: bool,
        options: TemporalOptions,
        client_settings: dict[str, Any],
        open_deps: OpenDeps | None,
        max_running: int | None,
        max_parallel_tools: int | None,
        grace: float,
    ) -> None:
        self.leaving = False
        self._lease = lease
        # Its runs carry no lease, because Temporal looks after them; this lease shows others that it does.
        self._lease.keep_too(lease_of_engine("temporal", prefix))
        if works:
            self._lease.keep_too(lease_of_workers("temporal", task_queue))
        self._unattended = UnattendedQueues("temporal")
        self._address = address
        self._namespace = namespace
        self._task_queue = task_queue
        self._prefix = prefix
        self.works = works
        self._options = options
        self._client_settings = client_settings
        self._open_deps = open_deps
        self.opens_deps = open_deps is not None or not works
        self._max_running = max_running
        self._max_parallel_tools = max_parallel_tools
        self._grace = grace
        self._watched: dict[RunId, asyncio.Task[RunEnd]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._worker: WorkerThread | None = None

    # -- starting and leaving

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._client: Client = await service.connect(self._address, self._namespace, self._client_settings)
        self._searchable = await service.knows_attributes(self._client)
        await self._lease.start()
        try:
            await self._begin_to_work()
        except BaseException:
            await self._lease.stop()
            raise

    async def _begin_to_work(self) -> None:
        self._runs = LiveRuns(services=self.services, alone=False, open_deps=self._open_deps)
        self._bodies = Bodies(self._runs, max_running=self._max_running, max_parallel_tools=self._max_parallel_tools)
        if self.works:
            self._worker = WorkerThread(
                self._client,
                task_queue=self._task_queue,
                options=self._options,
                perform=self._bodies.perform,
                grace=self._grace,
            )
            await self._worker.start()

    async def idle(self) -> None:
        while self._watched:
            await asyncio.wait(tuple(self._watched.values()))

    async def leave(self, grace: float) -> None:
        """Let running effects end; Temporal gives what follows to other workers."""
        self.leaving = True
        for task in self._background:
            task.cancel()
        if self._worker is None:
            return
        stopping = asyncio.create_task(self._worker.stop())
        await asyncio.wait((stopping,), timeout=grace + A_MOMENT)
        # Temporal never cancels effects that only read and write the store, and waits for them.
        await self._bodies.let_go()
        await stopping

    async def let_go(self) -> None:
        late = (*self._watched.values(), *self._background)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._bodies.let_go()
        if self._worker is not None:
            await self._worker.stop()
        await self._runs.release_all()
        await self._lease.stop()

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # -- the port

    def check_loop(self) -> None:
        """Temporal can be asked from any loop; effects are done in the loop that opened the executor."""
        if self.works and self._loop.is_closed():
            raise OtherEventLoopError(True)

    def name_workflow(self, agent_type: str, session_id: SessionId, turn: int) -> str:
        return name_turn(self._prefix, agent_type, session_id, turn)

    def drives(self, run: RunRecord) -> bool:
        return belongs_to(self._prefix, run)

    async def submit(
        self,
        run: RunRecord,
        *,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Start the workflow of a run. If Temporal does not answer, recovery finds the run missing and submits it.

        Hooks and a model given for one call live here; the turn starts in this process if it works.
        """
        if hooks is not None or model is not None:
            self._runs.of_calls[run.run_id] = OfOneCall(hooks=hooks, model=model)
        try:
            run = await self._start(run)
        except ConflictError:
            self._runs.of_calls.pop(run.run_id, None)
            return
        except (RPCError, HelixError) as problem:
            log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)
        earlier = self._watched.get(run.run_id)
        if earlier is not None:
            # Its waiters still wait for it.
            self._background.add(earlier)
            earlier.add_done_callback(self._background.discard)
        self._watched[run.run_id] = watching = asyncio.create_task(self._watch(run))
        watching.add_done_callback(lambda _: self._forget(run.run_id, watching))

    async def inspect(self, run: RunRecord) -> Liveness:
        """A run that a process is responsible for is dead when its lease has expired; any other run of another runtime
        is for that runtime to judge, as long as it is there."""
        store = self.services.store
        if run.owner is not None:
            return "dead" if await store.find_lease(run.owner) is None else "alive"
        if not self.drives(run):
            return await inspect_elsewhere(store, run)
        standing, queue = await service.inspect(self._client, run)
        if standing == "missing" and await is_anothers(store, "temporal", self._prefix):
            return "alive"
        if standing == "alive" and queue is not None:
            await self._unattended.look(store, run, queue)
        return standing

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        """The task that waits for the workflow of a run that was submitted here."""
        return self._watched.get(run_id)

    def drive_detached(self, run: RunRecord) -> None:
        if not self.leaving:
            self.in_background(self.submit(run))

    async def tidy(self) -> int:
        """Temporal removes closed workflows itself, as its namespace is configured."""
        return 0

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        desk = StoreDesk(self.services.store, run.session_id, run.fence, alone=True)
        return await drive_child(parent, run, tool_call_id, stop, desk=desk, max_parallel=self._max_parallel_tools)

    # -- inside

    async def _start(self, run: RunRecord) -> RunRecord:
        """Start the run under a name that no workflow of another run has."""
        session = await self.services.store.load_state(run.session_id)
        how: dict[str, Any] = {
            "task_queue": self._task_queue,
            "request_eager_start": self.works,
            "task_timeout": timedelta(seconds=self._options.task_seconds),
        }
        if self._searchable:
            how["search_attributes"] = service.attributes_of(session)
        while not await service.start(self._client, TURN, order_for(run, self._options), run, session, **how):
            run = await self.services.store.claim_run(run.session_id, run.fence, None)
        return run

    async def _watch(self, run: RunRecord) -> RunEnd:
        """How the workflow ended; the caller then reads the store, which is authoritative."""
        handle = service.handle_of(self._client, run)
        while True:
            try:
                return from_plain(_without_name(await handle.result()), RunEnd)
            except WorkflowFailureError:
                return RunEnd(status="superseded")
            except RPCError as problem:
                if problem.status == RPCStatusCode.NOT_FOUND:
                    return RunEnd(status="superseded")
                log_exception("run.watch_failed", problem, session_id=run.session_id, run_id=run.run_id)
            await asyncio.sleep(1.0)

    def _forget(self, run_id: RunId, watching: asyncio.Task[RunEnd]) -> None:
        if self._watched.get(run_id) is watching:
            del self._watched[run_id]
            self._runs.of_calls.pop(run_id, None)


def _without_name(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "is"}


_: type[Runtime] = TemporalRuntime
