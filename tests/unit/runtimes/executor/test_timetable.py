"""When schedules are due."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from helix_agents.domain.errors import InvalidInputError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.schedules import Schedule
from helix_agents.runtimes.executor.schedule_runner import session_of
from helix_agents.runtimes.executor.timetable import (
    check_timing,
    first_time,
    is_out_of_reach,
    milliseconds_of,
    next_time,
)

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(**timing: Any) -> Schedule:
    return Schedule(schedule_id="s", agent="clerk", messages=(UserMessage(content="Tick"),), **timing)


def ms(*moment: int, zone: Any = UTC) -> int:
    return milliseconds_of(datetime(*moment, tzinfo=zone))  # pyright: ignore[reportArgumentType]


times = st.integers(0, 2**41)
intervals = st.integers(1_000, 2**32)


@given(times, intervals, times)
def test_an_interval_keeps_its_beat_and_leaves_out_what_was_missed(due_at: int, every: int, now: int) -> None:
    following = next_time(schedule(every_ms=every), due_at, now)
    assert following is not None
    assert following > now
    assert (following - due_at) % every == 0
    assert following - every <= max(now, due_at)


@given(times, intervals, times)
def test_an_interval_that_starts_at_a_time_has_its_first_beat_then_or_after_now(at: int, every: int, now: int) -> None:
    first = first_time(schedule(every_ms=every, at=at), now)
    assert first is not None
    assert first == at if at > now else now < first <= now + every
    assert (first - at) % every == 0


def test_a_single_time_is_due_even_if_it_has_passed_and_then_over() -> None:
    once = schedule(at=500)
    assert (first_time(once, 100), first_time(once, 900), next_time(once, 500, 900)) == (500, 500, None)


def test_a_cron_expression_follows_the_clock_on_the_wall_through_a_change_of_time() -> None:
    daily = schedule(cron="30 7 * * *", timezone="Europe/Berlin")
    at = first_time(daily, ms(2027, 3, 26, 12))
    found: list[datetime] = []
    for _ in range(4):
        assert at is not None
        found.append(datetime.fromtimestamp(at / 1000, BERLIN))
        at = next_time(daily, at, at)
    assert [(moment.day, moment.hour, moment.minute) for moment in found] == [(day, 7, 30) for day in (27, 28, 29, 30)]
    assert (found[1] - found[0].astimezone(UTC)) == timedelta(hours=23)


@pytest.mark.parametrize(
    ("expression", "following"),
    [("30 2 * * *", (26, 1, 30)), ("15 1-3 * * *", (25, 2, 15)), ("30 * * * *", (25, 1, 30))],
)
def test_in_the_hour_that_clocks_go_through_twice_no_time_is_due_that_has_passed(
    expression: str, following: tuple[int, int, int]
) -> None:
    twice = schedule(cron=expression, timezone="Europe/Berlin")
    due_at, now = ms(2026, 10, 25, 0, 30), ms(2026, 10, 25, 1, 5)
    assert first_time(twice, now) == next_time(twice, due_at, now) == ms(2026, 10, *following)


def test_a_cron_expression_does_not_begin_before_its_first_time() -> None:
    daily = schedule(cron="0 7 * * *", at=ms(2027, 6, 1, 7))
    assert first_time(daily, ms(2027, 1, 1)) == ms(2027, 6, 1, 7)
    assert first_time(daily, ms(2027, 7, 1)) == ms(2027, 7, 1, 7)


@given(times, intervals, times)
def test_a_next_time_that_was_computed_by_a_right_clock_is_never_out_of_reach(at: int, every: int, now: int) -> None:
    for timing in ({"every_ms": every}, {"every_ms": every, "at": at}, {"at": at}, {"cron": "0 7 * * 1", "at": at}):
        stored = schedule(**timing)
        assert not is_out_of_reach(replace(stored, next_at=first_time(stored, now)), now)
        assert not is_out_of_reach(replace(stored, next_at=next_time(stored, min(at, now), now)), now)


def test_a_next_time_of_a_clock_that_was_wrong_is_out_of_reach() -> None:
    now, later = ms(2026, 1, 1), ms(2027, 1, 1)
    for timing in ({"every_ms": 3_600_000}, {"cron": "0 7 * * *"}):
        stored = schedule(**timing)
        assert is_out_of_reach(replace(stored, next_at=next_time(stored, later, later)), now)


@pytest.mark.parametrize("expression", ["", "61 * * * *", "0 7 * *", "0 7 31 2 *", "@daily"])
def test_what_is_no_cron_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a cron expression"):
        check_timing(schedule(cron=expression))


def test_a_session_is_named_after_its_schedule_and_the_time() -> None:
    assert session_of(schedule(every_ms=1_000), ms(2027, 1, 2, 3, 4, 5)) == "s.20270102T030405Z"
    assert session_of(schedule(every_ms=1_000), ms(2027, 1, 2, 3, 4, 5) + 7) == "s.20270102T030405.007Z"
    assert session_of(schedule(every_ms=1_000, session_id="mine"), 0) == "mine"
