"""The runs this process drives: tasks that outlive their callers, survive a lost store, and leave in good order."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import ConflictError, HelixError
from helix_agents.domain.ids import RunId, ToolCallId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.effects import Ops, RunEnd
from helix_agents.engine.ending import end_stream
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.stop import StopSignal
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.in_process.driver import OpenDeps, drive, drive_child


class Drivers:
    """All drivers of one process. `wrap` gets the effects of every run before its loop does."""

    services: Services

    def __init__(
        self,
        owner: str,
        *,
        open_deps: OpenDeps | None,
        max_running: int | None,
        max_parallel_tools: int | None,
        wrap: Callable[[Ops], Ops],
    ) -> None:
        self.leaving = False
        self._owner = owner
        self._open_deps = open_deps
        self._max_parallel_tools = max_parallel_tools
        self._wrap = wrap
        self._room = asyncio.Semaphore(max_running) if max_running is not None else None
        self._running: dict[RunId, asyncio.Task[RunEnd]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        """The driver of a run, if it is driven here."""
        return self._running.get(run_id)

    def drive(self, run: RunRecord, *, hooks: SomeHooks = None, model: LLMAdapter | None = None) -> None:
        """Drive a run as soon as there is room for it."""
        self._begin(run, self._when_there_is_room(run, hooks, model))

    def drive_detached(self, run: RunRecord) -> None:
        """Drive a companion that stands on its own, unless it is driven here already or will be elsewhere.

        It takes no place of `max_running`: whoever started it may have one, and wait for it.
        """
        if not self.leaving and run.run_id not in self._running:
            self._begin(run, self._persistently(run, None, None))

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        """Drive a child inside its parent's call."""
        limit = self._max_parallel_tools
        return await drive_child(parent, run, tool_call_id, stop, max_parallel=limit, wrap=self._wrap)

    def take_over(self, run: RunRecord) -> None:
        """Drive a run that was claimed from a process that died."""
        log_event("run.recovered", session_id=run.session_id, run_id=run.run_id, attempt=run.attempt)
        if run.call_hooks:
            log_event("hooks.call_hooks_lost", session_id=run.session_id, run_id=run.run_id)
        self.drive(run)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside the runs, until it is done or the process leaves."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def idle(self) -> None:
        """Wait until nothing is driven here."""
        while self._running:
            await asyncio.wait(tuple(self._running.values()))

    async def leave(self, grace: float) -> None:
        """Let running steps commit for `grace` seconds; runs stop at their next step."""
        self.leaving = True
        for task in self._background:
            task.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running.values()), timeout=grace)

    async def let_go(self) -> None:
        """Drop whatever still runs; nothing that was committed is lost."""
        late = (*self._running.values(), *self._background)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _begin(self, run: RunRecord, work: Coroutine[Any, Any, RunEnd]) -> None:
        task = asyncio.create_task(work, name=f"helix run {run.run_id}")
        self._running[run.run_id] = task
        task.add_done_callback(lambda done: self._finished(run, done))

    async def _when_there_is_room(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None) -> RunEnd:
        if self._room is None:
            return await self._persistently(run, hooks, model)
        async with self._room:
            return await self._persistently(run, hooks, model)

    async def _persistently(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None) -> RunEnd:
        """Drive the run; when the store is lost in between, go on as the next attempt once it is back."""
        for wait in _backoff():
            try:
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
                )
            except HelixError as problem:
                if not problem.retryable:
                    raise
                log_exception("run.driver_lost", problem, session_id=run.session_id, run_id=run.run_id)
            await asyncio.sleep(wait)
            try:
                run = await self.services.store.claim_run(run.session_id, run.fence, self._owner)
            except ConflictError:
                return RunEnd(status="superseded")
            except HelixError as problem:
                log_exception("run.driver_lost", problem, session_id=run.session_id, run_id=run.run_id)
        raise AssertionError("the waits never end")

    def _finished(self, run: RunRecord, task: asyncio.Task[RunEnd]) -> None:
        self._running.pop(run.run_id, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log_exception("run.driver_failed", problem, session_id=run.session_id, run_id=run.run_id)
            self.in_background(self._fail(run, problem))

    async def _fail(self, run: RunRecord, problem: BaseException) -> None:
        """Settle a run that cannot be driven, so that nobody waits for it; retry begins from its last commit."""
        store = self.services.store
        current = await store.get_current_run(run.session_id)
        if current is None or current.run_id != run.run_id or current.owner != self._owner:
            # Somebody else has taken over; it is theirs.
            return
        code = problem.code if isinstance(problem, HelixError) else "internal_error"
        await store.settle_session(
            SettleSession(
                session_id=run.session_id,
                expected=("active", "paused"),
                expected_run=current.fence,
                status="failed",
                error=str(problem),
                failure_reason=code,
                completion_reason=code,
            )
        )
        ended = await store.get_run(run.run_id)
        if ended is not None:
            await end_stream(self.services.streams, await store.load_state(run.session_id), ended)


def _backoff() -> Iterator[float]:
    """Waits in seconds between two tries to reach a store: soon at first, then every half minute."""
    wait = 0.5
    while True:
        yield wait
        wait = min(wait * 2, 30.0)
