"""Which backups are kept: the newest, and the last of each of the latest days, weeks and months that have one."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from helix_agents.capabilities.settings import Limits

Period = Callable[[datetime], tuple[int, ...]]


def kept(made_at: Iterable[int], limits: Limits) -> set[int]:
    """Of the times at which backups of one scope were made, in milliseconds, those whose backups are kept."""
    newest_first = sorted(made_at, reverse=True)
    found = set(newest_first[: max(1, limits.backups)])
    for period, count in (
        (_day, limits.daily_backups),
        (_week, limits.weekly_backups),
        (_month, limits.monthly_backups),
    ):
        found |= _last_of_each(newest_first, period, count)
    return found


def _last_of_each(newest_first: list[int], period: Period, count: int) -> set[int]:
    last: dict[tuple[int, ...], int] = {}
    for at in newest_first:
        last.setdefault(period(datetime.fromtimestamp(at / 1000, UTC)), at)
    return set(list(last.values())[:count])


def _day(at: datetime) -> tuple[int, ...]:
    return at.year, at.month, at.day


def _week(at: datetime) -> tuple[int, ...]:
    return at.isocalendar()[:2]


def _month(at: datetime) -> tuple[int, ...]:
    return at.year, at.month
