"""When a schedule is due: at one time, at an interval, or by a cron expression in a timezone."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from helix_agents.domain.errors import InvalidInputError, MissingExtraError
from helix_agents.domain.schedules import Schedule

SHORTEST_MS = 1_000
"""No schedule is due more often than this."""
LONGEST_MS = 10 * 365 * 86_400_000
LATEST_MS = 32_503_680_000_000
"""The year 3000. Much later times have no date that could be shown."""
# Clocks are corrected a little all the time.
_DRIFT_MS = 60_000


def check_timing(schedule: Schedule) -> None:
    """Refuse a schedule that does not say when it is due, or says it in two ways.

    Raises:
        InvalidInputError: names what is wrong.
        MissingExtraError: cron expressions cannot be read here.
    """
    if schedule.every_ms is not None and schedule.cron is not None:
        raise InvalidInputError("schedule", "it has both an interval (every) and a cron expression; give one of them")
    if schedule.every_ms is None and schedule.cron is None and schedule.at is None:
        problem = "it does not say when it is due; give a time (at), an interval (every) or a cron expression"
        raise InvalidInputError("schedule", problem)
    if schedule.every_ms is not None and not SHORTEST_MS <= schedule.every_ms <= LONGEST_MS:
        raise InvalidInputError("schedule", "its interval is not between a second and ten years")
    if schedule.at is not None and not 0 <= schedule.at <= LATEST_MS:
        raise InvalidInputError("schedule", "its time is not between the years 1970 and 3000")
    if schedule.cron is None:
        if schedule.timezone != "UTC":
            raise InvalidInputError("schedule", "a timezone goes with a cron expression; a time (at) has its own")
        return
    _after(schedule.cron, _zone(schedule.timezone), 0)


def milliseconds_of(at: datetime) -> int:
    """A moment in milliseconds.

    Raises:
        InvalidInputError: the datetime has no timezone, so it is not clear which moment is meant.
    """
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInputError("schedule", f"at={at!r:.80} is not a datetime")
    if at.tzinfo is None:
        raise InvalidInputError("schedule", f"at={at.isoformat()} has no timezone; give datetime(…, tzinfo=…)")
    return round(at.timestamp() * 1000)


def first_time(schedule: Schedule, now: int) -> int | None:
    """When a schedule that is set now is first due. A single time that has passed is due at once."""
    if schedule.cron is not None:
        return _after(schedule.cron, _zone(schedule.timezone), max(now, (schedule.at or 0) - 1))
    if schedule.every_ms is None:
        return schedule.at
    return now + schedule.every_ms if schedule.at is None else _later(schedule.at, schedule.every_ms, now)


def next_time(schedule: Schedule, due_at: int, now: int) -> int | None:
    """When a schedule is due after this time; None when it is over. Times that were missed meanwhile are skipped."""
    if schedule.cron is not None:
        return _after(schedule.cron, _zone(schedule.timezone), max(now, due_at))
    return None if schedule.every_ms is None else _later(due_at + schedule.every_ms, schedule.every_ms, now)


def is_out_of_reach(schedule: Schedule, now: int) -> bool:
    """Whether the next time is later than it can be: it was computed while the clock was wrong, and set back since."""
    if schedule.next_at is None:
        return False
    latest = schedule.next_at
    if schedule.cron is not None:
        latest = first_time(schedule, now + _DRIFT_MS)
    elif schedule.every_ms is not None:
        latest = max(now + _DRIFT_MS + schedule.every_ms, schedule.at or 0)
    return latest is not None and schedule.next_at > latest


def _later(at: int, every_ms: int, now: int) -> int:
    """The first of the times at, at + every, … that is later than now."""
    return at if at > now else at + ((now - at) // every_ms + 1) * every_ms


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problem = f"there is no timezone {name!r:.80} on this machine; give a name like 'Europe/Berlin'"
        raise InvalidInputError("schedule", problem) from None


def _after(expression: str, zone: ZoneInfo, after: int) -> int | None:
    """The first time of a cron expression that is later than this; None if there is none within decades."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingExtraError("A schedule with a cron expression", "cron") from None
    try:
        times = CronSim(expression, datetime.fromtimestamp(after // 1000, UTC).astimezone(zone))
    except CronSimError as problem:
        reason = f"{expression!r:.80} is not a cron expression ({str(problem).lower()}); '0 7 * * 1-5' is one"
        raise InvalidInputError("schedule", reason) from None
    # In an hour that clocks go through twice, the next time on the wall may be one of the first time through.
    found = (round(at.timestamp() * 1000) for at in times)
    return next((at for at in found if at > after), None)
