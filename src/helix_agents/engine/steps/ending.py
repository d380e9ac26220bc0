"""After a run's last commit: its stream ends as the run did, and its caller learns how it went."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.output import OutputT
from helix_agents.domain.errors import RunNotFoundError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.pending import OPEN, PendingCall
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState, SuspensionContext
from helix_agents.domain.streams import EndStatus, StreamAppend, StreamError, StreamRest, StreamStatus
from helix_agents.engine.services import Services
from helix_agents.ports.streams import StreamManager, StreamWriter


async def end_stream(
    streams: StreamManager, session: SessionState, run: RunRecord, writer: StreamWriter | None = None
) -> None:
    """Bring a stream to the end that its run came to; idempotent, and without effect on a newer run's stream.

    What the run's writer still holds is stored with the end.
    """
    if run.status == "running":
        return
    with suppress(SupersededError):
        if writer is None:
            await _rest(streams, session, run, None)
            return
        async with writer.take() as last:
            await _rest(streams, session, run, last)


def rest_of(run: RunRecord) -> StreamRest:
    """How a run that is no longer running leaves its stream."""
    if run.status in SUSPENDED:
        return StreamRest(status="paused")
    if run.status == "failed":
        error = StreamError(code=run.completion_reason or "failed", message=run.error or "The run failed.")
        return StreamRest(status="failed", error=error)
    status: EndStatus = "interrupted" if run.status == "interrupted" else "completed"
    return StreamRest(status="ended", end_status=status, output=run.output)


async def _rest(streams: StreamManager, session: SessionState, run: RunRecord, last: StreamAppend | None) -> None:
    stream_id, run_id, attempt = session.stream_id or session.session_id, run.run_id, run.attempt
    match rest_of(run):
        case StreamRest(error=StreamError() as error):
            await streams.fail_stream(stream_id, run_id, error, attempt=attempt, last=last)
        case StreamRest(end_status=str() as status, output=output):
            await streams.end_stream(stream_id, run_id, status=status, output=output, attempt=attempt, last=last)
        case _:
            await streams.pause_stream(stream_id, run_id, attempt=attempt, last=last)


async def repair_stream(services: Services, run: RunRecord) -> None:
    """End a settled run's stream, if the process that settled it died before it could."""
    if run.status == "running":
        return
    info = await services.streams.get_stream_info(run.session_id)
    if info is not None and (info.run_id != run.run_id or not _is_left(info.status, run)):
        return
    session = await services.store.load_state(run.session_id)
    if info is not None or session.stream_id is not None:
        await end_stream(services.streams, session, run)


def _is_left(status: StreamStatus, run: RunRecord) -> bool:
    """Whether a stream is not as its run has left it: the run is over, or it was stopped while it waited."""
    return status == "active" or (status == "paused" and run.status not in SUSPENDED)


def completed_result(agent: Agent[Any, OutputT, Any], run: RunRecord) -> Completed[OutputT]:
    """The result of a run that completed; it never changes.

    Raises:
        ToolOutputError: the agent's output type has changed and refuses the stored output.
    """
    return Completed(
        output=agent.load_output(run.output),
        session_id=run.session_id,
        run_id=run.run_id,
        reason=run.completion_reason or "finished",
    )


async def result_of(
    services: Services, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId
) -> RunResult[OutputT] | None:
    """How a run ended; None while it is running.

    Raises:
        RunNotFoundError: there is no such run.
        ToolOutputError: the agent's output type has changed and refuses the stored output.
    """
    run = await services.store.get_run(run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    if run.status == "running":
        return None
    if run.status == "completed":
        return completed_result(agent, run)
    session = await services.store.load_state(session_id)
    if run.status == "interrupted":
        context = session.interrupt_context
        reason = context.reason if context is not None and context.run_id == run_id else None
        return Interrupted(session_id=session_id, run_id=run_id, reason=reason)
    if run.status == "failed":
        code = run.completion_reason or session.failure_reason or "failed"
        return Failed(
            session_id=session_id,
            run_id=run_id,
            code=code,
            error=run.error or session.error or "The run failed.",
            retryable=code in RETRYABLE,
        )
    # What an earlier run waited for is over; what waits now belongs to the current run.
    is_current = session.current_run_id == run_id
    context = session.suspension_context if is_current else None
    calls = session.pending_client_tool_calls.values() if is_current else ()
    return Suspended(
        kind=run.status,
        session_id=session_id,
        run_id=run_id,
        step_id=context.step_id if context is not None else "",
        pending=_in_call_order((call for call in calls if call.state in OPEN), context),
        children=context.children if context is not None else (),
    )


def _in_call_order(calls: Iterable[PendingCall], context: SuspensionContext | None) -> tuple[PendingCall, ...]:
    place = {call.tool_call_id: index for index, call in enumerate(context.calls)} if context is not None else {}
    return tuple(sorted(calls, key=lambda call: place.get(call.tool_call_id, len(place))))


RETRYABLE = frozenset(
    (
        "max_steps",
        "budget_exhausted",
        "output_check_failed",
        "provider_rate_limited",
        "provider_unavailable",
        "skills_unavailable",
        "workspace_failed",
    )
)
"""Codes of failures after which the same run may well succeed when it is retried."""
