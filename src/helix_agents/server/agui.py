"""AG-UI over the same sessions: what its client sends becomes one entry of the engine, and the answer its events.

The answer begins with what is stored, messages and state, and goes on with what is said from there: so a client that
starts, one that answers, and one that comes back to a run in another tab or after a refresh all read the same way.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, get_args

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.chunks import StepDiscarded, StreamResync
from helix_agents.domain.errors import AgentAlreadyRunningError, HelixError, NothingToResumeError, StillWaitingError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingCall, PendingFilter
from helix_agents.domain.rendering import surviving
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.runtimes.executor.inputs import IfRunning
from helix_agents.server.agui_input import News, RunAgentInput, answer_to, news_of
from helix_agents.server.agui_stream import AGUIStream, Event, interrupt_id, interrupt_of, messages_of
from helix_agents.server.bodies import SubmitBody
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError, invalid, sentence_for
from helix_agents.server.executor_routes import entry_agent, submit
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json


async def run_agent(call: Call) -> Any:
    """Say something, answer what waits, or come back to what goes on, as a client of AG-UI does."""
    body: RunAgentInput = await call.body(RunAgentInput)
    session_id = call.checked(body.thread_id)
    if body.if_running not in get_args(IfRunning):
        raise invalid("forwardedProps.ifRunning is reject, enqueue or interrupt.")
    agent = entry_agent(call, call.request.path_params["agent"])
    news = news_of(body)
    call.gate.check_stream(call.principal)
    session = await call.find_session(session_id)
    if session is not None and session.agent_type != agent.name:
        raise RefusedError(409, "agent_mismatch", f"This session belongs to agent {session.agent_type!r}.")
    answered = session is not None and await _answer(call, session, body, news)
    if news.message is not None and not body.resume:
        run = await _say(call, agent, session, body, news.message)
    elif session is None:
        raise invalid("The messages need one of the user that begins the session.")
    else:
        run = await _go_on(call, agent, session, answered=answered)
    return call.stream(AGUISource(call, body, run), run=run)


async def _say(
    call: Call, agent: AnyAgent, session: SessionState | None, body: RunAgentInput, message: UserMessage
) -> HostedRun:
    call.checked_messages((message,))
    if session is not None and await _was_answered(call, session, message):
        raise RefusedError(409, "history_mismatch", "This message was said before, and others came after it.")
    owner = call.owner()
    state = body.first_state if session is None else None
    return await call.begin(
        lambda: call.executor.execute(
            agent,
            message,
            body.thread_id,
            state=state,
            user_id=owner,
            idempotency_key=message.id,
            only_new=session is None,
            if_running=body.if_running,
        )
    )


async def _was_answered(call: Call, session: SessionState, message: UserMessage) -> bool:
    """Whether others followed a message that the session knows."""
    messages = (await call.executor.sessions.snapshot(session.session_id)).messages
    asked = [each.id for each in messages if isinstance(each, UserMessage) and not each.hidden]
    return message.id in asked[:-1]


async def _answer(call: Call, session: SessionState, body: RunAgentInput, news: News) -> bool:
    """Store what the client answers; says whether it was something that waited.

    Raises:
        RefusedError: an interrupt does not wait, or not any more.
    """
    waiting = await _waiting(call, session.session_id)
    rows = {interrupt_id(row): row for row in waiting}
    answers: list[SubmitBody] = []
    for given in body.resume or ():
        row = rows.get(given.interrupt_id)
        if row is None:
            raise RefusedError(404, "not_found", f"No interrupt {given.interrupt_id[:80]!r} waits in this session.")
        answers.append(answer_to(row, given))
    open_calls = {row.tool_call_id for row in waiting if row.approval_id is None}
    answers += [result for result in news.results if result.tool_call_id in open_calls]
    for answer in answers:
        await submit(call, session.session_id, answer)
    return bool(answers)


async def _go_on(call: Call, agent: AnyAgent, session: SessionState, *, answered: bool) -> HostedRun:
    """The run that goes on with what was answered, or the one that is there to be read."""
    if answered:
        try:
            return await call.begin(lambda: call.executor.resume(agent, session.session_id))
        except (AgentAlreadyRunningError, NothingToResumeError, StillWaitingError):
            # Another page went on with it, or other calls still wait, of which the client is told again.
            pass
    run = await call.executor.get_handle(agent, session.session_id)
    if run is None:
        raise RefusedError(409, "nothing_to_resume", "This session never had a run.")
    return run


async def _waiting(call: Call, session_id: str) -> tuple[PendingCall, ...]:
    where = PendingFilter(root_session_id=session_id)
    return tuple(await whole_list(lambda offset: call.executor.list_pending(where, offset=offset, limit=MAX_LIMIT)))


def encoded(events: list[Event]) -> bytes:
    """The events as frames."""
    return b"".join(frame(to_json(event)) for event in events)


class AGUISource:
    """What is stored, then the run's chunks as events, then how it ended.

    It always ends with `RUN_FINISHED` or `RUN_ERROR`: a client takes silence for success.
    """

    def __init__(self, call: Call, body: RunAgentInput, run: HostedRun) -> None:
        self._call = call
        self._run = run
        self._knows_all = body.protocol_version is not None
        self._names: Event = {"threadId": body.thread_id, "runId": body.run_id}
        self._waits = body.if_running == "enqueue"
        self._stream = AGUIStream()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        yield encoded([{"type": "RUN_STARTED", **self._names}])
        try:
            run = await self._run.begun() if self._waits else self._run
            snapshot = await self._call.executor.sessions.snapshot(run.session_id)
            yield encoded(self._stored(snapshot))
            async with aclosing(run.stream(from_sequence=snapshot.sequence)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, StepDiscarded | StreamResync):
                        yield encoded([*self._stream.close(), await self._messages()])
                    elif events := self._stream.feed(chunk):
                        yield encoded(events)
            yield await self._end(run)
        except HelixError as problem:
            yield self._error(problem.code)

    def farewell(self) -> bytes:
        return self._error("stream_lost")

    def _stored(self, snapshot: SessionSnapshot) -> list[Event]:
        messages = messages_of((*snapshot.messages, *snapshot.held))
        events: list[Event] = [{"type": "MESSAGES_SNAPSHOT", "messages": messages}]
        if snapshot.custom_state:
            events.append({"type": "STATE_SNAPSHOT", "snapshot": snapshot.custom_state})
        return [*events, *(event for chunk in surviving(snapshot.chunks) for event in self._stream.feed(chunk))]

    async def _messages(self) -> Event:
        """The conversation without a step that never happened."""
        snapshot = await self._call.executor.sessions.snapshot(self._run.session_id)
        self._stream = AGUIStream()
        return {"type": "MESSAGES_SNAPSHOT", "messages": messages_of((*snapshot.messages, *snapshot.held))}

    async def _end(self, run: HostedRun) -> bytes:
        page = await self._call.executor.sessions.runs(run.session_id, limit=20)
        record = next((each for each in page.items if each.run_id == run.run_id), None)
        if record is None or record.status == "running":
            return self.farewell()
        if record.status in SUSPENDED:
            waiting = await _waiting(self._call, run.session_id)
            return encoded([*self._stream.suspend(waiting), self._finished(_outcome(waiting))])
        if record.status == "completed":
            return encoded([*self._stream.stop(), {**self._finished({"type": "success"}), "result": record.output}])
        return self._stopped(record)

    def _stopped(self, record: RunRecord) -> bytes:
        if record.status == "interrupted" or record.completion_reason == CANCELLED:
            # An older client does not know the word, and would take what follows for an error of the protocol.
            outcome = {"type": "cancelled"} if self._knows_all else None
            return encoded([*self._stream.stop(), self._finished(outcome)])
        return self._error(record.completion_reason or "failed")

    def _finished(self, outcome: Event | None) -> Event:
        finished: Event = {"type": "RUN_FINISHED", **self._names}
        return finished if outcome is None else {**finished, "outcome": outcome}

    def _error(self, code: str) -> bytes:
        return encoded([*self._stream.stop(), {"type": "RUN_ERROR", "message": sentence_for(code), "code": code}])


def _outcome(waiting: tuple[PendingCall, ...]) -> Event:
    """What a run waits for: its client's tools where that is all, and a person otherwise."""
    if waiting and all(row.kind == "client_tool" and row.session_id == row.root_session_id for row in waiting):
        return {"type": "success", "pendingToolCallIds": [row.tool_call_id for row in reversed(waiting)]}
    interrupts = [interrupt_of(row) for row in reversed(waiting)]
    return {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
