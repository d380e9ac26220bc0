"""Runs held in this process, for one effect or for many: their scopes, and what lives as long as a scope does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakValueDictionary

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.children.sub_agents import stopping_after
from helix_agents.engine.effects import Position, Within
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.opened_deps import opened_deps
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import OpenDeps, Services
from helix_agents.engine.steps.opening import go_on
from helix_agents.engine.steps.stop_watch import StopSignal, look_for_stop, undisturbed, watching
from helix_agents.engine.steps.taking import open_scope, take_writer
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter


@dataclass(frozen=True, kw_only=True)
class EffectPlace:
    """Where in its run an effect belongs, and whether it must `join` other effects of its step in the stream."""

    step: int
    round: int
    join: bool
    begins: bool = False

    @classmethod
    def of_call(cls, within: Within) -> Self:
        """The place of a parent's run while a child works for one of its calls."""
        return cls(step=within.step, round=within.round, join=True)

    @classmethod
    def beginning(cls) -> Self:
        """The effect that opens a run."""
        return cls(step=0, round=0, join=False, begins=True)

    def follows(self, session: SessionState) -> bool:
        """Whether a session is exactly where this effect continues, with no other commit in between."""
        held = session.suspension_context
        if self.begins or held is None:
            return not self.begins and self.round == 0 and session.step_count == self.step - 1
        return (held.step, held.round + 1) == (self.step, self.round)


@dataclass(frozen=True, kw_only=True)
class OfOneCall:
    """Hooks and model that a caller gave for a single run; they live in the caller's process."""

    hooks: SomeHooks = None
    model: LLMAdapter | None = None


_NOTHING = OfOneCall()


@dataclass
class _Kept:
    run: "LiveRun"
    scope: RunScope
    users: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(kw_only=True)
class LiveRuns:
    """The runs held in this process.

    A driver that is `alone` with its attempts keeps each run from its first effect until `release`. Others share runs
    with other processes: a run that was not needed for `keep_seconds` is released, and a kept one serves an effect only
    if no other process committed in between. Keeping runs affects speed only, never correctness.

    `of_calls` has what callers in this process gave for single runs.
    """

    services: Services
    alone: bool
    open_deps: OpenDeps | None = None
    keep_seconds: float = 30.0
    of_calls: dict[RunId, OfOneCall] = field(default_factory=dict[RunId, OfOneCall])
    _kept: dict[Fence, _Kept] = field(default_factory=dict[Fence, _Kept])
    # Opening a run and putting it back take time, and effects run side by side: both happen under the run's lock.
    _doors: WeakValueDictionary[Fence, asyncio.Lock] = field(default_factory=WeakValueDictionary[Fence, asyncio.Lock])
    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @asynccontextmanager
    async def take(
        self, session_id: SessionId, fence: Fence, place: EffectPlace, within: Within | None = None
    ) -> AsyncGenerator[RunScope | Position]:
        """The scope of a run for the duration of an effect, or the run's position if it cannot be opened.

        For a run that works for a call `within` another run, that other run is taken as well: the child shares its
        stream and is stopped with it.

        Raises:
            SupersededError: another driver has the run, its stream, or the run that it works for.
        """
        if within is None:
            async with self._take(session_id, fence, place, None) as taken:
                yield taken
            return
        above = Fence(run_id=within.run_id, attempt=within.attempt)
        async with self.take(within.session_id, above, EffectPlace.of_call(within), within.within) as parent:
            if isinstance(parent, Position):
                raise SupersededError(within.session_id, within.run_id, within.attempt, "the parent's run is over")
            async with self._take(session_id, fence, place, Delegation(parent, within)) as taken:
                yield taken

    @asynccontextmanager
    async def _take(
        self, session_id: SessionId, fence: Fence, place: EffectPlace, delegation: "Delegation | None"
    ) -> AsyncGenerator[RunScope | Position]:
        door = self._doors.setdefault(fence, asyncio.Lock())
        async with door:
            kept = await self._find(fence, place, delegation) or await self._open(session_id, fence, place, delegation)
        if isinstance(kept, Position):
            yield kept
            return
        try:
            yield kept.scope
        finally:
            kept.users -= 1
            await undisturbed(self._put_back(door, fence, kept))

    async def release(self, fence: Fence) -> None:
        """Release a run once no effect uses it any more; idempotent."""
        kept = self._kept.pop(fence, None)
        if kept is not None and not kept.users:
            await self._close(kept)

    async def release_all(self) -> None:
        """Release every run."""
        for fence in tuple(self._kept):
            await self.release(fence)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _find(self, fence: Fence, place: EffectPlace, delegation: "Delegation | None") -> _Kept | None:
        """The kept run, if it is still usable: no other process has moved it on, and its parent scope is the same."""
        kept = self._kept.get(fence)
        if kept is None:
            return None
        if kept.timer is not None:
            kept.timer.cancel()
        stays = delegation is None or kept.scope.parent is delegation.parent
        if not stays or not (self.alone or place.follows(kept.scope.session)):
            await self.release(fence)
            return None
        if not (self.alone or kept.users):
            try:
                await take_writer(kept.scope, join=place.join)
            except SupersededError:
                # The stream may have ended with the commit that ended the run: the store knows what became of it.
                await undisturbed(self.release(fence))
                return None
            except BaseException:
                await undisturbed(self.release(fence))
                raise
        kept.users += 1
        return kept

    async def _open(
        self, session_id: SessionId, fence: Fence, place: EffectPlace, delegation: "Delegation | None"
    ) -> _Kept | Position:
        live = LiveRun(
            self.services,
            session_id,
            fence,
            self.of_calls.get(fence.run_id, _NOTHING),
            open_deps=self.open_deps,
            alone=self.alone,
            delegation=delegation,
        )
        try:
            scope = await live.open(begins=place.begins, join=place.join and not self.alone)
        except BaseException:
            await live.close()
            raise
        if isinstance(scope, Position):
            await live.close()
            return scope
        if scope.run.call_hooks and not self.alone and fence.run_id not in self.of_calls:
            log_event("hooks.call_hooks_lost", session_id=session_id, run_id=fence.run_id)
        kept = self._kept[fence] = _Kept(live, scope, users=1)
        return kept

    async def _put_back(self, door: asyncio.Lock, fence: Fence, kept: _Kept) -> None:
        """Keep the run for its next effect, or close it if it was released meanwhile."""
        async with door:
            if kept.users:
                return
            if self._kept.get(fence) is not kept:
                # It was released meanwhile.
                await self._close(kept)
                return
            if self.alone:
                return
            if not self.keep_seconds:
                await self.release(fence)
                return
            try:
                with suppress(SupersededError):
                    await kept.scope.said()
            finally:
                kept.timer = asyncio.get_running_loop().call_later(self.keep_seconds, self._expire, fence, kept)

    def _expire(self, fence: Fence, kept: _Kept) -> None:
        if self._kept.get(fence) is kept and not kept.users:
            del self._kept[fence]
            task = asyncio.create_task(self._close(kept))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, kept: _Kept) -> None:
        if kept.timer is not None:
            kept.timer.cancel()
        await kept.run.close()


@dataclass(frozen=True)
class Delegation:
    """A parent's run, and the call of it that a child's run works for."""

    parent: RunScope
    within: Within


class LiveRun:
    """One attempt of a run in this process: its scope with the stream writer, the stop watcher and the deps.

    A dedicated task holds all of these, so everything is closed in the task that opened it, whoever asks for it.
    """

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        fence: Fence,
        given: OfOneCall,
        *,
        open_deps: OpenDeps | None,
        alone: bool,
        delegation: Delegation | None = None,
    ) -> None:
        self._services = services
        self._delegation = delegation
        self._session_id = session_id
        self._fence = fence
        self._given = given
        self._open_deps = open_deps
        self._alone = alone
        self._released = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def open(self, *, begins: bool, join: bool) -> RunScope | Position:
        """Open the run; unless this effect begins it, pick up what earlier effects left."""
        opened: asyncio.Future[RunScope | Position] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(opened, begins=begins, join=join))
        return await opened

    async def close(self) -> None:
        """Store what was streamed and release everything; idempotent."""
        self._released.set()
        if self._holder is not None:
            await asyncio.wait((self._holder,))

    async def _hold(self, opened: "asyncio.Future[RunScope | Position]", *, begins: bool, join: bool) -> None:
        try:
            async with self._surroundings() as (stop, deps):
                delegation = self._delegation
                scope = await open_scope(
                    self._services,
                    self._session_id,
                    self._fence,
                    desk=StoreDesk(self._services.store, self._session_id, self._fence, alone=self._alone),
                    stop=stop,
                    deps=deps,
                    hooks=self._given.hooks,
                    model=self._given.model,
                    join=join,
                    shared=not self._alone,
                    parent=None if delegation is None else delegation.parent,
                    delegated_by=None if delegation is None else delegation.within.tool_call_id,
                )
                if isinstance(scope, RunScope):
                    scope.is_shared = not self._alone
                    if not begins:
                        await go_on(scope, joined=join)
                if not opened.done():
                    opened.set_result(scope)
                if isinstance(scope, RunScope):
                    await self._released.wait()
                    with suppress(SupersededError):
                        await scope.writer.close()
        except BaseException as problem:
            if not opened.done():
                opened.set_exception(problem)
            elif isinstance(problem, HelixError):
                # Whatever was not stored any more is streamed again by the process that continues the run.
                log_exception("run.release_failed", problem, session_id=self._session_id)
            else:
                raise

    @asynccontextmanager
    async def _surroundings(self) -> AsyncGenerator[tuple[StopSignal, Any]]:
        """The stop signal and the deps beside the scope; a child uses its parent's deps and stops with its parent."""
        if self._delegation is None:
            watched = watching(self._services.store, self._session_id, self._services.sleep)
            deps = opened_deps(self._services.store, self._open_deps, self._session_id)
            async with watched as stop, deps as opened:
                yield stop, opened
            return
        parent, within = self._delegation.parent, self._delegation.within
        run = await self._services.store.get_run(self._fence.run_id)
        stop = parent.stop.below()
        await look_for_stop(self._services.store, parent.session.root_session_id, stop)
        with stopping_after(within.timeout_ms, stop, run, self._services.clock):
            yield stop, parent.deps
