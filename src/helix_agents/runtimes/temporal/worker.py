"""Temporal's worker, on its own thread and event loop; the effects themselves run where the executor lives.

A tool that blocks its event loop starves whatever else lives there, but not the heartbeats, nor the workflows.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from helix_agents.domain.errors import HelixError
from helix_agents.engine.log import log_exception
from helix_agents.engine.plain import EffectName, Plain
from helix_agents.runtimes.executor.owned_runs import backoff
from helix_agents.runtimes.temporal.options import TemporalOptions
from helix_agents.runtimes.temporal.turns import LEAVING, PASSING, TIMED_OUT
from helix_agents.runtimes.temporal.workflow import Turn, TurnOfAnotherVersion

EFFECTS: tuple[EffectName, ...] = ("open", "ask_model", "run_calls", "commit")
BEATS_PER_TIMEOUT = 4
LONGEST_GRACE_SECONDS = 24 * 3600.0


def sandbox() -> WorkflowRunner:
    """Where workflows run: the loop and its records are passed through, and the workflow's own module is sandboxed."""
    ours = ("helix_agents.domain", "helix_agents.engine", "helix_agents.runtimes.temporal.turns", "msgspec")
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*ours))


class WorkerThread:
    """Polls a task queue until it is stopped. `perform` runs on the loop that starts this."""

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str,
        options: TemporalOptions,
        perform: Callable[[EffectName, Plain], Awaitable[Plain]],
        grace: float,
    ) -> None:
        self._client = client
        self._task_queue = task_queue
        self._options = options
        self._perform = perform
        self._grace = grace
        self._begun = threading.Event()
        self._was_ready = False
        self._thread = threading.Thread(target=self._run, name="helix temporal worker", daemon=True)

    async def start(self) -> None:
        """Get ready for work."""
        self._home = asyncio.get_running_loop()
        self._ready = self._home.create_future()
        self._thread.start()
        try:
            await self._ready
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Take nothing new, give running work its grace period, and end; idempotent."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._begun.wait)
            self._loop.call_soon_threadsafe(self._stopping.set)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as problem:
            self._tell_home(self._failed, problem)

    async def _work(self) -> None:
        """Poll until this is stopped. A worker that is rejected later on, as when its key has expired, comes back;
        otherwise the process would live on and do nothing."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._begun.set()
        for wait in backoff():
            try:
                await self._poll()
                return
            except Exception as problem:
                log_exception("temporal.worker_failed", problem, task_queue=self._task_queue)
                if not self._was_ready:
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()
                return

    async def _poll(self) -> None:
        options = self._options
        worker = Worker(
            self._client,
            task_queue=self._task_queue,
            workflows=[Turn, TurnOfAnotherVersion],
            activities=[self._activity(effect) for effect in EFFECTS],
            workflow_runner=sandbox(),
            # An error in a workflow, including a history that does not match, fails it; otherwise it would hang.
            workflow_failure_exception_types=[Exception],
            max_concurrent_activities=options.max_effects,
            max_concurrent_local_activities=options.max_short_effects,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=options.sticky_seconds),
            max_heartbeat_throttle_interval=timedelta(seconds=options.heartbeat_seconds / BEATS_PER_TIMEOUT),
            default_heartbeat_throttle_interval=timedelta(seconds=options.heartbeat_seconds / BEATS_PER_TIMEOUT),
            graceful_shutdown_timeout=timedelta(seconds=min(self._grace, LONGEST_GRACE_SECONDS)),
        )
        async with worker:
            self._was_ready = True
            self._tell_home(self._is_ready)
            await self._stopping.wait()

    def _activity(self, effect: EffectName) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
        @activity.defn(name=effect)
        async def run(work: dict[str, Any]) -> dict[str, Any]:
            info = activity.info()
            try:
                async with asyncio.timeout(_seconds(info.start_to_close_timeout)), _beating(info.heartbeat_timeout):
                    return await self._at_home(effect, work)
            except TimeoutError:
                raise ApplicationError("its time is up", type=TIMED_OUT) from None

        return run

    async def _at_home(self, effect: EffectName, work: Plain) -> Plain:
        """Perform the effect on the executor's loop.

        Raises:
            ApplicationError: it was not done; its type says what a workflow makes of that.
        """

        async def perform() -> Plain:
            return await self._perform(effect, work)

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(perform(), self._home))
        except HelixError as problem:
            log_exception("run.effect_failed", problem, effect=effect, session_id=work["session_id"])
            # Other sentences may show a value of the state, and no history holds any.
            told = str(problem) if problem.retryable else f"{problem.code}: the log of this worker says more"
            raise ApplicationError(told, type=PASSING, non_retryable=True) from None
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            # Nothing went wrong, so Temporal should not warn about it.
            planned = ApplicationErrorCategory.BENIGN
            raise ApplicationError("this worker ends", type=LEAVING, non_retryable=True, category=planned) from None

    def _tell_home(self, what: Callable[..., None], *given: Any) -> None:
        if not self._home.is_closed():
            self._home.call_soon_threadsafe(what, *given)

    def _is_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _failed(self, problem: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(problem)


@asynccontextmanager
async def _beating(timeout: timedelta | None) -> AsyncGenerator[None]:
    """Tell Temporal from time to time that an effect is running; not for a short one."""
    if timeout is None:
        yield
        return

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(timeout.total_seconds() / BEATS_PER_TIMEOUT)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


def _seconds(limit: timedelta | None) -> float | None:
    return None if limit is None else limit.total_seconds()
