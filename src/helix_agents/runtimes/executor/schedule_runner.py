"""Starts the turns that schedules make due, once each, in whichever process looks first."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, cast

from msgspec.structs import replace

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.durations import Duration
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import (
    CallerError,
    ConflictError,
    ExecutorClosedError,
    InvalidInputError,
    ScheduleChangedError,
    SetupError,
    StoreClosedError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.schedules import LastTime, Schedule, ScheduleId
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.services import Services
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.executor.inputs import Input
from helix_agents.runtimes.executor.timetable import first_time, is_out_of_reach, next_time

_DAY_MS = 86_400_000
_EVER_MS = 2**53


class Execute(Protocol):
    """Starts a turn as `execute` does."""

    async def __call__(
        self,
        agent: Agent[Any, Any, Any],
        input: Input,
        session_id: SessionId,
        *,
        user_id: str | None,
        tags: Sequence[str],
        metadata: dict[str, str] | None,
        expires_in: Duration | None,
        idempotency_key: str,
        only_own: bool,
        if_running: Literal["enqueue"],
        budget: Budget | None,
    ) -> RunHandle[Any]: ...


class ScheduleRunner:
    """Starts the turns that are due. Any number of processes may look: the turn of a due time has one key, so all of
    them mean the same turn, and the first of them moves the schedule on to its next time."""

    def __init__(self, services: Services, *, execute: Execute, leaves: Callable[[AnyAgent], bool]) -> None:
        self._services = services
        self._execute = execute
        self._leaves = leaves
        self._asked = asyncio.Event()
        self._told: dict[ScheduleId, str] = {}

    def look(self) -> None:
        """Check again when the next turn is due, because a schedule was set here."""
        self._asked.set()

    async def run(self, interval_seconds: float) -> None:
        """Start turns when they are due, forever; schedules that other processes set are noticed once per interval."""
        seen = _EVER_MS
        while True:
            self._asked.clear()
            wait = interval_seconds
            try:
                await self.start_due()
                now = self._services.store.now_ms()
                if now < seen - _DAY_MS:
                    await self._bring_back(now)
                seen = now
                wait = await self._until_next(interval_seconds)
            except (StoreClosedError, ExecutorClosedError):
                return
            except Exception as problem:
                log_exception("schedules.failed", problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._asked.wait()

    async def start_due(self) -> int:
        """Start every turn that is due and that this process can start; returns how many."""
        started = 0
        for schedule in await self._list_due(self._services.store.now_ms()):
            try:
                # Behind many others, it may have been started by another process, changed, paused or deleted.
                if await self._services.store.find_schedule(schedule.schedule_id) == schedule:
                    started += await self._start(schedule)
            except (StoreClosedError, ExecutorClosedError):
                raise
            except Exception as problem:
                # A turn that cannot be started now does not hold up the others; it stays due.
                log_exception("schedule.failed", problem, schedule_id=schedule.schedule_id)
        return started

    async def _bring_back(self, now: int) -> None:
        """Correct the next times that were worked out while the clock was wrong, and are more than a day later than
        they can be."""
        store = self._services.store
        every = await whole_list(lambda offset: store.list_schedules(offset=offset, limit=MAX_LIMIT))
        for schedule in await asyncio.to_thread(_out_of_reach, every, now):
            corrected = replace(schedule, revision=self._services.ids.new("revision"))
            with suppress(ScheduleChangedError):
                await store.save_schedule(corrected, replaces=schedule.revision)
                log_event("schedule.brought_back", logging.WARNING, schedule_id=schedule.schedule_id)

    async def _list_due(self, until: int) -> Sequence[Schedule]:
        found: list[Schedule] = []
        # All pages are read first, because schedules that are started leave the list.
        while page := await self._services.store.list_due_schedules(until, offset=len(found), limit=MAX_LIMIT):
            found.extend(page)
        return found

    async def _until_next(self, longest: float) -> float:
        """Seconds until a schedule is due. Schedules that are due already are left to other processes."""
        now = self._services.store.now_ms()
        coming = await self._list_due(now + round(longest * 1000))
        waits = (each.next_at - now for each in coming if each.next_at is not None and each.next_at > now)
        return min(waits, default=longest * 1000) / 1000

    async def _start(self, schedule: Schedule) -> bool:
        """Start the turn of a schedule that is due, and move the schedule on; False if it is left for later or for
        another process."""
        due_at = cast("int", schedule.next_at)
        agent = self._services.agents.find(schedule.agent)
        if agent is None:
            self._tell_once(schedule, "agent", "schedule.unknown_agent", agent=schedule.agent)
        if agent is None or self._leaves(agent):
            return False
        now = self._services.store.now_ms()
        try:
            # Computed first: a process that cannot read the timetable must not start a turn it could not move on from.
            next_at = await asyncio.to_thread(next_time, schedule, due_at, now)
            last = await self._begin(agent, schedule, due_at)
        except (SetupError, ConflictError) as problem:
            # Another process may be able to start it, or this one in a moment.
            self._tell_once(schedule, problem.code, "schedule.left", code=problem.code, problem=str(problem))
            return False
        self._told.pop(schedule.schedule_id, None)
        return await self._move_on(schedule, last, next_at) and last.run_id is not None

    async def _move_on(self, schedule: Schedule, last: LastTime, next_at: int | None) -> bool:
        """Record what became of a due time, and move the schedule on; False if another process did. What somebody
        changed in it meanwhile stands, and starts no second turn for this time."""
        store, created_at = self._services.store, schedule.created_at
        while True:
            times, revision = schedule.times + (last.run_id is not None), self._services.ids.new("revision")
            moved = replace(schedule, next_at=next_at, last=last, times=times, revision=revision)
            with suppress(ScheduleChangedError):
                await store.save_schedule(moved, replaces=schedule.revision)
                return True
            changed = await store.find_schedule(schedule.schedule_id)
            if changed is None or changed.created_at != created_at or _is_recorded(changed, last.due_at):
                return False
            schedule, next_at = changed, changed.next_at
            if next_at == last.due_at:
                next_at = await asyncio.to_thread(next_time, schedule, next_at, store.now_ms())

    async def _begin(self, agent: AnyAgent, schedule: Schedule, due_at: int) -> LastTime:
        """Start the turn of one due time, or record why it was not started."""
        session_id = session_of(schedule, due_at)
        try:
            handle = await self._execute(
                agent,
                schedule.messages,
                session_id,
                user_id=schedule.user_id,
                tags=schedule.tags,
                metadata=schedule.metadata or None,
                expires_in=None if schedule.expires_in_ms is None else schedule.expires_in_ms / 1000,
                idempotency_key=schedule.key_at(due_at),
                budget=schedule.budget,
                # Whoever set the schedule chose the session's id, and any user may have taken it.
                only_own=schedule.user_id is not None,
                if_running="enqueue",
            )
        except CallerError as problem:
            if problem.retryable or isinstance(problem, ExecutorClosedError):
                raise
            # The same turn would be refused every time.
            log_event("schedule.refused", logging.WARNING, schedule_id=schedule.schedule_id, problem=str(problem))
            return LastTime(due_at=due_at, session_id=session_id, error=str(problem))
        run_id = handle.run_id
        is_left_out = handle.was_queued and await self._is_left_out(schedule, session_id, run_id)
        if is_left_out and await self._services.store.drop_queued(session_id, run_id):
            log_event("schedule.skipped", schedule_id=schedule.schedule_id, session_id=session_id)
            return LastTime(due_at=due_at, session_id=session_id)
        log_event("schedule.started", schedule_id=schedule.schedule_id, session_id=session_id, run_id=run_id)
        return LastTime(due_at=due_at, session_id=session_id, run_id=run_id)

    async def _is_left_out(self, schedule: Schedule, session_id: SessionId, run_id: RunId) -> bool:
        """Whether a turn that would have to wait is left out: because the schedule skips busy times, or because its
        turn of an earlier time still waits. A session that waits for a person over a weekend is not told everything
        that was due meanwhile."""
        if schedule.if_busy == "skip":
            return True
        waiting = await self._services.store.list_queued(session_id)
        ours = [turn for turn in waiting if any(schedule.is_key(message.id) for message in turn.messages)]
        # One that came after a stop lets the queue continue.
        return len(ours) > 1 and all(turn.after_stop_of is None for turn in ours if turn.run_id == run_id)

    def _tell_once(self, schedule: Schedule, reason: str, event: str, **details: str) -> None:
        """Log once that a schedule is left, although it is looked at repeatedly."""
        if self._told.get(schedule.schedule_id) != reason:
            self._told[schedule.schedule_id] = reason
            log_event(event, logging.WARNING, schedule_id=schedule.schedule_id, **details)


def _out_of_reach(schedules: Sequence[Schedule], now: int) -> list[Schedule]:
    """Those of the schedules whose next time is out of reach, with a new one. A day is left to clocks that are
    corrected: no time that has come once shall come again."""
    found: list[Schedule] = []
    for schedule in schedules:
        # A process that cannot read a timetable leaves it to others.
        with suppress(SetupError, InvalidInputError):
            # Before a schedule was made, it is the clock of now that is wrong, as that of a machine that just started.
            if schedule.created_at <= now and is_out_of_reach(schedule, now + _DAY_MS):
                found.append(replace(schedule, next_at=first_time(schedule, now)))
    return found


def _is_recorded(schedule: Schedule, due_at: int) -> bool:
    return schedule.last is not None and schedule.last.due_at >= due_at


def session_of(schedule: Schedule, due_at: int) -> SessionId:
    """The session of one due time: the schedule's own, or a new one that every process gives the same id."""
    if schedule.session_id is not None:
        return schedule.session_id
    at = datetime.fromtimestamp(due_at / 1000, UTC)
    part = f".{due_at % 1000:03}" if due_at % 1000 else ""
    return f"{schedule.schedule_id}.{at:%Y%m%dT%H%M%S}{part}Z"
