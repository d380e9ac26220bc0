"""How a response reaches its reader: event by event, or as a whole when it is done."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from helix_agents.domain.chunks import Truncated
from helix_agents.domain.errors import ExecutorClosedError, HelixError, QueuedTurnDroppedError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import RunRecord
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError, refusal_of, sentence_for
from helix_agents.server.openai.answers import OPENAI_ERRORS
from helix_agents.server.openai.events import CREATED, IN_PROGRESS, QUEUED, Event, ResponseStream
from helix_agents.server.openai.stored import Conversation, read_conversation, response_of
from helix_agents.server.sse import disconnected, frame
from helix_agents.server.wire import to_json

_ENDS = {"completed": "response.completed", "failed": "response.failed"}


async def conversation_of(
    call: Call, session_id: SessionId, run_id: RunId | None = None, *, all_rows: bool = False
) -> Conversation:
    """The caller's session as responses, as far back as this response needs, or as the latest one needs.

    Raises:
        SessionNotFoundError: there is no such session, or it belongs to another user.
    """
    return await read_conversation(call.executor, await call.session(session_id), run_id, all_rows=all_rows)


def encoded(events: Iterable[Event]) -> bytes:
    """The events as frames."""
    return b"".join(frame(to_json(event), event=event["type"]) for event in events)


class ResponseSource:
    """The events of a response after a given number, read from the log of its run, and then the event that ends it.

    That last event contains everything that the log no longer has.
    """

    def __init__(self, call: Call, run: HostedRun, *, after: int | None = None) -> None:
        self._call = call
        self._run = run
        self._told = -1 if after is None else after
        self._from_start = after is None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        run_id: RunId = self._run.run_id
        try:
            conversation = await self._read()
            waits = conversation.run(run_id) is None
            begun = await response_of(self._call.executor, conversation, run_id, begins=True)
            opening = [{"type": "response.created", "response": begun, "sequence_number": CREATED}]
            if waits:
                opening.append({"type": "response.queued", "response": begun, "sequence_number": QUEUED})
            yield self._news(opening)
            # While it waited, its message may have been given to the run in progress: then that one is the response.
            run = self._run = await self._run.begun()
            run_id = run.run_id
            conversation = await self._read() if waits else conversation
            begun = await response_of(self._call.executor, conversation, run_id, begins=True)
            yield self._news([{"type": "response.in_progress", "response": begun, "sequence_number": IN_PROGRESS}])
            record = conversation.run(run_id)
            if record is None:
                yield self.farewell()
                return
            stream = self._translator(conversation, record)
            is_whole = False
            async with aclosing(run.stream(from_sequence=record.start_sequence)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Truncated):
                        is_whole = False
                        break
                    is_whole = is_whole or chunk.sequence == record.start_sequence + 1
                    if is_whole and (news := self._news(stream.feed(chunk))):
                        yield news
            if not is_whole:
                await run.result()
            yield await self._end(stream if is_whole else None)
        except HelixError as problem:
            yield self._broken(problem.code)

    def farewell(self) -> bytes:
        return self._broken("stream_lost")

    async def _read(self) -> Conversation:
        return await conversation_of(self._call, self._run.session_id, self._run.run_id)

    def _translator(self, conversation: Conversation, record: RunRecord) -> ResponseStream:
        return ResponseStream(
            conversation.session.agent_type,
            start=record.start_sequence,
            at_client=conversation.is_at_client,
            known=conversation.calls_before(record),
        )

    async def _end(self, stream: ResponseStream | None) -> bytes:
        conversation = await self._read()
        record = conversation.run(self._run.run_id)
        if record is None or record.status == "running":
            return self.farewell()
        response = await response_of(self._call.executor, conversation, record.run_id)
        # OpenAI has no event for a cancelled response; the response's status says so.
        end = {"type": _ENDS.get(response["status"], "response.incomplete"), "response": response}
        if stream is not None:
            return self._news(stream.close([end], whole=response["status"] == "completed"))
        items = _whole(response["output"]) if self._from_start else []
        return self._news({**event, "sequence_number": self._told + n} for n, event in enumerate([*items, end], 1))

    def _news(self, events: Iterable[Event]) -> bytes:
        """The events that the reader does not have yet."""
        news = [event for event in events if event["sequence_number"] > self._told]
        if news:
            self._told = news[-1]["sequence_number"]
        return encoded(news)

    def _broken(self, code: str) -> bytes:
        """The stream breaks off here, and the reader resumes after its last event: this event has the same number."""
        told = {"type": "error", "code": code, "message": sentence_for(code), "param": None}
        return encoded([{**told, "sequence_number": max(self._told, 0)}])


def _whole(items: Iterable[dict[str, Any]]) -> list[Event]:
    """Whole items, without the events that build them up."""
    return [
        {"type": f"response.output_item.{what}", "output_index": index, "item": item}
        for index, item in enumerate(items)
        for what in ("added", "done")
    ]


class WhenDone:
    """An ASGI response that waits for the end of a run and sends the result as a whole.

    If the instance has to leave earlier, or the run is let go, the response is sent in its current state: it continues,
    and its reader asks for it again. A reader that disconnected is not waited for; the run continues all the same.
    """

    def __init__(self, call: Call, run: HostedRun) -> None:
        self._call = call
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        done = asyncio.create_task(self._done())
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((done, gone, self._call.gate.leaving.future()), return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not done.done():
                return
            await (await self._answer(done))(scope, receive, send)
        finally:
            for task in (done, gone):
                task.cancel()
            await asyncio.gather(done, gone, return_exceptions=True)

    async def _done(self) -> None:
        # The response itself states its status.
        with suppress(ExecutorClosedError, QueuedTurnDroppedError):
            self._run = await self._run.begun()
            await self._run.result()

    async def _answer(self, done: "asyncio.Task[None]") -> Any:
        try:
            if done.done():
                done.result()
            return await tell(self._call, self._run.session_id, self._run.run_id)
        except RefusedError as refusal:
            return OPENAI_ERRORS.refused(refusal)
        except HelixError as problem:
            return OPENAI_ERRORS.refused(refusal_of(problem, self._call.gate.limits.retry_after_seconds))


async def tell(call: Call, session_id: SessionId, run_id: RunId) -> Any:
    """A response in its current state."""
    conversation = await conversation_of(call, session_id, run_id)
    if not conversation.has(run_id):
        raise RefusedError(404, "not_found", "This response no longer exists.")
    return json_response(await response_of(call.executor, conversation, run_id))
