"""Sessions past their expiry are failed, with everything they hold, so that nothing waits forever."""

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
    """What a sweep did. Some of the `detected` sessions were `already_terminal` when it reached them."""

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
    """Fail every session that is past its `expires_at` and has not ended yet; one that raises an error does not stop
    the sweep.

    Args:
        state_store: Where the sessions are.
        workspace_providers: Providers by the name that sessions have for them; workspaces and snapshots are deleted
            with their sessions.
        page_size: How many sessions are listed at a time.
        logger: Where sessions that could not be failed are logged; `helix_agents` if left out.
        tell: Called with each run whose process had died, that no other process had resumed, and that failed with its
            session.
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
            # The session may have been used again since it was found.
            if is_expired(session, now):
                counts["snapshots_deleted"] += await delete_workspaces(state_store, session, providers)
                run = await state_store.get_current_run(session_id)
                outcome = await state_store.settle_session(await _expiry(state_store, session, run, now))
                # The end of a run that waits was already told when it suspended.
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
    """Whether a session can no longer continue: it is gone or has expired, or its parent is done with it."""
    try:
        session = await state_store.load_state(session_id)
    except SessionNotFoundError:
        return True
    if session.parent_session_id is None:
        return session.status == "failed" and session.failure_reason == EXPIRED
    # Of a session's children only companions are spoken to again, and failed ones start anew in another session.
    return session.status == "failed" or (session.status == "completed" and session.mode != "persistent")


async def _expired(store: SessionStateStore, page_size: int, now: int) -> list[SessionId]:
    """Collect all ids first: failing a session would shift later pages."""
    found: list[SessionSummary] = []
    where = SessionFilter(statuses=_LIVE, expires_before=now + 1)
    while True:
        page = await store.list_sessions(where, offset=len(found), limit=page_size)
        found.extend(page.items)
        if not page.has_more:
            break
    # A tree expires with its root. The root is either in this list, or its expiry was moved because someone came back.
    roots = {item.session_id for item in found if item.parent_session_id is None}
    above = {item.root_session_id for item in found} - roots
    left = {root for root in above if await _has_left_others(store, root, now)}
    return [item.session_id for item in found if item.session_id in roots or item.root_session_id in left]


async def _has_left_others(store: SessionStateStore, root_session_id: SessionId, now: int) -> bool:
    """Whether a root has ended and expired: a companion may outlive its root, and nothing else would end it."""
    try:
        root = await store.load_state(root_session_id)
    except HelixError:
        # The root was deleted meanwhile or cannot be read: the tree is left as is.
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
