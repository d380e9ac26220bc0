"""AG-UI over the same sessions: a client's request becomes one entry of the engine, and the answer its events.

The answer starts with the stored messages and state, and continues with what happens from there. A client that starts,
a client that answers, and a client that returns to a run in another tab or after a refresh all read the same way.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple, get_args

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.chunks import StepCommitted, StepDiscarded, StreamChunk, StreamResync
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    HelixError,
    NothingToResumeError,
    SessionAlreadyExistsError,
    StillWaitingError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import QueuedTurn, waiting_messages
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.runtimes.executor.inputs import IfRunning
from helix_agents.server.agui.events import AGUIStream, Event, interrupt_id, interrupt_of
from helix_agents.server.agui.inputs import News, RunAgentInput, answer_to, news_of
from helix_agents.server.bodies import ApprovalResponse, SubmitBody
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError, invalid, sentence_for
from helix_agents.server.executor_routes import entry_agent, submit_one_of
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

LATE = "helix.late_answer"
"""The event that tells a client that one of its answers was no longer needed."""


async def run_agent(call: Call) -> Any:
    """Send a message, answer waiting calls, or follow the current run, as an AG-UI client."""
    body: RunAgentInput = await call.body(RunAgentInput)
    session_id = call.checked(body.thread_id)
    if body.if_running not in get_args(IfRunning):
        raise invalid("forwardedProps.ifRunning must be reject, enqueue, steer or interrupt.")
    agent = entry_agent(call, call.request.path_params["agent"])
    news = news_of(body)
    call.gate.check_stream(call.principal)
    session = await call.find_session(session_id)
    if session is None:
        if news.message is None:
            raise invalid("A new session needs a user message.")
        try:
            run = await _say(call, agent, body, news.message, None)
            return call.stream(AGUISource(call, body, run), run=run)
        except SessionAlreadyExistsError:
            # It was started meanwhile, by the same message or by another one.
            session = await call.find_session(session_id)
            if session is None:
                raise
    if agent.name not in (session.agent_type, session.worked_by):
        raise RefusedError(409, "agent_mismatch", f"This session belongs to agent {session.agent_type!r}.")
    said_before = () if news.message is None else await _said_before(call, session_id)
    answered = await _answer(call, session, body, news)
    if news.message is not None and not (body.resume and news.message.id in said_before):
        if news.message.id in said_before[:-1]:
            raise RefusedError(409, "history_mismatch", "This message was sent before, and others came after it.")
        run = await _say(call, agent, body, news.message, session)
    else:
        run = await _go_on(call, agent, session, answered=answered.accepted)
    return call.stream(AGUISource(call, body, run, late=answered.late), run=run)


async def _say(
    call: Call, agent: AnyAgent, body: RunAgentInput, message: UserMessage, session: SessionState | None
) -> HostedRun:
    call.checked_messages((message,))
    owner, is_new = call.owner(), session is None
    return await call.begin(
        lambda: call.executor.execute(
            agent,
            message,
            body.thread_id,
            state=body.first_state if is_new else None,
            user_id=owner,
            idempotency_key=message.id,
            only_new=is_new,
            only_own=not is_new,
            if_running=body.if_running,
        ),
        within=session,
    )


async def _said_before(call: Call, session_id: SessionId) -> tuple[str | None, ...]:
    """The ids of the user's messages in the session so far."""
    messages = (await call.executor.sessions.snapshot(session_id)).messages
    return tuple(each.id for each in messages if isinstance(each, UserMessage) and not each.hidden)


class Answers(NamedTuple):
    """The outcome of a client's answers: whether one was accepted, and which interrupts no longer waited for one."""

    accepted: bool
    late: tuple[str, ...]


async def _answer(call: Call, session: SessionState, body: RunAgentInput, news: News) -> Answers:
    """Store the client's answers.

    If another answer came first, that one is kept, and the response tells the client so. An error would not do: the
    client would keep its interrupts and could never run again. The earlier answer may even be its own, sent a second
    time.
    """
    waiting = await call.waiting(session.session_id)
    rows = {interrupt_id(row): row for row in waiting}
    late = [given.interrupt_id for given in body.resume or () if given.interrupt_id not in rows]
    answers: list[tuple[SubmitBody, ...]] = [
        (answer_to(rows[each.interrupt_id], each),) for each in body.resume or () if each.interrupt_id in rows
    ]
    open_calls = {row.tool_call_id for row in waiting if row.approval_id is None}
    answers += [readings for readings in news.results if readings[0].tool_call_id in open_calls]
    accepted = False
    for readings in answers:
        submitted = await submit_one_of(call, session.session_id, readings)
        accepted |= submitted.outcome == "accepted"
        if submitted.outcome != "accepted":
            answer = readings[0]
            late.append(answer.approval_id if isinstance(answer, ApprovalResponse) else answer.tool_call_id)
    return Answers(accepted=accepted, late=tuple(late))


async def _go_on(call: Call, agent: AnyAgent, session: SessionState, *, answered: bool) -> HostedRun:
    """The run that continues with the answers, or the existing one to read."""
    if answered:
        try:
            return await call.begin(lambda: call.executor.resume(agent, session.session_id))
        except (AgentAlreadyRunningError, NothingToResumeError, StillWaitingError):
            # Another page resumed the run, or other calls still wait, which the client is told again.
            pass
    run = await call.executor.get_handle(agent, session.session_id)
    if run is None:
        raise RefusedError(409, "nothing_to_resume", "This session never had a run.")
    return run


def encoded(events: list[Event]) -> bytes:
    """The events as frames."""
    return b"".join(frame(to_json(event)) for event in events)


class AGUISource:
    """What is stored, then the run's chunks as events, then its outcome.

    It always ends with `RUN_FINISHED` or `RUN_ERROR`, because a client takes silence for success.
    """

    def __init__(self, call: Call, body: RunAgentInput, run: HostedRun, *, late: tuple[str, ...] = ()) -> None:
        self._call = call
        self._run = run
        self._late = late
        self._knows_all = body.protocol_version is not None
        self._names: Event = {"threadId": body.thread_id, "runId": body.run_id}
        self._stream = AGUIStream()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        late: list[Event] = [{"type": "CUSTOM", "name": LATE, "value": {"interruptId": each}} for each in self._late]
        yield encoded([{"type": "RUN_STARTED", **self._names}, *late])
        try:
            run = await self._run.begun()
            while True:
                # In this order: a message that leaves the queue in between is part of the conversation then.
                queued = await self._call.executor.sessions.queued(run.session_id)
                snapshot = await self._call.executor.sessions.snapshot(run.session_id)
                yield encoded(self._stored(run, snapshot, queued))
                if not _is_at(snapshot, run):
                    break
                async with aclosing(run.stream(from_sequence=snapshot.sequence)) as chunks:
                    async for chunk in chunks:
                        if _is_told_otherwise(chunk):
                            break
                        if events := self._stream.feed(chunk):
                            yield encoded(events)
                    else:
                        break
                # Send the conversation again in its present state.
            yield await self._end(run)
        except HelixError as problem:
            yield self._error(problem.code)

    def farewell(self) -> bytes:
        return self._error("stream_lost")

    def _stored(self, run: HostedRun, snapshot: SessionSnapshot, queued: Iterable[QueuedTurn]) -> list[Event]:
        messages = (*snapshot.messages, *snapshot.held, *snapshot.entering)
        chunks = snapshot.chunks if _is_at(snapshot, run) else ()
        current = None if snapshot.run is None else snapshot.run.run_id
        begun = {current, *(each.id for each in messages if isinstance(each, UserMessage))}
        return self._stream.stored(messages, snapshot.custom_state, chunks, waiting=waiting_messages(queued, begun))

    async def _end(self, run: HostedRun) -> bytes:
        page = await self._call.executor.sessions.runs(run.session_id, limit=20)
        record = next((each for each in page.items if each.run_id == run.run_id), None)
        if record is None or record.status == "running":
            return self.farewell()
        if record.status in SUSPENDED:
            waiting = await self._call.waiting(run.session_id)
            return encoded([*self._stream.suspend(waiting), self._finished(self._outcome(waiting))])
        if record.status == "completed":
            return encoded([*self._stream.stop(), {**self._finished({"type": "success"}), "result": record.output}])
        return self._stopped(record)

    def _outcome(self, rows: tuple[PendingCall, ...]) -> Event:
        """What a run waits for: its client's tools if that is all, otherwise a person."""
        if rows and all(row.kind == "client_tool" and row.session_id == row.root_session_id for row in rows):
            # An older client does not know the field, and finds the calls by itself.
            named = {"pendingToolCallIds": [row.tool_call_id for row in rows]} if self._knows_all else {}
            return {"type": "success", **named}
        interrupts = [interrupt_of(row, self._stream.child_of(row)) for row in rows]
        return {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}

    def _stopped(self, record: RunRecord) -> bytes:
        if record.status == "interrupted" or record.completion_reason == CANCELLED:
            # An older client does not know this outcome, and would take what follows for a protocol error.
            outcome = {"type": "cancelled"} if self._knows_all else None
            return encoded([*self._stream.stop(), self._finished(outcome)])
        return self._error(record.completion_reason or "failed")

    def _finished(self, outcome: Event | None) -> Event:
        finished: Event = {"type": "RUN_FINISHED", **self._names}
        return finished if outcome is None else {**finished, "outcome": outcome}

    def _error(self, code: str) -> bytes:
        return encoded([*self._stream.stop(), {"type": "RUN_ERROR", "message": sentence_for(code), "code": code}])


def _is_told_otherwise(chunk: StreamChunk) -> bool:
    """Whether the events so far do not make the conversation: what was sent never happened, or the run took in a
    message, for which there is no event."""
    return isinstance(chunk, StepDiscarded | StreamResync) or (isinstance(chunk, StepCommitted) and bool(chunk.taken))


def _is_at(snapshot: SessionSnapshot, run: HostedRun) -> bool:
    """Whether the session is at this run; if later runs followed, this one is over and the present output is theirs."""
    return snapshot.run is not None and snapshot.run.run_id == run.run_id
