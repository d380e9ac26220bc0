"""How a turn starts in a session that may be busy: now or not at all, after the turns before it, or instead of them."""

from collections.abc import Awaitable, Callable, Sequence
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
from helix_agents.domain.sessions import BranchPoint
from helix_agents.engine.requests.new_turns import NewSession, began_with, plan_execute, queued_turn, waiting_turn
from helix_agents.engine.services import Services
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.beginnings import Beginnings
from helix_agents.runtimes.executor.handle import A_MOMENT, LOOK_AGAIN, RunHandle
from helix_agents.runtimes.executor.inputs import IfRunning, branch_of, metadata_of, tags_of, user_of
from helix_agents.runtimes.executor.turn_queue import QueuedRunHandle, TurnQueue


@dataclass(frozen=True, kw_only=True)
class WantedTurn:
    """A turn as its caller wants it; a turn with the same `key` is the same turn."""

    session_id: SessionId
    messages: tuple[UserMessage, ...]
    new: NewSession
    expires_in_ms: int | None
    key: str | None
    budget: Budget | None


def new_session(
    branch: BranchPoint | None,
    state: Any,
    user_id: str | None,
    tags: Sequence[str],
    metadata: dict[str, str] | None,
    *,
    required: bool,
    only_own: bool,
) -> NewSession:
    """What a caller specifies for a session that may not exist yet.

    Raises:
        InvalidInputError: an argument is invalid.
    """
    return NewSession(
        branch=branch_of(branch),
        state=state,
        user_id=user_of(user_id),
        tags=tags_of(tags),
        metadata=metadata_of(metadata),
        required=required,
        only_own=only_own,
    )


class GetHandle(Protocol):
    """A handle on the current run of a session."""

    async def __call__(self, agent: Agent[Any, OutputT, Any], session_id: SessionId) -> RunHandle[OutputT] | None: ...


class Turns:
    """Starts the turns that callers want."""

    def __init__(
        self,
        services: Services,
        *,
        usage: UsageStore,
        queue: TurnQueue,
        beginnings: Beginnings,
        get_handle: GetHandle,
        stop: Callable[[SessionId], Awaitable[object]],
    ) -> None:
        self._services = services
        self._usage = usage
        self._queue = queue
        self._beginnings = beginnings
        self._get_handle = get_handle
        self._stop = stop

    async def begin(
        self,
        agent: Agent[Any, OutputT, Any],
        wanted: WantedTurn,
        if_running: IfRunning,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]:
        """Start the turn once, however often it is requested; if another turn is running, do as the caller says."""
        await self._check_user(wanted)
        begun = await self.begun(agent, wanted)
        if begun is not None:
            return begun
        if if_running == "enqueue" and wanted.new.branch is None and not wanted.new.required:
            self._beginnings.check(agent, None, None)
            return await self.after_others(agent, wanted)
        begin = self.instead_of_others if if_running == "interrupt" else self.now
        return await begin(agent, wanted, hooks=hooks, model=model)

    async def begun(self, agent: Agent[Any, OutputT, Any], wanted: WantedTurn) -> RunHandle[OutputT] | None:
        """The session's current run, if the same call started it before."""
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
        """Start the turn without disturbing any other.

        Raises:
            AgentAlreadyRunningError, ConflictError, SessionAlreadyExistsError: another caller was faster.
        """
        try:
            waits = await self._waits(wanted)
            start = await self._planned(agent, wanted, waits, queued=waits is not None)
            return await self._beginnings.begin(agent, start, hooks=hooks, model=model)
        except (ConflictError, SessionAlreadyExistsError):
            # The faster one may have been the same call.
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
        """Stop what is running, each run once, and start after it."""
        stopped: RunId | None = None
        wait = A_MOMENT
        while True:
            try:
                return await self.now(agent, wanted, hooks=hooks, model=model)
            except ConflictError as lost:
                # The run that was first is still running, or already over.
                if isinstance(lost, AgentAlreadyRunningError) and lost.run_id != stopped:
                    await self._stop(wanted.session_id)
                    stopped = lost.run_id
                await self._services.sleep(wait)
                wait = min(wait * 2, LOOK_AGAIN)

    async def after_others(self, agent: Agent[Any, OutputT, Any], wanted: WantedTurn) -> RunHandle[OutputT]:
        """Start the turn now, or queue it behind those that came before.

        Raises:
            QueueFullError: too many turns are waiting already.
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
                return self._beginnings.handle_of(agent, known)
            waiting = await waiting_turn(services, agent, turn, wanted.new)
            if waiting is None:
                # Another caller may be first, perhaps with the same call.
                with suppress(ConflictError, SessionAlreadyExistsError):
                    start = await self._planned(agent, wanted, turn.run_id)
                    return await self._beginnings.begin(agent, start, hooks=None, model=None)
                continue
            stored = await self._beginnings.to_the_end(self._queue.put(waiting))
            if stored is not None:
                return self._queued_handle(agent, stored)

    async def waiting(
        self, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId
    ) -> RunHandle[OutputT] | None:
        """A turn that waits in the session's queue, whichever process put it there."""
        try:
            queued = await self._services.store.list_queued(session_id)
        except SessionNotFoundError:
            return None
        turn = next((each for each in queued if each.run_id == run_id), None)
        return None if turn is None else self._queued_handle(agent, turn)

    def _queued_handle(self, agent: Agent[Any, OutputT, Any], turn: QueuedTurn) -> RunHandle[OutputT]:
        return QueuedRunHandle(
            self._services, agent, turn, usage=self._usage, queue=self._queue, handle_of=self._beginnings.handle_of
        )

    async def _check_user(self, wanted: WantedTurn) -> None:
        """Refuse another user's session before anything in it is taken for this turn.

        Raises:
            NotTheOwnerError: the session is not the user's.
        """
        if wanted.new.only_own:
            with suppress(SessionNotFoundError):
                wanted.new.check_user(await self._services.store.load_state(wanted.session_id))

    async def _waits(self, wanted: WantedTurn) -> RunId | None:
        """The id of the run that the same call has already put into the queue, if any: a repeated call means that run,
        which leaves the queue for whatever is to happen to it now."""
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
