"""The streams of a chat: for an answer that starts, an answer joined from its start, and an answer that continues."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingCall, PendingFilter
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.calls import Call
from helix_agents.server.chat.inputs import Answered
from helix_agents.server.chat.turns import (
    ALL_STATES,
    Conversation,
    answer_id,
    read_conversation,
    result_below,
    stream_for,
)
from helix_agents.server.chat.ui_parts import UIPart, UIStream, Version
from helix_agents.server.errors import RefusedError, passes
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
DONE = b"data: [DONE]\n\n"
# How often a page that answered a companion in the background checks what became of the call.
LOOK_SECONDS = 0.25


def follow(call: Call, agent_type: str, run: HostedRun, version: Version) -> Any:
    """The answer of a run that has just started a turn."""
    stream = stream_for(call.executor, agent_type, version)
    message_id = answer_id(run.run_id)
    return _respond(call, UISource(call, stream, [_start(message_id)], run), run, message_id)


def follow_steering(call: Call, agent_type: str, run: HostedRun, version: Version) -> Any:
    """The answer to a message for the run in progress. If that run takes the message in, its own stream has the answer,
    and this one ends without one."""
    stream = stream_for(call.executor, agent_type, version)
    message_id = answer_id(run.run_id)
    return _respond(call, SteeringSource(call, stream, [_start(message_id)], run), run, message_id)


async def replay(call: Call, conversation: Conversation, version: Version) -> Any:
    """The current answer from its start, followed by new chunks as they come."""
    conversation, run = await _with_its_run(call, conversation)
    stream = stream_for(call.executor, conversation.session.agent_type, version)
    parts = [_start(conversation.message_id), *conversation.replay(stream)]
    source = UISource(call, stream, parts, run, after=conversation.sequence)
    return _respond(call, source, run, conversation.message_id)


async def go_on(call: Call, session: SessionState, intent: Answered, version: Version) -> Any:
    """What follows the answers of a page, which already shows the message up to them.

    Raises:
        RefusedError: nothing follows, or the page shows another state of the conversation.
    """
    conversation, current = await _with_its_run(call, await read_conversation(call.executor, session.session_id))
    turn, run = conversation.turn, conversation.run
    below = {child.row.tool_call_id: child.row.tool_name for child in conversation.children}
    shown = {call_id: name for call_id, name in below.items() if call_id in intent.calls}
    if run is None or not (intent.calls & turn.calls.keys() or shown):
        raise RefusedError(409, "history_mismatch", "This message is not the current answer of the conversation.")
    seen = conversation.replay(stream_for(call.executor, session.agent_type, 7))
    steps = sum(part["type"] == "start-step" for part in seen)
    if run.status != "running" and steps <= conversation.count_steps(intent.steps):
        # Nothing came after what the page shows. Given an empty stream, the page would ask again at once, forever.
        raise RefusedError(
            409, "nothing_to_resume", "No call of this message waits for an answer, and nothing followed it."
        )
    before = {call_id: name for call_id, name in turn.calls_before(run.run_id).items() if name != FINISH_TOOL}
    if before.keys() - intent.calls:
        raise RefusedError(409, "history_mismatch", "The page shows an older state of this answer.")
    stream = stream_for(call.executor, session.agent_type, version)
    stream.know({**before, **shown}.items())
    opening = _start(intent.message_id or conversation.message_id)
    source = UISource(call, stream, [opening], current, after=run.start_sequence)
    return _respond(call, source, current, conversation.message_id)


def nothing_yet(call: Call, intent: Answered, version: Version) -> Any:
    """The answer is stored but others are missing: the message stays as it is."""
    stream = UIStream(version=version)
    source = UISource(call, stream, [_start(intent.message_id), *stream.finish("suspended")], None)
    return call.stream(source, HEADERS)


async def settled(call: Call, session: SessionState, intent: Answered, version: Version) -> Any:
    """The results of calls that companions in the background waited for. The conversation itself rests, and the page
    continues when it has the results."""
    where = PendingFilter(root_session_id=session.session_id, states=ALL_STATES)
    rows = await whole_list(lambda start: call.executor.list_pending(where, offset=start, limit=MAX_LIMIT))
    answered = {answer.tool_call_id for answer in intent.answers}
    asked = [row for row in rows if row.tool_call_id in answered and row.session_id != session.session_id]
    return call.stream(SettledSource(call, intent.message_id, asked, version), HEADERS)


def _start(message_id: str) -> UIPart:
    return {"type": "start", "messageId": message_id}


async def _current(call: Call, session: SessionState) -> HostedRun:
    run = await call.executor.get_handle(call.agent_of(session), session.session_id)
    if run is None:
        raise RefusedError(409, "nothing_to_resume", "This session never had a run.")
    return run


async def _with_its_run(call: Call, conversation: Conversation) -> tuple[Conversation, HostedRun]:
    """The conversation and a handle on its current run; both are read again if another run has started since."""
    run = await _current(call, conversation.session)
    while conversation.run is None or run.run_id != conversation.run.run_id:
        conversation = await read_conversation(call.executor, conversation.session.session_id)
        run = await _current(call, conversation.session)
    return conversation, run


def _respond(call: Call, source: "UISource", run: HostedRun, message_id: str) -> Any:
    """Answer with the source; a page that is cut off still gets the end of the message."""
    return call.stream(source, HEADERS, lambda: call.owed.cut(run.session_id, message_id), run)


def encoded(parts: list[UIPart]) -> bytes:
    """The parts as frames."""
    return b"".join(frame(to_json(part)) for part in parts)


class UISource:
    """The parts that exist already, then the run's chunks as parts, then how the run ended. If the message had to wait,
    and was given to the run in progress meanwhile, there is a note in place of the chunks.

    An answer always ends with `finish`, `abort` or `error`; otherwise the page would wait for the rest.
    """

    def __init__(
        self, call: Call, stream: UIStream, opening: list[UIPart], run: HostedRun | None, *, after: int | None = None
    ) -> None:
        self._call = call
        self._stream = stream
        self._opening = opening
        self._run = run
        self._after = after

    async def frames(self) -> AsyncGenerator[bytes, None]:
        yield encoded(self._opening)
        if self._run is None:
            yield DONE
            return
        try:
            if (run := await self._run.begun()).run_id != self._run.run_id:
                yield encoded(self._taken_in_by(run)) + DONE
                return
            async with aclosing(run.stream(from_sequence=self._after)) as chunks:
                async for chunk in chunks:
                    parts = self._stream.feed(chunk)
                    if parts:
                        yield encoded(parts)
            ended = await self._ended(self._run)
        except HelixError as problem:
            yield encoded(self._stream.fail(problem.code, retryable=passes(problem))) + DONE
            return
        yield self.farewell() if ended is None else encoded(self._last(ended)) + DONE

    def farewell(self) -> bytes:
        return encoded(self._stream.fail("stream_lost", retryable=True)) + DONE

    def _taken_in_by(self, run: HostedRun) -> list[UIPart]:
        """The end of an answer that does not come: the message that waited for it is part of another one."""
        told = {"runId": run.run_id, "messageId": answer_id(run.run_id)}
        note: UIPart = {"type": "data-steered-run", "data": told, "transient": True}
        return [note, *self._stream.finish("completed")]

    async def _ended(self, run: HostedRun) -> RunRecord | None:
        """The run that this answer came from, once it has ended; None while another process continues it."""
        page = await self._call.executor.sessions.runs(run.session_id, limit=20)
        record = next((each for each in page.items if each.run_id == run.run_id), None)
        return None if record is None or record.status == "running" else record

    def _last(self, run: RunRecord) -> list[UIPart]:
        if run.status in SUSPENDED:
            return self._stream.finish("suspended")
        if run.status == "completed":
            return self._stream.finish("completed", run.completion_reason)
        if run.status == "interrupted" or run.completion_reason == CANCELLED:
            return self._stream.finish("interrupted", "The answer was stopped.")
        return self._stream.fail(run.completion_reason or "failed")


class SteeringSource(UISource):
    """The same for a message that may be taken in by the run in progress. It has no answer of its own then, so the page
    gets no message, only a note that names the run and its answer."""

    async def frames(self) -> AsyncGenerator[bytes, None]:
        try:
            run = None if self._run is None else await self._run.begun()
        except HelixError as problem:
            yield encoded([{"type": "start"}, *self._stream.fail(problem.code, retryable=passes(problem))]) + DONE
            return
        if run is None or self._run is None or run.run_id == self._run.run_id:
            async with aclosing(super().frames()) as frames:
                async for each in frames:
                    yield each
            return
        yield encoded([{"type": "start"}, *self._taken_in_by(run)]) + DONE


class SettledSource:
    """The results of calls in child sessions, each as soon as it exists."""

    def __init__(self, call: Call, message_id: str, asked: Sequence[PendingCall], version: Version) -> None:
        self._call = call
        self._message_id = message_id
        self._asked = {row.tool_call_id: row for row in asked}
        self._seen: dict[ToolCallId, int | None] = {}
        self._stream = UIStream(version=version)
        self._stream.know((row.tool_call_id, row.tool_name) for row in asked)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        yield encoded([_start(self._message_id)])
        try:
            while self._asked:
                if parts := await self._look():
                    yield encoded(parts)
                elif self._asked:
                    await asyncio.sleep(LOOK_SECONDS)
        except HelixError as problem:
            yield encoded(self._stream.fail(problem.code, retryable=passes(problem))) + DONE
            return
        yield encoded(self._stream.finish("completed")) + DONE

    def farewell(self) -> bytes:
        return encoded(self._stream.fail("stream_lost", retryable=True)) + DONE

    async def _look(self) -> list[UIPart]:
        parts: list[UIPart] = []
        for row in [*self._asked.values()]:
            child = await self._call.executor.sessions.find(row.session_id)
            version = None if child is None else child.version
            if self._seen.get(row.tool_call_id, -1) == version:
                continue
            self._seen[row.tool_call_id] = version
            found = await result_below(self._call.executor, row)
            if found == "goes on":
                continue
            del self._asked[row.tool_call_id]
            parts += self._stream.result(found) if isinstance(found, ToolMessage) else []
        return parts
