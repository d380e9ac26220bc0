"""Turns that wait until their session is free: who begins them, and how whoever sent one finds it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.output import OutputT
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    ConflictError,
    ExecutorClosedError,
    HelixError,
    QueuedTurnDroppedError,
    SessionNotFoundError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import MAX_LIMIT
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.results import RunResult
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptOutcome, InterruptSet
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.requests.cleanup import EXPIRED
from helix_agents.engine.requests.start_plans import plan_queued
from helix_agents.engine.services import Services
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.handle import LOOK_AGAIN, RunHandle

Look: TypeAlias = Literal["begun", "busy", "held", "empty"]
"""What a look at a queue came to: `held` are turns behind one that waits for somebody, died, or was stopped."""

MOST_AT_ONCE = 50
"""So many turns are begun in one round of the janitor; more would wait for their models anyway."""


class TurnQueue:
    """Begins turns that wait. Any number of processes may look: a start takes its turn from the queue, and one of them
    makes it.

    Whoever sent a turn looks when the one before it ends. Should that process die, the round of any janitor does.
    """

    def __init__(
        self,
        services: Services,
        *,
        begin: Callable[[AnyAgent, StartRun], Awaitable[None]],
        leaves: Callable[[AnyAgent], bool],
        find: Callable[[RunId], asyncio.Task[RunEnd] | None],
        in_background: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._services = services
        self._begin = begin
        self._leaves = leaves
        self._find = find
        self._in_background = in_background
        self._attended: set[SessionId] = set()
        self._held: set[SessionId] = set()
        self._wanted: set[SessionId] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._behind: set[SessionId] = set()
        self._looked = asyncio.Event()
        self._news = asyncio.Event()
        self._problems: dict[SessionId, tuple[RunId, HelixError]] = {}

    async def put(self, turn: QueuedTurn) -> QueuedTurn | None:
        """Have a turn wait; durable when this answers. None where it has nothing to wait for, or began meanwhile."""
        self._loop = asyncio.get_running_loop()
        stored = await self._services.store.queue_turn(turn)
        if stored is not None:
            log_event("turn.queued", session_id=stored.session_id, run_id=stored.run_id)
            self._attend(stored.session_id)
        return stored

    def goes_on(self, session_id: SessionId, *, after_a_pause: bool = False) -> None:
        """Somebody goes on here with a session: turns that waited behind it may begin when it is over. After a pause,
        any process may have put them there; else, those that this one knows of."""
        if after_a_pause or session_id in self._held:
            self._attend(session_id)

    async def begin_all(self) -> int:
        """Begin what waits in any session that is free; answers how many turns."""
        found: list[SessionId] = []
        # All of them first: what is begun would otherwise move later pages.
        while page := await self._services.store.list_queues(offset=len(found), limit=MAX_LIMIT):
            found.extend(page)
        begun = 0
        for session_id in found:
            if begun >= MOST_AT_ONCE:
                break
            try:
                await self._let_expire(session_id)
                if await self._look(session_id) == "begun":
                    begun += 1
                    self._attend(session_id)
            except ExecutorClosedError:
                raise
            except Exception as problem:
                # One session that cannot be looked at keeps no other waiting.
                log_exception("queue.failed", problem, session_id=session_id)
        return begun

    def problem_with(self, session_id: SessionId, waiting: Sequence[QueuedTurn]) -> HelixError | None:
        """Why nothing begins in a session, as long as the turn that cannot is the first that waits there."""
        run_id, problem = self._problems.get(session_id, (None, None))
        return problem if waiting and waiting[0].run_id == run_id else None

    async def may_begin(self) -> bool:
        """Whether a turn may begin here that waited for the end of a run here; answers when that was looked at."""
        if not self._behind:
            return False
        await self._looked.wait()
        return True

    async def news(self) -> None:
        """Wait until a turn was begun or refused here, and for as long as others are looked at after at the most."""
        if asyncio.get_running_loop() is not self._loop:
            # An event wakes nobody in another event loop.
            await self._services.sleep(LOOK_AGAIN)
            return
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN):
                await news.wait()

    def _attend(self, session_id: SessionId) -> None:
        """Look at a session from now on; where somebody does, one more look is made, as the last may have missed it."""
        self._held.discard(session_id)
        self._wanted.add(session_id)
        if session_id not in self._attended:
            self._attended.add(session_id)
            self._in_background(self._see_through(session_id))

    async def _see_through(self, session_id: SessionId) -> None:
        """Begin one turn after another until none waits, or they wait for somebody else."""
        try:
            found: Look = "busy"
            while found in ("begun", "busy") or session_id in self._wanted:
                self._wanted.discard(session_id)
                found = await self._look(session_id)
                self._has_looked(session_id)
                if found in ("begun", "busy"):
                    await self._until_over(session_id)
            if found == "held":
                self._held.add(session_id)
        except ExecutorClosedError:
            return
        except Exception as problem:
            # The next round of a janitor looks again.
            log_exception("queue.failed", problem, session_id=session_id)
        finally:
            self._attended.discard(session_id)
            self._has_looked(session_id)

    def _has_looked(self, session_id: SessionId) -> None:
        self._behind.discard(session_id)
        self._looked.set()
        self._looked = asyncio.Event()

    async def _look(self, session_id: SessionId) -> Look:
        """Begin the first turn that waits in a session, if it can begin now."""
        store = self._services.store
        turn: QueuedTurn | None = None
        try:
            waiting = await store.list_queued(session_id)
            if not waiting:
                return "empty"
            turn = waiting[0]
            agent = self._services.agents.find((await store.load_state(session_id)).agent_type)
            if agent is None or self._leaves(agent):
                return "held"
            start = await plan_queued(self._services, agent, waiting)
            if start is None:
                return "held"
            await self._begin(agent, start)
        except ConflictError:
            # Another turn goes on, or somebody else began this one, dropped it, or changed the session.
            return "busy"
        except SessionNotFoundError:
            return "empty"
        except HelixError as problem:
            if turn is None or isinstance(problem, ExecutorClosedError) or problem.retryable:
                raise
            self._report(turn, problem)
            return "held"
        self._problems.pop(session_id, None)
        log_event("turn.dequeued", session_id=session_id, run_id=start.run_id)
        self._tell()
        return "begun"

    async def _until_over(self, session_id: SessionId) -> None:
        """Wait for the end of the run that is going, or a moment where another process drives it."""
        run = await self._services.store.get_current_run(session_id)
        driver = None if run is None else self._find(run.run_id)
        if driver is None:
            await self._services.sleep(LOOK_AGAIN)
        else:
            self._behind.add(session_id)
            await asyncio.wait((driver,))

    async def _let_expire(self, session_id: SessionId) -> None:
        """What waited when its session expired is not begun any more: nobody came back for it."""
        store = self._services.store
        with suppress(SessionNotFoundError):
            session = await store.load_state(session_id)
            if session.failure_reason != EXPIRED:
                return
            for turn in await store.list_queued(session_id):
                if turn.queued_at <= session.updated_at and await store.drop_queued(session_id, turn.run_id):
                    log_event("turn.expired", session_id=session_id, run_id=turn.run_id)

    def _report(self, turn: QueuedTurn, problem: HelixError) -> None:
        """Say once that a turn cannot begin; it stays first in its queue until somebody mends or drops it."""
        known, _ = self._problems.get(turn.session_id, (None, None))
        if known != turn.run_id:
            log_exception("queue.begin_failed", problem, session_id=turn.session_id, run_id=turn.run_id)
        self._problems[turn.session_id] = turn.run_id, problem
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class QueuedRunHandle(RunHandle[OutputT]):
    """A run that waits for its turn: what is asked of it is answered when it began, in whichever process.

    Stopping it before takes it from the queue.
    """

    def __init__(
        self,
        services: Services,
        agent: Agent[Any, OutputT, Any],
        turn: QueuedTurn,
        *,
        usage: UsageStore,
        queue: TurnQueue,
        handle_of: Callable[[Agent[Any, OutputT, Any], RunRecord], RunHandle[OutputT]],
    ) -> None:
        waiting = RunRecord(run_id=turn.run_id, session_id=turn.session_id, turn=0, started_at=turn.queued_at)
        super().__init__(services, agent, waiting, usage=usage)
        self._queue = queue
        self._handle_of = handle_of

    @property
    def was_queued(self) -> bool:
        return True

    async def begun(self) -> RunHandle[OutputT]:
        """The run itself, as soon as it begins.

        Raises:
            QueuedTurnDroppedError: somebody took it from the queue.
            SessionNotFoundError: its session was deleted.
            HelixError: it cannot begin, and this is why; it still waits.
        """
        store = self._services.store
        while True:
            # It may begin between the two looks, and is in the one or the other then.
            waiting = await store.list_queued(self.session_id)
            run = await store.get_run(self.run_id)
            if run is not None:
                return self._handle_of(self._agent, run)
            if all(turn.run_id != self.run_id for turn in waiting):
                raise QueuedTurnDroppedError(self.session_id, self.run_id)
            problem = self._queue.problem_with(self.session_id, waiting)
            if problem is not None:
                raise problem
            await self._queue.news()

    async def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        async for chunk in (await self.begun()).stream(from_sequence=from_sequence):
            yield chunk

    async def result(self) -> RunResult[OutputT]:
        return await (await self.begun()).result()

    async def interrupt(self, reason: str | None = None) -> InterruptOutcome:
        return await self._drop() or await super().interrupt(reason)

    async def abort(self, reason: str | None = None) -> InterruptOutcome:
        return await self._drop() or await super().abort(reason)

    async def _drop(self) -> InterruptOutcome | None:
        dropped = await self._services.store.drop_queued(self.session_id, self.run_id)
        return InterruptSet(run_id=self.run_id) if dropped else None
