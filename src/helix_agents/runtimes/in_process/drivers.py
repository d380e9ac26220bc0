"""The in-process runtime: drivers are asyncio tasks that survive a lost store."""

import asyncio
from contextlib import nullcontext, suppress

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import ConflictError, HelixError, StoreReplacedError, SupersededError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.desk import MemoryDesk
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.inline import WrapOps, drive_child
from helix_agents.engine.log import log_exception
from helix_agents.engine.requests.settling import end_unheard
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Liveness, OpenDeps
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import Begun
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.leases import LeaseKeeper, inspect_elsewhere
from helix_agents.runtimes.executor.owned_runs import CancelledItselfError, OwnedRuns, apart, backoff, claim
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.in_process.driver import drive

MOST_CANCELLED = 3
"""How many times something in a run may cancel its driver before the run fails."""


class Drivers(OwnedRuns):
    """All drivers of one process. `wrap` gets the effects of every run before the run's loop does."""

    def __init__(
        self,
        lease: LeaseKeeper,
        *,
        open_deps: OpenDeps | None,
        max_running: int | None,
        max_parallel_tools: int | None,
        wrap: WrapOps,
    ) -> None:
        super().__init__(lease, open_deps)
        self._max_parallel_tools = max_parallel_tools
        self._wrap = wrap
        self._room = asyncio.Semaphore(max_running) if max_running is not None else None

    def check_loop(self) -> None:
        """A run is driven in whichever loop it is started."""

    def name_workflow(self, agent_type: str, session_id: SessionId, turn: int) -> None:
        """There is no workflow engine that would need the name."""

    def drives(self, run: RunRecord) -> bool:
        return run.workflow_id is None

    async def submit(
        self,
        run: RunRecord,
        *,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Drive a run as soon as there is room for it."""
        if self.is_driven(run):
            return
        if self._room is None:
            self.begin(run, self._persistently(run, hooks, model, begun))
        else:
            # By the time there is room, what was loaded at the start may be out of date.
            self.begin(run, self._when_there_is_room(run, hooks, model))

    async def inspect(self, run: RunRecord) -> Liveness:
        """A run without an owner belongs to a durable engine, which looks after it, or to nobody."""
        if run.owner is not None:
            return await self.inspect_owner(run)
        return "dead" if self.drives(run) else await inspect_elsewhere(self.services.store, run)

    def drive_detached(self, run: RunRecord) -> None:
        """Drive a detached companion, unless it is already driven here or will be driven elsewhere.

        It does not count against `max_running`, because the run that started it may count and wait for it.
        """
        if not self.leaving and not self.is_driven(run):
            self.begin(run, self._persistently(run, None, None))

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        limit = self._max_parallel_tools
        desk = MemoryDesk()
        return await drive_child(parent, run, tool_call_id, stop, desk=desk, max_parallel=limit, wrap=self._wrap)

    async def _when_there_is_room(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None) -> RunEnd:
        async with self._room or nullcontext():
            return await self._persistently(run, hooks, model)

    async def _persistently(
        self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None, begun: Begun | None = None
    ) -> RunEnd:
        """Drive the run. If the store is lost in between, continue as the next attempt once it is back. The same
        happens if the run's stream was lost, which is then created anew, and, a few times, if something in the run
        cancels its driver.

        Raises:
            StoreReplacedError: the store no longer exists, and may never come back; if it does, the run continues.
        """
        cancelled = 0
        for wait in backoff():
            try:
                end = await apart(self._drive(run, hooks, model, begun))
                if end.status != "superseded" or not await self.answers_for(run):
                    return end
                reason = "its stream knows nothing of it"
                lost, pause = SupersededError(run.session_id, run.run_id, run.attempt, reason), wait
            except StoreReplacedError:
                self.in_background(self._take_up_again(run, hooks, model))
                raise
            except HelixError as problem:
                if not problem.retryable:
                    raise
                lost, pause = problem, wait
            except CancelledItselfError as problem:
                cancelled += 1
                if cancelled == MOST_CANCELLED:
                    raise
                # There is nothing to wait for, and the next attempt runs its tools in separate tasks.
                lost, pause = problem, 0.0
            log_exception("run.driver_lost", lost, session_id=run.session_id, run_id=run.run_id)
            begun = None
            try:
                with self.between_attempts(run):
                    await asyncio.sleep(pause)
                    run = self._driven[run.run_id] = await claim(self.services.store, run, self.owner)
            except ConflictError:
                # Another process owns it now, or it is over; then only this process knows what is left to do.
                await end_unheard(self.services, run.run_id)
                return RunEnd(status="superseded")
        raise AssertionError("the waits never end")

    async def _take_up_again(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None) -> None:
        """Continue a run once its store is back in place, or settle it if that is refused: no other process looks after
        it while we live."""
        try:
            with suppress(ConflictError):
                await self.submit(await claim(self.services.store, run, self.owner), hooks=hooks, model=model)
        except Exception as problem:
            log_exception("run.driver_failed", problem, session_id=run.session_id, run_id=run.run_id)
            await self._fail(run, problem)

    async def _fail(self, run: RunRecord, problem: BaseException) -> None:
        """A run whose store no longer exists is not reported as failed: it may well continue."""
        if not isinstance(problem, StoreReplacedError):
            await super()._fail(run, problem)

    async def _drive(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None, begun: Begun | None) -> RunEnd:
        return await drive(
            self.services,
            run.session_id,
            run.fence,
            open_deps=self._open_deps,
            max_parallel=self._max_parallel_tools,
            hooks=hooks,
            model=model,
            wrap=self._wrap,
            leaving=lambda: self.leaving,
            begun=begun,
        )


_: type[Runtime] = Drivers
