"""Agents of other people as sub-agents: each child is a task, started, followed, answered and cancelled over A2A."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import cast

from helix_agents.agent.headers import Headers
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.errors import HelixError, RemoteProtocolError, RemoteRefusedError, RemoteUnavailableError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import Answer, PendingCall
from helix_agents.domain.records import JSON, Record, decode, encode
from helix_agents.domain.usage import UsageRollup
from helix_agents.engine.scope import DEPTH
from helix_agents.ports.remote_agents import (
    AnswerRouted,
    RemoteAgentTransport,
    RemoteAnswerRefusedError,
    RemoteSession,
    RemoteStart,
    RemoteStatus,
    RemoteStop,
    Resumed,
)
from helix_agents.server.a2a.protocol import AgentTask, TaskList, Told
from helix_agents.server.remote_a2a.questions import answer_id, answer_parts, waiting_in
from helix_agents.server.remote_a2a.results import answered_at_once, status_of
from helix_agents.server.remote_a2a.rpc import A2ARpc
from helix_agents.server.remote_a2a.telling import Telling
from helix_agents.server.remote_http import RemoteHttp

_SUBJECT = "A2ARemoteAgentTransport"
_NOT_FOUND = "task_not_found"
_HISTORY = 20
# How long a task may take to say that it has heard an answer; until then, its question would be asked again.
_HEARD_SECONDS = 3.0
_FIRST_LOOK_SECONDS = 0.1
_LAST_LOOK_SECONDS = 3.0


class Place(Record):
    """Where a child is at its agent's server, which chooses the names."""

    task_id: str
    context_id: str | None = None


class A2ARemoteAgentTransport:
    """Speaks to an agent of any framework over A2A 1.0, as JSON-RPC over HTTP and server-sent events.

    The agent is found by its card. Requests and credentials go to the card's server and to `origins`, such as
    `https://api.example.com`, and nowhere else; redirects are not followed. It holds no connection between two
    requests, so all loops and threads of a process can share it, and it does not need to be closed.

    Args:
        url: The agent's address, with its card at `/.well-known/agent-card.json` below it, or that of the card itself.
        token: Sent as `Authorization: Bearer …`, also for the card.
        headers: Sent with every request.
        origins: Other servers to which a card may send its callers.
        connect_seconds: How long a connection may take.
        answer_seconds: How long an answer may take.
        send_seconds: How long the answer to a message may take. An agent without tasks answers when it has finished.
        silence_seconds: How long a stream may be silent before it is opened again.
        answer_bytes: The largest answer that is accepted.
        event_bytes: The largest event of a stream that is accepted.

    Raises:
        DefinitionError: an address or a header cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Headers | None = None,
        origins: Collection[str] = (),
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
        send_seconds: float = 600.0,
        silence_seconds: float = 60.0,
        answer_bytes: int = 16_000_000,
        event_bytes: int = 4_000_000,
    ) -> None:
        self._http = RemoteHttp(
            _SUBJECT,
            url,
            token=token,
            headers=headers,
            connect_seconds=connect_seconds,
            answer_seconds=answer_seconds,
            answer_bytes=answer_bytes,
        )
        self._rpc = A2ARpc(self._http, origins=origins, silence_seconds=silence_seconds, event_bytes=event_bytes)
        self._send_seconds = send_seconds

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def routes_answers(self) -> bool:
        return True

    @property
    def keeps_deadlines(self) -> bool:
        return False

    async def start(
        self, session: RemoteSession, message: UserMessage, *, depth: int, again: bool = False
    ) -> RemoteStart:
        found = await self._find(session) if again else None
        if found is not None:
            return RemoteStart(place=_place_of(found))
        said: dict[str, JSON] = {
            "messageId": session.session_id,
            "contextId": session.session_id,
            "parts": [{"text": cast("str", message.content)}],
            "metadata": {DEPTH: str(depth)},
        }
        told = await self._say(said, begun=False)
        if told.message is not None:
            return RemoteStart(rest=answered_at_once(told.message))
        if told.task is None:
            raise RemoteProtocolError(self.url, "it answered a message with neither a task nor a message")
        return RemoteStart(place=_place_of(told.task))

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        task = await self._task(session)
        return None if task is None else status_of(task, session.session_id)

    async def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        telling = Telling(session, after)
        place = _place_in(session)
        if place is None:
            return
        streaming = (await self._rpc.endpoint(begun=True)).streaming
        events = self._subscribed(session, place) if streaming else self._polled(session)
        async with aclosing(events):
            async for event in events:
                for chunk in _chunks_of(telling, event):
                    yield chunk
                if _is_last(event):
                    break
        # Some servers send what was said while a stream begins twice: in its first event, and after it.
        task = await self._task(session)
        for chunk in telling.end(task) if task is not None else ():
            yield chunk

    async def submit(
        self, session: RemoteSession, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None
    ) -> AnswerRouted:
        task = await self._task(session)
        if task is None:
            return "unknown"
        call = _waiting_call(task, session, tool_call_id)
        if call is None:
            return "already_completed"
        said: dict[str, JSON] = {
            "messageId": answer_id(session.session_id, tool_call_id),
            "taskId": task.id,
            "parts": answer_parts(call, answer),
        }
        if task.context_id is not None:
            said["contextId"] = task.context_id
        try:
            await self._say(said, begun=True)
        except RemoteRefusedError as refused:
            if refused.refusal in ("invalid_params", "content_type_not_supported"):
                raise RemoteAnswerRefusedError(refused.detail) from refused
            if refused.refusal in (_NOT_FOUND, "unsupported_operation"):
                return "already_completed"
            raise
        await self._until_heard(session, tool_call_id)
        return "accepted"

    async def resume(self, session: RemoteSession) -> Resumed:
        # A task continues with its answer; there is nothing to ask for.
        return "going"

    async def interrupt(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        return await self._cancel(session)

    async def abort(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        return await self._cancel(session)

    async def snapshot(self, session: RemoteSession) -> dict[str, JSON]:
        return {}

    async def usage(self, session: RemoteSession) -> UsageRollup:
        return UsageRollup()

    async def delete(self, session: RemoteSession) -> None:
        # The protocol has no request for it.
        return

    async def _say(self, message: dict[str, JSON], *, begun: bool) -> Told:
        """Send a message. A server that fails over the first one is not asked again, as it may have started a task each
        time."""
        params: dict[str, JSON] = {
            "message": {"role": "ROLE_USER", **message},
            "configuration": {"returnImmediately": True, "historyLength": _HISTORY},
        }
        told = await self._rpc.call("SendMessage", params, begun=begun, seconds=self._send_seconds)
        return self._rpc.read(told, Told)

    async def _task(self, session: RemoteSession) -> AgentTask | None:
        """The task of a child; None if it has none, or its agent does not know it any more."""
        place = _place_in(session)
        if place is None:
            return None
        try:
            told = await self._rpc.call("GetTask", {"id": place.task_id, "historyLength": _HISTORY})
        except RemoteRefusedError as refused:
            if refused.refusal == _NOT_FOUND:
                return None
            raise
        return self._rpc.read(told, AgentTask)

    async def _find(self, session: RemoteSession) -> AgentTask | None:
        """The task of a child whose start was never confirmed. It is the only one in its context, which nobody else can
        name; an agent that lists no tasks, or gives contexts names of its own, cannot be asked for it."""
        try:
            told = await self._rpc.call("ListTasks", {"contextId": session.session_id, "pageSize": 10})
        except RemoteRefusedError as refused:
            if refused.refusal in ("method_not_found", "unsupported_operation", "invalid_params", _NOT_FOUND):
                return None
            raise
        listed = self._rpc.read(told, TaskList).tasks or ()
        own = [task for task in listed if task.context_id == session.session_id]
        return own[-1] if own else None

    async def _subscribed(self, session: RemoteSession, place: Place) -> AsyncGenerator[Told, None]:
        """The task, and its changes.

        Raises:
            RemoteUnavailableError: the stream ended, and with it what can be told of the task.
        """
        try:
            async with aclosing(self._rpc.follow("SubscribeToTask", {"id": place.task_id})) as events:
                async for event in events:
                    yield event
        except RemoteRefusedError:
            # The task is over, or cannot be followed: then it is looked at.
            async with aclosing(self._polled(session)) as looks:
                async for event in looks:
                    yield event
            return
        raise RemoteUnavailableError(self.url, "the stream ended before the task did")

    async def _polled(self, session: RemoteSession) -> AsyncGenerator[Told, None]:
        """The task, looked at again and again until it is gone."""
        wait = _FIRST_LOOK_SECONDS
        while True:
            task = await self._task(session)
            if task is None:
                return
            yield Told(task=task)
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _LAST_LOOK_SECONDS)

    async def _until_heard(self, session: RemoteSession, tool_call_id: ToolCallId) -> None:
        """Wait a moment for the task to take its answer in."""
        try:
            async with asyncio.timeout(_HEARD_SECONDS):
                async with aclosing(self._polled(session)) as looks:
                    async for event in looks:
                        if event.task is None or _waiting_call(event.task, session, tool_call_id) is None:
                            return
        except (TimeoutError, HelixError):
            return

    async def _cancel(self, session: RemoteSession) -> RemoteStop:
        place = _place_in(session)
        if place is None:
            found = await self._find(session)
            place = None if found is None else Place(task_id=found.id)
        if place is None:
            return "unknown"
        try:
            told = await self._rpc.call("CancelTask", {"id": place.task_id})
        except RemoteRefusedError as refused:
            if refused.refusal == _NOT_FOUND:
                return "unknown"
            # Over, or an agent that cannot stop: then the stop stays owed.
            task = await self._task(session)
            if task is not None and not task.is_over:
                raise
            return "nothing_running"
        task = self._rpc.read(told, AgentTask)
        return "stopping" if task.status.state == "TASK_STATE_CANCELED" or not task.is_over else "nothing_running"


def _place_of(task: AgentTask) -> str:
    return encode(Place(task_id=task.id, context_id=task.context_id)).decode()


def _place_in(session: RemoteSession) -> Place | None:
    return None if session.place is None else decode(session.place, Place)


def _waiting_call(task: AgentTask, session: RemoteSession, tool_call_id: ToolCallId) -> PendingCall | None:
    calls = waiting_in(task, session.session_id)
    return next((call for call in calls if call.tool_call_id == tool_call_id), None)


def _chunks_of(telling: Telling, event: Told) -> list[StreamChunk]:
    if event.task is not None:
        return telling.whole(event.task)
    return [] if event.artifact_update is None else telling.piece(event.artifact_update)


def _is_last(event: Told) -> bool:
    """Whether the task rests with this event."""
    if event.task is not None:
        return event.task.rests
    return event.status_update is not None and event.status_update.rests


_: type[RemoteAgentTransport] = A2ARemoteAgentTransport
