"""The DBOS runtime: a run is a workflow, an effect is a step, and a lease says which process drives it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

from dbos import error

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import ConflictError, HelixError, OtherEventLoopError, SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.effects import DriveRun, RunEnd
from helix_agents.engine.inline import WrapOps, drive_child
from helix_agents.engine.live_runs import LiveRuns, OfOneCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.plain import (
    CallsRequest,
    EffectName,
    Plain,
    PlainOps,
    answer_of,
    drive_call,
    from_plain,
    is_for_child,
    is_in_store,
    run_plain_turn,
    to_plain,
)
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Liveness, OpenDeps
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import Begun
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.dbos import instance, workflows
from helix_agents.runtimes.dbos.driven import Driven
from helix_agents.runtimes.executor.claimed_runs import SUPERSEDED
from helix_agents.runtimes.executor.leases import (
    LeaseKeeper,
    inspect_elsewhere,
    is_anothers,
    lease_of_engine,
    lease_of_workers,
)
from helix_agents.runtimes.executor.owned_runs import LetGo, OwnedRuns, backoff, claim
from helix_agents.runtimes.executor.queues import UnattendedQueues
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.workflow_names import belongs_to, name_turn

Placement: TypeAlias = Literal["here", "shared", "elsewhere"]
"""Where runs started here are driven: in this process, by any process of the queue, or by any other than this one."""

NOT_OURS = (ConflictError, SessionNotFoundError)
"""Errors which mean that no driver is needed here: another one drives the run, it is over, or its session was
deleted."""


TIDY_SECONDS = 600.0
"""How often to look for workflows that ended long ago."""

LATEST_RECORD_MS = 600_000
"""How long after a run's last commit its process may still be about to tell DBOS about it."""

MOST_AT_ONCE = 1_000
"""How many of them one round of the janitor removes, because it has other work; the next round continues."""


class DBOSRuntime(OwnedRuns):
    """The workflows of one executor.

    DBOS remembers which effects a workflow has done, and runs a workflow again if it knows that its process was
    restarted. Each time it does, the run is claimed, so that of two processes with the same workflow only the later one
    writes. Processes that do not come back are noticed by their lease, and their runs continue in fresh workflows.
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
        retention_ms: int | None,
        wrap: WrapOps,
    ) -> None:
        super().__init__(lease, open_deps)
        self._wanted = wanted
        self._questions = instance.Questions(wanted)
        self._unattended = UnattendedQueues("dbos")
        self._prefix = prefix
        self._placement: Placement = placement
        self.works = placement != "elsewhere"
        self._poll_seconds = poll_seconds
        self._max_running = max_running
        self._max_parallel_tools = max_parallel_tools
        self._retention_ms = retention_ms
        self._tidied_at = -TIDY_SECONDS
        self._wrap = wrap
        self._room = asyncio.Semaphore(max_running) if max_running is not None else None
        self._ends: dict[Fence, asyncio.Future[RunEnd]] = {}
        self._fresh: set[Fence] = set()
        self._detached: set[RunId] = set()
        self._executions: set[asyncio.Task[Any]] = set()
        self._ready = asyncio.Event()
        self._is_closed = False

    # -- starting and leaving

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._runs = LiveRuns(services=self.services, alone=True, open_deps=self._open_deps)
        async with AsyncExitStack() as undoing:
            # Registered before DBOS is launched, which starts with the workflows that an earlier life of this process
            # left.
            workflows.HOSTS.setdefault(self._prefix, []).append(self)
            undoing.callback(workflows.HOSTS[self._prefix].remove, self)
            self._executor_id = await instance.acquire(self._wanted, instance.new_executor_id())
            undoing.push_async_callback(instance.release)
            if instance.is_new_executor_id(self._executor_id):
                # Executors that share a DBOS come and go, and have their own stores: each one keeps this lease alive.
                self._lease.keep_too(self._executor_id)
            self._lease.keep_too(lease_of_engine("dbos", self._prefix))
            if self._placement == "shared":
                self._lease.keep_too(lease_of_workers("dbos", self._prefix))
            undoing.push_async_callback(self._end_everything)
            if self._placement != "here":
                queue = workflows.register_queue(
                    self._prefix, poll_seconds=self._poll_seconds, at_once=self._max_running, works=self.works
                )
                await self._questions.ask(queue)
            undoing.push_async_callback(self._lease.stop)
            await super().start()
            undoing.pop_all()
        self._ready.set()

    async def leave(self, grace: float) -> None:
        ends = self.loop.time() + grace
        await super().leave(grace)
        if self._executions:
            await asyncio.wait(tuple(self._executions), timeout=max(0.0, ends - self.loop.time()))

    async def let_go(self) -> None:
        await self._end_everything()
        await super().let_go()
        await self._runs.release_all()
        workflows.HOSTS[self._prefix].remove(self)
        if await instance.release() and instance.is_new_executor_id(self._executor_id):
            await self._lease.give_up(self._executor_id)

    async def _end_everything(self) -> None:
        # From now on, no workflow that DBOS is about to start gets in.
        self._is_closed = True
        self._questions.forget()
        while late := (*self._running.values(), *self._background, *self._executions):
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- the port

    @property
    def owner(self) -> str | None:
        """Runs that any process may drive have no owner until one of them claims them."""
        return self._lease.owner if self._placement == "here" else None

    def check_loop(self) -> None:
        """All workflows of an executor are driven in one loop, and so is everything that waits for them."""
        if asyncio.get_running_loop() is not self.loop:
            raise OtherEventLoopError(self.loop.is_closed())

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
        """Start the run's workflow. Hooks and a model given for one call live here: a process that drives runs drives
        such a run itself."""
        if self.is_driven(run):
            return
        given = hooks is not None or model is not None
        if self._placement == "elsewhere" or (self._placement == "shared" and not given):
            self._outside(self._enqueue(run, self._prefix))
            return
        if given:
            self._runs.of_calls[run.run_id] = OfOneCall(hooks=hooks, model=model)
        self.begin(run, self._start(run))

    async def inspect(self, run: RunRecord) -> Liveness:
        if run.owner is not None:
            return await self.inspect_owner(run)
        if not self.drives(run):
            return await inspect_elsewhere(self.services.store, run)
        found = await self._questions.ask(workflows.find(run))
        standing = await workflows.inspect(run, found, self._is_gone)
        if standing == "missing" and await is_anothers(self.services.store, "dbos", self._prefix):
            return "alive"
        if standing == "alive" and found is not None and found.status == "ENQUEUED":
            # Companions have their own queue, with the same workers.
            await self._unattended.look(self.services.store, run, self._prefix)
        return standing

    async def _is_gone(self, executor_id: str) -> bool:
        """Whether the process that DBOS knows by this name died and will not come back."""
        if executor_id == self._executor_id or not instance.is_new_executor_id(executor_id):
            return False
        return await self.services.store.find_lease(executor_id) is None

    def drive_detached(self, run: RunRecord) -> None:
        """Start a companion's workflow, here if anything is driven here. It does not count against `max_running`,
        because the run that waits for it may count."""
        if self.leaving or self.is_driven(run):
            return
        if not self.works:
            self._outside(self._enqueue_companion(run))
            return
        self._detached.add(run.run_id)
        self.begin(run, self._start(run))

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        desk = StoreDesk(self.services.store, run.session_id, run.fence, alone=True)
        limit = self._max_parallel_tools
        return await drive_child(parent, run, tool_call_id, stop, desk=desk, max_parallel=limit, wrap=self._wrap)

    async def tidy(self) -> int:
        now = self.loop.time()
        if self._retention_ms is None or now - self._tidied_at < TIDY_SECONDS:
            return 0
        # Also if the system database is away, so that it is not asked sooner.
        self._tidied_at = now
        gone = 0
        while some := await self._questions.ask(workflows.forget_ended(self._prefix, self._retention_ms)):
            gone += some
            if gone >= MOST_AT_ONCE:
                self._tidied_at = -TIDY_SECONDS
                return gone
        return gone + await self._forget_untold(self._retention_ms)

    async def _forget_untold(self, retention_ms: int) -> int:
        """Let DBOS forget turns whose end it does not know: a process died between the last commit and telling DBOS."""
        gone = seen = 0
        while some := await self._questions.ask(workflows.begun_before(self._prefix, retention_ms, seen)):
            over = [left.name for left in some if await self._is_over(left, retention_ms)]
            if over:
                await self._questions.ask(workflows.forget(over))
            gone, seen = gone + len(over), seen + len(some) - len(over)
        return gone

    async def _is_over(self, left: workflows.Left, retention_ms: int) -> bool:
        """Whether the store knows that nothing continues a workflow, and has known it for this long. A run that it does
        not know may belong to another store."""
        run = await self.services.store.get_run(left.run_id)
        if run is None or run.ended_at is None or run.status == "running":
            return False
        return run.ended_at <= self.services.store.now_ms() - max(retention_ms, LATEST_RECORD_MS)

    # -- starting workflows

    def begin(self, run: RunRecord, work: Coroutine[Any, Any, RunEnd]) -> None:
        workflows.outside().run(super().begin, run, work)

    def _outside(self, work: Coroutine[Any, Any, Any]) -> None:
        workflows.outside().run(self.in_background, work)

    async def _start(self, run: RunRecord) -> RunEnd:
        """Start a workflow here and wait for the end of the run; if DBOS does not answer, it is asked again."""
        end: asyncio.Future[RunEnd] = self.loop.create_future()
        waits = backoff()
        try:
            while True:
                self._ends[run.fence] = end
                try:
                    if run.attempt > 1:
                        await workflows.cancel_earlier(run)
                    self._fresh.add(run.fence)
                    if await workflows.start(self._prefix, run, None):
                        return await end
                    self._forget(run.fence)
                    run = await self._next_attempt(run, self._lease.owner)
                except NOT_OURS:
                    return SUPERSEDED
                except Exception as problem:
                    log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)
                    await asyncio.sleep(next(waits))
        finally:
            self._forget(run.fence)
            self._detached.discard(run.run_id)
            self._runs.of_calls.pop(run.run_id, None)

    async def _enqueue(self, run: RunRecord, queue: str) -> None:
        """Leave the run to whichever process takes it; if that fails, recovery finds it missing."""
        try:
            if run.attempt > 1:
                await workflows.cancel_earlier(run)
            while not await workflows.start(self._prefix, run, queue):
                run = await self._next_attempt(run, None)
        except NOT_OURS:
            return
        except Exception as problem:
            log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)

    async def _enqueue_companion(self, run: RunRecord) -> None:
        """Leave a companion to other processes, through a queue that they learn about when it is first needed."""
        queue = workflows.companions_of(self._prefix)
        try:
            await workflows.register_queue(queue, poll_seconds=self._poll_seconds, at_once=None, works=False)
        except Exception as problem:
            log_exception("run.submit_failed", problem, session_id=run.session_id, run_id=run.run_id)
            return
        await self._enqueue(run, queue)

    def _forget(self, fence: Fence) -> None:
        self._fresh.discard(fence)
        self._ends.pop(fence, None)

    async def _next_attempt(self, run: RunRecord, owner: str | None) -> RunRecord:
        """Claim the run as its next attempt, whose workflow name is not in use yet."""
        return await claim(self.services.store, run, owner)

    # -- inside a workflow

    def is_submitter_of(self, run_id: str, attempt: int) -> bool:
        return Fence(run_id=run_id, attempt=attempt) in self._ends

    async def run(self, session_id: str, run_id: str, attempt: int) -> Plain:
        """Drive a run inside its workflow, which may have been started elsewhere; returns how it ended."""
        fence = Fence(run_id=run_id, attempt=attempt)
        driven: Driven | None = None
        try:
            with self._execution():
                await self._ready.wait()
                async with self._place_for(fence):
                    driven = await self._take(session_id, fence)
                    end = await self._drive(driven)
            if end.status == "yielded" and not self.leaving:
                raise LetGo
            if end.status == "superseded" and await self.answers_for(driven.run):
                # Its stream was lost, and no other driver took the run over.
                raise LetGo
            self._tell(fence, end)
            return to_plain(end)
        except LetGo:
            self._outside(self._go_on_if_nobody_does(fence, driven))
            raise

    @asynccontextmanager
    async def _place_for(self, fence: Fence) -> AsyncGenerator[None]:
        """A place within `max_running`. A run from the queue does not wait for long, because other processes may have a
        place.

        Raises:
            LetGo: it was given back.
        """
        if self._room is None or fence.run_id in self._detached:
            yield
            return
        patience, name = None, workflows.current()
        if self._room.locked() and fence not in self._ends:
            if await workflows.ask(workflows.is_companions(self._prefix, name)):
                yield
                return
            patience = await workflows.ask(workflows.seconds_to_keep(self._prefix, name))
        try:
            async with asyncio.timeout(patience):
                await self._room.acquire()
        except TimeoutError:
            self._outside(workflows.give_back(self._prefix, name, at_once=True))
            raise LetGo from None
        try:
            yield
        finally:
            self._room.release()

    async def _make(self, caller: Driven, request: Plain) -> Plain:
        """Bring a call as far as its child goes, inside the call's own workflow; returns what happened to it."""
        call = from_plain(request, CallsRequest)
        try:
            with self._execution() as task:
                caller.calls[call.name] = task

                async def drive(child: DriveRun) -> RunEnd:
                    fence = Fence(run_id=child.run_id, attempt=child.attempt)
                    return await self._drive(await self._take(child.session_id, fence, (caller, call)))

                async with caller.room:
                    return to_plain(await drive_call(partial(self._perform, caller), call, drive))
        except asyncio.CancelledError:
            caller.let_go()
            raise

    @contextmanager
    def _execution(self) -> Generator[asyncio.Task[Any]]:
        """A block in which a workflow is executed here.

        Raises:
            LetGo: it is to be released.
        """
        task = asyncio.current_task()
        if self._is_closed or task is None:
            raise LetGo
        self._executions.add(task)
        try:
            yield task
        except asyncio.CancelledError:
            raise
        except (error.DBOSWorkflowConflictIDError, error.DBOSWorkflowCancelledError) as taken:
            # Another process has it, or its run continues in another workflow, as when a process was frozen and wakes
            # up.
            log_event("run.workflow_taken", workflow=workflows.current(), reason=str(taken))
            raise LetGo from taken
        except BaseException as problem:
            # For example, a history that this program cannot replay.
            log_exception("run.workflow_failed", problem, workflow=workflows.current())
            raise LetGo from problem
        finally:
            self._executions.discard(task)

    async def _take(
        self, session_id: SessionId, fence: Fence, above: tuple[Driven, CallsRequest] | None = None
    ) -> Driven:
        """The run of a workflow, under a fence that only this execution has.

        This includes a run that has ended: the result of its last commit may not have been recorded.

        Raises:
            LetGo: it is not for this process to drive.
        """
        is_fresh = fence in self._fresh
        self._fresh.discard(fence)
        run = await self.services.store.get_current_run(session_id)
        if run is None or run.run_id != fence.run_id or (is_fresh and run.fence != fence):
            raise LetGo
        if above is None and (not self.drives(run) or (run.owner is None and run.attempt > fence.attempt)):
            # It has moved since: to another runtime, which left this workflow as it was, or to the queue.
            raise LetGo
        # A run started here for the queue has no owner yet, and would be taken for abandoned.
        is_ours = is_fresh and (above is not None or run.owner is not None)
        if not is_ours and run.status == "running":
            if run.attempt > fence.attempt and await workflows.ask(workflows.is_given_up(workflows.current())):
                raise LetGo
            if above is not None:
                await self._check_still_driving(above[0].run)
            run = await self._claim(run)
        limit = self._max_parallel_tools
        return Driven(self._runs, run, self._lease.owner, make=self._make, max_parallel_tools=limit, above=above)

    async def _claim(self, run: RunRecord) -> RunRecord:
        store = self.services.store
        session = await store.load_state(run.session_id)
        agent = await find_agent(store, self.services.agents, session)
        if agent is None:
            who = {"session_id": run.session_id, "run_id": run.run_id, "agent": session.worked_by}
            log_event("run.unknown_agent", logging.WARNING, **who)
            self._outside(workflows.give_back(self._prefix, workflows.current()))
            raise LetGo
        try:
            self.services.present_state(agent, session.custom_state, session.agent_version)
            return await claim(store, run, self._lease.owner)
        except HelixError as problem:
            log_exception("run.not_taken", problem, session_id=run.session_id, run_id=run.run_id)
            raise LetGo from problem

    async def _check_still_driving(self, caller: RunRecord) -> None:
        """A process that was frozen while another one took over must not take children from it."""
        current = await self.services.store.get_current_run(caller.session_id)
        if current is None or current.fence != caller.fence:
            raise LetGo

    async def _drive(self, driven: Driven) -> RunEnd:
        """Drive a run inside the current workflow; workflows of its calls can find it meanwhile."""
        ops = PlainOps(partial(self._perform, driven), should_yield=lambda: self.leaving)
        try:
            with workflows.calling(driven):
                return await run_plain_turn(self._wrap(ops))
        finally:
            await driven.end_calls()
            await self._runs.release(driven.run.fence)

    async def _perform(self, driven: Driven, effect: EffectName, name: str, request: Plain) -> Plain:
        if is_for_child(effect, request):
            return await self._have_made(driven, request)

        async def body() -> Plain:
            # It waits for room inside the step: DBOS numbers steps as they start, and that has to be in order.
            async with driven.room if effect == "run_calls" and not request.get("hand_out") else nullcontext():
                try:
                    answer = await driven.perform(effect, request)
                except NOT_OURS as lost:
                    raise LetGo from lost
            if isinstance(handed := answer_of(answer), DriveRun):
                self._fresh.add(Fence(run_id=handed.run_id, attempt=handed.attempt))
            return answer

        return await body() if is_in_store(effect, request) else await workflows.step(name, body)

    async def _have_made(self, driven: Driven, request: Plain) -> Plain:
        """Have a call made by its own workflow, and wait for the outcome.

        Raises:
            LetGo: no workflow makes it, or the one that did was released.
        """
        call = from_plain(request, CallsRequest)
        making = await workflows.start_call(f"{call.step}.{call.round}.{call.calls[0].tool_call_id}", request)
        any_of = partial(asyncio.wait, (making, driven.lost), return_when=asyncio.FIRST_COMPLETED)
        try:
            await any_of(timeout=workflows.MEETING_SECONDS)
            if call.name in driven.calls:
                await any_of()
            if not making.done() or making.cancelled() or answer_of(making.result()) == SUPERSEDED:
                raise LetGo
            return making.result()
        finally:
            making.cancel()

    # -- afterwards

    def _tell(self, fence: Fence, end: RunEnd) -> None:
        future = self._ends.get(fence)
        if future is not None and not future.done():
            future.set_result(end)

    async def _go_on_if_nobody_does(self, fence: Fence, driven: Driven | None) -> None:
        """If a workflow was released and no other driver took over, the run continues in a fresh one, as its next
        attempt."""
        starter = self._running.get(fence.run_id)
        self._tell(fence, SUPERSEDED)
        if starter is not None:
            await asyncio.wait((starter,))
        if driven is None or self.leaving:
            return
        await asyncio.sleep(min(0.1 * driven.run.attempt, 30.0))
        try:
            run = await claim(self.services.store, driven.run, self._lease.owner)
        except NOT_OURS:
            return
        log_event("run.recovered", session_id=run.session_id, run_id=run.run_id, attempt=run.attempt)
        self.begin(run, self._start(run))


_: type[Runtime] = DBOSRuntime
