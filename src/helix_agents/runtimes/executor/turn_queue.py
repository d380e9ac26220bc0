"""Turns that wait until their session is free: what starts them, and how their senders find them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
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
from helix_agents.domain.queued import QueuedTurn, TakenTurn
from helix_agents.domain.results import RunResult
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptOutcome, InterruptSet, StopKind
from helix_agents.engine.children.meant_agents import find_entry
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.requests.cleanup import EXPIRED
from helix_agents.engine.requests.new_turns import plan_queued
from helix_agents.engine.requests.stopping import stop_session
from helix_agents.engine.services import Services
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.handle import LOOK_AGAIN, RunHandle

Look: TypeAlias = Literal["begun", "busy", "held", "empty"]
"""The result of checking a queue: `held` turns are behind one that waits for an answer, died, or was stopped."""

MOST_AT_ONCE = 50
"""How many turns one round of the janitor starts; more would wait for their models anyway."""


class TurnQueue:
    """Starts waiting turns. Any number of processes may check: the start takes the turn from the queue, and only one
    process succeeds.

    The process that sent a turn checks when the turn before it ends. If that process dies, any janitor's round does.
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
        """Put a turn into the queue; durable when this returns. None if there is nothing to wait for, or it started
        meanwhile."""
        try:
            stored = await self._services.store.queue_turn(turn)
        except HelixError as problem:
            if problem.retryable:
                # It may wait nevertheless.
                self._attend(turn.session_id)
            raise
        if stored is not None:
            log_event("turn.queued", session_id=stored.session_id, run_id=stored.run_id)
            self._attend(stored.session_id)
        return stored

    def goes_on(self, session_id: SessionId, *, after_a_pause: bool = False) -> None:
        """A session continues here: turns that waited behind it may start when it is over. After a pause, any process
        may have queued them; otherwise only those that this process knows of."""
        if after_a_pause or session_id in self._held:
            self._attend(session_id)

    async def begin_all(self) -> int:
        """Start what waits in any session that is free; returns how many turns."""
        found: list[SessionId] = []
        # All of them first, because starting turns would otherwise shift later pages.
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
                # A session that cannot be checked does not hold up the others.
                log_exception("queue.failed", problem, session_id=session_id)
        return begun

    async def problem_in(self, session_id: SessionId) -> HelixError | None:
        """Why nothing starts in a session, as long as the turn that cannot start is the first in its queue."""
        run_id, problem = self._problems.get(session_id, (None, None))
        if problem is None:
            return None
        waiting = await self._services.store.list_queued(session_id)
        return problem if waiting and waiting[0].run_id == run_id else None

    async def may_begin(self) -> bool:
        """Whether a turn that waited here for a run's end may start here; returns once that was checked."""
        if not self._behind:
            return False
        await self._hears(self._looked)
        return True

    async def news(self) -> None:
        """Wait until a turn was started or refused here, but at most until runs of other processes are checked
        again."""
        await self._hears(self._news)

    async def _hears(self, event: asyncio.Event) -> None:
        """Wait for an event of this event loop, or a moment."""
        if asyncio.get_running_loop() is not self._loop:
            # An event wakes no waiter in another event loop.
            await self._services.sleep(LOOK_AGAIN)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN):
                await event.wait()

    def _attend(self, session_id: SessionId) -> None:
        """Watch a session from now on. If it is watched already, it is checked once more, as the last check may have
        missed it."""
        self._loop = asyncio.get_running_loop()
        self._held.discard(session_id)
        self._wanted.add(session_id)
        if session_id not in self._attended:
            self._attended.add(session_id)
            # Until it is known that it waits for nothing here.
            self._behind.add(session_id)
            self._in_background(self._see_through(session_id))

    async def _see_through(self, session_id: SessionId) -> None:
        """Start one turn after another until none waits, or they wait for something else."""
        try:
            found: Look = "busy"
            while found in ("begun", "busy") or session_id in self._wanted:
                self._wanted.discard(session_id)
                self._behind.add(session_id)
                found = await self._look(session_id)
                if found in ("begun", "busy"):
                    self._tell_looked()
                    await self._until_over(session_id, begun_here=found == "begun")
                else:
                    self._has_looked(session_id)
            if found == "held":
                self._held.add(session_id)
        except ExecutorClosedError:
            return
        except Exception as problem:
            # The next round of a janitor checks again.
            log_exception("queue.failed", problem, session_id=session_id)
        finally:
            self._attended.discard(session_id)
            self._has_looked(session_id)

    def _has_looked(self, session_id: SessionId) -> None:
        self._behind.discard(session_id)
        self._tell_looked()

    def _tell_looked(self) -> None:
        self._looked.set()
        self._looked = asyncio.Event()

    async def _look(self, session_id: SessionId) -> Look:
        """Start the first turn that waits in a session, if it can start now."""
        store = self._services.store
        turn: QueuedTurn | None = None
        try:
            waiting = await store.list_queued(session_id)
            if not waiting:
                return "empty"
            turn = waiting[0]
            agent = find_entry(self._services.agents, await store.load_state(session_id))
            if agent is None or self._leaves(agent):
                return "held"
            start = await plan_queued(self._services, agent, waiting)
            if start is None:
                return "held"
            await self._begin(agent, start)
        except ConflictError:
            # Another turn is running, or another process started this one, dropped it, or changed the session.
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

    async def _until_over(self, session_id: SessionId, *, begun_here: bool) -> None:
        """Wait for the current run to end; or only a moment if it is driven by another process, or in another event
        loop, where the end of its task wakes nothing here."""
        run = await self._services.store.get_current_run(session_id)
        driver = None if run is None else self._find(run.run_id)
        if begun_here and run is not None and run.status != "running":
            # It is over already, before anybody could wait for it.
            return
        if driver is None or driver.get_loop() is not asyncio.get_running_loop():
            self._has_looked(session_id)
            await self._services.sleep(LOOK_AGAIN)
        else:
            await asyncio.wait((driver,))

    async def _let_expire(self, session_id: SessionId) -> None:
        """Turns that waited when their session expired are not started any more: no one came back for them."""
        store = self._services.store
        with suppress(SessionNotFoundError):
            session = await store.load_state(session_id)
            if session.failure_reason != EXPIRED:
                return
            for turn in await store.list_queued(session_id):
                if turn.queued_at <= session.updated_at and await store.drop_queued(session_id, turn.run_id):
                    log_event("turn.expired", session_id=session_id, run_id=turn.run_id)

    def _report(self, turn: QueuedTurn, problem: HelixError) -> None:
        """Log once that a turn cannot start; it stays first in its queue until it is repaired or dropped."""
        known, _ = self._problems.get(turn.session_id, (None, None))
        if known != turn.run_id:
            log_exception("queue.begin_failed", problem, session_id=turn.session_id, run_id=turn.run_id)
        self._problems[turn.session_id] = turn.run_id, problem
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class QueuedRunHandle(RunHandle[OutputT]):
    """A run that waits for its turn, or for the running one to take its message in. Its methods wait until either has
    happened, in whichever process.

    Stopping it before that removes it from the queue.
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
        """The run itself, as soon as it starts, or the run that took the message in.

        Raises:
            QueuedTurnDroppedError: it was removed from the queue.
            SessionNotFoundError: its session was deleted.
            HelixError: the reason why it cannot start; it still waits.
        """
        store = self._services.store
        while True:
            # It may start between the two checks, and one of them then finds it.
            there = await store.find_queued(self.session_id, self.run_id)
            run = await store.get_run(there.taken_by if isinstance(there, TakenTurn) else self.run_id)
            if run is not None:
                return self._handle_of(self._agent, run)
            if there is None:
                raise QueuedTurnDroppedError(self.session_id, self.run_id)
            problem = await self._queue.problem_in(self.session_id)
            if problem is not None:
                raise problem
            await self._queue.news()

    async def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        async for chunk in (await self.begun()).stream(from_sequence=from_sequence):
            yield chunk

    async def result(self) -> RunResult[OutputT]:
        return await (await self.begun()).result()

    async def _stop(self, kind: StopKind, reason: str | None) -> InterruptOutcome:
        store = self._services.store
        if await store.drop_queued(self.session_id, self.run_id):
            return InterruptSet(run_id=self.run_id)
        there = await store.find_queued(self.session_id, self.run_id)
        run_id = there.taken_by if isinstance(there, TakenTurn) else self.run_id
        return await stop_session(self._services, self.session_id, kind, reason, run_id=run_id)
