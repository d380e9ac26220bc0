"""Schedules as the command line shows and changes them."""

from typing import TYPE_CHECKING, Any

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, plain_page, shown_json, shown_time
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import ScheduleNotFoundError
from helix_agents.domain.schedules import Schedule
from helix_agents.ports.backend import Backend
from helix_agents.system import RandomIds

if TYPE_CHECKING:
    from helix_agents.runtimes.executor.schedules import Schedules


async def list_schedules(output: Output, url: str, *, offset: int, limit: int) -> None:
    """List schedules by id."""
    async with open_stored(url) as backend:
        page = await backend.state.list_schedules(offset=offset, limit=limit)
    output.answer(plain_page(page))
    output.table(
        ("schedule", "agent", "when", "next", "times"),
        [(each.schedule_id, each.agent, _when(each), _next(each), str(each.times)) for each in page.items],
    )
    if page.has_more:
        shown = page.offset + len(page.items)
        output.note(f"{page.total - shown} more; --offset {shown}")


async def show_schedule(output: Output, url: str, schedule_id: str) -> None:
    """Show everything about one schedule."""
    async with open_stored(url) as backend:
        schedule = await backend.state.find_schedule(schedule_id)
    if schedule is None:
        raise ScheduleNotFoundError(schedule_id)
    output.answer({"schedule": plain(schedule)})
    last = schedule.last
    facts = {
        "schedule": schedule.schedule_id,
        "agent": schedule.agent,
        "says": shown_json(plain(schedule.messages[-1].content)) if schedule.messages else "-",
        "when": _when(schedule),
        "next": _next(schedule),
        "session": schedule.session_id or "a new one each time",
        "user": schedule.user_id or "-",
        "tags": ", ".join(schedule.tags) or "-",
        "if busy": schedule.if_busy,
        "times": str(schedule.times),
        "last": "-" if last is None else f"{shown_time(last.due_at)}, session {last.session_id}",
        "run": "-" if last is None else last.run_id or last.error or "skipped, as the session was busy",
    }
    for name, value in facts.items():
        output.say(f"{name:<10} {value}")


async def set_schedule(output: Output, url: str, schedule_id: str, agent: str, message: str, **timing: Any) -> None:
    """Create or change a schedule."""
    async with open_stored(url) as backend:
        schedule = await _schedules(backend).set(schedule_id, agent, message, **timing)
    _tell(output, schedule)


async def pause_schedule(output: Output, url: str, schedule_id: str) -> None:
    """Pause a schedule."""
    async with open_stored(url) as backend:
        schedule = await _schedules(backend).pause(schedule_id)
    _tell(output, schedule)


async def resume_schedule(output: Output, url: str, schedule_id: str) -> None:
    """Resume a paused schedule."""
    async with open_stored(url) as backend:
        schedule = await _schedules(backend).resume(schedule_id)
    _tell(output, schedule)


async def delete_schedule(output: Output, url: str, schedule_id: str) -> ExitCode:
    """Remove a schedule."""
    async with open_stored(url) as backend:
        deleted = await backend.state.delete_schedule(schedule_id)
    output.answer({"deleted": deleted})
    output.say(f"Deleted {schedule_id}." if deleted else f"There is no schedule {schedule_id!r}.")
    return ExitCode.OK if deleted else ExitCode.FAILED


def _schedules(backend: Backend) -> "Schedules":
    # Imported here because commands that only look at schedules need nothing of the executor.
    from helix_agents.runtimes.executor.schedules import Schedules

    return Schedules(backend.state, RandomIds())


def _tell(output: Output, schedule: Schedule) -> None:
    output.answer({"schedule": plain(schedule)})
    output.say(f"{schedule.schedule_id}: {_when(schedule)}; next {_next(schedule)}.")


def _when(schedule: Schedule) -> str:
    """When a schedule is due, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} {schedule.timezone}"
    if schedule.every_ms is not None:
        return f"every {_interval(schedule.every_ms)}"
    return f"at {shown_time(schedule.at)}"


def _interval(milliseconds: int) -> str:
    """An interval in the largest unit that says it exactly: it is a setting, not a measurement."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds % length == 0:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds / 1000:.15g} s"


def _next(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return "over" if schedule.next_at is None else shown_time(schedule.next_at)
