"""Stored sessions over HTTP: listings, transcripts, snapshots for a first paint, and deletion."""

from collections.abc import Iterable, Iterator
from typing import cast, get_args

from starlette.responses import Response

from helix_agents.domain.ids import RunId
from helix_agents.domain.paging import Page
from helix_agents.domain.pending import OPEN, PendingCall, PendingFilter, PendingKind
from helix_agents.domain.queued import (
    NotQueued,
    QueuedTurnBegun,
    QueuedTurnChanged,
    QueuedTurnDropped,
    WaitingMessage,
    waiting_messages,
)
from helix_agents.domain.sessions import SessionFilter, SessionState, SessionStatus, SessionSummary
from helix_agents.domain.usage import DAY_MS, UsageFilter, UsageRollup
from helix_agents.server.answers import (
    Caller,
    CheckpointPage,
    Child,
    Children,
    MessagePage,
    PendingPage,
    QueuedMessages,
    RunPage,
    SessionDetail,
    SessionPage,
    ShownCheckpoint,
    ShownMessage,
    Snapshot,
    Tail,
    UIMessagePage,
    UsageDays,
)
from helix_agents.server.bodies import ChangeQueuedBody, messages_of
from helix_agents.server.calls import Call, json_response
from helix_agents.server.chat.turns import Conversation, read_conversation, stream_for
from helix_agents.server.chat.ui_messages import UIMessage
from helix_agents.server.chat.user_messages import user_message
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.owed_ends import RECENT_MS

PAGE = 50
MOST_ON_A_PAGE = 200
MOST_TRIES = 8
ORDERS = ("newest", "oldest")
USAGE_DAYS = 30
MOST_USAGE_DAYS = 366


def page_of(call: Call) -> tuple[int, int]:
    """The page a caller asks for."""
    offset, limit = call.number("offset", 0), call.number("limit", PAGE)
    if not 1 <= limit <= MOST_ON_A_PAGE or offset > 2**31:
        raise invalid(f"limit must be from 1 to {MOST_ON_A_PAGE}, and offset at most {2**31}.")
    return offset, limit


def user_of(call: Call) -> str | None:
    """Whose data is listed: the caller's, or, for an operator, that of any user or of all."""
    asked = call.query("userId")
    if call.principal.operator:
        return None if asked is None else call.checked(asked, "user id")
    if asked is not None and asked != call.principal.user_id:
        raise RefusedError(403, "forbidden", "Only an operator can list what belongs to other users.")
    if call.principal.user_id is None:
        raise RefusedError(403, "forbidden", "A caller without a user id has nothing to list.")
    return call.principal.user_id


async def list_sessions(call: Call) -> Response:
    """Sessions, newest first: the caller's own, or those of all users for an operator."""
    offset, limit = page_of(call)
    wanted = call.query("status")
    if wanted is not None and wanted not in get_args(SessionStatus):
        raise invalid(f"Unknown session status: {wanted[:80]!r}.")
    tag = call.query("tag")
    where = SessionFilter(
        user_id=user_of(call),
        agent_type=call.query("agentType"),
        statuses=() if wanted is None else (cast("SessionStatus", wanted),),
        tags=() if tag is None else (tag,),
        roots_only=True,
    )
    page = await call.executor.sessions.list(where, offset=offset, limit=limit)
    return json_response(
        SessionPage(items=page.items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def list_pending(call: Call) -> Response:
    """Calls that wait for an answer: the caller's own, or those of all users for an operator."""
    offset, limit = page_of(call)
    kind, order = call.query("kind"), call.query("order")
    if kind is not None and kind not in get_args(PendingKind):
        raise invalid(f"Unknown kind of waiting call: {kind[:80]!r}.")
    if order is not None and order not in ORDERS:
        raise invalid(f"order must be one of {', '.join(ORDERS)}, not {order[:80]!r}.")
    where = PendingFilter(
        user_id=user_of(call), tool_name=call.query("toolName"), kind=cast("PendingKind | None", kind)
    )
    if order == "oldest":
        page = await _oldest_pending(call, where, offset, limit)
    else:
        page = await call.executor.list_pending(where, offset=offset, limit=limit)
    return json_response(
        PendingPage(items=page.items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def _oldest_pending(call: Call, where: PendingFilter, offset: int, limit: int) -> Page[PendingCall]:
    """A page counted from the end of a list that is kept newest first.

    If a call starts or stops waiting between the two reads, the page has shifted, and both are repeated.
    """
    page = await call.executor.list_pending(where, limit=1)
    for _ in range(MOST_TRIES):
        total, end = page.total, max(page.total - offset, 0)
        begin = max(end - limit, 0)
        if end == 0:
            return Page(items=(), total=total, offset=offset, limit=limit)
        page = await call.executor.list_pending(where, offset=begin, limit=end - begin)
        if page.total == total:
            break
    return Page(items=page.items[::-1], total=page.total, offset=offset, limit=limit)


async def get_caller(call: Call) -> Response:
    """The caller's identity, and the agents with which it can start a session."""
    return json_response(
        Caller(
            user_id=call.principal.user_id,
            operator=call.principal.operator,
            open_to_all=call.open_to_all,
            agents=tuple(sorted(call.entry_agents)),
            timestamp=call.executor.sessions.now_ms(),
        )
    )


async def get_usage_by_day(call: Call) -> Response:
    """Usage per UTC day, up to and including today: the caller's own, or that of all users for an operator.

    Only the owner can read the usage of one session, which excludes the sessions below it, or of one of its runs.
    """
    days = call.number("days", USAGE_DAYS)
    if not 1 <= days <= MOST_USAGE_DAYS:
        raise invalid(f"days must be from 1 to {MOST_USAGE_DAYS}.")
    now = call.executor.sessions.now_ms()
    since = now - now % DAY_MS - (days - 1) * DAY_MS
    session_id, run_id = call.query("sessionId"), call.query("runId")
    if session_id is not None:
        session_id = (await call.session(call.checked(session_id))).session_id
    elif run_id is not None:
        raise invalid("A runId needs the sessionId that it belongs to.")
    where = UsageFilter(
        user_id=user_of(call),
        session_id=session_id,
        run_id=None if run_id is None else call.checked(run_id, "run id"),
        agent_type=call.query("agentType"),
        recorded_from=since,
    )
    return json_response(UsageDays(items=await call.executor.usage_by_day(where), since=since, timestamp=now))


async def get_session(call: Call) -> Response:
    """One session with its state."""
    session = await call.whole_session(call.path_id())
    return json_response(await _detail(call, session))


async def delete_session(call: Call) -> Response:
    """Delete a session and everything below it."""
    session = await call.session(call.path_id())
    await call.executor.sessions.delete(session.session_id, unless_running=True)
    return Response(status_code=204)


async def get_queued(call: Call) -> Response:
    """Messages that wait, in the order in which they are to be taken: those for the run in progress, then turns."""
    session = await call.session(call.path_id())
    return json_response(QueuedMessages(items=await call.executor.sessions.queued(session.session_id)))


async def drop_queued(call: Call) -> Response:
    """Take back a waiting message, which is then never answered. 404 if it is already being answered."""
    session = await call.session(call.path_id())
    run_id = call.path_id("run")
    outcome = await call.executor.sessions.drop_queued(session.session_id, run_id)
    if not isinstance(outcome, QueuedTurnDropped):
        raise _waits_no_more(run_id, outcome)
    return Response(status_code=204)


async def change_queued(call: Call) -> Response:
    """Change a waiting message. 404 if it is already being answered.

    `message` is what it says from now on. With `steers`, the run in progress takes it in; otherwise it is a turn of its
    own. With `first`, it comes before the other messages of its kind.
    """
    session = await call.session(call.path_id())
    run_id = call.path_id("run")
    body: ChangeQueuedBody = await call.body(ChangeQueuedBody)
    message = None if body.message is None else call.checked_messages(messages_of(body.message))
    sessions = call.executor.sessions
    if message is None and body.steers is None and not body.first:
        unchanged = [turn for turn in await sessions.queued(session.session_id) if turn.run_id == run_id]
        if not unchanged:
            raise _waits_no_more(run_id, NotQueued())
        return json_response(unchanged[0])
    outcome = await sessions.change_queued(
        session.session_id, run_id, message=message, steers=body.steers, first=body.first
    )
    if not isinstance(outcome, QueuedTurnChanged):
        raise _waits_no_more(run_id, outcome)
    return json_response(outcome.turn)


def _waits_no_more(run_id: RunId, outcome: QueuedTurnBegun | NotQueued) -> RefusedError:
    if isinstance(outcome, QueuedTurnBegun):
        return RefusedError(404, "run_not_found", f"It is too late: run {outcome.run_id!r} answers this message.")
    return RefusedError(404, "run_not_found", f"No run {run_id[:80]!r} waits in this session.")


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


async def get_checkpoints(call: Call) -> Response:
    """Checkpoints to which the session can be rewound, or from which it can be branched, newest first."""
    session = await call.session(call.path_id())
    offset, limit = page_of(call)
    page = await call.executor.sessions.checkpoints(session.session_id, offset=offset, limit=limit)
    items = tuple(
        ShownCheckpoint(
            checkpoint_id=each.checkpoint_id,
            run_id=each.run_id,
            step_count=each.step_count,
            message_count=each.message_count,
            status=each.status,
            source=each.source,
            created_at=each.created_at,
        )
        for each in page.items
    )
    return json_response(
        CheckpointPage(items=items, total=page.total, offset=offset, limit=limit, has_more=page.has_more)
    )


async def get_children(call: Call) -> Response:
    """The child sessions, each with the call that created it."""
    session = await call.session(call.path_id())
    below = await call.executor.sessions.delegations(session.session_id)
    return json_response(Children(items=tuple(map(Child.of, sorted(below, key=lambda ref: ref.created_at)))))


async def get_tail(call: Call) -> Response:
    """What is visible beyond the stored messages, and the position from which to continue reading."""
    session = await call.session(call.path_id())
    now = await call.executor.sessions.snapshot(session.session_id)
    return json_response(
        Tail(
            session_id=now.session_id,
            status=now.status,
            run=now.run,
            message_count=len(now.messages),
            held=now.held,
            chunks=now.chunks,
            sequence=now.sequence,
            stream_status=now.stream_status,
        )
    )


async def get_usage(call: Call) -> Response:
    """The usage of the session and everything below it."""
    session = await call.session(call.path_id())
    handle = await call.executor.get_handle(call.agent_of(session), session.session_id)
    return json_response(UsageRollup() if handle is None else await handle.usage())


async def get_ui_messages(call: Call) -> Response:
    """A page of the conversation as UI messages; offset 0 is the page with the newest messages."""
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
    """What a chat page shows first, and the position from which it continues reading."""
    session = await call.session(call.path_id())
    _, limit = page_of(call)
    # In this order: a message that leaves the queue in between is part of the conversation then.
    queued = await call.executor.sessions.queued(session.session_id)
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
            queued=_queued(waiting_messages(queued, {now.current_run_id, *_ids_in(messages)})),
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
    """The conversation for a page that will show it; a page that is shown an unfinished answer comes back for its
    end."""
    conversation = await read_conversation(call.executor, session.session_id)
    run = conversation.run
    if run is not None and run.status == "running":
        call.owed.shown(session.session_id, conversation.message_id)
    elif run is not None and call.executor.sessions.now_ms() - (run.ended_at or 0) < RECENT_MS:
        call.owed.shown_whole(session.session_id, conversation.message_id)
    return conversation


def _ids_in(messages: Iterable[UIMessage]) -> Iterator[str]:
    """The ids of messages, and of those that an answer took in."""
    for message in messages:
        yield message["id"]
        yield from (part["id"] for part in message["parts"] if part["type"] == "data-steered")


def _queued(waiting: Iterable[WaitingMessage]) -> tuple[UIMessage, ...]:
    return tuple(
        {
            **user_message(each.message, each.id),
            "id": each.id,
            "metadata": {"runId": each.turn.run_id, "queuedAt": each.turn.queued_at}
            | ({"steers": True} if each.turn.steers else {}),
        }
        for each in waiting
    )


def _ui_messages(call: Call, conversation: Conversation) -> list[UIMessage]:
    """The conversation as UI messages. Every page can show the kinds that only newer pages can receive as a stream."""
    return conversation.ui_messages(lambda: stream_for(call.executor, conversation.session.agent_type, 7))


async def _detail(call: Call, session: SessionState) -> SessionDetail:
    return SessionDetail(
        session_id=session.session_id,
        agent_type=session.agent_type,
        held_by=session.held_by,
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
