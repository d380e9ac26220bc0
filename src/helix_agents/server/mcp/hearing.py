"""What clients send besides calls of tools: answers to questions of this server, and cancellations."""

from typing import Any, cast

import msgspec

from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import SessionFilter
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError
from helix_agents.server.executor_routes import submit
from helix_agents.server.mcp.errors import INVALID_PARAMS, RPCError
from helix_agents.server.mcp.following import dismiss, go_on
from helix_agents.server.mcp.names import read_asked, read_place
from helix_agents.server.mcp.requests import (
    MOST_LISTED,
    NOTE,
    Request,
    agents_at,
    mark_of,
    session_at,
    turn_of,
)
from helix_agents.server.mcp.saying import interrupt
from helix_agents.server.mcp.serving import check_stream, followed, followed_here
from helix_agents.server.mcp.waiting import Plain, Waiting, waiting_in


async def take_answer(request: Request) -> None:
    """Store the answer to a question that any instance of this server asked.

    An answer to a question that was never asked, or was put to another user, is ignored; its sender cannot tell.
    """
    call, message = request.call, request.message
    asked = read_asked(message.id)
    if asked is None:
        return
    try:
        _, agent = await session_at(request, asked.session_id)
    except RefusedError:
        return
    rows = await call.waiting(asked.session_id)
    waiting = await waiting_in(call, tuple(row for row in rows if row.tool_call_id == asked.tool_call_id))
    for each in waiting:
        note = await submitted(call, asked.session_id, each, message.result)
        if note is not None:
            dismiss(asked, note or None)
    await go_on(call, agent, asked.session_id)


async def submitted(call: Call, session_id: SessionId, waiting: Waiting, result: Plain | None) -> str | None:
    """Store a person's answer. If nothing was stored, returns the reason, or an empty text if there was no answer."""
    action, content = (result or {}).get("action"), (result or {}).get("content")
    if action not in ("accept", "decline", "cancel"):
        return "The client could not ask the user."
    fields = cast("Plain", content) if isinstance(content, dict) else {}
    try:
        body = waiting.answer(action, fields)
        if body is None:
            return ""
        await submit(call, session_id, body)
    except RefusedError as refusal:
        if refusal.status != 400:
            raise
        return f"The answer was not accepted: {refusal.detail}"
    return None


async def continue_call(request: Request, state: str, responses: dict[str, dict[str, Any]]) -> Any:
    """Continue a call whose client sends it again, with answers if it was asked questions."""
    call = request.call
    place = read_place(state)
    if place is None:
        raise RPCError(INVALID_PARAMS, "requestState is not from this server.")
    _, agent = await session_at(request, place.session_id)
    check_stream(request)
    rows = await call.waiting(place.session_id)
    waiting = await waiting_in(call, tuple(row for row in rows if row.tool_call_id in responses))
    left: dict[str, str] = {}
    for each in waiting:
        note = await submitted(call, place.session_id, each, responses[each.row.tool_call_id])
        if note is not None:
            left[each.row.tool_call_id] = note
    if waiting:
        await go_on(call, agent, place.session_id)
    new = request.place(place.session_id, place.asked_id)
    new = msgspec.structs.replace(new, cursor=place.cursor, asked=tuple(left))
    return await followed(request, agent, new, next((note for note in left.values() if note), None))


async def cancel(request: Request) -> None:
    """Stop the turn of a request for whose result the client still waits."""
    call, connection = request.call, request.peer.connection
    if connection is None:
        return
    mark = mark_of(call, connection, request.message.params.get("requestId"))
    found = followed_here.get(mark)
    if found is not None:
        agent, task = await turn_of(request, found.place.session_id)
        if task.asked_id == found.place.asked_id:
            await interrupt(call, agent, task)
        return
    for session_id in await _recent(request):
        agent, task = await turn_of(request, session_id)
        if task.asked.metadata.get(NOTE) == {"request": mark}:
            await interrupt(call, agent, task)
            return


async def _recent(request: Request) -> list[SessionId]:
    """The caller's active sessions, whose turns another instance may follow."""
    call = request.call
    where = SessionFilter(user_id=call.owner(), statuses=("active",), roots_only=True)
    page = await call.executor.sessions.list(where, limit=MOST_LISTED)
    here = {agent.name for agent in agents_at(call, request.only)}
    return [session.session_id for session in page.items if session.agent_type in here]
