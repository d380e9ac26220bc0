"""Stored sessions over HTTP: listings, transcripts, snapshots for a first paint, and deletion."""

from typing import cast, get_args

from starlette.responses import Response

from helix_agents.domain.pending import OPEN, PendingFilter
from helix_agents.domain.sessions import SessionFilter, SessionState, SessionStatus, SessionSummary
from helix_agents.domain.usage import UsageRollup
from helix_agents.server.answers import (
    MessagePage,
    PendingPage,
    RunPage,
    SessionDetail,
    SessionPage,
    ShownMessage,
    Snapshot,
    UIMessagePage,
)
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.owed_ends import RECENT_MS
from helix_agents.server.ui_messages import UIMessage
from helix_agents.server.ui_turn import Conversation, read_conversation, stream_for

PAGE = 50
MOST_ON_A_PAGE = 200


def page_of(call: Call) -> tuple[int, int]:
    """The page a caller asks for."""
    offset, limit = call.number("offset", 0), call.number("limit", PAGE)
    if not 1 <= limit <= MOST_ON_A_PAGE or offset > 2**31:
        raise invalid(f"A page needs a limit from 1 to {MOST_ON_A_PAGE}, and an offset that some listing could have.")
    return offset, limit


def user_of(call: Call) -> str | None:
    """Whose things are listed: the caller's, or, for an operator, those of anybody or everybody."""
    asked = call.query("userId")
    if call.principal.operator:
        return None if asked is None else call.checked(asked, "user id")
    if asked is not None and asked != call.principal.user_id:
        raise RefusedError(403, "forbidden", "Only an operator lists what belongs to others.")
    if call.principal.user_id is None:
        raise RefusedError(403, "forbidden", "A caller without a user id owns nothing that could be listed.")
    return call.principal.user_id


async def list_sessions(call: Call) -> Response:
    """Sessions, newest first: the caller's own, or for an operator everybody's."""
    offset, limit = page_of(call)
    wanted = call.query("status")
    if wanted is not None and wanted not in get_args(SessionStatus):
        raise invalid(f"There is no session status {wanted[:80]!r}.")
    where = SessionFilter(
        user_id=user_of(call),
        agent_type=call.query("agentType"),
        statuses=() if wanted is None else (cast("SessionStatus", wanted),),
        roots_only=True,
    )
    page = await call.executor.sessions.list(where, offset=offset, limit=limit)
    return json_response(
        SessionPage(items=page.items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def list_pending(call: Call) -> Response:
    """Calls that wait for somebody, newest first: the caller's own, or for an operator everybody's."""
    offset, limit = page_of(call)
    where = PendingFilter(user_id=user_of(call), tool_name=call.query("toolName"))
    page = await call.executor.list_pending(where, offset=offset, limit=limit)
    return json_response(
        PendingPage(items=page.items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def get_session(call: Call) -> Response:
    """One session with its state."""
    session = await call.whole_session(call.path_id())
    return json_response(await _detail(call, session))


async def delete_session(call: Call) -> Response:
    """Remove a session and everything below it."""
    session = await call.session(call.path_id())
    await call.executor.sessions.delete(session.session_id, unless_running=True)
    return Response(status_code=204)


async def get_messages(call: Call) -> Response:
    """A page of the transcript, newest first."""
    session = await call.session(call.path_id())
    offset, limit = page_of(call)
    page = await call.executor.sessions.messages(session.session_id, offset=offset, limit=limit)
    items = tuple(
        ShownMessage(sequence=stored.sequence, message=stored.message, created_at=stored.created_at)
        for stored in page.items
    )
    return json_response(MessagePage(items=items, total=page.total, offset=offset, limit=limit, has_more=page.has_more))


async def get_runs(call: Call) -> Response:
    """The session's turns, newest first."""
    session = await call.session(call.path_id())
    offset, limit = page_of(call)
    page = await call.executor.sessions.runs(session.session_id, offset=offset, limit=limit)
    return json_response(
        RunPage(items=page.items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def get_usage(call: Call) -> Response:
    """What the session and everything below it used."""
    session = await call.session(call.path_id())
    handle = await call.executor.get_handle(call.agent_of(session), session.session_id)
    return json_response(UsageRollup() if handle is None else await handle.usage())


async def get_ui_messages(call: Call) -> Response:
    """A page of the conversation as UI messages; offset 0 is the page with the newest."""
    session = await call.session(call.path_id())
    offset, limit = page_of(call)
    conversation = await _shown(call, session)
    messages = _ui_messages(call, conversation)
    end = max(len(messages) - offset, 0)
    begin = max(end - limit, 0)
    items = tuple(messages[begin:end])
    return json_response(
        UIMessagePage(items=items, total=len(messages), offset=offset, limit=limit, has_more=begin > 0)
    )


async def get_snapshot(call: Call) -> Response:
    """What a page shows first, and from where it reads on."""
    session = await call.session(call.path_id())
    _, limit = page_of(call)
    conversation = await _shown(call, session)
    messages = _ui_messages(call, conversation)
    now = conversation.session
    run = conversation.run
    return json_response(
        Snapshot(
            session_id=now.session_id,
            status=now.status,
            active=run is not None and run.status == "running",
            messages=tuple(messages[-limit:]),
            total_messages=len(messages),
            state=now.custom_state,
            pending=tuple(call for call in now.pending_client_tool_calls.values() if call.state in OPEN),
            stream_sequence=conversation.sequence,
            stream_status=conversation.stream_status,
            run_id=run.run_id if run is not None else None,
            run_status=run.status if run is not None else None,
            timestamp=call.executor.sessions.now_ms(),
        )
    )


async def _shown(call: Call, session: SessionSummary) -> Conversation:
    """The conversation for a page that will show it; one that shows an answer in the middle comes back for its end."""
    conversation = await read_conversation(call.executor, session.session_id)
    run = conversation.run
    if run is not None and run.status == "running":
        call.owed.shown(session.session_id, conversation.message_id)
    elif run is not None and call.executor.sessions.now_ms() - (run.ended_at or 0) < RECENT_MS:
        call.owed.shown_whole(session.session_id, conversation.message_id)
    return conversation


def _ui_messages(call: Call, conversation: Conversation) -> list[UIMessage]:
    """The conversation as messages. All pages know those that only newer ones can be sent piece by piece."""
    return conversation.ui_messages(lambda: stream_for(call.executor, conversation.session.agent_type, 7))


async def _detail(call: Call, session: SessionState) -> SessionDetail:
    return SessionDetail(
        session_id=session.session_id,
        agent_type=session.agent_type,
        agent_version=session.agent_version,
        status=session.status,
        state=session.custom_state,
        step_count=session.step_count,
        message_count=session.message_count,
        version=session.version,
        tags=session.tags,
        metadata=session.metadata,
        user_id=session.user_id,
        output=session.output,
        error=session.error,
        failure_reason=session.failure_reason,
        parent_session_id=session.parent_session_id,
        root_session_id=session.root_session_id,
        run=await call.current_run(session.session_id),
        pending=tuple(each for each in session.pending_client_tool_calls.values() if each.state in OPEN),
        expires_at=session.expires_at,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )
