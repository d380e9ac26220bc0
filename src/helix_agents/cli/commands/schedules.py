"""`helix schedules`: what is said to agents at set times."""

import asyncio
import re
from datetime import datetime

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, store_option
from helix_agents.cli.output import Output

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _read_span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a length of time; say 90s, 15m, 2h or 1d.")
    return float(found[1]) * _UNITS[found[2]]


def _read_moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise click.BadParameter(f"{value!r} is not a time; say 2027-01-31T09:00+01:00, or end it in Z for UTC.")
    return at


schedule_argument = click.argument("schedule_id", metavar="SCHEDULE")


@click.group("schedules")
def command() -> None:
    """Set, list, pause, resume and delete schedules.

    A schedule says something to an agent at set times. Any process that knows the agent starts its turns: `helix
    serve`, `helix worker`, `helix janitor`, or a program with an executor.
    """


@command.command("list")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How many to show.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
@store_option
@json_option
@click.pass_obj
def list_command(output: Output, limit: int, offset: int, store_url: str) -> None:
    """List schedules by id, with when they are due next."""
    from helix_agents.cli.scheduling import list_schedules

    asyncio.run(list_schedules(output, store_url, offset=offset, limit=limit))


@command.command("show")
@schedule_argument
@store_option
@json_option
@click.pass_obj
def show_command(output: Output, schedule_id: str, store_url: str) -> None:
    """Show one schedule, and what happened the last time it was due."""
    from helix_agents.cli.scheduling import show_schedule

    asyncio.run(show_schedule(output, store_url, schedule_id))


@command.command("set")
@schedule_argument
@click.argument("agent", metavar="AGENT")
@click.argument("message", metavar="MESSAGE")
@click.option("--cron", metavar="EXPRESSION", help="Due by a cron expression, such as '0 7 * * 1-5'.")
@click.option("--timezone", metavar="NAME", default="UTC", show_default=True, help="The timezone of --cron.")
@click.option("--every", callback=_read_span, metavar="SPAN", help="Due at this interval, such as 15m or 1d.")
@click.option("--at", callback=_read_moment, metavar="TIME", help="Due once at this time, or from then on.")
@click.option("--session", "session_id", metavar="ID", help="The session to say it in; by default a new one.")
@click.option("--user", "user_id", metavar="ID", help="The user that new sessions belong to.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag for new sessions; may be repeated.")
@click.option("--skip-if-busy", is_flag=True, help="Skip a time at which the session is busy.")
@store_option
@json_option
@click.pass_obj
def set_command(
    output: Output,
    schedule_id: str,
    agent: str,
    message: str,
    cron: str | None,
    timezone: str,
    every: float | None,
    at: datetime | None,
    session_id: str | None,
    user_id: str | None,
    tags: tuple[str, ...],
    skip_if_busy: bool,
    store_url: str,
) -> None:
    """Create a schedule, or change the one of this id.

    When it is due, MESSAGE is said to the agent called AGENT.
    """
    if cron is None and every is None and at is None:
        raise click.UsageError("Say when it is due: --at, --every or --cron.")
    if cron is not None and every is not None:
        raise click.UsageError("--every and --cron exclude each other; give one of them.")

    from helix_agents.cli.scheduling import set_schedule

    asyncio.run(
        set_schedule(
            output,
            store_url,
            schedule_id,
            agent,
            message,
            cron=cron,
            timezone=timezone,
            every=every,
            at=at,
            session_id=session_id,
            user_id=user_id,
            tags=tags,
            if_busy="skip" if skip_if_busy else "enqueue",
        )
    )


@command.command("pause")
@schedule_argument
@store_option
@json_option
@click.pass_obj
def pause_command(output: Output, schedule_id: str, store_url: str) -> None:
    """Start no more turns until the schedule is resumed."""
    from helix_agents.cli.scheduling import pause_schedule

    asyncio.run(pause_schedule(output, store_url, schedule_id))


@command.command("resume")
@schedule_argument
@store_option
@json_option
@click.pass_obj
def resume_command(output: Output, schedule_id: str, store_url: str) -> None:
    """Continue a paused schedule from its next time on."""
    from helix_agents.cli.scheduling import resume_schedule

    asyncio.run(resume_schedule(output, store_url, schedule_id))


@command.command("delete")
@schedule_argument
@store_option
@json_option
@click.pass_obj
def delete_command(output: Output, schedule_id: str, store_url: str) -> ExitCode:
    """Remove a schedule; the sessions that it started stay."""
    from helix_agents.cli.scheduling import delete_schedule

    return asyncio.run(delete_schedule(output, store_url, schedule_id))
