"""The methods of A2A: send a message, look at tasks, follow them, and cancel them."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    AgentMismatchError,
    HelixError,
    NothingToResumeError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.queued import QueuedTurnDropped, run_id_for
from helix_agents.domain.sessions import InterruptSet, SessionFilter
from helix_agents.server.a2a.errors import RPCError, as_rpc
from helix_agents.server.a2a.messages import A2AMessage, NamedTask, SendMessage, TaskQuery, answers_to, user_message
from helix_agents.server.a2a.protocol import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION,
    PUSH_NOTIFICATION_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    VERSION_HEADER,
    VERSION_NOT_SUPPORTED,
)
from helix_agents.server.a2a.tasks import (
    Place,
    Plain,
    Task,
    look_again,
    names_in,
    no_such_task,
    queued_id,
    read_context,
    read_task,
)
from helix_agents.server.a2a.updates import Follower, TaskSource, answer, failure
from helix_agents.server.bodies import read_body
from helix_agents.server.calls import Call, json_response, whole_number
from helix_agents.server.errors import RefusedError, refusal_of
from helix_agents.server.executor_routes import entry_agent, submit

# How long a request that cancels a task waits for the task to end.
CANCEL_SECONDS = 10.0
# How often a task may move on between a look at it and the stop that follows.
CANCEL_TRIES = 10


class RPCRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON-RPC 2.0 request."""

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
    """Talk to an agent as an A2A 1.0 client, over JSON-RPC.

    `SendStreamingMessage` and `SubscribeToTask` return a stream of server-sent events, other methods a single answer.
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
        raise RPCError(INVALID_REQUEST, f"This is not a JSON-RPC 2.0 request: {problem}") from None
    if request.jsonrpc != "2.0":
        raise RPCError(INVALID_REQUEST, "This server speaks JSON-RPC 2.0.")
    return request


Method = Callable[[Call, AnyAgent, RPCRequest], Awaitable[Any]]


def _method(call: Call, request: RPCRequest) -> Method:
    version = call.request.headers.get(VERSION_HEADER) or PROTOCOL_VERSION
    if version.split(".")[:2] != PROTOCOL_VERSION.split("."):
        raise RPCError(VERSION_NOT_SUPPORTED, f"This server speaks A2A {PROTOCOL_VERSION}, not {version[:20]!r}.")
    if "PushNotification" in request.method:
        raise RPCError(PUSH_NOTIFICATION_NOT_SUPPORTED, "This server sends no push notifications; use SubscribeToTask.")
    method = _METHODS.get(request.method)
    if method is None:
        names = ", ".join(_METHODS)
        raise RPCError(METHOD_NOT_FOUND, f"Unknown method {request.method[:80]!r}. This server has {names}.")
    return method


async def _send(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: SendMessage = read_body(request.params, SendMessage)
    _, task = await look_again(call, await _said(call, agent, wanted))
    # A task that is held behind one which needs input would wait for the very client that is asked for the input.
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
        raise RPCError(UNSUPPORTED_OPERATION, "This task is over and has no more events; use GetTask to read it.")
    return await _followed(call, agent, task, request)


async def _followed(call: Call, agent: AnyAgent, task: Task, request: RPCRequest) -> Any:
    run = await call.executor.get_handle(agent, task.session_id)
    return call.stream(TaskSource(Follower(call, agent, task), request.id), run=run)


async def _cancel(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: NamedTask = read_body(request.params, NamedTask)
    task = await _stopped(call, agent, wanted.id)
    if task.is_over and task.state != "TASK_STATE_CANCELED":
        raise RPCError(TASK_NOT_CANCELABLE, "This task is already over.")
    return json_response(answer(request.id, task.shown()))


async def _list(call: Call, agent: AnyAgent, request: RPCRequest) -> Response:
    wanted: TaskQuery = read_body(request.params, TaskQuery)
    last = None if not wanted.page_token else _place_in(wanted.page_token)
    if wanted.context_id:
        tasks = await _in_context(call, agent, wanted.context_id)
    else:
        tasks = await _everywhere(call, agent, wanted.since)
    matching = [task for task in tasks if wanted.status in (None, task.state) and task.changed_at >= wanted.since]
    left = sorted(
        (task for task in matching if last is None or task.place < last), key=lambda task: task.place, reverse=True
    )
    page = left[: wanted.page_size]
    found: Plain = {
        "tasks": [task.shown(history=wanted.history_length, artifacts=wanted.include_artifacts) for task in page],
        "nextPageToken": _token_of(page[-1]) if len(left) > len(page) else "",
        "pageSize": wanted.page_size,
        "totalSize": len(matching),
    }
    return json_response(answer(request.id, found))


def _token_of(task: Task) -> str:
    """The token of a place in a listing. The next page starts after it, whatever has appeared above it by then."""
    changed_at, name = task.place
    return f"{changed_at}.{name}"


def _place_in(token: str) -> Place:
    changed_at, _, name = token.partition(".")
    at = whole_number(changed_at)
    if at is None or not name:
        raise RPCError(INVALID_PARAMS, "The pageToken is not one that this server issued.")
    return at, name


_METHODS: dict[str, Method] = {
    "SendMessage": _send,
    "SendStreamingMessage": _send_and_follow,
    "GetTask": _get,
    "ListTasks": _list,
    "CancelTask": _cancel,
    "SubscribeToTask": _follow,
}


async def _said(call: Call, agent: AnyAgent, wanted: SendMessage) -> Task:
    """Store a client's message durably, and return its task."""
    message = wanted.message
    if wanted.configuration.task_push_notification_config is not None:
        raise RPCError(PUSH_NOTIFICATION_NOT_SUPPORTED, "This server sends no push notifications; use SubscribeToTask.")
    if message.task_id:
        return await _answer(call, agent, message, message.task_id)
    return await _begin(call, agent, message)


async def _begin(call: Call, agent: AnyAgent, message: A2AMessage) -> Task:
    """Start a task; the same message again is the same task. A message that arrives while another task runs waits for
    its turn, so no client loses what another one does."""
    asked = user_message(message)
    call.checked_messages((asked,))
    session_id = call.checked(message.context_id) if message.context_id else None
    session = None if session_id is None else await call.find_session(session_id)
    if session is not None and session.agent_type != agent.name:
        # Whoever has it now: its tasks are those of the agent that it began with.
        raise AgentMismatchError(session.session_id, session.agent_type, agent.name)
    if session is not None:
        known = (await read_context(call, session.session_id)).find(message.message_id)
        if known is not None:
            return known
    owner = call.owner()
    run = await call.begin(
        lambda: call.executor.execute(
            agent,
            asked,
            session_id,
            user_id=owner,
            metadata=message.depth,
            idempotency_key=message.message_id,
            only_own=True,
            if_running="enqueue",
        ),
        within=session,
    )
    return Task(
        session_id=run.session_id,
        asked=asked,
        asked_id=message.message_id,
        state="TASK_STATE_SUBMITTED",
        changed_at=call.executor.sessions.now_ms(),
    )


async def _answer(call: Call, agent: AnyAgent, message: A2AMessage, given: str) -> Task:
    """Answer what a task waits for, and continue it.

    Raises:
        RPCError: the task waits for nothing.
    """
    session_id, _ = names_in(given)
    if message.context_id and message.context_id != session_id:
        raise RPCError(INVALID_PARAMS, "This task belongs to another context.")
    task = await _task_of(call, agent, given)
    if task.state != "TASK_STATE_INPUT_REQUIRED":
        how = "over" if task.is_over else "in progress and needs no input"
        raise RPCError(
            UNSUPPORTED_OPERATION, f"This task is {how}; send a message without taskId to start another task."
        )
    for each in answers_to(task.waiting, message):
        await submit(call, session_id, each)
    # Another request may have continued the task. If other calls still wait, the client is shown them again.
    with suppress(AgentAlreadyRunningError, NothingToResumeError, StillWaitingError):
        await call.begin(lambda: call.executor.resume(agent, session_id))
    return task


async def _at_rest(call: Call, agent: AnyAgent, task: Task, seconds: float | None = None) -> Task:
    """The task once it is over or needs input; or in its current state, if time is up, this instance has to leave or,
    unless the wait has an end, the client has left."""
    follower = Follower(call, agent, task)
    run = await call.executor.get_handle(agent, task.session_id)
    rested = await call.outwait(follower.rest, run, seconds=seconds, even_alone=seconds is not None)
    return rested or (await look_again(call, task))[1]


async def _stopped(call: Call, agent: AnyAgent, given: str) -> Task:
    """The task after a request to stop it. Only the task's own run is stopped: if that run ends, or another run
    continues the task, before the stop arrives, the task is looked at again."""
    for _ in range(CANCEL_TRIES):
        task = await _task_of(call, agent, given)
        if task.is_over:
            return task
        if task.run is None:
            if await _taken_back(call, task):
                return task.taken_back()
            continue
        run = await call.executor.get_handle(agent, task.session_id, task.run.run_id)
        if run is not None and isinstance(await run.abort("cancelled by a client"), InterruptSet):
            task = await _at_rest(call, agent, task, CANCEL_SECONDS)
            await _let_others_begin(call, agent, task)
            return task
    return await _task_of(call, agent, given)


async def _let_others_begin(call: Call, agent: AnyAgent, task: Task) -> None:
    """Let the queue continue after a stop, which holds it until the session is continued: here, tasks are independent
    of each other. Sending the first queued message again, which changes nothing about it, continues the session."""
    owner = call.owner()
    for turn in (await call.executor.sessions.queued(task.session_id))[:1]:
        key = turn.messages[-1].id
        if key is not None and run_id_for(task.session_id, key) == turn.run_id:
            await call.executor.execute(
                agent, turn.messages, task.session_id, user_id=owner, idempotency_key=key, if_running="enqueue"
            )


async def _taken_back(call: Call, task: Task) -> bool:
    """Take a task that waits for its turn out of the queue; False if it has started."""
    sessions = call.executor.sessions
    for turn in await sessions.queued(task.session_id):
        if queued_id(turn) == task.asked_id:
            return isinstance(await sessions.drop_queued(task.session_id, turn.run_id), QueuedTurnDropped)
    return False


async def _task_of(call: Call, agent: AnyAgent, given: str) -> Task:
    """A task that the caller has with this agent."""
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


async def _everywhere(call: Call, agent: AnyAgent, since: int) -> list[Task]:
    """The tasks of all the caller's contexts, except contexts in which nothing has changed since then."""
    sessions = call.executor.sessions
    where = SessionFilter(agent_type=agent.name, user_id=call.owner(), roots_only=True)
    found: list[Task] = []
    for session in await whole_list(lambda start: sessions.list(where, offset=start, limit=MAX_LIMIT)):
        # A context that was deleted meanwhile has no tasks any more.
        with suppress(SessionNotFoundError):
            if session.updated_at >= since or await sessions.queued(session.session_id):
                found += (await read_context(call, session.session_id)).tasks()
    return found
