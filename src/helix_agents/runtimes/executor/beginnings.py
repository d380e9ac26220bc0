"""How a run starts in this process: checks before it, the commit that decides which process runs, and the handle."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.output import OutputT
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import AgentAlreadyRunningError, ConflictError, ExecutorClosedError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import Services
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.executor.inputs import check_of_one_call
from helix_agents.runtimes.executor.left_to_others import LeftToOthers
from helix_agents.runtimes.executor.models import Models
from helix_agents.runtimes.executor.recovery import take_over
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.settings import check_memory_has_a_place, check_workspaces_apart
from helix_agents.runtimes.executor.starting import start_run

T = TypeVar("T")


class Beginnings:
    """Starts planned runs and takes over runs whose process died; `began` is called for the former, with whether they
    continue after a pause."""

    def __init__(
        self,
        services: Services,
        runtime: Runtime,
        *,
        models: Models,
        left: LeftToOthers,
        usage: UsageStore,
        began: Callable[[SessionId, bool], None],
    ) -> None:
        self._services = services
        self._runtime = runtime
        self._models = models
        self._left = left
        self._usage = usage
        self._began = began

    async def begin(
        self,
        agent: Agent[Any, OutputT, Any],
        start: StartRun,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
        after_a_pause: bool = False,
    ) -> RunHandle[OutputT]:
        """Commit the start, which decides who runs, and submit it. Cancelling the caller does not stop this
        half-way."""
        if self._runtime.leaving:
            raise ExecutorClosedError
        adapter = self.check(agent, model, hooks)
        owned = msgspec.structs.replace(start, owner=self._runtime.owner, call_hooks=hooks is not None)
        began = partial(self._began, owned.session_id, after_a_pause)
        starting = start_run(self._services, self._runtime, owned, hooks=hooks, model=adapter, began=began)
        return self.handle_of(agent, await self.to_the_end(starting))

    async def begin_quietly(self, agent: AnyAgent, start: StartRun) -> None:
        """Start a run that nothing here waits for."""
        await self.begin(agent, start, hooks=None, model=None)

    async def take_over(
        self, agent: Agent[Any, OutputT, Any], dead: RunRecord, *, hooks: SomeHooks, model: str | LLMAdapter | None
    ) -> RunHandle[OutputT]:
        """Continue a run whose process died, as its next attempt."""
        adapter = self.check(agent, model, hooks)
        taking = take_over(self._services, self._runtime, dead, hooks=hooks, model=adapter)
        try:
            run = await self.to_the_end(taking)
        except ConflictError as lost:
            raise AgentAlreadyRunningError(dead.session_id, dead.run_id) from lost
        return self.handle_of(agent, run)

    def handle_of(self, agent: Agent[Any, OutputT, Any], run: RunRecord) -> RunHandle[OutputT]:
        """A handle on a run, which waits for its driver if that is here."""
        return RunHandle(self._services, agent, run, usage=self._usage, driver=self._runtime.find(run.run_id))

    def check(self, agent: AnyAgent, model: str | LLMAdapter | None, hooks: SomeHooks) -> LLMAdapter | None:
        """The model passed to this call. A run is refused before anything is written if its models, including those of
        its sub-agents and of agents that may take over, cannot be opened here, if its tools take deps that nothing
        opens here, or if its driver is in another process and would not get what was passed.

        Raises:
            InvalidInputError, UnknownModelError, MissingExtraError, DefinitionError, DepsNotOpenedError: it cannot be
                started like this.
        """
        check_of_one_call(hooks, model, works=self._runtime.works)
        self._left.check(agent)
        adapter = None if model is None else self._models.adapter_of(model)
        for each in self._services.agents.circle_of(agent).values():
            check_memory_has_a_place(each, self._services.memories)
            check_workspaces_apart(each, self._services.agents)
            if adapter is not None and each.provider_tools:
                each.check_runs_provider_tools(adapter)
            if adapter is None and self._runtime.works:
                self._models.open_all_of(each)
        return adapter

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that must not stop half-way when its caller is cancelled. If it fails after that, the log says so.

        Raises:
            ExecutorClosedError: this process is leaving; other processes find what was started.
        """
        doing = self._runtime.in_background(work)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            # Both may be cancelled at once, as all background work is when this process leaves.
            if doing.cancelled() and not (caller is not None and caller.cancelling()):
                raise ExecutorClosedError from None
            doing.add_done_callback(_log_failure)
            raise


def _log_failure(done: asyncio.Task[Any]) -> None:
    """Log how work failed for whose end nobody waits any more."""
    problem = None if done.cancelled() else done.exception()
    if problem is not None:
        log_exception("caller_left.failed", problem)
