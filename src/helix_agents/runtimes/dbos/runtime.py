"""The DBOS runtime: a run is a workflow, an effect is a step, and a lease says which process drives it."""

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import ConflictError, HelixError
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.inline import WrapOps, drive_child
from helix_agents.engine.live_runs import LiveRuns, OfOneCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.opening import Begun
from helix_agents.engine.plain import EffectName, Plain, PlainOps, answer_of, is_in_store, run_plain_turn, to_plain
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Liveness, OpenDeps
from helix_agents.engine.stop import StopSignal
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.dbos import instance, workflows
from helix_agents.runtimes.executor.leases import LeaseKeeper
from helix_agents.runtimes.executor.owned_runs import OwnedRuns, backoff
from helix_agents.runtimes.executor.runtime import Runtime

Placement: TypeAlias = Literal["here", "shared", "elsewhere"]
"""Where the runs that are begun here are driven: in this process, by any process of the queue, or by any but this."""


class DBOSRuntime(OwnedRuns):
    """The workflows of one executor.

    DBOS remembers which effects a workflow has done, and runs a workflow again whose process it knows to be restarted.
    Each time it does, the run is claimed, so that of two processes that have one workflow only the later one writes.
    Processes that do not come back are noticed by their lease, and their runs go on in fresh workflows.
    """

    def __init__(
        self,
        lease: LeaseKeeper,
        *,
        wanted: instance.Wanted,
        prefix: str,
        placement: Placement,
        poll_seconds: float,
        open_deps: OpenDeps | None,
        max_running: int | None,
        max_parallel_tools: int | None,
        wrap: WrapOps,
    ) -> None:
        super().__init__(lease)
        self._wanted = wanted
        self._prefix = prefix
        self._placement: Placement = placement
        self.works = placement != "elsewhere"
        self._poll_seconds = poll_seconds
        self._open_deps = open_deps
        self._max_running = max_running
        self._max_parallel_tools = max_parallel_tools
        self._wrap = wrap
        self._room = asyncio.Semaphore(max_running) if max_running is not None else None
        self._ends: dict[RunId, asyncio.Future[RunEnd]] = {}
        self._fresh: set[Fence] = set()
        self._detached: set[RunId] = set()
        self._executions: set[asyncio.Task[Any]] = set()
        self._ready = asyncio.Event()
        self._is_closed = False

    # -- coming and going

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._runs = LiveRuns(services=self.services, alone=True, open_deps=self._open_deps)
        self._effects = Effects(self.services, self._runs)
        # Known before DBOS is launched, which begins with the workflows that an earlier life of this process left.
        workflows.HOSTS.setdefault(self._prefix, []).append(self)
        try:
            await instance.acquire(self._wanted, self._lease.owner)
        except BaseException:
            workflows.HOSTS[self._prefix].remove(self)
            raise
        if self._placement != "here":
            await workflows.register_queue(self._prefix, poll_seconds=self._poll_seconds, at_once=self._max_running)
        await super().start()
        self._ready.set()

    async def leave(self, grace: float) -> None:
        await super().leave(grace)
        if self._executions:
            await asyncio.wait(tuple(self._executions), timeout=grace)

    async def let_go(self) -> None:
        # From now on no workflow that DBOS is about to start gets in.
        self._is_closed = True
        while late := (*self._running.values(), *self._background, *self._executions):
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await super().let_go()
        await self._runs.release_all()
        workflows.HOSTS[self._prefix].remove(self)
        await instance.release()

    # -- the port

    @property
    def owner(self) -> str | None:
        """Runs that any process may drive have an owner once one of them has claimed them."""
        return self._lease.owner if self._placement == "here" else None

    def name_workflow(self, agent_type: str, session_id: SessionId, turn: int) -> str:
        name = f"{self._prefix}__{agent_type}__{session_id}"
        return name if turn == 1 else f"{name}__resume-{turn}"

    def drives(self, run: RunRecord) -> bool:
        return run.workflow_id is not None and run.workflow_id.startswith(f"{self._prefix}__")

    async def submit(
        self,
        run: RunRecord,
        *,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Start the run's workflow. What is given for one call lives here, so a run with that is driven here."""
        if run.run_id in self._running:
            return
        given = hooks is not None or model is not None
        if given:
            self._runs.of_calls[run.run_id] = OfOneCall(hooks=hooks, model=model)
        if self._placement == "here" or (given and self._placement == "shared"):
            self.begin(run, self._start(run))
        else:
            self._outside(self._enqueue(run))

    async def inspect(self, run: RunRecord) -> Liveness:
        if run.owner is not None:
            return await self.inspect_owner(run)
        return await workflows.inspect(run) if self.drives(run) else "alive"

    def drive_detached(self, run: RunRecord) -> None:
        """Start a companion's workflow; it takes no place of `max_running`, as whoever waits for it may have one."""
        if not self.leaving and run.run_id not in self._running:
            self._detached.add(run.run_id)
            self.begin(run, self._start(run))

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        desk = StoreDesk(self.services.store, run.session_id, run.fence, alone=True)
        limit = self._max_parallel_tools
        return await drive_child(parent, run, tool_call_id, stop, desk=desk, max_parallel=limit, wrap=self._wrap)

    # -- starting workflows

    def begin(self, run: RunRecord, work: Coroutine[Any, Any, RunEnd]) -> None:
        workflows.outside().run(super().begin, run, work)

    def _outside(self, work: Coroutine[Any, Any, Any]) -> None:
        workflows.outside().run(self.in_background, work)

    async def _start(self, run: RunRecord) -> RunEnd:
        """Start a workflow here and wait for the end of the run; a DBOS that does not answer is asked again."""
        end = self._ends[run.run_id] = self.loop.create_future()
        waits = backoff()
        try:
            while True:
                try:
                    if run.attempt > 1:
                        await workflows.cancel_earlier(run)
                    self._fresh.add(run.fence)
                    if await workflows.start(self._prefix, run, None):
                        return await end
                    run = await self._next_attempt(run, self._lease.owner)
                except ConflictError:
                    return RunEnd(status="superseded")
                except Exception as problem:
                    log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)
                    await asyncio.sleep(next(waits))
        finally:
            self._fresh.discard(run.fence)
            self._ends.pop(run.run_id, None)
            self._detached.discard(run.run_id)
            self._runs.of_calls.pop(run.run_id, None)

    async def _enqueue(self, run: RunRecord) -> None:
        """Leave the run to whichever process takes it; when that fails, recovery finds it missing."""
        try:
            while not await workflows.start(self._prefix, run, self._prefix):
                run = await self._next_attempt(run, None)
        except ConflictError:
            return
        except Exception as problem:
            log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)

    async def _next_attempt(self, run: RunRecord, owner: str | None) -> RunRecord:
        """The run under a name that no workflow has yet."""
        return await self.services.store.claim_run(run.session_id, run.fence, owner)

    # -- inside a workflow

    def is_submitter_of(self, run_id: str) -> bool:
        return run_id in self._ends

    async def run(self, session_id: str, run_id: str, attempt: int) -> Plain:
        """Drive a run inside its workflow, which may have been begun elsewhere; says how it ended."""
        task = asyncio.current_task()
        if self._is_closed or task is None:
            raise workflows.LetGo
        self._executions.add(task)
        driven: _Driven | None = None
        try:
            await self._ready.wait()
            async with self._room if self._room is not None and run_id not in self._detached else nullcontext():
                run = await self._take(session_id, run_id)
                if run is None:
                    raise workflows.LetGo
                driven = _Driven(run)
                end = await self._drive(driven)
            if end.status == "yielded" and not self.leaving:
                raise workflows.LetGo
            self._tell(run_id, end)
            return to_plain(end)
        except workflows.LetGo:
            self._outside(self._go_on_if_nobody_does(session_id, run_id, driven))
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            # A history that this program cannot replay, or a workflow that DBOS gave to another process: which it says
            # with an exception that is none.
            log_exception("run.workflow_failed", problem, session_id=session_id, run_id=run_id)
            self._outside(self._go_on_if_nobody_does(session_id, run_id, driven))
            raise workflows.LetGo from problem
        finally:
            self._executions.discard(task)
            if driven is not None:
                await self._runs.release(driven.run.fence)

    async def _take(self, session_id: SessionId, run_id: RunId) -> RunRecord | None:
        """The run under a fence that is this execution's alone; None when it is not for this process to drive.

        A run that has ended is there as well: what its last commit said may not have been recorded.
        """
        current = await self.services.store.get_current_run(session_id)
        if current is None or current.run_id != run_id:
            return None
        if current.status != "running":
            return current
        if current.fence in self._fresh:
            self._fresh.discard(current.fence)
            return current
        session = await self.services.store.load_state(session_id)
        agent = self.services.agents.find(session.agent_type)
        try:
            if agent is None:
                log_event("run.unknown_agent", session_id=session_id, run_id=run_id, agent=session.agent_type)
                return None
            agent.load_state(session.custom_state, session.agent_version)
            return await self.services.store.claim_run(session_id, current.fence, self._lease.owner)
        except HelixError as problem:
            log_exception("run.not_taken", problem, session_id=session_id, run_id=run_id)
            return None

    async def _drive(self, driven: "_Driven") -> RunEnd:
        tools = asyncio.Semaphore(self._max_parallel_tools) if self._max_parallel_tools is not None else nullcontext()

        async def perform(effect: EffectName, name: str, request: Plain) -> Plain:
            async def body() -> Plain:
                return await self._persistently(driven, effect, request)

            if is_in_store(effect, request):
                return await body()
            async with tools if effect == "run_calls" else nullcontext():
                return await workflows.step(name, body)

        ops = PlainOps(perform, should_yield=lambda: self.leaving)
        return await run_plain_turn(self._wrap(ops))

    async def _persistently(self, driven: "_Driven", effect: EffectName, request: Plain) -> Plain:
        """Do an effect; when the store is lost in between, as the next attempt once it is back.

        Raises:
            LetGo: another driver has the run; nothing of that is recorded.
        """
        for wait in backoff():
            run = driven.run
            try:
                answer = await self._effects.perform(effect, run.session_id, run.fence, request)
            except HelixError as problem:
                log_exception("run.driver_lost", problem, session_id=run.session_id, run_id=run.run_id)
                await asyncio.sleep(wait)
                await self._claim_anew(driven, run)
                continue
            if answer_of(answer) != RunEnd(status="superseded"):
                return answer
            if driven.run is run:
                raise workflows.LetGo
        raise AssertionError("the waits never end")

    async def _claim_anew(self, driven: "_Driven", run: RunRecord) -> None:
        """Go on under a new fence, unless a call beside this one has it already."""
        async with driven.claiming:
            if driven.run is not run:
                return
            try:
                driven.run = await self.services.store.claim_run(run.session_id, run.fence, self._lease.owner)
            except ConflictError as lost:
                raise workflows.LetGo from lost
            except HelixError as problem:
                log_exception("run.driver_lost", problem, session_id=run.session_id, run_id=run.run_id)

    # -- afterwards

    def _tell(self, run_id: RunId, end: RunEnd) -> None:
        future = self._ends.get(run_id)
        if future is not None and not future.done():
            future.set_result(end)

    async def _go_on_if_nobody_does(self, session_id: SessionId, run_id: RunId, driven: "_Driven | None") -> None:
        """What a workflow was let go of that no other driver took over goes on in a fresh one, as its next attempt."""
        starter = self._running.get(run_id)
        self._tell(run_id, RunEnd(status="superseded"))
        if starter is not None:
            await asyncio.wait((starter,))
        if driven is None or self.leaving:
            return
        await asyncio.sleep(min(0.1 * driven.run.attempt, 30.0))
        try:
            run = await self.services.store.claim_run(session_id, driven.run.fence, self._lease.owner)
        except ConflictError:
            return
        log_event("run.recovered", session_id=run.session_id, run_id=run.run_id, attempt=run.attempt)
        self.begin(run, self._start(run))


class _Driven:
    """A run that is driven here, under the fence that it has at the moment."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.claiming = asyncio.Lock()


_: type[Runtime] = DBOSRuntime
