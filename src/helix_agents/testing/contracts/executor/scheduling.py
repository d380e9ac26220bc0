"""Scenarios of schedules: each due time starts one turn, whichever processes look, and none is started twice."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import DefinitionError, InvalidIdError, InvalidInputError, ScheduleNotFoundError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.schedules import Schedule
from helix_agents.llm.scripted import ScriptedModel, call
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    completed,
    runs_of,
    scripted,
    spoken,
    suspended,
    within,
)

HOUR = 3_600_000


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return "Now I know."
    return call("locate", {"city": "Bonn"}) if last.content == "Where?" else f"You said {last.content}"


def _agent(name: str = "clerk") -> AnyAgent:
    return scripted((), {}, model=ScriptedModel(_answer), name=name, tools=[locate])


async def _found(helix: Executor, schedule_id: str = "hourly") -> Schedule:
    schedule = await helix.schedules.find(schedule_id)
    assert schedule is not None
    return schedule


async def _started(helix: Executor) -> list[str]:
    """The ids of all sessions, once everything that was started is over."""
    await within(helix.idle())
    return sorted(each.session_id for each in (await helix.sessions.list()).items)


class SchedulingContract(ScenarioContract):
    """What agents are told at set times."""

    async def test_each_time_starts_a_session_of_its_own(self, helix: Executor, clock: ManualClock) -> None:
        agent, begin = _agent(), clock.now_ms()
        schedule = await helix.schedules.set(
            "hourly", agent, "Tick", every=timedelta(hours=1), user_id="ann", tags=["t"], metadata={"k": "v"}
        )
        assert (schedule.next_at, schedule.times, schedule.last) == (begin + HOUR, 0, None)
        assert (await helix.sweep()).scheduled == 0
        for _ in range(2):
            clock.advance(HOUR)
            assert (await helix.sweep()).scheduled == 1
            assert (await helix.sweep()).scheduled == 0
        schedule = await _found(helix)
        assert (schedule.next_at, schedule.times) == (begin + 3 * HOUR, 2)
        first, second = await _started(helix)
        assert first.startswith("hourly.")
        assert schedule.last is not None
        assert (schedule.last.session_id, schedule.last.due_at) == (second, begin + 2 * HOUR)
        session = await helix.sessions.get(first)
        assert (session.user_id, session.tags, session.metadata["k"]) == ("ann", ("t",), "v")
        assert await spoken(helix, first) == ["user: Tick", "assistant: You said Tick"]

    async def test_turns_of_one_session_follow_each_other(self, helix: Executor, clock: ManualClock) -> None:
        await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=1), session_id=SESSION)
        for _ in range(3):
            clock.advance(HOUR)
            await helix.sweep()
            await within(helix.idle())
        assert [run.status for run in await runs_of(helix)] == ["completed"] * 3
        assert await _started(helix) == [SESSION]

    async def test_times_that_were_missed_are_made_up_for_once(self, helix: Executor, clock: ManualClock) -> None:
        begin = clock.now_ms()
        await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=1))
        clock.advance(5 * HOUR + 1)
        assert (await helix.sweep()).scheduled == 1
        assert (await helix.sweep()).scheduled == 0
        assert (await _found(helix)).next_at == begin + 6 * HOUR

    async def test_one_time_is_over_after_it(self, helix: Executor, clock: ManualClock) -> None:
        agent = _agent()
        at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(minutes=5)
        for _ in range(2):
            await helix.schedules.set("once", agent, "Ping", at=at, session_id=SESSION)
            clock.advance(5 * 60_000)
            await helix.sweep()
            await within(helix.idle())
        assert len(await runs_of(helix)) == 1
        assert (await _found(helix, "once")).next_at is None
        await helix.schedules.pause("once")
        assert (await helix.schedules.resume("once")).next_at is None
        later = at + timedelta(days=1)
        assert (await helix.schedules.set("once", agent, "Ping", at=later)).next_at == later.timestamp() * 1000
        await helix.schedules.pause("once")
        assert (await helix.schedules.resume("once")).next_at == later.timestamp() * 1000

    async def test_of_many_processes_one_starts_the_turn(self, open_executor: OpenExecutor, clock: ManualClock) -> None:
        async with open_executor() as one, open_executor() as two, open_executor() as three:
            executors = (one, two, three)
            for helix in executors:
                await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=1))
                await helix.schedules.set("own", _agent(), "Tock", every=timedelta(hours=1), session_id=SESSION)
            for _ in range(3):
                clock.advance(HOUR)
                await asyncio.gather(*(helix.sweep() for helix in executors))
                await asyncio.gather(*(within(helix.idle()) for helix in executors))
            assert len([name for name in await _started(one) if name.startswith("hourly")]) == 3
            assert len(await runs_of(one)) == 3
            assert [(await _found(helix)).times for helix in executors] == [3] * 3

    async def test_a_busy_session_has_the_turn_wait_or_is_left_alone(self, helix: Executor, clock: ManualClock) -> None:
        agent = _agent()
        [waiting] = (await suspended(await helix.execute(agent, "Where?", SESSION))).pending
        every = timedelta(hours=1)
        await helix.schedules.set("skips", agent, "Tick", every=every, session_id=SESSION, if_busy="skip")
        await helix.schedules.set("waits", agent, "Tock", every=every, session_id=SESSION)
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 1
        skipped = await _found(helix, "skips")
        assert (skipped.times, skipped.last and skipped.last.run_id) == (0, None)
        assert [turn.messages[0].content for turn in await helix.sessions.queued(SESSION)] == ["Tock"]
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, ToolAnswer(result="here"))
        assert await completed(await helix.resume(agent, SESSION)) == "Now I know."
        await within(helix.idle())
        assert (await spoken(helix))[-2:] == ["user: Tock", "assistant: You said Tock"]

    async def test_only_one_turn_of_a_schedule_waits_for_a_busy_session(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent, every = _agent(), timedelta(hours=1)
        [waiting] = (await suspended(await helix.execute(agent, "Where?", SESSION))).pending
        await helix.schedules.set("hourly", agent, "Tick", every=every, session_id=SESSION)
        await helix.schedules.set("hourly:0", agent, "Tock", every=every, session_id=SESSION)
        for _ in range(3):
            clock.advance(HOUR)
            await helix.sweep()
        queued = [turn.messages[0].content for turn in await helix.sessions.queued(SESSION)]
        assert sorted(map(str, queued)) == ["Tick", "Tock"]
        schedule = await _found(helix)
        assert (schedule.times, schedule.last and (schedule.last.run_id, schedule.last.error)) == (1, (None, None))
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, ToolAnswer(result="here"))
        await completed(await helix.resume(agent, SESSION))
        await within(helix.idle())
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 2
        await within(helix.idle())
        assert (await spoken(helix)).count("user: Tick") == 2

    async def test_a_schedule_continues_a_session_that_was_stopped(self, helix: Executor, clock: ManualClock) -> None:
        agent = _agent()
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1), session_id=SESSION)
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 1
        await helix.interrupt(SESSION)
        await within(helix.idle())
        assert len(await helix.sessions.queued(SESSION)) == 1
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 1
        await within(helix.idle())
        assert (await spoken(helix)).count("user: Tick") == 2

    async def test_paused_schedules_rest_until_they_are_resumed(self, helix: Executor, clock: ManualClock) -> None:
        await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=1))
        assert (await helix.schedules.pause("hourly")).next_at is None
        clock.advance(10 * HOUR)
        assert (await helix.sweep()).scheduled == 0
        await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=2))
        assert (await helix.schedules.resume("hourly")).next_at == clock.now_ms() + 2 * HOUR
        assert await helix.schedules.delete("hourly")
        assert not await helix.schedules.delete("hourly")
        clock.advance(10 * HOUR)
        assert (await helix.sweep()).scheduled == 0
        for change in (helix.schedules.pause, helix.schedules.resume):
            with pytest.raises(ScheduleNotFoundError):
                await change("hourly")

    async def test_setting_it_again_changes_what_is_said_and_not_when(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent = _agent()
        first = await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1))
        clock.advance(HOUR // 2)
        assert await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1)) == first
        second = await helix.schedules.set("hourly", agent, "Tock", every=timedelta(hours=1))
        assert (second.next_at, second.messages[0].content) == (first.next_at, "Tock")
        third = await helix.schedules.set("hourly", agent, "Tock", every=timedelta(hours=2))
        assert third.next_at == clock.now_ms() + 2 * HOUR
        assert [each.schedule_id for each in (await helix.schedules.list()).items] == ["hourly"]

    async def test_setting_it_again_repairs_a_next_time_that_a_wrong_clock_left(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent, year = _agent(), 365 * 24 * HOUR
        await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1))
        clock.advance(year)
        assert (await helix.sweep()).scheduled == 1
        await within(helix.idle())
        clock.advance(HOUR // 2 - year)
        assert (await _found(helix)).next_at == clock.now_ms() + year + HOUR // 2
        again = await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1))
        assert again.next_at == clock.now_ms() + HOUR
        assert await helix.schedules.set("hourly", agent, "Tick", every=timedelta(hours=1)) == again

    async def test_a_schedule_of_an_agent_that_a_process_does_not_know_is_left_to_others(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        await helix.schedules.set("hourly", "stranger", "Tick", every=timedelta(hours=1), session_id=SESSION)
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 0
        async with open_executor(agents=[_agent("stranger")]) as other:
            assert (await other.sweep()).scheduled == 1
            await within(other.idle())
        assert [run.status for run in await runs_of(helix)] == ["completed"]

    async def test_a_turn_that_cannot_be_is_told_and_the_next_time_comes(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        await completed(await helix.execute(_agent("other"), "Hello", SESSION))
        await helix.schedules.set("hourly", _agent(), "Tick", every=timedelta(hours=1), session_id=SESSION)
        clock.advance(HOUR)
        assert (await helix.sweep()).scheduled == 0
        schedule = await _found(helix)
        assert schedule.next_at == clock.now_ms() + HOUR
        assert schedule.last is not None
        assert "'other'" in str(schedule.last.error)

    async def test_a_schedule_that_says_nothing_useful_is_refused(self, helix: Executor) -> None:
        agent = _agent()
        for wrong, says in (
            ({}, "does not say when"),
            ({"every": timedelta(hours=1), "cron": "0 7 * * *"}, "both an interval"),
            ({"every": 0.5}, "not between a second and ten years"),
            ({"every": timedelta(days=400_000)}, "not between a second and ten years"),
            ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-23)))}, "between the years 1970 and"),
            ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23)))}, "between the years 1970 and"),
            ({"cron": "at noon"}, "is not a cron expression"),
            ({"cron": "0 7 * * *", "timezone": "Europe/Atlantis"}, "there is no timezone"),
            ({"every": 60, "timezone": "Europe/Berlin"}, "goes with a cron"),
            ({"at": datetime(2030, 1, 1)}, "has no timezone"),  # noqa: DTZ001  # what is refused
            ({"every": 60, "if_busy": "interrupt"}, "is neither 'enqueue' nor 'skip'"),
        ):
            with pytest.raises(InvalidInputError, match=says):
                await helix.schedules.set("wrong", agent, "Tick", **wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidIdError, match="it has another meaning in a URL path"):
            await helix.schedules.set("..", agent, "Tick", every=60)
        with pytest.raises(InvalidInputError, match="give the Agent itself or its name"):
            await helix.schedules.set("wrong", None, "Tick", every=60)  # pyright: ignore[reportArgumentType]
        with pytest.raises(DefinitionError, match="The budget of a call of agent 'clerk'"):
            await helix.schedules.set("wrong", agent, "Tick", every=60, budget=Budget(tokens=0))
        assert (await helix.schedules.list()).items == ()
