"""The streams of a chat: an answer that begins, one that is joined from its start, one that goes on."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from helix_agents.domain.errors import HelixError
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.calls import Call
from helix_agents.server.chat.inputs import Answered
from helix_agents.server.chat.turns import Conversation, answer_id, read_conversation, stream_for
from helix_agents.server.chat.ui_parts import UIPart, UIStream, Version
from helix_agents.server.errors import RefusedError, passes
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
DONE = b"data: [DONE]\n\n"


def follow(call: Call, agent_type: str, run: HostedRun, version: Version) -> Any:
    """The answer of a run that has just begun a turn."""
    stream = stream_for(call.executor, agent_type, version)
    message_id = answer_id(run.run_id)
    return _respond(call, UISource(call, stream, [_start(message_id)], run), run, message_id)


async def replay(call: Call, conversation: Conversation, version: Version) -> Any:
    """The current answer from its start, then what comes."""
    conversation, run = await _with_its_run(call, conversation)
    stream = stream_for(call.executor, conversation.session.agent_type, version)
    parts = [_start(conversation.message_id), *conversation.replay(stream)]
    source = UISource(call, stream, parts, run, after=conversation.sequence)
    return _respond(call, source, run, conversation.message_id)


async def go_on(call: Call, session: SessionState, intent: Answered, version: Version) -> Any:
    """What follows the answers of a page, which shows the message up to them.

    Raises:
        RefusedError: nothing follows, or the page shows another state of the conversation.
    """
    conversation, current = await _with_its_run(call, await read_conversation(call.executor, session.session_id))
    turn, run = conversation.turn, conversation.run
    below = {child.row.tool_call_id: child.row.tool_name for child in conversation.children}
    shown = {call_id: name for call_id, name in below.items() if call_id in intent.calls}
    if run is None or not (intent.calls & turn.calls.keys() or shown):
        raise RefusedError(409, "history_mismatch", "This message is not the answer the conversation is at.")
    seen = conversation.replay(stream_for(call.executor, session.agent_type, 7))
    steps = sum(part["type"] == "start-step" for part in seen)
    if run.status != "running" and steps <= conversation.count_steps(intent.steps):
        # Nothing came after what the page shows: given an empty stream, it would ask again at once, and for ever.
        raise RefusedError(
            409, "nothing_to_resume", "Nothing of this message waits for an answer, and nothing followed it."
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
    """The answer is stored, others are missing: the message stays as it is."""
    stream = UIStream(version=version)
    source = UISource(call, stream, [_start(intent.message_id), *stream.finish("suspended")], None)
    return call.stream(source, HEADERS)


def _start(message_id: str) -> UIPart:
    return {"type": "start", "messageId": message_id}


async def _current(call: Call, session: SessionState) -> HostedRun:
    run = await call.executor.get_handle(call.agent_of(session), session.session_id)
    if run is None:
        raise RefusedError(409, "nothing_to_resume", "This session never had a run.")
    return run


async def _with_its_run(call: Call, conversation: Conversation) -> tuple[Conversation, HostedRun]:
    """The conversation, and a handle on the run that it is at; as both are now, if another one has begun since."""
    run = await _current(call, conversation.session)
    while conversation.run is None or run.run_id != conversation.run.run_id:
        conversation = await read_conversation(call.executor, conversation.session.session_id)
        run = await _current(call, conversation.session)
    return conversation, run


def _respond(call: Call, source: "UISource", run: HostedRun, message_id: str) -> Any:
    """Answer with the source; a page that is cut off is owed the end of the message."""
    return call.stream(source, HEADERS, lambda: call.owed.cut(run.session_id, message_id), run)


def encoded(parts: list[UIPart]) -> bytes:
    """The parts as frames."""
    return b"".join(frame(to_json(part)) for part in parts)


class UISource:
    """Parts that are there already, then the run's chunks as parts, then how the run ended.

    An answer never just stops: it ends with `finish`, `abort` or `error`, or the page would wait for the rest.
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
            async with aclosing(self._run.stream(from_sequence=self._after)) as chunks:
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

    async def _ended(self, run: HostedRun) -> RunRecord | None:
        """The run this answer came from, once it is over; None while somebody else goes on with it."""
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
