"""A session as its readers see it: as a whole, as one line of a listing, or as a match of a filter."""

from collections.abc import Iterable

import msgspec

from helix_agents.domain.flags import aimed_at_current_run
from helix_agents.domain.pending import OPEN, PendingCall, completed_at
from helix_agents.domain.records import JSON
from helix_agents.domain.sessions import InterruptFlag, SessionFilter, SessionState, SessionSummary


def assembled(
    session: SessionState,
    custom_state: dict[str, JSON],
    calls: Iterable[PendingCall],
    flag: InterruptFlag | None,
) -> SessionState:
    """The record with its custom state and the rows that others write.

    `calls` are a root's calls of its whole tree, or the calls that a child owns, in any state; `flag` is the stop that
    was written last, and counts if it is aimed at the current run.
    """
    rows = sorted(calls, key=lambda call: (call.created_at, call.tool_call_id))
    waiting = {call.tool_call_id: call for call in rows if call.state in OPEN}
    whole = msgspec.structs.replace(
        session,
        custom_state=custom_state,
        pending_client_tool_calls=waiting,
        interrupt_flag=aimed_at_current_run(session, flag),
    )
    if session.root_session_id != session.session_id:
        return whole
    return msgspec.structs.replace(
        whole,
        client_tool_call_ownership={call_id: call.session_id for call_id, call in waiting.items()},
        completed_client_tool_calls={call.tool_call_id: at for call in rows if (at := completed_at(call)) is not None},
    )


def summary(session: SessionState) -> SessionSummary:
    """One session in a listing."""
    return SessionSummary(
        session_id=session.session_id,
        agent_type=session.agent_type,
        held_by=session.held_by,
        status=session.status,
        step_count=session.step_count,
        message_count=session.message_count,
        version=session.version,
        user_id=session.user_id,
        tags=session.tags,
        metadata=session.metadata,
        parent_session_id=session.parent_session_id,
        root_session_id=session.root_session_id,
        current_run_id=session.current_run_id,
        expires_at=session.expires_at,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def matches(session: SessionState, where: SessionFilter) -> bool:
    """Whether a session matches the filter."""
    expires_at = session.expires_at
    return (
        (where.user_id is None or session.user_id == where.user_id)
        and (where.agent_type is None or session.agent_type == where.agent_type)
        and (not where.statuses or session.status in where.statuses)
        and (where.parent_session_id is None or session.parent_session_id == where.parent_session_id)
        and (where.root_session_id is None or session.root_session_id == where.root_session_id)
        and (not where.roots_only or session.parent_session_id is None)
        and all(tag in session.tags for tag in where.tags)
        and all(session.metadata.get(key) == value for key, value in where.metadata.items())
        and (where.created_from is None or session.created_at >= where.created_from)
        and (where.created_to is None or session.created_at <= where.created_to)
        and (where.expires_before is None or (expires_at is not None and expires_at < where.expires_before))
    )
