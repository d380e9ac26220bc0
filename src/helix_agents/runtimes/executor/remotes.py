"""Looks after children in other services: stops that are owed to them, and answers that they got there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from helix_agents.domain.errors import ConflictError, NothingToResumeError, StillWaitingError
from helix_agents.domain.ids import SessionId
from helix_agents.engine.log import log_exception
from helix_agents.engine.remote.stops import StopsPaid, pay_stops
from helix_agents.engine.remote.waits import RemoteWaits
from helix_agents.engine.services import Services

# However many are due, there is a pause between two rounds.
_SOONEST_SECONDS = 0.05


class Remotes:
    """Two loops that do not wait for each other. Any number of processes may run them."""

    def __init__(self, services: Services, *, resume: Callable[[SessionId], Awaitable[int]]) -> None:
        self._services = services
        self._resume = resume
        self._waits = RemoteWaits(services)
        self._stop_owed = asyncio.Event()
        self._waiting = asyncio.Event()

    def attend(self) -> None:
        """Check soon: a child now waits for an answer, or is owed a stop."""
        self._stop_owed.set()
        self._waiting.set()

    async def pay(self, interval_seconds: float) -> None:
        """Deliver stops that other services have not confirmed, forever: each when it is due."""
        await _for_ever(self._stop_owed, interval_seconds, self._pay)

    async def watch(self, interval_seconds: float) -> None:
        """Check children that wait, forever: each when it is due."""
        await _for_ever(self._waiting, interval_seconds, self._watch)

    async def pay_stops(self) -> StopsPaid:
        """One round of stops."""
        return await pay_stops(self._services)

    async def resume_answered(self) -> int:
        """Continue sessions whose children were answered in their own service; returns how many."""
        looked = await self._waits.look()
        return await self._go_on(looked.roots)

    async def _pay(self) -> int | None:
        return (await self.pay_stops()).next_in_ms

    async def _watch(self) -> int | None:
        looked = await self._waits.look()
        await self._go_on(looked.roots)
        return looked.next_in_ms

    async def _go_on(self, roots: tuple[SessionId, ...]) -> int:
        resumed = 0
        for root in roots:
            try:
                resumed += await self._resume(root)
            except (ConflictError, NothingToResumeError, StillWaitingError):
                # Another process was first, or a run is running and finds the answer itself.
                continue
            except Exception as problem:
                log_exception("janitor.resume_failed", problem, session_id=root)
        return resumed


async def _for_ever(asked: asyncio.Event, interval_seconds: float, work: Callable[[], Awaitable[int | None]]) -> None:
    """Do the work when it is due, when it is requested, and in any case after the interval."""
    while True:
        wait = interval_seconds
        asked.clear()
        try:
            next_in_ms = await work()
            if next_in_ms is not None:
                wait = min(wait, max(next_in_ms / 1000, _SOONEST_SECONDS))
        except Exception as problem:
            log_exception("janitor.failed", problem)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await asked.wait()
