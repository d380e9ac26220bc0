"""Transcript and chunk log as AG-UI events: a pure translation, one run of the client at a time.

Messages have the same ids whether they come whole, from the transcript, or piece by piece, from the chunks after it. So
a page that returns midway ends with the same messages as one that was there from the start.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from helix_agents.domain.chunks import (
    Custom,
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    SourceChunk,
    StatePatch,
    StepCommitted,
    StreamChunk,
    SubagentEnd,
    SubagentStart,
    TextDelta,
    ThinkingChunk,
    ToolApprovalRequest,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
    ToolArgStreamStart,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    ProviderCall,
    Text,
    ToolMessage,
    UserMessage,
)
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import WaitingMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.rendering import surviving
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.server.wire import as_text

Event: TypeAlias = dict[str, Any]

SOURCE = "source"
"""The name of the event that says what an answer refers to."""

QUEUED = "helix.queued"
"""The name of the event that says which messages wait for their turn."""

DECISION_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}, "editedInput": {}},
    "required": ["approved"],
}


class AGUIStream:
    """Translates a session's output: first what is stored, then chunk by chunk."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._reasoning: str | None = None
        self._thoughts: list[str] = []
        self._calls: set[ToolCallId] = set()
        self._open: set[ToolCallId] = set()
        self._patched = False
        self._told_waiting = False
        self._at_work: dict[SessionId, str] = {}
        self._done: set[SessionId] = set()
        self._above: dict[SessionId, SessionId] = {}

    def stored(
        self,
        messages: Iterable[Message],
        state: dict[str, JSON],
        chunks: Iterable[StreamChunk] = (),
        waiting: Sequence[WaitingMessage] = (),
    ) -> list[Event]:
        """The stored conversation, which replaces what the client was told before, what waits behind it, and what was
        said since."""
        events = self.close()
        shown = messages_of(messages)
        known = {each["id"] for each in shown}
        self._calls = {call["id"] for each in shown for call in each.get("toolCalls", ())}
        # A client keeps reasoning that a snapshot leaves out, and would append to it when its step is repeated.
        shown += [{"id": gone, "role": "reasoning", "content": ""} for gone in self._thoughts if gone not in known]
        self._thoughts = []
        events.append({"type": "MESSAGES_SNAPSHOT", "messages": shown})
        if state or self._patched:
            events.append({"type": "STATE_SNAPSHOT", "snapshot": state})
        if waiting or self._told_waiting:
            # As messages, they would stand between what is written and the message that it answers.
            events.append({"type": "CUSTOM", "name": QUEUED, "value": [_waiting(each) for each in waiting]})
        self._told_waiting = bool(waiting)
        return [*events, *(event for chunk in surviving(chunks) for event in self.feed(chunk))]

    def feed(self, chunk: StreamChunk) -> list[Event]:
        """The events for one more chunk.

        Of a child's work, the client only learns that it continues; the child's own output is in the native stream.
        """
        if isinstance(chunk, SubagentStart):
            # The client only knows the root's own children, so what waits below one of them is attributed to it.
            self._above[chunk.child_session_id] = self._above.get(chunk.session_id, chunk.child_session_id)
        if chunk.parent_tool_call_id is not None:
            return []
        message_id = f"{chunk.run_id}.{chunk.step}"
        match chunk:
            case TextDelta(delta=delta):
                return self._say(message_id, delta)
            case ThinkingChunk(content=content, is_complete=ends):
                return self._think(message_id, content, ends=ends)
            case ToolArgStreamStart(tool_call_id=call_id, tool_name=name):
                return self._begin_call(message_id, call_id, name)
            case ToolArgStreamDelta(tool_call_id=call_id, delta=delta) if call_id in self._open:
                return [{"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}]
            case ToolArgStreamEnd(tool_call_id=call_id):
                return self._end_call(call_id)
            case (
                ToolStart(tool_call_id=call_id, tool_name=name, arguments=given)
                | ToolApprovalRequest(tool_call_id=call_id, tool_name=name, input=given)
            ):
                begun = self._begin_call(message_id, call_id, name)
                arguments = {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": as_text(given)}
                return [*begun, arguments, *self._end_call(call_id)] if begun else []
            case ToolEnd(tool_call_id=call_id, tool_name=name, result=result):
                return self._settle(call_id, name, as_text(result))
            case ToolError(tool_call_id=call_id, tool_name=name, error=error):
                return self._settle(call_id, name, error)
            case ProviderToolStart(tool_call_id=call_id, tool_name=name):
                return self._begin_call(message_id, call_id, name)
            case ProviderToolInput(tool_call_id=call_id, arguments=given) if call_id in self._open:
                arguments = {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": as_text(given)}
                return [arguments, *self._end_call(call_id)]
            case ProviderToolEnd(tool_call_id=call_id, tool_name=name, result=result):
                return self._settle(call_id, name, as_text(result))
            case SourceChunk():
                return [{"type": "CUSTOM", "name": SOURCE, "value": {**source_of(chunk), "messageId": message_id}}]
            case StepCommitted():
                self._thoughts = []
                return self.close()
            case StatePatch(patch=patch):
                self._patched = True
                return [{"type": "STATE_DELTA", "delta": patch}]
            case Custom(name=name, data=data):
                return [{"type": "CUSTOM", "name": name, "value": data}]
            case SubagentStart(child_session_id=child, child_agent_type=agent, tool_call_id=call_id):
                return self._begin_child(child, agent, call_id)
            case SubagentEnd(child_session_id=child, child_agent_type=agent, tool_call_id=call_id, status=status):
                return [*self._begin_child(child, agent, call_id), *self._end_child(child, status)]
            case _:
                return []

    def close(self) -> list[Event]:
        """End what is still open, because a client refuses the end of a run before that."""
        events = [*self._end_reasoning(), *self._end_text()]
        for call_id in sorted(self._open):
            events += self._end_call(call_id)
        return events

    def suspend(self, waiting: Sequence[PendingCall]) -> list[Event]:
        """The run waits, and so do the children at work, each for the calls that wait below it."""
        events = self.close()
        for child in self._at_work:
            below = [interrupt_id(row) for row in waiting if self.child_of(row) == child]
            outcome = {"type": "suspended", "interruptIds": below}
            events.append({"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": outcome})
        self._done |= self._at_work.keys()
        self._at_work.clear()
        return events

    def stop(self) -> list[Event]:
        """The run is over, and so is everything that worked for it."""
        events = self.close()
        return [*events, *(event for child in tuple(self._at_work) for event in self._end_child(child, "stopped"))]

    def child_of(self, row: PendingCall) -> SessionId | None:
        """The child known to the client in which this call waits, at whatever depth."""
        return self._above.get(row.session_id)

    def _say(self, message_id: str, delta: str) -> list[Event]:
        events = self._end_reasoning()
        if self._text != message_id:
            events += self.close()
            self._text = message_id
            events.append({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})
        if delta:
            events.append({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta})
        return events

    def _end_text(self) -> list[Event]:
        if self._text is None:
            return []
        message_id, self._text = self._text, None
        return [{"type": "TEXT_MESSAGE_END", "messageId": message_id}]

    def _think(self, message_id: str, content: str, *, ends: bool) -> list[Event]:
        events: list[Event] = []
        if self._reasoning is None:
            self._reasoning = reasoning_id(message_id, len(self._thoughts) + 1)
            self._thoughts.append(self._reasoning)
            events = [
                {"type": "REASONING_START", "messageId": self._reasoning},
                {"type": "REASONING_MESSAGE_START", "messageId": self._reasoning, "role": "reasoning"},
            ]
        if content:
            events.append({"type": "REASONING_MESSAGE_CONTENT", "messageId": self._reasoning, "delta": content})
        return [*events, *self._end_reasoning()] if ends else events

    def _end_reasoning(self) -> list[Event]:
        if self._reasoning is None:
            return []
        message_id, self._reasoning = self._reasoning, None
        return [{"type": kind, "messageId": message_id} for kind in ("REASONING_MESSAGE_END", "REASONING_END")]

    def _begin_call(self, message_id: str, call_id: ToolCallId, name: str) -> list[Event]:
        """Start a call, unless the client has it already: it would append the arguments to those it knows."""
        if name == FINISH_TOOL or call_id in self._calls:
            return []
        self._calls.add(call_id)
        self._open.add(call_id)
        start = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}
        return [*self._end_reasoning(), *self._end_text(), {**start, "parentMessageId": message_id}]

    def _end_call(self, call_id: ToolCallId) -> list[Event]:
        if call_id not in self._open:
            return []
        self._open.discard(call_id)
        return [{"type": "TOOL_CALL_END", "toolCallId": call_id}]

    def _settle(self, call_id: ToolCallId, name: str, content: str) -> list[Event]:
        if name == FINISH_TOOL:
            return []
        result = {"type": "TOOL_CALL_RESULT", "messageId": result_id(call_id), "toolCallId": call_id}
        return [*self._end_call(call_id), {**result, "content": content, "role": "tool"}]

    def _begin_child(self, child: SessionId, agent: str, call_id: ToolCallId) -> list[Event]:
        """Start a child, once: a repeated step announces its children again."""
        if child in self._at_work or child in self._done:
            return []
        self._at_work[child] = agent
        return [{"type": "SUBAGENT_STARTED", "subagentRunId": child, "name": agent, "parentToolCallId": call_id}]

    def _end_child(self, child: SessionId, status: str) -> list[Event]:
        agent = self._at_work.pop(child, None)
        if agent is None:
            return []
        self._done.add(child)
        if status == "completed":
            return [{"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": {"type": "success"}}]
        return [{"type": "SUBAGENT_ERROR", "subagentRunId": child, "message": f"{agent} is {status}.", "code": status}]


def messages_of(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """A conversation in the client's form. What is hidden from people stays hidden."""
    return [each for place, message in enumerate(messages) for each in _messages(message, place)]


def _messages(message: Message, place: int) -> list[dict[str, Any]]:
    match message:
        case UserMessage(hidden=True):
            return []
        case UserMessage(content=content, id=message_id):
            return [{"id": message_id or f"user_{place}", "role": "user", "content": _content(content)}]
        case AssistantMessage():
            return _reply(message, message.id or f"m{place}")
        case ToolMessage(tool_name=name) if name == FINISH_TOOL:
            return []
        case ToolMessage(tool_call_id=call_id, content=content):
            text = as_text(content)
            result = {"id": result_id(call_id), "role": "tool", "toolCallId": call_id, "content": text}
            return [{**result, "error": text} if message.error else result]


def _waiting(waiting: WaitingMessage) -> dict[str, Any]:
    said = {"id": waiting.id, "role": "user", "content": _content(waiting.message.content)}
    return {"runId": waiting.turn.run_id, "queuedAt": waiting.turn.queued_at, "message": said}


def _reply(message: AssistantMessage, message_id: str) -> list[dict[str, Any]]:
    thoughts = [
        {"id": reasoning_id(message_id, number), "role": "reasoning", "content": block.text}
        for number, block in enumerate(message.thinking, start=1)
    ]
    made = (*message.provider_calls, *(call for call in message.tool_calls if call.name != FINISH_TOOL))
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": as_text(call.arguments)},
        }
        for call in made
    ]
    if not message.text and not calls:
        return thoughts
    reply: dict[str, Any] = {"id": message_id, "role": "assistant"}
    if message.text:
        reply["content"] = message.text
    if calls:
        reply["toolCalls"] = calls
    return [*thoughts, reply, *map(_provider_result, message.provider_calls)]


def _provider_result(call: ProviderCall) -> dict[str, Any]:
    """What came of a call of the provider's own, which its reply has with it."""
    text = as_text(call.result)
    result = {"id": result_id(call.id), "role": "tool", "toolCallId": call.id, "content": text}
    return {**result, "error": text} if call.error else result


def source_of(source: SourceChunk) -> dict[str, Any]:
    """Something that an answer refers to, as the client is told of it."""
    names = {"url": source.url, "title": source.title, "documentId": source.document_id}
    places = {"start": source.start, "end": source.end}
    return {name: value for name, value in {**names, **places}.items() if value is not None}


def _content(content: str | tuple[Part, ...]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Image(url=url, media_type=media_type):
            return {"type": "image", "source": _source(url, media_type)}
        case File(url=url, media_type=media_type):
            return {"type": "document", "source": _source(url, media_type)}


def _source(url: str, media_type: str | None) -> dict[str, Any]:
    head, found, data = url.partition(";base64,")
    if found and head.startswith("data:"):
        return {"type": "data", "value": data, "mimeType": head[len("data:") :]}
    source = {"type": "url", "value": url}
    return source if media_type is None else {**source, "mimeType": media_type}


def interrupt_id(row: PendingCall) -> str:
    """The id under which an answer names a waiting call."""
    return row.approval_id or row.tool_call_id


def interrupt_of(row: PendingCall, child: SessionId | None = None) -> dict[str, Any]:
    """A waiting call as the client shows it to a person; `child` is the asking child, if it is not the root."""
    asked: dict[str, Any] = {
        "id": interrupt_id(row),
        "reason": row.reason or row.kind,
        "toolCallId": row.tool_call_id,
        "metadata": {"toolName": row.tool_name, "input": row.input, "sessionId": row.session_id},
    }
    if child is not None:
        asked["subagentRunId"] = child
    if row.preview is not None:
        asked["metadata"]["preview"] = row.preview
    if row.approval_id is not None:
        asked |= {"message": f"May {row.tool_name} be run?", "responseSchema": DECISION_SCHEMA}
    match row.input:
        case {"question": str() as question} if row.kind == "question":
            asked["message"] = question
        case _:
            pass
    if row.deadline is not None:
        asked["expiresAt"] = datetime.fromtimestamp(row.deadline / 1000, UTC).isoformat()
    return asked


def result_id(call_id: ToolCallId) -> str:
    """The id of the message with the result of a call."""
    return f"result_{call_id}"


def reasoning_id(message_id: str, number: int) -> str:
    """The id of a stretch of reasoning before a reply."""
    return f"{message_id}:reasoning-{number}"
