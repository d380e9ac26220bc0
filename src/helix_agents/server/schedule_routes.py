"""Schedules over HTTP: what a user's agents are told at set times, listed, set, paused and deleted by that user."""

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from helix_agents.domain.errors import MissingExtraError, ScheduleNotFoundError
from helix_agents.domain.schedules import Schedule
from helix_agents.server.answers import ScheduleDetail, SchedulePage, ScheduleSummary
from helix_agents.server.bodies import NoFields, ScheduleBody, messages_of
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError
from helix_agents.server.executor_routes import check_metadata, entry_agent
from helix_agents.server.session_routes import page_of, user_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def list_schedules(call: Call) -> Response:
    """Schedules by id, without what they say: the caller's own, or those of all users for an operator."""
    offset, limit = page_of(call)
    page = await call.executor.schedules.list(user_id=user_of(call), offset=offset, limit=limit)
    items = tuple(map(ScheduleSummary.of, page.items))
    return json_response(
        SchedulePage(items=items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def get_schedule(call: Call) -> Response:
    """One schedule, and what happened the last time it was due."""
    schedule_id = call.path_id("schedule")
    schedule = await call.schedules().find(schedule_id)
    if schedule is None:
        raise ScheduleNotFoundError(schedule_id)
    return _shown(schedule)


async def set_schedule(call: Call) -> Response:
    """Create a schedule, or replace the definition of the one with this id. The same again changes nothing.

    A schedule is due once, `at` a time; every `everyMs` milliseconds, starting `at` a time or now; or by a `cron`
    expression in a `timezone`. Its turns belong to the caller, and start in sessions of the caller only.
    """
    body: ScheduleBody = await call.body(ScheduleBody)
    schedule_id = call.path_id("schedule")
    agent = entry_agent(call, body.agent_type)
    messages = call.checked_messages(messages_of(body.message))
    check_metadata(body.metadata)
    if body.session_id is not None:
        # Refuses a session that already belongs to another user; one that will is refused when the turn is due.
        await call.find_session(call.checked(body.session_id))
    schedules = call.schedules()
    async with call.gate.schedule_room(call.principal, schedules, schedule_id):
        try:
            schedule = await schedules.set(
                schedule_id,
                agent.name,
                messages,
                at=None if body.at is None else _EPOCH + timedelta(milliseconds=body.at),
                every=None if body.every_ms is None else timedelta(milliseconds=body.every_ms),
                cron=body.cron,
                timezone=body.timezone or "UTC",
                session_id=body.session_id,
                tags=body.tags,
                metadata=body.metadata,
                if_busy=body.if_busy,
            )
        except MissingExtraError as missing:
            raise RefusedError(400, missing.code, "This server cannot read cron expressions; use everyMs.") from None
    return _shown(schedule)


async def pause_schedule(call: Call) -> Response:
    """Start no more turns until the schedule is resumed."""
    await call.body(NoFields)
    return _shown(await call.schedules().pause(call.path_id("schedule")))


async def resume_schedule(call: Call) -> Response:
    """Continue a paused schedule with its next time."""
    await call.body(NoFields)
    return _shown(await call.schedules().resume(call.path_id("schedule")))


async def delete_schedule(call: Call) -> Response:
    """Remove a schedule. The sessions that it started stay."""
    schedule_id = call.path_id("schedule")
    if not await call.schedules().delete(schedule_id):
        raise ScheduleNotFoundError(schedule_id)
    return Response(status_code=204)


def _shown(schedule: Schedule) -> Response:
    return json_response(ScheduleDetail.of(schedule))
