"""Schedules as users set, read and change them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import cast, get_args

from msgspec.structs import replace

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.budgets import check_budget
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import (
    InvalidIdError,
    InvalidInputError,
    NotTheOwnerError,
    ScheduleChangedError,
    ScheduleNotFoundError,
)
from helix_agents.domain.ids import SessionId, check_id, check_new_session_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.schedules import DEFINITION, TIMING, IfBusy, Schedule, ScheduleId, same_fields
from helix_agents.ports.clock import IdSource
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.runtimes.executor.inputs import (
    Input,
    check_budget_of_call,
    messages_of,
    metadata_of,
    tags_of,
    user_of,
)
from helix_agents.runtimes.executor.timetable import check_timing, first_time, is_out_of_reach, milliseconds_of

LONGEST_ID = 200
"""A session that a schedule starts has the schedule's id followed by the time as its own id."""


class Schedules:
    """What agents are told at set times. Schedules are in the store: any process that knows the agent starts the turns.

    If no process was running at a due time, the turn starts when one runs again: once, however many times were missed.
    """

    def __init__(
        self,
        store: SessionStateStore,
        ids: IdSource,
        *,
        know: Callable[[AnyAgent], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        owner: str | None = None,
    ) -> None:
        self._store = store
        self._ids = ids
        self._know = know
        self._changed = changed
        self._owner = owner

    def of_user(self, user_id: str) -> "Schedules":
        """The schedules of one user. All others look as if they did not exist, but their ids are taken; what is set
        here belongs to the user."""
        return Schedules(
            self._store, self._ids, know=self._know, changed=self._changed, owner=check_id(user_id, "user id")
        )

    async def set(
        self,
        schedule_id: ScheduleId,
        agent: AnyAgent | str,
        input: Input,
        *,
        at: datetime | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        session_id: SessionId | None = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        expires_in: Duration | None = None,
        budget: Budget | None = None,
        if_busy: IfBusy = "enqueue",
    ) -> Schedule:
        """Create a schedule, or change the one with this id. Setting the same schedule again changes nothing, so a
        program can do so at every start.

        A schedule is due once, `at` a time; `every` interval, starting `at` a time or now; or by a `cron` expression in
        a `timezone` (extra `cron`). Each time starts a turn with this input: in the session `session_id`, which is
        created the first time, or in a new session whose id is the schedule's id followed by the time. If the session
        is busy or waits for an answer, the turn waits in its queue, or is left out with `if_busy="skip"`. `user_id`,
        `tags`, `metadata`, `expires_in` and `budget` are those of `execute`; with a `user_id`, a session of another
        user is left alone.

        Raises:
            InvalidInputError, InvalidIdError: an argument is invalid; nothing was stored.
            NotTheOwnerError: the id is taken by a schedule that does not belong to the user whose schedules these are.
            MissingExtraError: cron expressions cannot be read here.
            DefinitionError: a duration is invalid, or the budget limits nothing.
        """
        definition = Schedule(
            schedule_id=_checked_id(schedule_id),
            agent=_name_of(agent, budget),
            messages=messages_of(input),
            at=None if at is None else milliseconds_of(at),
            every_ms=optional_milliseconds(every, "schedules.set", "every"),
            cron=_text(cron, "cron"),
            timezone=_text(timezone, "timezone") or "UTC",
            session_id=None if session_id is None else check_new_session_id(session_id),
            user_id=self._user_for(user_id),
            tags=tags_of(tags),
            metadata=metadata_of(metadata) or {},
            expires_in_ms=optional_milliseconds(expires_in, "schedules.set", "expires_in"),
            budget=budget,
            if_busy=_checked_if_busy(if_busy),
        )
        # Timezones are read from files, so this is done in a thread, as it is wherever a time is computed.
        await asyncio.to_thread(check_timing, definition)
        if not isinstance(agent, str):
            self._know(agent)
        return await self._change(schedule_id, lambda stored, now: _as_set(definition, self._ours(stored), now))

    async def find(self, schedule_id: ScheduleId) -> Schedule | None:
        """One schedule; None if it does not exist."""
        stored = await self._store.find_schedule(check_id(schedule_id, "schedule id"))
        return stored if stored is not None and self._has(stored) else None

    async def list(self, *, user_id: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[Schedule]:
        """All schedules, or those of a user, by id."""
        return await self._store.list_schedules(user_id=self._user_for(user_id), offset=offset, limit=limit)

    async def pause(self, schedule_id: ScheduleId) -> Schedule:
        """Start no more turns until the schedule is resumed; raises `ScheduleNotFoundError`."""
        return await self._change(schedule_id, lambda stored, _: _paused(self._there(stored, schedule_id)))

    async def resume(self, schedule_id: ScheduleId) -> Schedule:
        """Continue a paused schedule with its next time; raises `ScheduleNotFoundError`."""
        return await self._change(schedule_id, lambda stored, now: _resumed(self._there(stored, schedule_id), now))

    async def delete(self, schedule_id: ScheduleId) -> bool:
        """Remove a schedule; False if it does not exist. What it has started is not affected."""
        # The revision that was looked at is the one that goes: by then, the id may be another user's.
        while (stored := await self.find(schedule_id)) is not None:
            if await self._store.delete_schedule(schedule_id, revision=stored.revision):
                return True
        return False

    def _user_for(self, given: str | None) -> str | None:
        """The user of what is set or listed here.

        Raises:
            InvalidInputError: it is not a text, or another user than the one whose schedules these are.
        """
        if self._owner is not None and user_of(given) not in (None, self._owner):
            raise InvalidInputError("user id", f"these are the schedules of {self._owner!r}, not of {given!r:.80}")
        return user_of(given) if self._owner is None else self._owner

    def _has(self, stored: Schedule) -> bool:
        return self._owner is None or stored.user_id == self._owner

    def _ours(self, stored: Schedule | None) -> Schedule | None:
        """The schedule that a definition replaces.

        Raises:
            NotTheOwnerError: it is another user's, or no user's.
        """
        if stored is not None and self._owner is not None and not self._has(stored):
            raise NotTheOwnerError("schedule", stored.schedule_id, self._owner)
        return stored

    def _there(self, stored: Schedule | None, schedule_id: ScheduleId) -> Schedule:
        if stored is None or not self._has(stored):
            raise ScheduleNotFoundError(schedule_id)
        return stored

    async def _change(self, schedule_id: ScheduleId, change: Callable[[Schedule | None, int], Schedule]) -> Schedule:
        check_id(schedule_id, "schedule id")
        while True:
            stored = await self._store.find_schedule(schedule_id)
            wanted = await asyncio.to_thread(change, stored, self._store.now_ms())
            if wanted is stored:
                return wanted
            wanted = replace(wanted, revision=self._ids.new("revision"))
            # If another writer was first, its change is taken into account.
            with suppress(ScheduleChangedError):
                saved = await self._store.save_schedule(wanted, replaces=None if stored is None else stored.revision)
                self._changed()
                return saved


def _as_set(definition: Schedule, stored: Schedule | None, now: int) -> Schedule:
    """The stored schedule with a new definition; unchanged if the definition is the same."""
    if stored is None:
        return replace(definition, created_at=now, next_at=first_time(definition, now))
    if same_fields(stored, definition, DEFINITION):
        return replace(stored, next_at=first_time(stored, now)) if is_out_of_reach(stored, now) else stored
    changed = replace(stored, **{name: getattr(definition, name) for name in DEFINITION})
    if same_fields(stored, definition, TIMING):
        return changed
    return replace(changed, next_at=None if stored.paused else first_time(definition, now))


def _paused(stored: Schedule) -> Schedule:
    return stored if stored.paused else replace(stored, paused=True, next_at=None)


def _resumed(stored: Schedule, now: int) -> Schedule:
    if not stored.paused:
        return stored
    is_single = stored.cron is None and stored.every_ms is None
    # What happened last may belong to a time that it had before.
    is_over = is_single and stored.last is not None and stored.last.due_at == stored.at
    return replace(stored, paused=False, next_at=None if is_over else first_time(stored, now))


def _checked_id(schedule_id: ScheduleId) -> ScheduleId:
    if len(check_new_session_id(schedule_id, "schedule id")) > LONGEST_ID:
        raise InvalidIdError("schedule id", schedule_id, f"it has more than {LONGEST_ID} characters")
    return schedule_id


def _name_of(agent: AnyAgent | str, budget: Budget | None) -> str:
    if isinstance(agent, str):
        if budget is not None:
            check_budget(budget, "schedules.set")
        return check_id(agent, "agent name")
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInputError("agent", f"it is {agent!r:.80}; give the Agent itself or its name")
    check_budget_of_call(agent, budget)
    return agent.name


def _checked_if_busy(given: IfBusy) -> IfBusy:
    if given not in get_args(IfBusy):
        known = " nor ".join(map(repr, get_args(IfBusy)))
        raise InvalidInputError("schedule", f"if_busy={cast('object', given)!r:.80} is neither {known}")
    return given


def _text(given: str | None, name: str) -> str | None:
    if given is not None and not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInputError("schedule", f"{name}={given!r:.80} is not a text")
    return given
