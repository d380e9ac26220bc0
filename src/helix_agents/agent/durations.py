"""How long something may take, as users write it: a number of seconds or a timedelta."""

import math
from datetime import timedelta
from typing import Literal, TypeAlias

from helix_agents.agent.choices import is_number
from helix_agents.domain.errors import DefinitionError

Duration: TypeAlias = timedelta | float
"""Seconds, or a `timedelta`."""

Deadline: TypeAlias = Duration | Literal["inherit"] | None
"""A duration; None waits forever; `"inherit"` takes the setting of the level above."""


def milliseconds(duration: Duration, subject: str, option: str) -> int:
    """The duration in whole milliseconds.

    Raises:
        DefinitionError: it is not a positive, finite length of time.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not is_number(seconds) or not math.isfinite(seconds) or seconds <= 0:
        raise DefinitionError(subject, f"{option}={duration!r} is not a duration; give seconds above 0 or a timedelta.")
    return max(1, round(seconds * 1000))


def optional_milliseconds(duration: Duration | None, subject: str, option: str) -> int | None:
    """The duration in whole milliseconds; None stays None."""
    return None if duration is None else milliseconds(duration, subject, option)


def deadline_milliseconds(deadline: Deadline, subject: str, option: str) -> int | Literal["inherit"] | None:
    """The deadline in whole milliseconds; None and `"inherit"` stay as they are."""
    return "inherit" if deadline == "inherit" else optional_milliseconds(deadline, subject, option)
