"""Runs that this process drives and covers with one lease: tasks that outlive their callers and leave in order."""

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from helix_agents.domain.errors import CallerError, ConflictError, HelixError
from helix_agents.domain.ids import RunId
from helix_agents.domain.runs import Fence, KnownAs, RunRecord
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.log import log_exception
from helix_agents.engine.requests.settling import fail_run
from helix_agents.engine.services import Liveness, OpenDeps, Services
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.runtimes.executor.leases import LeaseKeeper

T = TypeVar("T")


class OwnedRuns:
    """The tasks of one process, and the lease that says it is alive."""

    services: Services

    def __init__(self, lease: LeaseKeeper, open_deps: OpenDeps | None) -> None:
        self.leaving = False
        self.works = True
        self._open_deps = open_deps
        self._lease = lease
        self._running: dict[RunId, asyncio.Task[RunEnd]] = {}
        self._driven: dict[RunId, RunRecord] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._between: set[RunId] = set()

    @property
    def owner(self) -> str | None:
        return self._lease.owner

    @property
    def opens_deps(self) -> bool:
        return self._open_deps is not None or not self.works

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        return self._running.get(run_id)

    def is_driven(self, run: RunRecord) -> bool:
        """Whether a task here drives this attempt of the run, or a later one."""
        driven = self._driven.get(run.run_id)
        return driven is not None and driven.attempt >= run.attempt

    async def inspect_owner(self, run: RunRecord) -> Liveness:
        """Whether the process that holds a run's lease is alive. About its own runs a process knows better than the
        lease, which may have expired while the machine slept or the store was away."""
        assert run.owner is not None
        if run.owner == self._lease.owner and self.is_driven(run):
            return "alive"
        return "dead" if await self.services.store.find_lease(run.owner) is None else "alive"

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def tidy(self) -> int:
        return 0

    async def start(self) -> None:
        await self._lease.start()

    async def idle(self) -> None:
        while self._running:
            await asyncio.wait(tuple(self._running.values()))

    async def leave(self, grace: float) -> None:
        self.leaving = True
        for task in (*self._background, *(self._running[run_id] for run_id in self._between)):
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
        """Let a task drive a run; an earlier attempt of it that still works here continues beside it."""
        task = asyncio.create_task(work, name=f"helix run {run.run_id}")
        earlier = self._running.get(run.run_id)
        if earlier is not None:
            self._background.add(earlier)
            earlier.add_done_callback(self._background.discard)
        self._running[run.run_id] = task
        self._driven[run.run_id] = run
        task.add_done_callback(lambda done: self._finished(run, done))

    @contextmanager
    def between_attempts(self, run: RunRecord) -> Generator[None]:
        """A block in which a run's task only waits for a store to come back: a process that leaves does not wait for
        that.

        Raises:
            LetGo: this process is leaving.
        """
        if self.leaving:
            raise LetGo
        self._between.add(run.run_id)
        try:
            yield
        finally:
            self._between.discard(run.run_id)

    async def answers_for(self, run: RunRecord) -> bool:
        """Whether this process holds this attempt of a run and the run is running: then no other process looks after
        it."""
        current = await self.services.store.get_current_run(run.session_id)
        if current is None or current.status != "running":
            return False
        return (current.fence, current.owner) == (run.fence, self._lease.owner)

    def _finished(self, run: RunRecord, task: asyncio.Task[RunEnd]) -> None:
        if self._running.get(run.run_id) is task:
            del self._running[run.run_id], self._driven[run.run_id]
        if not task.cancelled() and (problem := task.exception()) is not None:
            log_exception("run.driver_failed", problem, session_id=run.session_id, run_id=run.run_id)
            self.in_background(self._fail(run, problem))

    async def _fail(self, run: RunRecord, problem: BaseException) -> None:
        """Settle a run whose driver broke as soon as the store allows, whatever is wrong with the store until then: no
        other process looks after the run while we live."""
        for wait in backoff():
            try:
                current = await self.services.store.get_current_run(run.session_id)
                if current is not None and (current.run_id, current.owner) == (run.run_id, self._lease.owner):
                    # Otherwise another process has taken over, and it is theirs.
                    await fail_run(self.services, run.session_id, current.fence, problem)
                return
            except Exception as lost:
                log_exception("run.not_failed", lost, session_id=run.session_id, run_id=run.run_id)
            await asyncio.sleep(wait)


async def claim(
    store: SessionStateStore, run: RunRecord, owner: str | None, *, known_as: KnownAs | None = None
) -> RunRecord:
    """Take a run over as its next attempt, reliably. While this process lives, no other process finds a run that it has
    claimed, so if the reply to a claim was lost, the claim is looked up until the store answers.

    A run without an owner is found by any process that looks for it, so there nothing is lost.

    Raises:
        ConflictError: another process has the run, or it is over.
    """
    mine = Fence(run_id=run.run_id, attempt=run.attempt + 1)
    unheard = False
    for wait in backoff():
        try:
            if unheard:
                current = await store.get_current_run(run.session_id)
                if current is not None and (current.fence, current.owner) == (mine, owner):
                    return current
            return await store.claim_run(run.session_id, run.fence, owner, known_as=known_as)
        except HelixError as problem:
            is_answer = isinstance(problem, ConflictError | CallerError)
            if is_answer or owner is None or not (problem.retryable or unheard):
                raise
            unheard = True
            log_exception("run.claim_unheard", problem, session_id=run.session_id, run_id=run.run_id)
        await asyncio.sleep(wait)
    raise AssertionError("the waits never end")


class LetGo(asyncio.CancelledError):
    """Leaves a run on purpose and without a trace: another process has it, or will have it."""


class CancelledItselfError(Exception):
    """Work that was to continue was cancelled by something inside it."""


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """Do work in its own task, which ends with the caller's: any other cancellation comes from the work itself.

    Raises:
        CancelledItselfError: the work cancelled itself.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
    try:
        return task.result()
    except LetGo:
        raise
    except asyncio.CancelledError as problem:
        raise CancelledItselfError("Something in the run cancelled the task that drives it.") from problem


def backoff() -> Iterator[float]:
    """Waits in seconds between two attempts to reach a store: short at first, then half a minute each."""
    wait = 0.5
    while True:
        yield wait
        wait = min(wait * 2, 30.0)
