"""After a run's last commit: its stream ends as the run did, and its caller is told how it went."""

from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.output import OutputT
from helix_agents.domain.errors import RunNotFoundError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.pending import OPEN
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamError
from helix_agents.engine.services import Services
from helix_agents.ports.streams import StreamManager


async def end_stream(streams: StreamManager, session: SessionState, run: RunRecord) -> None:
    """Bring a stream to the end that its run came to; idempotent, and nothing to a newer run's stream."""
    stream_id = session.stream_id or session.session_id
    try:
        if run.status in SUSPENDED:
            await streams.pause_stream(stream_id, run.run_id, attempt=run.attempt)
        elif run.status == "failed":
            error = StreamError(code=run.completion_reason or "failed", message=run.error or "The run failed.")
            await streams.fail_stream(stream_id, run.run_id, error, attempt=run.attempt)
        elif run.status == "interrupted":
            await streams.end_stream(stream_id, run.run_id, status="interrupted", attempt=run.attempt)
        elif run.status == "completed":
            await streams.end_stream(
                stream_id, run.run_id, status="completed", output=session.output, attempt=run.attempt
            )
    except SupersededError:
        return


async def result_of(
    services: Services, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId
) -> RunResult[OutputT] | None:
    """How a run ended; None while it is going.

    Raises:
        RunNotFoundError: there is no such run.
        ToolOutputError: the agent's output type has changed and refuses the stored output.
    """
    run = await services.store.get_run(run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    if run.status == "running":
        return None
    session = await services.store.load_state(session_id)
    if run.status == "completed":
        return Completed(output=agent.load_output(session.output), session_id=session_id, run_id=run_id)
    if run.status == "interrupted":
        reason = session.interrupt_context.reason if session.interrupt_context is not None else None
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
    context = session.suspension_context
    return Suspended(
        kind=run.status,
        session_id=session_id,
        run_id=run_id,
        step_id=context.step_id if context is not None else "",
        pending=tuple(call for call in session.pending_client_tool_calls.values() if call.state in OPEN),
        children=context.children if context is not None else (),
    )


RETRYABLE = frozenset(("max_steps", "provider_rate_limited", "provider_unavailable"))
"""Codes of failures after which the same run may well succeed when it is retried."""
