"""The methods of A2A: send a message, look at tasks, follow them, and cancel them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    HelixError,
    NothingToResumeError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.queued import run_id_for
from helix_agents.domain.sessions import SessionFilter
from helix_agents.server.a2a.cards import PROTOCOL_VERSION
from helix_agents.server.a2a.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PUSH_NOTIFICATION_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    VERSION_NOT_SUPPORTED,
    RPCError,
    as_rpc,
)
from helix_agents.server.a2a.messages import A2AMessage, NamedTask, SendMessage, TaskQuery, answers_to, user_message
from helix_agents.server.a2a.tasks import Plain, Task, names_in, no_such_task, read_context, read_task, task_id
from helix_agents.server.a2a.updates import Follower, TaskSource, answer, failure
from helix_agents.server.bodies import read_body
from helix_agents.server.calls import Call, json_response, whole_number
from helix_agents.server.errors import RefusedError, refusal_of
from helix_agents.server.executor_routes import entry_agent, submit

# How long whoever cancels a task waits to hear that it is over.
CANCEL_SECONDS = 10.0


class RPCRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of JSON-RPC 2.0."""

    jsonrpc: str
    method: str
    params: dict[str, Any] = {}
    id: str | int | None = None


class RPCAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or an error. The two methods that stream send one of these per event."""

    jsonrpc: str
    id: str | int | None = None
    result: Any = None
    error: dict[str, Any] | None = None


async def talk(call: Call) -> Any:
    """Talk to an agent as a client of A2A 1.0 does, in JSON-RPC.

    `SendStreamingMessage` and `SubscribeToTask` answer with a stream of server-sent events, the others with one answer.
    """
    agent = entry_agent(call, call.request.path_params["agent"])
    rpc_id: Any = None
    try:
        request = await _request(call)
        rpc_id = request.id
        return await _method(call, request)(call, agent, request)
    except RPCError as problem:
        return json_response(failure(rpc_id, problem))
    except (RefusedError, HelixError) as met:
        refusal = met if isinstance(met, RefusedError) else refusal_of(met, call.gate.limits.retry_after_seconds)
        problem = as_rpc(refusal)
        if problem is None:
            raise
        return json_response(failure(rpc_id, problem))


async def _request(call: Call) -> RPCRequest:
    try:
        given = await call.json()
    except RefusedError as refusal:
        if refusal.status != 400:
            raise
        raise RPCError(PARSE_ERROR, refusal.detail) from None
    try:
        request = msgspec.convert(given, RPCRequest)
    except msgspec.ValidationError as problem:
        raise RPCError(INVALID_REQUEST, f"This is no request of JSON-RPC 2.0: {problem}") from None
    if request.jsonrpc != "2.0":
        raise RPCError(INVALID_REQUEST, "This server speaks JSON-RPC 2.0.")
    return request


Method = Callable[[Call, AnyAgent, RPCRequest], Awaitable[Any]]


def _method(call: Call, request: RPCRequest) -> Method:
    version = call.request.headers.get("a2a-version") or PROTOCOL_VERSION
    if version.split(".")[:2] != PROTOCOL_VERSION.split("."):
        raise RPCError(VERSION_NOT_SUPPORTED, f"This server speaks A2A {PROTOCOL_VERSION}, not {version[:20]!r}.")
    if "PushNotification" in request.method:
        raise RPCError(PUSH_NOTIFICATION_NOT_SUPPORTED, "This server sends no push notifications; follow the task.")
    method = _METHODS.get(request.method)
    if method is None:
        names = ", ".join(_METHODS)
        raise RPCError(METHOD_NOT_FOUND, f"A2A {PROTOCOL_VERSION} here has {names}, not {request.method[:80]!r}.")
    return method


async def _send(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: SendMessage = read_body(request.params, SendMessage)
    name = await _said(call, agent, wanted)
    _, task = await read_task(call, name)
    # Behind a task that needs somebody, this one would wait for the very client who is asked.
    if not (wanted.configuration.return_immediately or task.rests or task.is_held):
        task = await _at_rest(call, agent, task)
    return json_response(answer(request.id, {"task": task.shown(history=wanted.configuration.history_length)}))


async def _send_and_follow(call: Call, agent: AnyAgent, request: RPCRequest) -> Any:
    wanted: SendMessage = read_body(request.params, SendMessage)
    call.gate.check_stream(call.principal)
    return await _followed(call, agent, await _said(call, agent, wanted), request)


async def _get(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: NamedTask = read_body(request.params, NamedTask)
    task = await _task_of(call, agent, wanted.id)
    return json_response(answer(request.id, task.shown(history=wanted.history_length)))


async def _follow(call: Call, agent: AnyAgent, request: RPCRequest) -> Any:
    wanted: NamedTask = read_body(request.params, NamedTask)
    call.gate.check_stream(call.principal)
    task = await _task_of(call, agent, wanted.id)
    if task.is_over:
        raise RPCError(UNSUPPORTED_OPERATION, "This task is over, and nothing more comes; GetTask shows it.")
    return await _followed(call, agent, task.id, request)


async def _followed(call: Call, agent: AnyAgent, name: str, request: RPCRequest) -> Any:
    session_id, _ = names_in(name)
    run = await call.executor.get_handle(agent, session_id)
    return call.stream(TaskSource(Follower(call, agent, name), request.id), run=run)


async def _cancel(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: NamedTask = read_body(request.params, NamedTask)
    task = await _task_of(call, agent, wanted.id)
    if task.state == "TASK_STATE_SUBMITTED" and await _taken_back(call, task):
        return json_response(answer(request.id, task.taken_back().shown()))
    if not task.is_over:
        await call.executor.abort(task.session_id, "cancelled by a client")
        task = await _at_rest(call, agent, task, CANCEL_SECONDS)
        await _let_others_begin(call, agent, task)
    if task.is_over and task.state != "TASK_STATE_CANCELED":
        raise RPCError(TASK_NOT_CANCELABLE, "This task is over already.")
    return json_response(answer(request.id, task.shown()))


async def _list(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: TaskQuery = read_body(request.params, TaskQuery)
    start = 0 if not wanted.page_token else whole_number(wanted.page_token)
    if start is None:
        raise RPCError(INVALID_PARAMS, "The pageToken is none that this server gave.")
    if wanted.context_id:
        tasks = await _in_context(call, agent, wanted.context_id)
        page, total = tasks[start : start + wanted.page_size], len(tasks)
    else:
        page, total = await _newest(call, agent, start, wanted.page_size)
    shown = [
        task.shown(history=wanted.history_length, artifacts=wanted.include_artifacts)
        for task in page
        if wanted.status in (None, task.state)
    ]
    following = start + wanted.page_size
    token = str(following) if following < total else ""
    found: Plain = {"tasks": shown, "nextPageToken": token, "pageSize": wanted.page_size, "totalSize": total}
    return json_response(answer(request.id, found))


_METHODS: dict[str, Method] = {
    "SendMessage": _send,
    "SendStreamingMessage": _send_and_follow,
    "GetTask": _get,
    "ListTasks": _list,
    "CancelTask": _cancel,
    "SubscribeToTask": _follow,
}


async def _said(call: Call, agent: AnyAgent, wanted: SendMessage) -> str:
    """Take what a client says, durably; answers with the name of its task."""
    message = wanted.message
    if wanted.configuration.task_push_notification_config is not None:
        raise RPCError(PUSH_NOTIFICATION_NOT_SUPPORTED, "This server sends no push notifications; follow the task.")
    if message.task_id:
        return await _answer(call, agent, message, message.task_id)
    return await _begin(call, agent, message)


async def _begin(call: Call, agent: AnyAgent, message: A2AMessage) -> str:
    """Begin a task; the same message again is the same task. One that comes while another goes on waits for it: no
    client loses what another one does."""
    asked = user_message(message)
    call.checked_messages((asked,))
    session_id = call.checked(message.context_id) if message.context_id else None
    session = None if session_id is None else await call.find_session(session_id)
    if session is not None and session.agent_type == agent.name:
        known = (await read_context(call, session.session_id)).find(message.message_id)
        if known is not None:
            return known.id
    owner = call.owner()
    run = await call.begin(
        lambda: call.executor.execute(
            agent,
            asked,
            session_id,
            user_id=owner,
            idempotency_key=message.message_id,
            only_new=session is None,
            if_running="enqueue",
        )
    )
    return task_id(run.session_id, message.message_id)


async def _answer(call: Call, agent: AnyAgent, message: A2AMessage, given: str) -> str:
    """Answer what a task waits for, and go on with it.

    Raises:
        RPCError: it waits for nothing.
    """
    session_id, _ = names_in(given)
    if message.context_id and message.context_id != session_id:
        raise RPCError(INVALID_PARAMS, "This task belongs to another context.")
    task = await _task_of(call, agent, given)
    if task.state != "TASK_STATE_INPUT_REQUIRED":
        how = "over" if task.is_over else "at work, and waits for nobody"
        raise RPCError(UNSUPPORTED_OPERATION, f"This task is {how}; a message without taskId begins another one.")
    for each in answers_to(task.waiting, message):
        await submit(call, session_id, each)
    # Somebody else may have gone on with it, or other calls still wait, of which the client is told again.
    with suppress(AgentAlreadyRunningError, NothingToResumeError, StillWaitingError):
        await call.begin(lambda: call.executor.resume(agent, session_id))
    return task.id


async def _at_rest(call: Call, agent: AnyAgent, task: Task, seconds: float | None = None) -> Task:
    """The task once it is over or needs somebody, or as it is when this instance has to leave, or time is up."""
    follower = Follower(call, agent, task.id)
    with call.gate.place(call.principal, await call.executor.get_handle(agent, task.session_id)):
        resting = asyncio.create_task(follower.rest())
        await asyncio.wait((resting, call.gate.leaving.future()), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if resting.done():
            return resting.result()
        resting.cancel()
        await asyncio.wait((resting,))
    _, task = await read_task(call, task.id)
    return task


async def _let_others_begin(call: Call, agent: AnyAgent, task: Task) -> None:
    """A stop holds what waits behind it until somebody goes on; tasks stand on their own. Whoever sends the first one
    once more, which changes nothing of it, goes on."""
    owner = call.owner()
    for turn in (await call.executor.sessions.queued(task.session_id))[:1]:
        key = turn.messages[-1].id
        if key is not None and run_id_for(task.session_id, key) == turn.run_id:
            await call.executor.execute(
                agent, turn.messages, task.session_id, user_id=owner, idempotency_key=key, if_running="enqueue"
            )


async def _taken_back(call: Call, task: Task) -> bool:
    """Take a task that waits for its turn from the queue; False where it has begun."""
    sessions = call.executor.sessions
    for turn in await sessions.queued(task.session_id):
        if turn.messages[-1].id == task.asked_id:
            return await sessions.drop_queued(task.session_id, turn.run_id)
    return False


async def _task_of(call: Call, agent: AnyAgent, given: str) -> Task:
    """A task of the caller with this agent."""
    context, task = await read_task(call, given)
    if context.agent_type != agent.name:
        raise no_such_task(given)
    return task


async def _in_context(call: Call, agent: AnyAgent, context_id: str) -> list[Task]:
    try:
        context = await read_context(call, call.checked(context_id))
    except SessionNotFoundError:
        return []
    return context.tasks() if context.agent_type == agent.name else []


async def _newest(call: Call, agent: AnyAgent, start: int, size: int) -> tuple[list[Task], int]:
    """The newest task of each context of the caller, and how many contexts there are."""
    where = SessionFilter(agent_type=agent.name, user_id=call.owner(), roots_only=True)
    page = await call.executor.sessions.list(where, offset=start, limit=size)
    found: list[Task] = []
    for session in page.items:
        tasks = (await read_context(call, session.session_id)).tasks()
        found += tasks[:1]
    return found, page.total
