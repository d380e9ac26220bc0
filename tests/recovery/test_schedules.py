"""Schedules outlive the processes that set and follow them, and start each of their turns once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, Executor, ScriptedModel
from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.paging import Page
from helix_agents.domain.schedules import Schedule
from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import until, within
from helix_agents.testing.workers import Processes
from tests.recovery import schedule_jobs
from tests.recovery.deaths import settings_on
from tests.recovery.schedule_jobs import CLERK, TIMES


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[schedule_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


@pytest.mark.parametrize("session_id", ["one", None])
async def test_a_turn_whose_process_is_killed_before_the_schedule_moves_on_is_not_started_again(
    tmp_path: Path, processes: Processes, session_id: str | None
) -> None:
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with Executor.open(url, agents=[CLERK], janitor_seconds=None) as helix:
        await helix.schedules.set("once", CLERK, "Tick", at=past, session_id=session_id)
    for _ in range(2):
        [killed] = await processes.run(f"{schedule_jobs.MODULE}:start_and_die", [{"url": url}])
        assert killed.was_killed, killed.error
    async with Executor.open(url, agents=[CLERK], janitor_seconds=None) as helix:
        await helix.sweep()
        schedule = await helix.schedules.find("once")
        assert schedule is not None
        assert schedule.last is not None
        assert (schedule.times, schedule.next_at) == (1, None)
        [session] = (await helix.sessions.list()).items
        [run] = (await helix.sessions.runs(session.session_id)).items
        assert (run.run_id, session.session_id) == (schedule.last.run_id, schedule.last.session_id)


async def test_processes_side_by_side_start_each_turn_once(tmp_path: Path, processes: Processes) -> None:
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    async with Executor.open(url, agents=[CLERK], janitor_seconds=None) as helix:
        await helix.schedules.set("beat", CLERK, "Tick", every=1.0, session_id="beat")
        await helix.schedules.set("new", CLERK, "Tick", every=1.0)
    ran = await processes.run(f"{schedule_jobs.MODULE}:keep_time", [{"url": url}] * 3)
    assert [each.error for each in ran] == [None] * 3
    async with await open_backend(url) as parts:
        runs = (await parts.state.list_runs("beat")).items
        keys = Counter(stored.message.id for stored in await parts.state.load_transcript("beat") if stored.message.id)
        beat = await parts.state.find_schedule("beat")
        assert beat is not None
        assert len([key for key in keys if key.startswith("schedule:")]) == len(runs)
        assert max(keys.values()) == 1
        # A turn may have been started in the moment in which the schedule was paused, or the process left.
        assert TIMES <= beat.times <= len(runs) <= beat.times + 1
        sessions = [each.session_id for each in (await parts.state.list_sessions()).items]
        started = await parts.state.find_schedule("new")
        assert started is not None
        assert started.times <= len([name for name in sessions if name.startswith("new.")]) <= started.times + 1


async def test_an_executor_starts_a_turn_when_it_is_due_without_anybody_asking() -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Yes."))
    async with Executor.open("memory://on-time", agents=[agent], janitor_seconds=600) as helix:
        at = datetime.now(UTC) + timedelta(milliseconds=300)
        await helix.schedules.set("soon", agent, "Tick", at=at, session_id="s-1")

        async def begun() -> bool:
            schedule = await helix.schedules.find("soon")
            return schedule is not None and schedule.times == 1

        await until(begun)
        [run] = (await helix.sessions.runs("s-1")).items
        assert run.started_at >= round(at.timestamp() * 1000)


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_a_wrong_clock_left_is_due_in_time_again_when_the_clock_is_set_back(*, restarted: bool) -> None:
    clock, hour = ManualClock(1_800_000_000_000), 3_600_000
    async with await open_backend(f"memory://wrong-clock-of-schedules-{restarted}", clock=clock) as parts:

        async def until_next_at(helix: Executor, expected: int) -> None:
            async def is_so() -> bool:
                schedule = await helix.schedules.find("hourly")
                return schedule is not None and schedule.next_at == expected

            await until(is_so)

        settings: dict[str, Any] = {**settings_on(parts, CLERK), "janitor_seconds": 0.02}
        later = clock.now_ms() + 400 * 24 * hour
        async with Executor(**settings) as helix:
            await helix.schedules.set("hourly", CLERK, "Tick", every=timedelta(hours=1))
            await helix.schedules.set("later", CLERK, "Tick", every=1.0, at=datetime.fromtimestamp(later / 1000, UTC))
            clock.advance(365 * 24 * hour)
            await until_next_at(helix, clock.now_ms() + hour)
            if not restarted:
                clock.advance(-365 * 24 * hour)
                await until_next_at(helix, clock.now_ms() + hour)
        if restarted:
            clock.advance(-365 * 24 * hour)
        async with Executor(**settings) as helix:
            await until_next_at(helix, clock.now_ms() + hour)
            # A clock that is corrected by less than a day makes no time come twice.
            clock.advance(-hour)
            await until_next_at(helix, clock.now_ms() + 2 * hour)
            schedule = await helix.schedules.find("later")
            assert schedule is not None
            assert schedule.next_at == later


async def test_a_clock_that_is_behind_makes_nothing_due_when_it_is_set_right(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, year = ManualClock(1_800_000_000_000), 365 * 24 * 3_600_000
    async with await open_backend("memory://clock-behind", clock=clock) as parts:
        async with Executor(**settings_on(parts, CLERK)) as helix:
            await helix.schedules.set("hourly", CLERK, "Tick", every=timedelta(hours=1))
        list_schedules, list_due = parts.state.list_schedules, parts.state.list_due_schedules
        looked, was_done = asyncio.Event(), asyncio.Event()

        async def looking(**options: Any) -> Page[Schedule]:
            looked.set()
            return await list_schedules(**options)

        async def looking_ahead(until: int, **options: Any) -> tuple[Schedule, ...]:
            if looked.is_set():
                was_done.set()
            return await list_due(until, **options)

        monkeypatch.setattr(parts.state, "list_schedules", looking)
        monkeypatch.setattr(parts.state, "list_due_schedules", looking_ahead)
        clock.advance(-20 * year)
        settings: dict[str, Any] = {**settings_on(parts, CLERK), "janitor_seconds": 0.02}
        async with Executor(**settings) as helix:
            await within(was_done.wait())
            clock.advance(20 * year)
            schedule = await helix.schedules.find("hourly")
            assert schedule is not None
            assert schedule.next_at == clock.now_ms() + 3_600_000


async def test_a_schedule_that_fails_keeps_no_other_waiting_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with (
        await open_backend("memory://keeps-no-other") as parts,
        Executor(**settings_on(parts, CLERK)) as helix,
    ):
        await helix.schedules.set("a", CLERK, "Tick", at=past, session_id="first")
        await helix.schedules.set("b", CLERK, "Tick", at=past, session_id="second")
        load_state = parts.state.load_state

        async def away(session_id: str) -> object:
            if session_id == "first":
                raise StoreUnavailableError("memory", "it is away")
            return await load_state(session_id)

        monkeypatch.setattr(parts.state, "load_state", away)
        assert (await helix.sweep()).scheduled == 1
        monkeypatch.undo()
        assert (await helix.sweep()).scheduled == 1
        await within(helix.idle())
        assert sorted(each.session_id for each in (await helix.sessions.list()).items) == ["first", "second"]
        assert [swept.scheduled for swept in await asyncio.gather(helix.sweep(), helix.sweep())] == [0, 0]


async def test_a_schedule_that_is_paused_or_deleted_while_it_waits_behind_others_starts_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with (
        await open_backend("memory://behind-others") as parts,
        Executor(**settings_on(parts, CLERK)) as helix,
    ):
        for name in ("a", "b", "c"):
            await helix.schedules.set(name, CLERK, "Tick", at=past, session_id=f"of-{name}")
        start_run = parts.state.start_run

        async def stopped_meanwhile(start: StartRun) -> RunStartCommitted:
            await helix.schedules.pause("b")
            await helix.schedules.delete("c")
            return await start_run(start)

        monkeypatch.setattr(parts.state, "start_run", stopped_meanwhile)
        assert (await helix.sweep()).scheduled == 1
        await within(helix.idle())
        assert [each.session_id for each in (await helix.sessions.list()).items] == ["of-a"]


@pytest.mark.parametrize("later", [None, 3600])
async def test_a_turn_that_starts_while_its_schedule_is_changed_is_counted_and_starts_nowhere_else(
    later: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    at = past if later is None else past + timedelta(seconds=later)
    async with (
        await open_backend(f"memory://changed-meanwhile-{later}") as parts,
        Executor(**settings_on(parts, CLERK)) as helix,
    ):
        await helix.schedules.set("once", CLERK, "Tick", at=past, session_id="first")
        start_run = parts.state.start_run

        async def changed_meanwhile(start: StartRun) -> RunStartCommitted:
            monkeypatch.undo()
            await helix.schedules.set("once", CLERK, "Tock", at=at, session_id="second")
            return await start_run(start)

        monkeypatch.setattr(parts.state, "start_run", changed_meanwhile)
        assert (await helix.sweep()).scheduled == 1
        assert (await helix.sweep()).scheduled == 0
        await within(helix.idle())
        assert [each.session_id for each in (await helix.sessions.list()).items] == ["first"]
        schedule = await helix.schedules.find("once")
        assert schedule is not None
        assert schedule.last is not None
        assert (schedule.times, schedule.last.session_id, schedule.session_id) == (1, "first", "second")
        assert schedule.next_at == (None if later is None else round(at.timestamp() * 1000))
