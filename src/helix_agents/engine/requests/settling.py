"""Ends that no step commits: of stopped runs that wait, and of runs that cannot be driven; and what follows an end."""

import msgspec

from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import HelixError, StateSizeExceededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.sessions import InterruptContext, SessionState, StatusChanged, StopKind
from helix_agents.domain.texts import said_by
from helix_agents.domain.writes import NO_WRITES
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ending import end_stream
from helix_agents.engine.steps.salvage import StepEnd, end_of_last_step, end_of_open_calls
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.engine.steps.undriven import tell_failed
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamWriter

# How often the session may change, and still be waiting, between reading it and the write that follows.
_TRIES = 10


async def settle_waiting(
    services: Services, session_id: SessionId, run: RunRecord, reason: str | None, kind: StopKind
) -> bool:
    """End a run without a driver as interrupted or aborted, with all that waits; False if another process was first."""
    store = services.store
    for _ in range(_TRIES):
        settled = await store.settle_session(await _settlement(store, session_id, run, reason, kind))
        if isinstance(settled, StatusChanged):
            break
        current = await store.get_current_run(session_id)
        if current is None or (current.fence, current.status) != (run.fence, run.status):
            return False
    else:
        return False
    log_event("client_tool.aborted", session_id=session_id, run_id=run.run_id, kind=kind, reason=reason)
    ended = await store.get_run(run.run_id)
    if ended is not None:
        await end_stream(services.streams, await store.load_state(session_id), ended)
    return True


async def _settlement(
    store: SessionStateStore, session_id: SessionId, run: RunRecord, reason: str | None, kind: StopKind
) -> SettleSession:
    """The end of a run without a driver, for this version of the session: of two processes that end it, only one may
    add the results of its open calls."""
    session = await store.load_state(session_id)
    end = await end_of_open_calls(store, session)
    aborted = kind == "abort"
    return SettleSession(
        session_id=session_id,
        expected=("active", "paused", "interrupted"),
        expected_version=session.version,
        expected_run=run.fence,
        status="failed" if aborted else "interrupted",
        error=(reason or "The run was aborted.") if aborted else None,
        failure_reason=CANCELLED if aborted else None,
        interrupt_context=InterruptContext(reason=reason, run_id=run.run_id, at=store.now_ms()),
        append_messages=end.messages,
        writes=end.writes,
        run_status="failed" if aborted else "interrupted",
        completion_reason=CANCELLED if aborted else "interrupted",
    )


async def end_run(
    services: Services,
    session: SessionState,
    run: RunRecord,
    writer: StreamWriter | None = None,
    *,
    stream_ended: bool = False,
) -> None:
    """Do what follows a run's last commit.

    Its stream ends, with what its writer still holds, unless it ended with the commit. An abort that came while the run
    was being interrupted is carried out, because its caller was told that a run was in progress.
    """
    if not stream_ended:
        await end_stream(services.streams, session, run, writer)
    await carry_out_late_abort(services, run)


async def carry_out_late_abort(services: Services, run: RunRecord) -> bool:
    """Abort a run that ended as interrupted before it saw the abort request; returns whether there was one.

    The run's driver does this after its last commit; if that process died right then, the next one does.
    """
    if run.status != "interrupted":
        return False
    flag = await services.store.find_interrupt_flag(run.session_id)
    if flag is None or flag.run_id != run.run_id:
        return False
    return await settle_waiting(services, run.session_id, run, flag.reason, flag.kind)


async def end_unheard(services: Services, run_id: RunId) -> None:
    """Do what follows a run's last commit if that succeeded but its answer was lost; nothing for a running one."""
    run = await services.store.get_run(run_id)
    if run is not None and run.status != "running":
        await end_run(services, await services.store.load_state(run.session_id), run)


async def fail_run(services: Services, session_id: SessionId, fence: Fence, problem: BaseException) -> None:
    """Settle a run that cannot be driven, so that no caller waits for it; `retry()` starts from its last commit.

    A run that has already come to rest stays as it is, whatever went wrong after its last commit.
    """
    store = services.store
    code = problem.code if isinstance(problem, HelixError) else "internal_error"
    run = await store.get_run(fence.run_id)
    has_failed = False
    if run is None or run.status == "running":
        end = await _end_of_last_step(services, session_id, run)
        settlement = SettleSession(
            session_id=session_id,
            expected=("active", "paused"),
            expected_run=fence,
            status="failed",
            error=said_by(problem),
            failure_reason=code,
            append_messages=end.messages,
            writes=end.writes,
            completion_reason=code,
        )
        try:
            settled = await store.settle_session(settlement)
        except StateSizeExceededError:
            # The rest of the step is too large for the store, which may be why the run failed.
            without = msgspec.structs.replace(settlement, append_messages=(), writes=NO_WRITES)
            settled = await store.settle_session(without)
        has_failed = isinstance(settled, StatusChanged)
    ended = await store.get_run(fence.run_id)
    if ended is not None:
        await end_stream(services.streams, await store.load_state(session_id), ended)
    if has_failed:
        await tell_failed(services, session_id, fence, code, said_by(problem))


async def _end_of_last_step(services: Services, session_id: SessionId, run: RunRecord | None) -> StepEnd:
    """What a run leaves that had resumed an open step or had recorded one. If this cannot be read, it is left as is:
    that may be the reason why the run cannot be driven."""
    try:
        return await end_of_last_step(services.store, await services.store.load_state(session_id), run)
    except HelixError as unreadable:
        if unreadable.retryable:
            raise
        log_exception("run.end_unread", unreadable, session_id=session_id)
        return StepEnd(())
