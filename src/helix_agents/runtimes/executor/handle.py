"""A handle on one run: watch it, wait for it, stop it. It works in any process, whichever process drives the run."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Any, Generic

from helix_agents.agent.agent import Agent
from helix_agents.agent.growing_output import growing_output
from helix_agents.agent.output import OutputT
from helix_agents.domain.chunks import RunResumed, RunStarted, StreamChunk, TextDelta
from helix_agents.domain.errors import (
    ExecutorClosedError,
    HelixError,
    RunNotCompletedError,
    StoreReplacedError,
    StreamFailedError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptOutcome, StopKind
from helix_agents.domain.usage import UsageRollup
from helix_agents.engine.costs import prices_of
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.requests.stopping import stop_session
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ending import completed_result, repair_stream, result_of
from helix_agents.ports.prices import with_cost
from helix_agents.ports.usage_store import UsageStore

# How often, in seconds, to check on a run that another process drives.
LOOK_AGAIN = 0.5
# How often a reader makes sure that its stream will come to an end; well within one lease.
LOOK_FOR_END = 5.0
# The time a process has between a run's last commit and the end of its stream.
A_MOMENT = 0.05


class RunHandle(Generic[OutputT]):
    """One run of a session: watch it, wait for it, stop it, in any process, whichever process drives it.

    `execute`, `resume`, `retry` and `get_handle` of an executor return one.
    """

    def __init__(
        self,
        services: Services,
        agent: Agent[Any, OutputT, Any],
        run: RunRecord,
        *,
        usage: UsageStore,
        driver: asyncio.Task[RunEnd] | None = None,
    ) -> None:
        self._services = services
        self._agent = agent
        self._run = run
        self._usage = usage
        self._driver = driver

    @property
    def session_id(self) -> SessionId:
        return self._run.session_id

    @property
    def run_id(self) -> RunId:
        return self._run.run_id

    @property
    def was_queued(self) -> bool:
        """Whether the run had to wait for its turn when it was sent; the methods of this handle then wait as well."""
        return False

    async def begun(self) -> "RunHandle[OutputT]":
        """The run itself, once it has started: at once, unless it had to wait for its turn."""
        return self

    @property
    def is_driven_here(self) -> bool:
        """Whether this process drives the run: while it does, no other process has to look after it."""
        return self._run.owner is not None and self._driver is not None and not self._driver.done()

    async def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        """The run's chunks, from its start or after a sequence. Ends when the run does, and never raises for a run that
        failed: its `error` chunk says so."""
        begin = self._run.start_sequence if from_sequence is None else from_sequence
        is_over, stream_id = False, self.session_id
        streams = self._services.streams
        wait = 0.01
        while (reader := await streams.create_resumable_reader(stream_id, from_sequence=begin)) is None:
            if is_over:
                return
            stream_id = (await self._services.store.load_state(self.session_id)).stream_id or self.session_id
            # A short run may start and end in the meantime; then its stream is there at the next look.
            is_over = await self._is_over()
            if not is_over:
                await self._services.sleep(wait)
                # A child has no stream while it lives: its chunks are in its root's stream.
                wait = min(wait * 2, 2 * LOOK_AGAIN)
        repairing = asyncio.create_task(self._end_when_over())
        try:
            async for chunk in reader:
                if self._begins_a_later_one(chunk):
                    return
                yield chunk
        except StreamFailedError:
            return
        finally:
            repairing.cancel()
            await reader.close()

    async def text(self) -> AsyncGenerator[str, None]:
        """The text of the answer as it is written, piece by piece."""
        async for chunk in self.stream():
            if isinstance(chunk, TextDelta) and chunk.session_id == self.session_id:
                yield chunk.delta

    def partial_output(self) -> AsyncGenerator[Any, None]:
        """The output while the model writes it: each time as much as can be read, and at last all of it.

        It is a text, or plain JSON under the names that the model uses, and only the last one was validated. It starts
        again if the model does.
        """
        speakers = self._services.agents.circle_of(self._agent)
        return growing_output(self.stream(), self.session_id, lambda name: speakers.get(name, self._agent).output_type)

    async def result(self) -> RunResult[OutputT]:
        """Wait for the run to end, in whichever process it is driven, and return how it ended.

        Raises:
            ExecutorClosedError: this process let go of the run before its end; another one continues it.
            StoreReplacedError: the store's file no longer exists.
        """
        # A task that ends wakes no waiter in another event loop; there the store is polled.
        if self._driver is not None and self._driver.get_loop() is asyncio.get_running_loop():
            await asyncio.wait((self._driver,))
            if self._driver.cancelled() or _was_left(self._driver):
                raise ExecutorClosedError
            problem = self._driver.exception()
            if isinstance(problem, StoreReplacedError):
                raise StoreReplacedError(*problem.args) from problem
            end = self._driver.result() if problem is None else None
            if end is not None and end.run is not None and end.status == "completed":
                return completed_result(self._agent, end.run)
        while True:
            result = await result_of(self._services, self._agent, self.session_id, self.run_id)
            if result is not None:
                return result
            await self._services.sleep(LOOK_AGAIN)

    async def output(self) -> OutputT:
        """Wait for the run to complete, and return its output.

        Raises:
            RunNotCompletedError: it ended in another way.
        """
        return output_of(await self.result())

    async def interrupt(self, reason: str | None = None) -> InterruptOutcome:
        """Ask the run to stop soon, keeping what it did; `resume` continues it. A run that waits is settled, after its
        companions had time to stop. If later runs followed this one, it is over, and they are left alone."""
        return await self._stop("interrupt", reason)

    async def abort(self, reason: str | None = None) -> InterruptOutcome:
        """Fail the run for good."""
        return await self._stop("abort", reason)

    async def usage(self) -> UsageRollup:
        """What the session and everything below it have used so far, and what that costs, as far as the agent or the
        provider's price list knows."""
        used = await self._usage.get_usage_rollup(self.session_id)
        # A price list is read from a file when it is first needed.
        return await self._services.in_thread(partial(with_cost, used, prices_of(self._agent)))

    async def _stop(self, kind: StopKind, reason: str | None) -> InterruptOutcome:
        return await stop_session(self._services, self.session_id, kind, reason, run_id=self.run_id)

    def _begins_a_later_one(self, chunk: StreamChunk) -> bool:
        """Whether this chunk starts a later run of the session: a slow reader may reach it without seeing an end."""
        if not isinstance(chunk, RunStarted | RunResumed) or chunk.session_id != self.session_id:
            return False
        return chunk.turn > self._run.turn

    async def _end_when_over(self) -> None:
        """End the stream of a run whose process died between its last commit and the end of the stream, so that no
        reader waits forever.

        A living process ends it within a moment, hence the second look. A run that was over before the reader came has
        had its moment; most of its readers have left before it is checked.
        """
        looks_over, wait = 0, LOOK_FOR_END
        if self._run.status != "running" and self._driver is None:
            looks_over, wait = 1, A_MOMENT
        while True:
            await self._services.sleep(wait)
            wait = LOOK_FOR_END
            with suppress(HelixError):
                looks_over += await self._is_over()
                if looks_over > 1:
                    await self._end_stream()
                    return

    async def _end_stream(self) -> None:
        run = await self._services.store.get_run(self.run_id)
        if run is not None:
            await repair_stream(self._services, run)

    async def _is_over(self) -> bool:
        return await result_of(self._services, self._agent, self.session_id, self.run_id) is not None


def output_of(result: RunResult[OutputT]) -> OutputT:
    """The output of a run that completed.

    Raises:
        RunNotCompletedError: it ended in another way; the message says what to do.
    """
    match result:
        case Completed(output=output):
            return output
        case Failed(code=code, error=error):
            problem = (code, error)
        case Suspended(pending=calls) as waiting:
            named = ", ".join(f"{call.tool_name} ({call.tool_call_id})" for call in calls) or "its children"
            cure = "answer with submit_tool_result and continue with resume, or match on result()"
            problem = (waiting.status, f"it waits for {named}; {cure}.")
        case Interrupted(status=status, reason=reason):
            why = "it was stopped" + (f": {reason}" if reason else "")
            problem = (status, f"{why}; resume continues it.")
    raise RunNotCompletedError(result.session_id, result.run_id, *problem)


def _was_left(driver: asyncio.Task[RunEnd]) -> bool:
    return driver.exception() is None and driver.result().status == "yielded"
