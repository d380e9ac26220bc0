"""Sessions that outlived their time are failed, with everything they hold, so that nothing waits for ever."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from helix_agents.domain.commits import SettleSession, is_expired
from helix_agents.domain.errors import HelixError, SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import (
    SessionFilter,
    SessionState,
    SessionSummary,
    StatusChanged,
    StatusConflict,
    StatusOutcome,
)
from helix_agents.engine.requests.workspaces import delete_workspaces
from helix_agents.engine.steps.salvage import end_of_last_step
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.workspaces import WorkspaceProvider

EXPIRED = "session_expired"
_LIVE = ("active", "interrupted", "paused")


class CleanupSummary(Record):
    """What a sweep did. Of the `detected` sessions some were `already_terminal` when their turn came."""

    detected: int = 0
    marked: int = 0
    already_terminal: int = 0
    snapshots_deleted: int = 0
    errors: int = 0


async def expired_session_cleanup(
    state_store: SessionStateStore,
    *,
    workspace_providers: Mapping[str, WorkspaceProvider] | None = None,
    page_size: int = 200,
    logger: logging.Logger | None = None,
    tell: Callable[[RunRecord], Awaitable[None]] | None = None,
) -> CleanupSummary:
    """Fail every session past its `expires_at` that is not at its end yet; one that resists does not stop the sweep.

    Args:
        state_store: Where the sessions are.
        workspace_providers: By the name under which sessions refer to them; workspaces and snapshots go with sessions.
        page_size: How many sessions are listed at a time.
        logger: Told of sessions that resist; `helix_agents` if left out.
        tell: Told of each run that nobody had gone on with since its process died, and that failed with its session.
    """
    log = logger or logging.getLogger("helix_agents")
    providers = workspace_providers or {}
    counts = {"detected": 0, "marked": 0, "already_terminal": 0, "snapshots_deleted": 0, "errors": 0}
    now = state_store.now_ms()
    for session_id in await _expired(state_store, page_size, now):
        counts["detected"] += 1
        try:
            session = await state_store.load_state(session_id)
            if session.status not in _LIVE:
                counts["already_terminal"] += 1
                continue
            outcome: StatusOutcome = StatusConflict(current_status=session.status, current_version=session.version)
            # Somebody may have come back since it was found.
            if is_expired(session, now):
                counts["snapshots_deleted"] += await delete_workspaces(state_store, session, providers)
                run = await state_store.get_current_run(session_id)
                outcome = await state_store.settle_session(await _expiry(state_store, session, run, now))
                # Of one that waited, its end was told when it came to wait.
                died = run if run is not None and run.status == "running" else None
                if died is not None and tell is not None and isinstance(outcome, StatusChanged):
                    await tell(died)
        except Exception:
            counts["errors"] += 1
            log.exception("session.cleanup_failed session_id=%r", session_id)
            continue
        if isinstance(outcome, StatusChanged):
            counts["marked"] += 1
        else:
            counts["errors"] += 1
            log.warning("session.cleanup_lost_race session_id=%r status=%s", session_id, outcome.current_status)
    return CleanupSummary(**counts)


async def is_over(state_store: SessionStateStore, session_id: SessionId) -> bool:
    """Whether nobody can go on with a session: it is gone or has expired, or its parent is done with it."""
    try:
        session = await state_store.load_state(session_id)
    except SessionNotFoundError:
        return True
    if session.parent_session_id is None:
        return session.status == "failed" and session.failure_reason == EXPIRED
    # Of a parent's children only companions are spoken to again, and those that failed begin anew elsewhere.
    return session.status == "failed" or (session.status == "completed" and session.mode != "persistent")


async def _expired(store: SessionStateStore, page_size: int, now: int) -> list[SessionId]:
    """All ids first: what is marked would otherwise move later pages."""
    found: list[SessionSummary] = []
    where = SessionFilter(statuses=_LIVE, expires_before=now + 1)
    while True:
        page = await store.list_sessions(where, offset=len(found), limit=page_size)
        found.extend(page.items)
        if not page.has_more:
            break
    # A tree expires with its root, which is among them, or whose time was moved by whoever came back.
    roots = {item.session_id for item in found if item.parent_session_id is None}
    above = {item.root_session_id for item in found} - roots
    left = {root for root in above if await _has_left_others(store, root, now)}
    return [item.session_id for item in found if item.session_id in roots or item.root_session_id in left]


async def _has_left_others(store: SessionStateStore, root_session_id: SessionId, now: int) -> bool:
    """Whether a root is at its end, and its time is over: a companion may outlive it, and nothing else ends that."""
    try:
        root = await store.load_state(root_session_id)
    except HelixError:
        # It was deleted meanwhile, or cannot be read: then the tree is left as it is.
        return False
    return root.status not in _LIVE and is_expired(root, now)


async def _expiry(store: SessionStateStore, session: SessionState, run: RunRecord | None, now: int) -> SettleSession:
    end = await end_of_last_step(store, session, run)
    return SettleSession(
        session_id=session.session_id,
        expected=_LIVE,
        expected_version=session.version,
        expired_by=now,
        status="failed",
        error=EXPIRED,
        failure_reason=EXPIRED,
        run_status="failed",
        completion_reason=EXPIRED,
        append_messages=end.messages,
        writes=end.writes,
        destroy_entries=True,
    )
