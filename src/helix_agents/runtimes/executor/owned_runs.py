"""Runs that this process drives and answers for with one lease: tasks that outlive their callers and leave in order."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from helix_agents.domain.ids import RunId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import Liveness, Services
from helix_agents.engine.settling import fail_run
from helix_agents.runtimes.executor.leases import LeaseKeeper


class OwnedRuns:
    """The tasks of one process, and the lease that says it is alive."""

    services: Services

    def __init__(self, lease: LeaseKeeper) -> None:
        self.leaving = False
        self.works = True
        self._lease = lease
        self._running: dict[RunId, asyncio.Task[RunEnd]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def owner(self) -> str | None:
        return self._lease.owner

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        return self._running.get(run_id)

    async def inspect_owner(self, owner: str) -> Liveness:
        """Whether the process that has this lease is alive."""
        return "dead" if await self.services.store.find_lease(owner) is None else "alive"

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def start(self) -> None:
        await self._lease.start()

    async def idle(self) -> None:
        while self._running:
            await asyncio.wait(tuple(self._running.values()))

    async def leave(self, grace: float) -> None:
        self.leaving = True
        for task in self._background:
            task.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running.values()), timeout=grace)

    async def let_go(self) -> None:
        late = (*self._running.values(), *self._background)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._lease.stop()

    def begin(self, run: RunRecord, work: Coroutine[Any, Any, RunEnd]) -> None:
        """Let a task drive a run."""
        task = asyncio.create_task(work, name=f"helix run {run.run_id}")
        self._running[run.run_id] = task
        task.add_done_callback(lambda done: self._finished(run, done))

    def _finished(self, run: RunRecord, task: asyncio.Task[RunEnd]) -> None:
        self._running.pop(run.run_id, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log_exception("run.driver_failed", problem, session_id=run.session_id, run_id=run.run_id)
            self.in_background(self._fail(run, problem))

    async def _fail(self, run: RunRecord, problem: BaseException) -> None:
        current = await self.services.store.get_current_run(run.session_id)
        if current is not None and (current.run_id, current.owner) == (run.run_id, self._lease.owner):
            # Else somebody else has taken over; it is theirs.
            await fail_run(self.services, run.session_id, current.fence, problem)


def backoff() -> Iterator[float]:
    """Waits in seconds between two tries to reach a store: soon at first, then every half minute."""
    wait = 0.5
    while True:
        yield wait
        wait = min(wait * 2, 30.0)
