"""A run that is driven in a workflow of this process, and its calls that have their own workflows."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias

from helix_agents.domain.runs import RunRecord
from helix_agents.engine.live_runs import LiveRuns
from helix_agents.engine.plain import CallsRequest, Plain
from helix_agents.runtimes.executor.claimed_runs import ClaimedRun

MakeCall: TypeAlias = "Callable[[Driven, Plain], Coroutine[Any, Any, Plain]]"
"""Makes a call of a run, in the workflow in which it is called."""


class Driven(ClaimedRun):
    """`lost` is done once a call of this run was released, so that nothing waits for it."""

    def __init__(
        self,
        runs: LiveRuns,
        run: RunRecord,
        owner: str,
        *,
        make: MakeCall,
        max_parallel_tools: int | None,
        above: "tuple[Driven, CallsRequest] | None",
    ) -> None:
        super().__init__(runs, run, owner, above=above)
        self.loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self.room: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(max_parallel_tools) if max_parallel_tools is not None else nullcontext()
        )
        self.calls: dict[str, asyncio.Task[Any]] = {}
        self._make = make

    def make(self, request: Plain) -> Coroutine[Any, Any, Plain]:
        return self._make(self, request)

    def let_go(self) -> None:
        """Tell everything that waits for a call."""
        if not self.lost.done():
            self.lost.set_result(None)

    async def end_calls(self) -> None:
        """End calls that are still running; nothing waits for them any more."""
        left = [task for task in self.calls.values() if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
