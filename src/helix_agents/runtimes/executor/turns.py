"""How a turn starts in a session that may be busy: now or not at all, after the turns before it, or instead of them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from helix_agents.agent.agent import Agent
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.output import OutputT
from helix_agents.domain.budgets import Budget
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    ConflictError,
    NothingToResumeError,
    QueuedTurnGoneError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.queued import QueuedTurn, TakenTurn, run_id_for
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import BranchPoint
from helix_agents.engine.requests.going_on import plan_resume
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
        if if_running in ("enqueue", "steer") and wanted.new.branch is None and not wanted.new.required:
            self._beginnings.check(agent, None, None)
            return await self.after_others(agent, wanted, steers=if_running == "steer")
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
            start = await self._planned(agent, wanted)
            # After the plan: what happens to the message from here on changes the session, and refuses the start.
            there = await self._sent_before(wanted)
            if isinstance(there, TakenTurn):
                return await self._taker(agent, there)
            if there is not None:
                # The same message waits; it leaves the queue for whatever is to happen to it now, as it is there.
                start = await self._planned(agent, replace(wanted, messages=there.messages), there, queued=True)
            return await self._beginnings.begin(agent, start, hooks=hooks, model=model)
        except (ConflictError, SessionAlreadyExistsError):
            # The faster one may have been the same call.
            begun = await self.begun(agent, wanted)
            if begun is None and isinstance(there := await self._sent_before(wanted), TakenTurn):
                begun = await self._taker(agent, there)
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
                handle = await self.now(agent, wanted, hooks=hooks, model=model)
                if handle.run_id == stopped:
                    # The same message waited, and this run took it in a moment before it was stopped.
                    handle = await self._continued(agent, handle, hooks=hooks, model=model)
                return handle
            except ConflictError as lost:
                # The run that was first is still running, or already over.
                if isinstance(lost, AgentAlreadyRunningError) and lost.run_id != stopped:
                    await self._stop(wanted.session_id)
                    stopped = lost.run_id
                await self._services.sleep(wait)
                wait = min(wait * 2, LOOK_AGAIN)

    async def _continued(
        self,
        agent: Agent[Any, OutputT, Any],
        stopped: RunHandle[OutputT],
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]:
        """The run that continues a stopped one; the stopped one itself if it came to its end before the stop.

        Raises:
            ConflictError: it has not stopped yet.
        """
        try:
            start = await plan_resume(self._services, agent, stopped.session_id, "continue")
        except (NothingToResumeError, StillWaitingError):
            return stopped
        if isinstance(start, RunRecord):
            return stopped
        return await self._beginnings.begin(agent, start, hooks=hooks, model=model)

    async def after_others(
        self, agent: Agent[Any, OutputT, Any], wanted: WantedTurn, *, steers: bool
    ) -> RunHandle[OutputT]:
        """Start the turn now, or queue it behind those that came before, or for the running one to take in if it
        `steers`.

        Raises:
            QueueFullError: too many turns are waiting already.
        """
        services, session_id, key = self._services, wanted.session_id, wanted.key
        turn = queued_turn(
            services,
            agent,
            session_id,
            wanted.messages,
            expires_in_ms=wanted.expires_in_ms,
            run_id=None if key is None else run_id_for(session_id, key),
            budget=wanted.budget,
            steers=steers,
        )
        while True:
            known = None if key is None else await services.store.get_run(turn.run_id)
            if known is not None:
                return self._beginnings.handle_of(agent, known)
            waiting = await waiting_turn(services, agent, turn, wanted.new)
            if waiting is None:
                # Another caller may be first, perhaps with the same call.
                with suppress(ConflictError, SessionAlreadyExistsError):
                    start = await self._planned(agent, wanted, turn)
                    there = None if start.create is not None else await self._sent_before(wanted)
                    if isinstance(there, TakenTurn):
                        return await self._taker(agent, there)
                    if there is None:
                        return await self._beginnings.begin(agent, start, hooks=None, model=None)
                continue
            stored = await self._beginnings.to_the_end(self._queue.put(waiting))
            if stored is not None:
                return self._queued_handle(agent, stored)
            if isinstance(there := await self._sent_before(wanted), TakenTurn):
                return await self._taker(agent, there)

    async def waiting(
        self, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId
    ) -> RunHandle[OutputT] | None:
        """A turn that waits in the session's queue, whichever process put it there, or the run that took it in."""
        try:
            there = await self._services.store.find_queued(session_id, run_id)
        except SessionNotFoundError:
            return None
        if isinstance(there, TakenTurn):
            return await self._taker(agent, there)
        return None if there is None else self._queued_handle(agent, there)

    async def _taker(self, agent: Agent[Any, OutputT, Any], taken: TakenTurn) -> RunHandle[OutputT]:
        """The run that took a message in."""
        run = await self._services.store.get_run(taken.taken_by)
        if run is None:
            # Its session was deleted a moment ago.
            raise QueuedTurnGoneError(taken.session_id, taken.run_id)
        return self._beginnings.handle_of(agent, run)

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

    async def _sent_before(self, wanted: WantedTurn) -> QueuedTurn | TakenTurn | None:
        """Where the same call put its message before, if it did: in the queue, or, through it, into a run."""
        if wanted.key is None:
            return None
        run_id = run_id_for(wanted.session_id, wanted.key)
        with suppress(SessionNotFoundError):
            return await self._services.store.find_queued(wanted.session_id, run_id)
        return None

    async def _planned(
        self,
        agent: Agent[Any, OutputT, Any],
        wanted: WantedTurn,
        turn: QueuedTurn | None = None,
        *,
        queued: bool = False,
    ) -> StartRun:
        """The start of a turn: of the given one, if any, which leaves the queue for it if it is `queued`."""
        return await plan_execute(
            self._services,
            agent,
            wanted.session_id,
            wanted.messages,
            wanted.new,
            expires_in_ms=wanted.expires_in_ms,
            run_id=None if turn is None else turn.run_id,
            queued=queued,
            queued_revision=0 if turn is None else turn.revision,
            budget=wanted.budget,
        )
