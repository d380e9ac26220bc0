"""Admission to an instance: streams and runs, limited in total and per user, and nothing while it shuts down."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from starlette.types import Receive, Scope, Send

from helix_agents.domain.errors import LockHeldError, LockLostError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.schedules import ScheduleId
from helix_agents.ports.locks import LockManager
from helix_agents.runtimes.executor.hosting import AgentExecutor, HostedRun, HostedSchedules
from helix_agents.server.auth import Principal
from helix_agents.server.errors import RefusedError, draining, refused
from helix_agents.server.limits import ServerLimits
from helix_agents.server.sse import Leaving

# How long starting a run may take before other runs of its user stop waiting for it.
_BEGIN_MS = 10_000


class Gate:
    """Counts, refuses what exceeds the limits, and closes when the instance is told to shut down."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.leaving = Leaving()
        self.closed = False
        self._streams: Counter[str | None] = Counter()
        self._followed: dict[object, HostedRun] = {}
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watching: set[asyncio.Task[None]] = set()

    @property
    def open_streams(self) -> int:
        return self._streams.total()

    @property
    def follows_others(self) -> bool:
        """Whether a stream is open here for a run that another process drives, and that process may die."""
        return any(not getattr(run, "is_driven_here", False) for run in self._followed.values())

    def check_open(self) -> None:
        """Admit a request that starts something, unless the instance is shutting down."""
        if self.leaving.is_set():
            raise draining(self.limits.retry_after_seconds)

    @asynccontextmanager
    async def room(
        self, principal: Principal, executor: AgentExecutor, session_id: SessionId | None = None
    ) -> AsyncGenerator[None]:
        """Let a run start inside the block, if its user does not have too many already; a user's runs start one by one.

        If a run of this session of the user is running, another one does not start beside it: what is said there waits,
        is taken in, takes its place, or is refused for a better reason.

        From half of the limit on, a user's runs are counted under a lock that all instances share. Below that the lock
        is not needed, unless more instances than the other half start a run of one user at the same moment.

        Raises:
            RefusedError: there are too many, or the instance is shutting down.
        """
        self.check_open()
        user_id, most = principal.user_id, self.limits.running_runs_per_user
        async with self._turn(user_id):
            running = await executor.sessions.count_running(user_id)
            if running < most // 2 or executor.locks is None:
                await self._check_running(running, executor, session_id)
                yield
                return
            async with self._alone(user_id, executor.locks):
                await self._check_running(await executor.sessions.count_running(user_id), executor, session_id)
                yield

    @asynccontextmanager
    async def schedule_room(
        self, principal: Principal, schedules: HostedSchedules, schedule_id: ScheduleId
    ) -> AsyncGenerator[None]:
        """Let a user's schedule be set inside the block, if it exists or the user does not have too many already; on
        one instance, a user's schedules are set one by one.

        Raises:
            RefusedError: there are too many, or this server takes none.
        """
        most = self.limits.schedules_per_user
        if not most:
            raise RefusedError(403, "forbidden", "This server accepts no schedules.")
        async with self._turn(principal.user_id):
            if await schedules.find(schedule_id) is None and (await schedules.list(limit=1)).total >= most:
                detail = f"This user already has {most} schedules, which is the limit; delete one first."
                raise RefusedError(409, "too_many_schedules", detail)
            yield

    @asynccontextmanager
    async def _turn(self, user_id: str | None) -> AsyncGenerator[None]:
        """Hold this user's turn to start a run, or set a schedule, on this instance.

        A request that waits too long is refused: behind a store that does not answer, each would wait for all before
        it.
        """
        lock = self._starting.setdefault(user_id or "", asyncio.Lock())
        try:
            async with asyncio.timeout(_BEGIN_MS / 1000):
                await lock.acquire()
        except TimeoutError:
            raise self._begun_by_others() from None
        try:
            yield
        finally:
            lock.release()

    async def _check_running(self, running: int, executor: AgentExecutor, session_id: SessionId | None) -> None:
        most = self.limits.running_runs_per_user
        if running < most:
            return
        current = () if session_id is None else (await executor.sessions.runs(session_id, limit=1)).items
        if not any(run.status == "running" for run in current):
            raise self._too_many(
                429, "too_many_runs", f"This user already has {most} running runs, which is the limit."
            )

    @asynccontextmanager
    async def _alone(self, user_id: str | None, locks: LockManager) -> AsyncGenerator[None]:
        """Hold the lock that keeps other instances from starting a run of this user."""
        whose = "nobody" if user_id is None else sha256(user_id.encode()).hexdigest()
        try:
            lock = await locks.acquire(f"helix.runs.{whose}", ttl_ms=_BEGIN_MS, timeout=_BEGIN_MS / 1000)
        except LockHeldError:
            raise self._begun_by_others() from None
        try:
            yield
        finally:
            with suppress(LockLostError):
                await locks.release(lock)

    def _begun_by_others(self) -> RefusedError:
        return self._too_many(429, "too_many_runs", "Other runs of this user are being started; try again.")

    def check_stream(self, principal: Principal) -> None:
        """Admit a stream, if there are not too many already."""
        self.check_open()
        if self.open_streams >= self.limits.open_streams:
            raise self._too_many(
                503, "too_many_streams", f"This instance has {self.open_streams} open streams, which is the limit."
            )
        most = self.limits.open_streams_per_user
        if principal.user_id is not None and self._streams[principal.user_id] >= most:
            raise self._too_many(
                429,
                "too_many_streams",
                f"This user already has {most} open streams on this instance, which is the limit.",
            )

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task of the instance, which ends with it."""
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def counted(
        self, principal: Principal, response: Callable[[Scope, Receive, Send], Any], run: HostedRun | None = None
    ) -> "CountedResponse":
        """The response of a stream, counted while it is open."""
        return CountedResponse(self, principal, response, run)

    @contextmanager
    def place(self, principal: Principal, run: HostedRun | None = None) -> Generator[None]:
        """Hold a place among the open streams, for this run.

        Raises:
            RefusedError: none is left, or the instance is shutting down.
        """
        self.check_stream(principal)
        self._streams[principal.user_id] += 1
        reader = object()
        if run is not None:
            self._followed[reader] = run
        try:
            yield
        finally:
            self._followed.pop(reader, None)
            self._streams[principal.user_id] -= 1
            if not self._streams[principal.user_id]:
                del self._streams[principal.user_id]

    async def close(self) -> None:
        """End the background tasks. The gate does not open again."""
        self.closed = True
        self.leaving.set()
        for task in tuple(self._watching):
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _too_many(self, status: int, code: str, detail: str) -> RefusedError:
        return RefusedError(
            status, code, detail, retryable=True, headers={"retry-after": str(self.limits.retry_after_seconds)}
        )


class CountedResponse:
    """A response that holds a place among the open streams from before it is sent until it has ended.

    There may have been room when the request came and none any more now, because other requests were as fast.
    """

    def __init__(self, gate: Gate, principal: Principal, response: Callable[..., Any], run: HostedRun | None) -> None:
        self._gate = gate
        self._principal = principal
        self._response = response
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._gate.place(self._principal, self._run):
                await self._response(scope, receive, send)
        except RefusedError as refusal:
            await refused(refusal)(scope, receive, send)
