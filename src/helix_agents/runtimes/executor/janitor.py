"""The janitor: deadlines, unanswered resumes, dead runs, expired sessions, old streams and workflows, on a schedule."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from helix_agents.domain.errors import ConflictError, NothingToResumeError, StillWaitingError, StoreClosedError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import READY, PendingFilter, ready_since
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.remote.stops import StopsPaid
from helix_agents.engine.requests.cleanup import EXPIRED, CleanupSummary, expired_session_cleanup, is_over
from helix_agents.engine.requests.workspaces import workspace_providers
from helix_agents.engine.services import Services
from helix_agents.engine.steps.undriven import tell_failed
from helix_agents.runtimes.executor.recovery import MOST_AT_ONCE, Recovered
from helix_agents.runtimes.executor.remotes import Remotes
from helix_agents.runtimes.executor.waking import Woken

T = TypeVar("T")


class Swept(Record):
    """What one round did. `told` counts messages to webhooks, which a round of its own in the background leaves to the
    task that tells them."""

    expired_calls: int = 0
    resumed: int = 0
    recovered: int = 0
    expired_sessions: int = 0
    pruned_chunks: int = 0
    stops_paid: int = 0
    stops_abandoned: int = 0
    woken: int = 0
    dequeued: int = 0
    scheduled: int = 0
    pruned_workflows: int = 0
    told: int = 0


class Janitor:
    """Keeps sessions from getting stuck. Any number of copies may run: each case is handled by one of them."""

    def __init__(
        self,
        services: Services,
        *,
        resume: Callable[[SessionId], Awaitable[int]],
        resume_companions: Callable[[SessionId], Awaitable[int]],
        recover: Callable[[], Awaitable[Recovered]],
        wake: Callable[[], Awaitable[Woken]],
        begin_queued: Callable[[], Awaitable[int]],
        start_scheduled: Callable[[], Awaitable[int]],
        tidy: Callable[[], Awaitable[int]],
        remotes: Remotes,
        resume_grace_ms: int,
        stream_retention_ms: int,
    ) -> None:
        self._services = services
        self._resume = resume
        self._resume_companions = resume_companions
        self._recover = recover
        self._wake = wake
        self._begin_queued = begin_queued
        self._start_scheduled = start_scheduled
        self._tidy = tidy
        self._remotes = remotes
        self._resume_grace_ms = resume_grace_ms
        self._stream_retention_ms = stream_retention_ms

    async def run(self, interval_seconds: float) -> None:
        """Sweep forever. Expired sessions and capabilities have rounds of their own: deleting workspaces and delivering
        notices may take long, and nothing else may wait for that."""
        await asyncio.gather(
            self._forever(partial(self._sweep, slow=False), interval_seconds),
            self._forever(self._clean_up, interval_seconds),
            self._forever(self._sweep_capabilities, interval_seconds),
        )

    async def _forever(self, work: Callable[[], Awaitable[object]], interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await work()
            except StoreClosedError:
                return
            except Exception as problem:
                # Catch everything: nothing else here would take care of what is stuck.
                log_exception("janitor.failed", problem)

    async def sweep(self) -> Swept:
        """One round. A failure in one part does not keep the other parts from being done.

        Raises:
            StoreClosedError: this process is leaving, and closed its store in mid-round.
            Exception: the first failure.
        """
        return await self._sweep()

    async def _sweep(self, *, slow: bool = True) -> Swept:
        problems: list[Exception] = []

        async def part(work: Awaitable[T], otherwise: T) -> T:
            try:
                return await work
            except StoreClosedError:
                raise
            except Exception as problem:
                problems.append(problem)
                return otherwise

        expired_calls = await part(self._expire_calls(), 0)
        recovered = await part(self._recover(), Recovered())
        cleanup = CleanupSummary()
        if slow:
            cleanup = await part(self._clean_up(), cleanup)
            await part(self._sweep_capabilities(), None)
        stops = await part(self._remotes.pay_stops(), StopsPaid())
        resumed = await part(self._remotes.resume_answered(), 0)
        resumed += await part(self._resume_waiting(), 0)
        dequeued = await part(self._begin_queued(), 0)
        scheduled = await part(self._start_scheduled(), 0)
        pruned = await part(self._services.streams.prune(self._stream_retention_ms), 0)
        woken = await part(self._wake(), Woken())
        workflows = await part(self._tidy(), 0)
        for later in problems[1:]:
            log_exception("janitor.failed", later)
        if problems:
            raise problems[0]
        return Swept(
            expired_calls=expired_calls,
            resumed=resumed,
            recovered=len(recovered.run_ids),
            expired_sessions=cleanup.marked,
            pruned_chunks=pruned,
            stops_paid=stops.paid,
            stops_abandoned=stops.abandoned,
            woken=woken.sessions,
            dequeued=dequeued,
            scheduled=scheduled,
            pruned_workflows=workflows,
        )

    async def _clean_up(self) -> CleanupSummary:
        providers = workspace_providers(self._services.agents.everyone())
        return await expired_session_cleanup(
            self._services.store, workspace_providers=providers, tell=self._tell_expired
        )

    async def _tell_expired(self, run: RunRecord) -> None:
        await tell_failed(self._services, run.session_id, run.fence, EXPIRED, "The session expired.")

    async def _expire_calls(self) -> int:
        expired = 0
        while calls := await self._services.store.expire_pending(limit=200):
            expired += len(calls)
            for call in calls:
                log_event("client_tool.timeout", tool_call_id=call.tool_call_id, session_id=call.session_id)
        return expired

    async def _sweep_capabilities(self) -> None:
        """Let every bundle of capabilities of an agent here look after the data it keeps."""
        entries = self._services.entries
        if entries is None:
            return
        agents = self._services.agents.everyone()
        bundles = {id(bundle): bundle for agent in agents for bundle in agent.capabilities}
        for bundle in bundles.values():
            try:
                await bundle.sweep(entries, partial(is_over, self._services.store))
            except StoreClosedError:
                raise
            except Exception as problem:
                log_exception("janitor.sweep_failed", problem)

    async def _resume_waiting(self) -> int:
        """Resume answered or expired suspensions that were not resumed yet, of sessions and of their companions.

        All of them are tried: those that cannot be resumed here stay, and others come after them.
        """
        resumed = await self._resume_each(self._resume, await self._unresumed())
        return resumed + await self._resume_each(self._resume_companions, await self._with_answers())

    async def _unresumed(self) -> list[SessionId]:
        """All ids first, because resuming would otherwise shift later pages."""
        found: list[SessionId] = []
        store, grace = self._services.store, self._resume_grace_ms
        while page := await store.list_unresumed(grace, offset=len(found), limit=MAX_LIMIT):
            found.extend(page)
        return found

    async def _with_answers(self) -> list[SessionId]:
        """Roots of trees in which a call was answered, or expired, and no run has seen it since."""
        store = self._services.store
        latest = store.now_ms() - self._resume_grace_ms
        where = PendingFilter(states=tuple(READY))
        ready = await whole_list(lambda offset: store.list_pending(where, offset=offset, limit=MAX_LIMIT))
        since = ((call.root_session_id, ready_since(call)) for call in ready)
        return list(dict.fromkeys(root for root, at in since if at is not None and at <= latest))

    async def _resume_each(
        self, resume: Callable[[SessionId], Awaitable[int]], session_ids: Iterable[SessionId]
    ) -> int:
        resumed = 0
        for session_id in session_ids:
            if resumed >= MOST_AT_ONCE:
                break
            resumed += await self._try(resume, session_id)
        return resumed

    async def _try(self, resume: Callable[[SessionId], Awaitable[int]], session_id: SessionId) -> int:
        try:
            return await resume(session_id)
        except (ConflictError, NothingToResumeError, StillWaitingError):
            # Another process was first, or only a companion had its answer and continues already.
            return 0
        except Exception as problem:
            log_exception("janitor.resume_failed", problem, session_id=session_id)
            return 0
