"""Runs that a process holds through all their effects, and claims again if it lost the store in between."""

import asyncio

from helix_agents.domain.errors import ConflictError, HelixError, SupersededError
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.effects import RunEnd, Within
from helix_agents.engine.live_runs import LiveRuns
from helix_agents.engine.log import log_exception
from helix_agents.engine.plain import CallsRequest, EffectName, Plain, answer_of, call_within, to_plain
from helix_agents.runtimes.executor.owned_runs import backoff, claim

SUPERSEDED = RunEnd(status="superseded")


class ClaimedRun:
    """A run under its current fence.

    A run that works for a call of another run writes to the stream and is stopped through that run's scope. So it is
    claimed again whenever its caller is, before its next effect; effects still under way are refused, and done again.
    """

    def __init__(
        self, runs: LiveRuns, run: RunRecord, owner: str, *, above: "tuple[ClaimedRun, CallsRequest] | None" = None
    ) -> None:
        self.run = run
        self._runs = runs
        self._effects = Effects(runs.services, runs)
        self._owner = owner
        self._above = above
        self._caller = above[0].run if above is not None else None
        self._claiming = asyncio.Lock()

    async def perform(self, effect: EffectName, request: Plain) -> Plain:
        """Do an effect. If the store is lost in between, do it as the next attempt once the store is back.

        Raises:
            ConflictError: another driver has the run.
        """
        for wait in backoff():
            root, top = self._root, self._root.run
            try:
                await self._follow()
                standing, run, within = self._standing, self.run, self._within()
                above = None if within is None else to_plain(within)
                answer = await self._effects.perform(effect, run.session_id, run.fence, request, above)
            except ConflictError:
                raise
            except HelixError as problem:
                log_exception("run.driver_lost", problem, session_id=self.run.session_id, run_id=self.run.run_id)
                await asyncio.sleep(wait)
                await root._claim_after(top)
                continue
            if answer_of(answer) != SUPERSEDED:
                return answer
            if self._standing == standing:
                raise SupersededError(run.session_id, run.run_id, run.attempt, "another driver has it")
        raise AssertionError("the waits never end")

    @property
    def _root(self) -> "ClaimedRun":
        return self if self._above is None else self._above[0]._root

    @property
    def _standing(self) -> tuple[RunRecord, ...]:
        """This run and those above it, as last claimed."""
        return (self.run,) if self._above is None else (self.run, *self._above[0]._standing)

    def _within(self) -> Within | None:
        if self._above is None:
            return None
        caller, call = self._above
        return call_within(call, caller.run.session_id, caller.run.fence, caller._within())

    async def _follow(self) -> None:
        """If a run above this one was claimed anew, claim the runs above and then this one."""
        if self._above is None:
            return
        caller, _ = self._above
        await caller._follow()
        async with self._claiming:
            above = caller.run
            if self._caller is not above:
                await self._claim()
                self._caller = above

    async def _claim_after(self, lost: RunRecord) -> None:
        """Continue under a new fence, unless a parallel call has claimed it already."""
        async with self._claiming:
            if self.run is lost:
                await self._claim()

    async def _claim(self) -> None:
        before = self.run
        self.run = await claim(self._runs.services.store, before, self._owner)
        await self._runs.release(before.fence)
