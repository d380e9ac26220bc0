"""Idle sessions get a turn when a capability has news for them, in whichever process notices first."""

import asyncio
from collections.abc import Awaitable, Callable

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.tools import Wakeup
from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    ConflictError,
    ExecutorClosedError,
    HelixError,
    NotARootSessionError,
    SessionNotFoundError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.requests.new_turns import plan_wake
from helix_agents.engine.services import Services
from helix_agents.ports.entries import EntryStore

GATHER_SECONDS = 0.05
"""Changes in quick succession are reported together."""
LOOK_AGAIN_SECONDS = 1.0
"""A turn may end without having checked for news once more."""


_NOT_OURS = (ConflictError, VersionConflict, NotARootSessionError, SessionNotFoundError, ExecutorClosedError)
"""Another process was first, the session's parent speaks for it, or the session or executor is gone."""


class Woken(Record):
    """The result of one check: sessions that got a turn, and busy ones that may pick up the news themselves."""

    sessions: int = 0
    busy: int = 0


class Waker:
    """Starts turns for news. Any number of processes may check: the start of a run and the mark that the news was told
    are one commit, and only one process makes it."""

    def __init__(
        self,
        services: Services,
        *,
        begin: Callable[[AnyAgent, StartRun], Awaitable[None]],
        leaves: Callable[[AnyAgent], bool],
    ) -> None:
        self._services = services
        self._leaves = leaves
        self._begin = begin
        self._asked = asyncio.Event()
        self._refused: set[SessionId] = set()

    def look(self) -> None:
        """Check soon: another agent is known here."""
        self._asked.set()

    async def run(self, interval_seconds: float) -> None:
        """Check whenever something was committed, forever; it does not listen while no agent here has capabilities."""
        entries = self._services.entries
        if entries is None:
            return
        while True:
            try:
                while not any(agent.capabilities for agent in self._services.agents.speakers()):
                    self._asked.clear()
                    await self._asked.wait()
                await self._listen(entries, interval_seconds)
            except Exception as problem:
                log_exception("waker.failed", problem)
                await asyncio.sleep(interval_seconds)

    async def wake(self) -> Woken:
        """Give a turn to every idle session that has news."""
        entries = self._services.entries
        if entries is None:
            return Woken()
        woken = busy = 0
        for agent in self._services.agents.speakers():
            for bundle in agent.capabilities:
                for wakeup in await bundle.wakeups(entries, agent.name):
                    try:
                        woken += await self._wake(agent, wakeup)
                    except AgentAlreadyRunningError:
                        busy += 1
                    except _NOT_OURS:
                        continue
                    except HelixError as problem:
                        self._report(wakeup.session_id, problem)
        return Woken(sessions=woken, busy=busy)

    async def _wake(self, agent: AnyAgent, wakeup: Wakeup) -> bool:
        if self._leaves(agent):
            return False
        start = await plan_wake(self._services, agent, wakeup)
        if start is None:
            return False
        await self._begin(agent, start)
        self._refused.discard(start.session_id)
        log_event("session.woken", session_id=start.session_id, run_id=start.run_id)
        return True

    def _report(self, session_id: SessionId, problem: HelixError) -> None:
        """Log once that a session cannot be woken: it is tried again with every change."""
        if session_id not in self._refused:
            self._refused.add(session_id)
            log_exception("waker.wake_failed", problem, session_id=session_id)

    async def _listen(self, entries: EntryStore, interval_seconds: float) -> None:
        async with entries.listen() as waiting:
            while True:
                looked = await self.wake()
                wait = LOOK_AGAIN_SECONDS if looked.busy else interval_seconds
                await waiting.wait(min(wait, interval_seconds))
                await asyncio.sleep(GATHER_SECONDS)
