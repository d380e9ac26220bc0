"""A turn as the client that started it follows it: progress, questions to a person, and the result."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from weakref import WeakValueDictionary

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    HelixError,
    NothingToResumeError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.server.a2a.tasks import Task, read_context
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError, sentence_for
from helix_agents.server.mcp.errors import INTERNAL_ERROR, INVALID_PARAMS, RPCError, answer, failure
from helix_agents.server.mcp.names import Asked, Place, write_asked, write_place
from helix_agents.server.mcp.peers import Peer
from helix_agents.server.mcp.progress import Progress
from helix_agents.server.mcp.results import outcome, still_running
from helix_agents.server.mcp.waiting import Plain, Waiting, waiting_in
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

LOOK_SECONDS = 0.25
"""How often to look for answers that were given elsewhere."""
LOST_SECONDS = 5
"""How long a client waits before it reconnects to a broken stream. Clients try only twice, and a server that died needs
a moment to restart."""


class Dismissal:
    """Whether a client closed a question without a valid answer; `note` says why its answer was not valid."""

    def __init__(self) -> None:
        self.is_set = False
        self.note: str | None = None


_dismissals: WeakValueDictionary[Asked, Dismissal] = WeakValueDictionary()
"""The questions that clients of this instance are shown."""


def dismiss(asked: Asked, note: str | None = None) -> None:
    """Record that the client that was asked gives no answer."""
    found = _dismissals.get(asked)
    if found is not None:
        found.is_set, found.note = True, note


def elicitation(waiting: Waiting) -> Plain:
    """The request that makes a client ask a person."""
    params = {"mode": "form", "message": waiting.question(), "requestedSchema": waiting.form()}
    return {"method": "elicitation/create", "params": params}


async def go_on(call: Call, agent: AnyAgent, session_id: SessionId) -> bool:
    """Continue a session whose calls are answered, or were not answered in time.

    False if another request did, if something still waits, if the turn was stopped, or if this instance cannot start a
    run now. Answers are stored, so whoever looks next continues.
    """
    run = await call.current_run(session_id)
    if run is not None and run.status == "interrupted":
        return False
    return await resumed(call, agent, session_id)


async def resumed(call: Call, agent: AnyAgent, session_id: SessionId) -> bool:
    """Continue a session, also one whose turn was stopped. False as for `go_on`."""
    with suppress(AgentAlreadyRunningError, NothingToResumeError, StillWaitingError, RefusedError):
        await call.begin(lambda: call.executor.resume(agent, session_id))
        return True
    return False


class Follower:
    """Follows a turn until it ends, or needs an answer for which this client cannot ask."""

    def __init__(self, call: Call, peer: Peer, agent: AnyAgent, place: Place, note: str | None = None) -> None:
        self._call = call
        self._peer = peer
        self._agent = agent
        self._note = note
        self._open: dict[ToolCallId, Dismissal] = {}
        self._progress = Progress()
        self.place = place

    @property
    def session_id(self) -> SessionId:
        return self.place.session_id

    async def messages(self) -> AsyncGenerator[Plain, None]:
        """What the client is sent; the last message is the response to its request."""
        while True:
            task = await self._read()
            if task.state == "TASK_STATE_WORKING":
                async with aclosing(self._told()) as told:
                    async for message in told:
                        yield message
                await self._until_other(task)
            elif task.state == "TASK_STATE_SUBMITTED":
                await asyncio.sleep(LOOK_SECONDS)
            elif self._may_go_on(task) and await go_on(self._call, self._agent, self.session_id):
                continue
            elif task.state == "TASK_STATE_INPUT_REQUIRED" and not task.waiting:
                await asyncio.sleep(LOOK_SECONDS)
            elif task.state == "TASK_STATE_INPUT_REQUIRED" and self._peer.asks == "meanwhile":
                for message in await self._asked(task):
                    yield message
                if not self._is_hoped_for(task):
                    break
                await self._until_answered(task)
            else:
                break
        yield await self._response(task)

    async def _response(self, task: Task) -> Plain:
        new = [row for row in task.waiting if row.tool_call_id not in self.place.asked]
        if new and self._peer.asks == "in_result":
            asked = await waiting_in(self._call, tuple(new))
            result = {
                "resultType": "input_required",
                "inputRequests": {each.row.tool_call_id: elicitation(each) for each in asked},
                "requestState": write_place(msgspec.structs.replace(self.place, asked=())),
            }
            return answer(self.place.rpc_id, self._peer.told(result))
        notes = [each.note for each in self._open.values() if each.note]
        note = self._note or (notes[0] if notes else None)
        return answer(self.place.rpc_id, self._peer.told(await outcome(self._call, self._agent.name, task, note)))

    def farewell(self) -> Plain | None:
        """The last message if this instance shuts down; None if the client reconnects by itself."""
        if self._peer.is_modern:
            # A result that asks for nothing: the client sends the request again, and another instance continues.
            state = write_place(msgspec.structs.replace(self.place, rpc_id=None, progress_token=None, asked=()))
            return answer(self.place.rpc_id, self._peer.told({"resultType": "input_required", "requestState": state}))
        if self._peer.comes_back:
            return None
        return answer(self.place.rpc_id, still_running(self.session_id, self._agent.name))

    async def rest(self) -> Plain:
        """The response alone."""
        last: Plain = {}
        async with aclosing(self.messages()) as messages:
            async for message in messages:
                last = message
        return last

    async def _read(self) -> Task:
        try:
            context = await read_context(self._call, self.session_id)
        except SessionNotFoundError:
            raise RPCError(INVALID_PARAMS, "This session was deleted meanwhile.") from None
        task = context.find(self.place.asked_id)
        if task is None:
            raise RPCError(INVALID_PARAMS, "This turn is no longer part of its session, which was taken back.")
        return task

    async def _told(self) -> AsyncGenerator[Plain, None]:
        run = await self._call.executor.get_handle(self._agent, self.session_id)
        if run is None:
            return
        async with aclosing(run.stream(from_sequence=self.place.cursor)) as chunks:
            async for chunk in chunks:
                message = self._progress.feed(chunk)
                self.place = msgspec.structs.replace(self.place, cursor=chunk.sequence)
                if message is not None and self.place.progress_token is not None:
                    params = {
                        "progressToken": self.place.progress_token,
                        # Sequence numbers never change, so this only rises, on whichever instance.
                        "progress": chunk.sequence,
                        "message": message,
                    }
                    yield {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    async def _until_other(self, before: Task) -> None:
        """Wait a moment if a stream has ended, but the run has not: its process died, and another takes over."""
        run = await self._call.current_run(self.session_id)
        if run is not None and before.run is not None and run.run_id == before.run.run_id and run.status == "running":
            await asyncio.sleep(LOOK_SECONDS)

    def _may_go_on(self, task: Task) -> bool:
        """Whether to continue the session: every call is answered, or the time to answer one is over."""
        if task.state != "TASK_STATE_INPUT_REQUIRED":
            return False
        now = self._call.executor.sessions.now_ms()
        return not task.waiting or any(row.deadline is not None and row.deadline <= now for row in task.waiting)

    async def _asked(self, task: Task) -> list[Plain]:
        """The requests that make the client ask a person; each is sent once."""
        new = tuple(row for row in task.waiting if row.tool_call_id not in self.place.asked)
        asked = await waiting_in(self._call, new)
        known = (*self.place.asked, *(row.tool_call_id for row in new))
        self.place = msgspec.structs.replace(self.place, asked=known)
        for row in task.waiting:
            known_here = _dismissals.setdefault(self._question(row.tool_call_id), Dismissal())
            self._open.setdefault(row.tool_call_id, known_here)
        return [
            {"jsonrpc": "2.0", "id": write_asked(self._question(each.row.tool_call_id)), **elicitation(each)}
            for each in asked
        ]

    def _question(self, tool_call_id: ToolCallId) -> Asked:
        return Asked(session_id=self.session_id, tool_call_id=tool_call_id, follower=self.place.follower)

    async def _until_answered(self, task: Task) -> None:
        """Wait until something about the waiting calls changes, or this client cannot answer any of them any more."""
        before = {row.tool_call_id for row in task.waiting}
        while self._is_hoped_for(task):
            await asyncio.sleep(LOOK_SECONDS)
            run = await self._call.current_run(self.session_id)
            if run is None or task.run is None or run.run_id != task.run.run_id:
                return
            if (
                self._may_go_on(task)
                or {row.tool_call_id for row in await self._call.waiting(self.session_id)} != before
            ):
                return

    def _is_hoped_for(self, task: Task) -> bool:
        """Whether this client may still give an answer."""
        return any(not self._open[row.tool_call_id].is_set for row in task.waiting)


class CallSource:
    """The messages of a call as events. Each has an id from which any instance can continue."""

    def __init__(self, follower: Follower, peer: Peer, retry_seconds: int, *, is_new: bool = True) -> None:
        self._follower = follower
        self._peer = peer
        self._retry_seconds = retry_seconds
        self._is_new = is_new

    @property
    def place(self) -> Place:
        return self._follower.place

    async def frames(self) -> AsyncGenerator[bytes, None]:
        if self._is_new and self._peer.comes_back:
            yield self._come_back_after(LOST_SECONDS)
        try:
            async with aclosing(self._follower.messages()) as messages:
                async for message in messages:
                    yield self._frame(message)
        except RPCError as problem:
            yield self._frame(failure(self.place.rpc_id, problem))
        except RefusedError as refusal:
            yield self._frame(failure(self.place.rpc_id, RPCError(INTERNAL_ERROR, refusal.detail)))
        except HelixError as problem:
            yield self._frame(failure(self.place.rpc_id, RPCError(INTERNAL_ERROR, sentence_for(problem.code))))

    def farewell(self) -> bytes:
        last = self._follower.farewell()
        return self._come_back_after(self._retry_seconds) if last is None else self._frame(last)

    def _come_back_after(self, seconds: int) -> bytes:
        """An empty event: it only tells the client where to continue if the stream ends, and after how long."""
        return b"retry: %d\n%s" % (seconds * 1000, frame(b"", id=write_place(self.place)))

    def _frame(self, message: Plain) -> bytes:
        name = None if self._peer.is_modern else write_place(self.place)
        return frame(to_json(message), id=name, event="message")
