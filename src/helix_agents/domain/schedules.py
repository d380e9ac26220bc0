"""Schedules: what an agent is told at set times, and when the next time is."""

from typing import Literal, TypeAlias

from helix_agents.domain.budgets import Budget
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import Record

ScheduleId: TypeAlias = str

IfBusy: TypeAlias = Literal["enqueue", "skip"]
"""What happens if the schedule's session is busy when the turn is due: the turn is queued, or left out."""


class LastTime(Record):
    """What happened the last time a schedule was due.

    `run_id` is None if no turn was started: the session was busy, or the turn was refused for the reason in `error`.
    """

    due_at: int
    session_id: SessionId
    run_id: RunId | None = None
    error: str | None = None


class Schedule(Record):
    """Messages to an agent, and when they are sent: once (`at`), at an interval (`every_ms`), or by a cron expression.

    `next_at` is the next due time in milliseconds; None if there is none, because the schedule is paused or over. Every
    stored change gives the schedule a new `revision`. Without a `session_id`, each due time starts a new session.
    """

    schedule_id: ScheduleId
    agent: str
    messages: tuple[UserMessage, ...]
    at: int | None = None
    every_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    session_id: SessionId | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    expires_in_ms: int | None = None
    budget: Budget | None = None
    if_busy: IfBusy = "enqueue"
    paused: bool = False
    next_at: int | None = None
    revision: str = ""
    created_at: int = 0
    times: int = 0
    last: LastTime | None = None

    def key_at(self, due_at: int) -> str:
        """The key of the turn of one due time: it makes the turn start once, whichever processes try."""
        return f"{self._key}{due_at}"

    def is_key(self, message_id: str | None) -> bool:
        """Whether this is the key of the turn of any due time, and with it the id of a message of that turn."""
        if message_id is None or not message_id.startswith(self._key):
            return False
        return message_id.removeprefix(self._key).removeprefix("-").isdecimal()

    @property
    def _key(self) -> str:
        return f"schedule:{self.schedule_id}:"


DEFINITION = (
    "agent",
    "messages",
    "at",
    "every_ms",
    "cron",
    "timezone",
    "session_id",
    "user_id",
    "tags",
    "metadata",
    "expires_in_ms",
    "budget",
    "if_busy",
)
"""The fields that a user sets; the other fields record the schedule's progress."""

TIMING = ("at", "every_ms", "cron", "timezone")
"""The fields that the next time depends on."""


def same_fields(one: Schedule, other: Schedule, fields: tuple[str, ...]) -> bool:
    """Whether two schedules agree in these fields."""
    return all(getattr(one, name) == getattr(other, name) for name in fields)
