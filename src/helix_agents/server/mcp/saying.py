"""Calls of tools: sending a message to an agent, and continuing what it started."""

from collections.abc import Awaitable, Callable
from typing import Any, get_args
from uuid import uuid4

import msgspec
from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import AgentAlreadyRunningError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingFilter, PendingState
from helix_agents.server.a2a.tasks import Task, read_context
from helix_agents.server.bodies import ApprovalResponse, SubmitBody, ToolResult, read_body, said
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.executor_routes import submit
from helix_agents.server.mcp.following import go_on, resumed
from helix_agents.server.mcp.names import digest
from helix_agents.server.mcp.requests import MOST_LISTED, NOTE, Request, agents_at, session_at, turn_of
from helix_agents.server.mcp.results import tool_result
from helix_agents.server.mcp.serving import check_stream, followed
from helix_agents.server.mcp.tools import (
    ANSWER,
    CONTINUE,
    PENDING,
    STOP,
    Answered,
    AnyOrOneSession,
    NamedSession,
    Said,
)
from helix_agents.server.mcp.waiting import Plain, Waiting, waiting_in


async def say(request: Request, agent: AnyAgent, wanted: Said) -> Any:
    """Send a message to an agent. A repeated request finds the turn that it started."""
    call = request.call
    check_stream(request)
    key, mark = wanted.idempotency_key or request.meta.key, request.request_mark
    name = call.checked(key, "idempotency key") if key is not None else f"mcp_{mark or uuid4().hex}"
    if wanted.session_id is not None:
        session_id = await _session_with(request, agent, wanted.session_id)
    elif key is not None or mark is not None:
        # A request that is sent again finds the session that it started.
        session_id = f"mcp_{digest(call.principal.user_id, agent.name, name)}"
    else:
        session_id = None
    if session_id is not None and await call.find_session(session_id) is not None:
        context = await read_context(call, session_id)
        if context.find(name) is not None:
            return await followed(request, agent, request.place(session_id, name))
        if context.waiting:
            waiting = ", ".join(row.tool_name for row in context.waiting)
            raise RefusedError(
                409,
                "still_waiting",
                f"This session waits for an answer to {waiting}. Answer with {ANSWER}, or give it up with {STOP}, "
                "before you say something else.",
            )
    metadata = {} if mark is None else {NOTE: {"request": mark}}
    message = said(UserMessage(content=wanted.message, id=name, metadata=metadata))
    owner = call.owner()
    try:
        run = await call.begin(
            lambda: call.executor.execute(
                agent, message, session_id, user_id=owner, idempotency_key=name, only_own=True
            )
        )
    except AgentAlreadyRunningError as busy:
        detail = f"The agent is still working in this session. {CONTINUE} waits for it, and {STOP} stops it."
        raise RefusedError(409, busy.code, detail) from None
    return await followed(request, agent, request.place(run.session_id, name))


async def _session_with(request: Request, agent: AnyAgent, session_id: SessionId) -> SessionId:
    """A session of the caller with this agent.

    Raises:
        RefusedError: there is none, or it is with another agent.
    """
    session, its_agent = await session_at(request, session_id)
    if its_agent.name != agent.name:
        raise RefusedError(
            409, "agent_mismatch", f"This session is with {its_agent.name}; call that tool to continue it."
        )
    return session.session_id


async def _pending(request: Request, arguments: Plain) -> Response:
    wanted: AnyOrOneSession = read_body(arguments, AnyOrOneSession)
    call = request.call
    where = PendingFilter(user_id=call.owner())
    if wanted.session_id is not None:
        session, _ = await session_at(request, wanted.session_id)
        where = msgspec.structs.replace(where, root_session_id=session.session_id)
    page = await call.executor.list_pending(where, limit=MOST_LISTED)
    here = {agent.name for agent in agents_at(call, request.only)}
    roots = {row.root_session_id for row in page.items}
    sessions = [await call.executor.sessions.find(root) for root in roots]
    shown = {each.session_id for each in sessions if each is not None and each.agent_type in here and call.owns(each)}
    waiting = await waiting_in(call, tuple(row for row in page.items if row.root_session_id in shown))
    items = [{"session_id": each.row.root_session_id, **each.shown()} for each in waiting]
    text = msgspec.json.encode(items).decode() if items else "Nothing waits for an answer."
    return request.answered(tool_result([text], {"items": items, "has_more": page.has_more}))


async def _answer(request: Request, arguments: Plain) -> Any:
    wanted: Answered = read_body(arguments, Answered)
    agent, task = await turn_of(request, wanted.session_id)
    check_stream(request)
    waiting = await _answered(request, task, wanted.tool_call_id)
    if waiting.is_approval and waiting.row.state == "waiting" and request.peer.asks != "never":
        raise RefusedError(
            409,
            "still_waiting",
            f"An approval is decided by a person, and this client can ask one: call {CONTINUE}.",
        )
    await submit(request.call, task.session_id, _given(waiting, wanted))
    await go_on(request.call, agent, task.session_id)
    return await followed(request, agent, request.place(task.session_id, task.asked_id))


async def _answered(request: Request, task: Task, tool_call_id: str | None) -> Waiting:
    """The call that a client answers: one that waits, or one that it has answered before.

    Raises:
        RefusedError: there is no such call, or it is not clear which is meant.
    """
    call = request.call
    rows = task.waiting
    if tool_call_id is None and len(rows) != 1:
        if not rows:
            raise RefusedError(409, "nothing_to_resume", "Nothing waits for an answer in this session.")
        names = ", ".join(f"{row.tool_call_id} ({row.tool_name})" for row in rows)
        raise invalid(f"Several calls wait; name the one that you answer with tool_call_id: {names}.")
    chosen = [row for row in rows if tool_call_id in (None, row.tool_call_id)]
    if not chosen:
        where = PendingFilter(root_session_id=task.session_id, states=get_args(PendingState))
        known = await whole_list(lambda start: call.executor.list_pending(where, offset=start, limit=MAX_LIMIT))
        chosen = [row for row in known if row.tool_call_id == tool_call_id]
    if not chosen:
        raise RefusedError(404, "not_found", f"No call {(tool_call_id or '')[:80]!r} waits in this session.")
    [waiting] = await waiting_in(call, tuple(chosen[:1]))
    return waiting


def _given(waiting: Waiting, wanted: Answered) -> SubmitBody:
    row = waiting.row
    if row.approval_id is None:
        if wanted.approved is not None:
            raise invalid(f"{row.tool_name} needs a result or an error, not an approval.")
        return ToolResult(tool_call_id=row.tool_call_id, result=wanted.result, error=wanted.error)
    if wanted.approved is None:
        raise invalid(f"The approval of {row.tool_name} needs approved: true or false, as the user decides.")
    return ApprovalResponse(
        tool_call_id=row.tool_call_id,
        approval_id=row.approval_id,
        approved=wanted.approved,
        reason=wanted.reason,
        edited_input=wanted.edited_input,
    )


async def _continue(request: Request, arguments: Plain) -> Any:
    wanted: NamedSession = read_body(arguments, NamedSession)
    agent, task = await turn_of(request, wanted.session_id)
    check_stream(request)
    if task.run is not None and task.run.status == "interrupted":
        await resumed(request.call, agent, task.session_id)
    return await followed(request, agent, request.place(task.session_id, task.asked_id))


async def _stop(request: Request, arguments: Plain) -> Any:
    wanted: NamedSession = read_body(arguments, NamedSession)
    agent, task = await turn_of(request, wanted.session_id)
    check_stream(request)
    await interrupt(request.call, agent, task)
    return await followed(request, agent, request.place(task.session_id, task.asked_id))


async def interrupt(call: Call, agent: AnyAgent, task: Task) -> None:
    """Stop this turn and no other; a turn that is over stays as it is."""
    run = None if task.run is None else await call.executor.get_handle(agent, task.session_id, task.run.run_id)
    if run is not None:
        await run.interrupt("stopped by an MCP client")


COMPANIONS: dict[str, Callable[[Request, Plain], Awaitable[Any]]] = {
    PENDING: _pending,
    ANSWER: _answer,
    CONTINUE: _continue,
    STOP: _stop,
}
