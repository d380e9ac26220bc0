"""The proof of the janitors: many copies, plenty of work, one of them dies, and each case is handled once."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from helix_agents.agent.context import RunContext
from helix_agents.agent.hook_events import AfterToolEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.janitor import Swept
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor import janitor_jobs
from helix_agents.testing.contracts.executor.janitor_jobs import (
    CALLS_AT_ONCE,
    DEADLINE_SECONDS,
    LEASE_MS,
    Holding,
    guest,
)
from helix_agents.testing.contracts.executor.stage import (
    OpenExecutor,
    ScenarioContract,
    completed,
    runs_of,
    spoken,
    suspended,
    until,
)
from helix_agents.testing.contracts.processes import processes_for
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.workers import Processes

JANITORS = 4
RESUME_GRACE_MS = 30_001


class _Timeouts(Hooks[Any, Any]):
    """Counts how often each call was reported as timed out, whichever janitor resumed it."""

    def __init__(self) -> None:
        self.told: Counter[tuple[str, str]] = Counter()

    def after_tool(self, ctx: RunContext[Any, Any], event: AfterToolEvent) -> None:
        if event.code == "client_tool_timeout":
            self.told[ctx.session_id, event.tool_call_id] += 1


class _Work:
    """Sessions with calls that expire, runs whose process died, and sessions that expired."""

    def __init__(self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock) -> None:
        self._open = open_executor
        self._parts = parts
        self._clock = clock
        self.asking: list[str] = []
        self.orphans: list[str] = []
        self.expiring: list[str] = []

    async def prepare(self, *, asking: int, orphans: int, expiring: int) -> None:
        self.asking = [f"ask-{number}" for number in range(asking)]
        self.orphans = [f"orphan-{number}" for number in range(orphans)]
        self.expiring = [f"old-{number}" for number in range(expiring)]
        async with self._open() as helix:
            for session_id in self.asking:
                await suspended(await helix.execute(guest(), "Ask", session_id))
        async with self._open(grace=0) as dying:
            for session_id in self.orphans:
                await dying.execute(guest(Holding()), "Work", session_id)
        expires = self._clock.now_ms() + DEADLINE_SECONDS * 1000
        for session_id in self.expiring:
            await self._parts.state.create_session(session_id, CreateSession(expires_at=expires))
        self._clock.advance(DEADLINE_SECONDS * 1000)

    async def check(self, helix: Executor, told: Counter[tuple[str, str]], *, most_attempts: int) -> None:
        """Everything is done, and nothing was done twice."""
        for session_id in self.orphans:
            (run,) = await runs_of(helix, session_id)
            assert run.status == "completed", session_id
            assert 2 <= run.attempt <= most_attempts
            said = await spoken(helix, session_id)
            assert said[2] == "result work#call_1_1: worked"
            assert len(said) == 4
        for session_id in self.asking:
            runs = await runs_of(helix, session_id)
            assert [run.status for run in runs] == ["suspended_client_tool", "completed"], session_id
            said = await spoken(helix, session_id)
            assert len(said) == CALLS_AT_ONCE + 3
            assert len([line for line in said if line.endswith("client_tool_timeout")]) == CALLS_AT_ONCE
        for session_id in self.expiring:
            session = await helix.sessions.get(session_id)
            # Created at version 1, settled once.
            assert (session.status, session.failure_reason, session.version) == ("failed", "session_expired", 2)
        assert (await helix.list_pending()).items == ()
        assert set(told.values()) <= {1}


async def _sweep_until_quiet(janitor: Executor, clock: ManualClock, rounds: list[Swept]) -> None:
    while True:
        swept = await janitor.sweep()
        rounds.append(swept)
        if not (swept.expired_calls or swept.resumed or swept.recovered or swept.expired_sessions):
            return


class JanitorsContract(ScenarioContract):
    """Any number of janitors may run; each case is handled by one of them, even if one dies on the way.

    There is enough to do for four of them to meet. A runtime whose runs are slow, or one that should handle a crowd,
    may use another number.
    """

    much_work: Mapping[str, int] = {"asking": 4, "orphans": 30, "expiring": 60}

    async def test_four_janitors_of_which_one_dies_handle_each_case_once(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        work, told = _Work(open_executor, parts, clock), _Timeouts()
        await work.prepare(**self.much_work)
        rounds: list[Swept] = []
        async with AsyncExitStack() as stack:
            settings: dict[str, Any] = {"agents": [guest()], "hooks": told, "grace": 10}
            janitors = [await stack.enter_async_context(open_executor(**settings)) for _ in range(JANITORS - 1)]
            async with open_executor(**{**settings, "grace": 0}) as dying:
                doomed = asyncio.create_task(dying.sweep())
                first = [asyncio.create_task(_sweep_until_quiet(each, clock, rounds)) for each in janitors]
                await until(self._some_orphan_was_recovered(parts, work))
                doomed.cancel()
                await asyncio.gather(doomed, return_exceptions=True)
            await asyncio.gather(*first)
            clock.advance(RESUME_GRACE_MS)
            await asyncio.gather(*(_sweep_until_quiet(each, clock, rounds) for each in janitors))
            await until(self._nothing_runs(parts, work))
            await work.check(janitors[0], told.told, most_attempts=3)
        assert len(told.told) == len(work.asking) * CALLS_AT_ONCE
        # What the three report adds up to no more than there was; the fourth's share is missing.
        assert sum(swept.expired_calls for swept in rounds) <= len(work.asking) * CALLS_AT_ONCE
        assert sum(swept.resumed for swept in rounds) == len(work.asking)
        assert sum(swept.expired_sessions for swept in rounds) <= len(work.expiring)

    def _some_orphan_was_recovered(self, parts: Backend, work: _Work) -> Any:
        async def recovered() -> bool:
            run = await parts.state.get_current_run(work.orphans[0])
            return run is not None and run.attempt > 1

        return recovered

    def _nothing_runs(self, parts: Backend, work: _Work) -> Any:
        async def nothing() -> bool:
            runs = [await parts.state.get_current_run(session_id) for session_id in (*work.asking, *work.orphans)]
            return all(run is None or run.status != "running" for run in runs)

        return nothing

    async def test_a_janitor_reports_what_it_did(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        work = _Work(open_executor, parts, clock)
        await work.prepare(asking=1, orphans=2, expiring=3)
        async with open_executor(agents=[guest()]) as janitor:
            swept = await janitor.sweep()
            assert (swept.expired_calls, swept.recovered, swept.expired_sessions) == (CALLS_AT_ONCE, 2, 3)
            clock.advance(RESUME_GRACE_MS)
            assert (await janitor.sweep()).resumed == 1
            for session_id in (*work.asking, *work.orphans):
                handle = await janitor.get_handle(guest(), session_id)
                assert handle is not None
                assert await completed(handle) == "Done."

    async def test_a_janitor_that_does_not_know_an_agent_leaves_its_sessions_alone(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        work = _Work(open_executor, parts, clock)
        await work.prepare(asking=1, orphans=1, expiring=0)
        clock.advance(RESUME_GRACE_MS)
        async with open_executor() as stranger:
            await stranger.sweep()
            clock.advance(RESUME_GRACE_MS)
            swept = await stranger.sweep()
            assert (swept.resumed, swept.recovered) == (0, 0)
            assert [run.attempt for run in await runs_of(stranger, "orphan-0")] == [1]

    @pytest.fixture
    def janitor_processes(self, store_url: str) -> Iterator[Processes]:
        with processes_for(store_url, janitor_jobs.MODULE) as processes:
            yield processes

    @proves("janitors.survive-a-kill")
    async def test_what_a_killed_janitor_process_had_begun_is_finished_by_the_others(
        self,
        open_executor: OpenExecutor,
        parts: Backend,
        clock: ManualClock,
        store_url: str,
        janitor_processes: Processes,
    ) -> None:
        work, told = _Work(open_executor, parts, clock), _Timeouts()
        await work.prepare(asking=2, orphans=20, expiring=40)
        rounds: list[Swept] = []
        deaths = [{"url": store_url, "now_ms": clock.now_ms(), "after": after} for after in (30, 90, 200)]
        outcomes = await janitor_processes.run(f"{janitor_jobs.MODULE}:sweep_until_killed", deaths)
        assert all(outcome.was_killed for outcome in outcomes), outcomes
        async with open_executor(agents=[guest()], hooks=told, grace=10) as janitor:
            await _sweep_until_quiet(janitor, clock, rounds)
            clock.advance(max(LEASE_MS, RESUME_GRACE_MS) + 1)
            await _sweep_until_quiet(janitor, clock, rounds)
            await until(self._nothing_runs(parts, work))
            await work.check(janitor, told.told, most_attempts=2 + len(deaths))
