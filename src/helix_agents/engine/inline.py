"""Effects that call their bodies directly, for a driver that keeps its run in one process; parallel calls are tasks."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeAlias

from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.desk import Desk
from helix_agents.engine.effects import (
    Ask,
    Batch,
    CallOutcome,
    CommitAck,
    CommitRequest,
    Ops,
    Position,
    Reply,
    RunEnd,
    RunFailed,
    Stopped,
)
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.asking import ask_model
from helix_agents.engine.steps.committing import commit_step
from helix_agents.engine.steps.opening import open_run
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import open_scope
from helix_agents.engine.steps.working import run_call
from helix_agents.engine.turn import run_turn

WrapOps: TypeAlias = Callable[[Ops], Ops]
"""Wraps the effects of a run, for example to record or interrupt them."""


class InlineOps:
    """The four effects of a run whose driver is an asyncio task; once `leaving` is true, it yields at its next step."""

    def __init__(self, scope: RunScope, max_parallel: int | None, leaving: Callable[[], bool] = lambda: False) -> None:
        self._scope = scope
        self._leaving = leaving
        self._room = asyncio.Semaphore(max_parallel) if max_parallel is not None else None

    async def open(self) -> Position:
        return await open_run(self._scope)

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        return await ask_model(self._scope, ask)

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        if len(batch.calls) == 1:
            return (await run_call(self._scope, batch, batch.calls[0]),)
        # Not a task group: on Python 3.11 a task group leaves its own task marked as cancelled when a call fails, which
        # could not be told apart from an executor that is being closed.
        tasks = [asyncio.create_task(self._run(batch, place)) for place in range(len(batch.calls))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        problems = [problem for task in tasks if not task.cancelled() and (problem := task.exception()) is not None]
        if problems:
            raise _weightiest(problems)
        return tuple(task.result() for task in tasks)

    async def commit(self, request: CommitRequest) -> CommitAck:
        return await commit_step(self._scope, request)

    def should_yield(self) -> bool:
        return self._leaving()

    async def _run(self, batch: Batch, place: int) -> CallOutcome:
        async with self._room or nullcontext():
            return await run_call(self._scope, batch, batch.calls[place])


async def drive_child(
    parent: RunScope,
    run: RunRecord,
    tool_call_id: ToolCallId,
    stop: StopSignal,
    *,
    desk: Desk,
    max_parallel: int | None = None,
    wrap: WrapOps | None = None,
) -> RunEnd:
    """Drive a child's run inside its parent's call, in the same process and the same stream."""
    scope = await open_scope(
        parent.services,
        run.session_id,
        run.fence,
        desk=desk,
        stop=stop,
        deps=parent.deps,
        parent=parent,
        delegated_by=tool_call_id,
    )
    if isinstance(scope, Position):
        return ended(scope)
    ops = InlineOps(scope, max_parallel)
    return await run_turn(ops if wrap is None else wrap(ops))


def ended(position: Position) -> RunEnd:
    """The end to report for a run that could not be opened because it was over or had another driver."""
    assert position.ended is not None
    return RunEnd(status=position.ended)


def _weightiest(problems: list[BaseException]) -> BaseException:
    """The problem that decides what follows: another driver took over, else the store was away, else the first."""
    superseded = (problem for problem in problems if isinstance(problem, SupersededError))
    passing = (problem for problem in problems if isinstance(problem, HelixError) and problem.retryable)
    return next(superseded, None) or next(passing, None) or problems[0]
