"""How a turn begins in a session that may be busy: now or not at all, after the turns before it, or instead of them."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from helix_agents.agent.agent import Agent
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.output import OutputT
from helix_agents.domain.budgets import Budget
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    ConflictError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import QueuedTurn, run_id_for
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.requests.start_plans import NewSession, began_with, plan_execute, queued_turn, waiting_turn
from helix_agents.engine.services import Services
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.handle import A_MOMENT, LOOK_AGAIN, RunHandle
from helix_agents.runtimes.executor.turn_queue import QueuedRunHandle, TurnQueue


@dataclass(frozen=True, kw_only=True)
class WantedTurn:
    """A turn as its caller wants it; one with the same `key` is the same turn."""

    session_id: SessionId
    messages: tuple[UserMessage, ...]
    new: NewSession
    expires_in_ms: int | None
    key: str | None
    budget: Budget | None


class Begin(Protocol):
    """Commits a start and submits its run."""

    async def __call__(
        self,
        agent: Agent[Any, OutputT, Any],
        start: StartRun,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]: ...


class HandleOf(Protocol):
    """A handle on a run of an agent."""

    def __call__(self, agent: Agent[Any, OutputT, Any], run: RunRecord) -> RunHandle[OutputT]: ...


class GetHandle(Protocol):
    """A handle on the current run of a session."""

    async def __call__(self, agent: Agent[Any, OutputT, Any], session_id: SessionId) -> RunHandle[OutputT] | None: ...


class Turns:
    """Begins the turns that callers want."""

    def __init__(
        self,
        services: Services,
        *,
        usage: UsageStore,
        queue: TurnQueue,
        begin: Begin,
        handle_of: HandleOf,
        get_handle: GetHandle,
        stop: Callable[[SessionId], Awaitable[object]],
    ) -> None:
        self._services = services
        self._usage = usage
        self._queue = queue
        self._begin = begin
        self._handle_of = handle_of
        self._get_handle = get_handle
        self._stop = stop

    async def begun(self, agent: Agent[Any, OutputT, Any], wanted: WantedTurn) -> RunHandle[OutputT] | None:
        """The session's current run, if the same call began it before."""
        if wanted.key is None or not await began_with(self._services.store, wanted.session_id, wanted.key):
            return None
        return await self._get_handle(agent, wanted.session_id)

    async def now(
        self,
        agent: Agent[Any, OutputT, Any],
        wanted: WantedTurn,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]:
        """Begin it, disturbing nobody.

        Raises:
            AgentAlreadyRunningError, ConflictError, SessionAlreadyExistsError: somebody else was faster.
        """
        try:
            waits = await self._waits(wanted)
            start = await self._planned(agent, wanted, waits, queued=waits is not None)
            return await self._begin(agent, start, hooks=hooks, model=model)
        except (ConflictError, SessionAlreadyExistsError):
            # It may have been the same call that was faster.
            begun = await self.begun(agent, wanted)
            if begun is None:
                raise
            return begun

    async def instead_of_others(
        self,
        agent: Agent[Any, OutputT, Any],
        wanted: WantedTurn,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]:
        """Stop what goes on, each run once, and begin after it."""
        stopped: RunId | None = None
        wait = A_MOMENT
        while True:
            try:
                return await self.now(agent, wanted, hooks=hooks, model=model)
            except ConflictError as lost:
                # Whoever was first goes on, or is over already.
                if isinstance(lost, AgentAlreadyRunningError) and lost.run_id != stopped:
                    await self._stop(wanted.session_id)
                    stopped = lost.run_id
                await self._services.sleep(wait)
                wait = min(wait * 2, LOOK_AGAIN)

    async def after_others(self, agent: Agent[Any, OutputT, Any], wanted: WantedTurn) -> RunHandle[OutputT]:
        """Begin it now, or have it wait behind those that came before.

        Raises:
            QueueFullError: too many wait already.
        """
        services, session_id, key = self._services, wanted.session_id, wanted.key
        turn = queued_turn(
            services,
            agent,
            session_id,
            wanted.messages,
            state=wanted.new.state,
            expires_in_ms=wanted.expires_in_ms,
            run_id=None if key is None else run_id_for(session_id, key),
            budget=wanted.budget,
        )
        while True:
            known = None if key is None else await services.store.get_run(turn.run_id)
            if known is not None:
                return self._handle_of(agent, known)
            waiting = await waiting_turn(services, agent, turn)
            if waiting is None:
                # Somebody else may be first, perhaps with the same call.
                with suppress(ConflictError, SessionAlreadyExistsError):
                    start = await self._planned(agent, wanted, turn.run_id)
                    return await self._begin(agent, start, hooks=None, model=None)
                continue
            stored = await self._queue.put(waiting)
            if stored is not None:
                return self._queued_handle(agent, stored)

    async def waiting(
        self, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId
    ) -> RunHandle[OutputT] | None:
        """A turn that waits in the session's queue, whoever put it there."""
        try:
            queued = await self._services.store.list_queued(session_id)
        except SessionNotFoundError:
            return None
        turn = next((each for each in queued if each.run_id == run_id), None)
        return None if turn is None else self._queued_handle(agent, turn)

    def _queued_handle(self, agent: Agent[Any, OutputT, Any], turn: QueuedTurn) -> RunHandle[OutputT]:
        return QueuedRunHandle(
            self._services, agent, turn, usage=self._usage, queue=self._queue, handle_of=self._handle_of
        )

    async def _waits(self, wanted: WantedTurn) -> RunId | None:
        """The run that the same call is to be, if that has it wait in the queue: whoever says it again means that one,
        and it leaves the queue for whatever is to happen to it now."""
        if wanted.key is None:
            return None
        run_id = run_id_for(wanted.session_id, wanted.key)
        with suppress(SessionNotFoundError):
            waiting = await self._services.store.list_queued(wanted.session_id)
            return run_id if any(turn.run_id == run_id for turn in waiting) else None
        return None

    async def _planned(
        self,
        agent: Agent[Any, OutputT, Any],
        wanted: WantedTurn,
        run_id: RunId | None = None,
        *,
        queued: bool = False,
    ) -> StartRun:
        return await plan_execute(
            self._services,
            agent,
            wanted.session_id,
            wanted.messages,
            wanted.new,
            expires_in_ms=wanted.expires_in_ms,
            run_id=run_id,
            queued=queued,
            budget=wanted.budget,
        )
