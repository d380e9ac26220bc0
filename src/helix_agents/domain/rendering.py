"""What a reader of a session sees: its transcript, and what the stream said since, as messages."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from msgspec.structs import replace

from helix_agents.domain.chunks import (
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    SourceChunk,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    StreamResync,
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
from helix_agents.domain.errors import SessionCorruptError
from helix_agents.domain.ids import RunId, ToolCallId
from helix_agents.domain.messages import (
    AssistantMessage,
    Message,
    ProviderCall,
    Source,
    Thinking,
    ToolCall,
    ToolMessage,
)
from helix_agents.domain.records import JSON, decode_json, encode


def render(
    messages: Sequence[Message], chunks: Iterable[StreamChunk], *, held: Iterable[ToolMessage] = ()
) -> tuple[Message, ...]:
    """The messages, followed by what the chunks after them say.

    The messages are unchanged. One step makes one reply, whose results follow in the order of its calls. Results of
    calls that the transcript left open, from chunks or `held` by the store, follow the transcript. Discarded chunks and
    those before a resync are left out, and chunks of child sessions are not part of the conversation.
    """
    page = _Page(messages)
    for result in held:
        page.settle(result)
    for chunk in surviving(chunks):
        if chunk.parent_tool_call_id is None:
            page.add(chunk)
    return tuple(page.messages())


def surviving(chunks: Iterable[StreamChunk]) -> list[StreamChunk]:
    """The chunks that are still valid, given everything that was read: a later chunk may take earlier ones back."""
    kept: list[StreamChunk] = []
    for chunk in chunks:
        if isinstance(chunk, StepDiscarded):
            gone = range(chunk.from_sequence, chunk.to_sequence + 1)
            kept = [earlier for earlier in kept if earlier.sequence not in gone]
        elif isinstance(chunk, StreamResync):
            kept = []
        kept.append(chunk)
    return kept


class _Reply:
    """One reply of the model and the results of its calls, as far as known."""

    def __init__(self, calls: Iterable[ToolCall] = ()) -> None:
        self.calls = {call.id: call for call in calls}
        self.results: dict[ToolCallId, ToolMessage] = {}
        self._text: list[str] = []
        self._thoughts: list[Thinking] = []
        self._thinking: list[str] = []
        self._provided: dict[ToolCallId, ProviderCall] = {}
        self._sources: list[Source] = []

    def provide(self, chunk: ProviderToolStart | ProviderToolInput | ProviderToolEnd) -> None:
        call_id = chunk.tool_call_id
        made = self._provided.get(call_id) or ProviderCall(
            id=call_id,
            name=chunk.tool_name,
            thoughts_before=len(self._thoughts),
            text_before=sum(map(len, self._text)),
        )
        match chunk:
            case ProviderToolInput(arguments=arguments):
                made = replace(made, arguments=arguments)
            case ProviderToolEnd(result=result, error=error):
                made = replace(made, result=result, error=error)
            case ProviderToolStart():
                pass
        self._provided[call_id] = made

    def refer_to(self, chunk: SourceChunk) -> None:
        about = {name: getattr(chunk, name) for name in Source.__struct_fields__}
        self._sources.append(Source(**about))

    def say(self, text: str) -> None:
        self._text.append(text)

    def think(self, chunk: ThinkingChunk) -> None:
        self._thinking.append(chunk.content)
        if chunk.is_complete:
            self._thoughts.append(Thinking(text="".join(self._thinking), signature=chunk.signature))
            self._thinking.clear()

    def messages(self) -> Iterator[Message]:
        open_thought = (Thinking(text="".join(self._thinking)),) if self._thinking else ()
        yield AssistantMessage(
            text="".join(self._text),
            thinking=(*self._thoughts, *open_thought),
            tool_calls=tuple(self.calls.values()),
            provider_calls=tuple(self._provided.values()),
            sources=tuple(self._sources),
        )
        yield from self.ordered_results()

    def ordered_results(self) -> Iterator[Message]:
        yield from (self.results[call] for call in self.calls if call in self.results)


class _Page:
    """A transcript that grows chunk by chunk."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._transcript = messages
        self._left_open = _tail_of(messages)
        self._answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
        self._written = {
            call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls
        }
        self._replies: list[_Reply] = []
        self._owners: dict[ToolCallId, _Reply] = {}
        self._arguments: dict[ToolCallId, list[str]] = {}
        self._current: _Reply | None = None
        self._step: tuple[RunId, int] | None = None

    def messages(self) -> Iterator[Message]:
        yield from self._transcript
        yield from self._left_open.ordered_results()
        for reply in self._replies:
            yield from reply.messages()

    def settle(self, result: ToolMessage) -> None:
        """Put a result beside its call, wherever that is; what the transcript says about a call takes precedence."""
        call_id = result.tool_call_id
        if call_id not in self._answered:
            reply = self._owners.get(call_id, self._left_open)
            reply.calls.setdefault(call_id, ToolCall(id=call_id, name=result.tool_name))
            reply.results[call_id] = result

    def add(self, chunk: StreamChunk) -> None:
        match chunk:
            case TextDelta():
                self._reply_of(chunk).say(chunk.delta)
            case ThinkingChunk():
                self._reply_of(chunk).think(chunk)
            case ProviderToolStart() | ProviderToolInput() | ProviderToolEnd():
                self._reply_of(chunk).provide(chunk)
            case SourceChunk():
                self._reply_of(chunk).refer_to(chunk)
            case ToolArgStreamStart():
                self._call(chunk, chunk.tool_name, None)
            case ToolArgStreamDelta() | ToolArgStreamEnd():
                self._stream_arguments(chunk)
            case ToolStart():
                self._call(chunk, chunk.tool_name, chunk.arguments)
            case ToolApprovalRequest():
                self._call(chunk, chunk.tool_name, chunk.input)
            case ToolEnd() | ToolError():
                self.settle(_result_of(chunk))
            case StepCommitted():
                self._current = None
            case _:
                return

    def _reply_of(self, chunk: StreamChunk) -> _Reply:
        """The reply of the chunk's step, created with this chunk if it is the first of the step."""
        if self._current is None or self._step != (chunk.run_id, chunk.step):
            self._current = _Reply()
            self._step = (chunk.run_id, chunk.step)
            self._replies.append(self._current)
        return self._current

    def _call(
        self, chunk: ToolArgStreamStart | ToolStart | ToolApprovalRequest, tool_name: str, arguments: JSON
    ) -> None:
        call_id = chunk.tool_call_id
        if call_id in self._written:
            return
        if call_id not in self._owners:
            self._owners[call_id] = self._reply_of(chunk)
            self._owners[call_id].calls[call_id] = ToolCall(id=call_id, name=tool_name)
        if arguments is not None:
            self._set_arguments(call_id, arguments)

    def _stream_arguments(self, chunk: ToolArgStreamDelta | ToolArgStreamEnd) -> None:
        if chunk.tool_call_id not in self._owners:
            return
        pieces = self._arguments.setdefault(chunk.tool_call_id, [])
        if isinstance(chunk, ToolArgStreamDelta):
            pieces.append(chunk.delta)
            self._set_arguments(chunk.tool_call_id, "".join(pieces))
        elif pieces:
            self._set_arguments(chunk.tool_call_id, _parsed("".join(pieces)))

    def _set_arguments(self, call_id: ToolCallId, arguments: JSON) -> None:
        calls = self._owners[call_id].calls
        if not isinstance(arguments, dict | str):
            arguments = encode(arguments).decode()
        calls[call_id] = replace(calls[call_id], arguments=cast("dict[str, Any] | str", arguments))


def _tail_of(messages: Sequence[Message]) -> _Reply:
    """The reply a transcript ends with: its open calls may still get results."""
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            return _Reply(message.tool_calls)
        if not isinstance(message, ToolMessage):
            break
    return _Reply()


def _result_of(chunk: ToolEnd | ToolError) -> ToolMessage:
    if isinstance(chunk, ToolEnd):
        return ToolMessage(
            tool_call_id=chunk.tool_call_id, tool_name=chunk.tool_name, content=chunk.result, in_parts=chunk.in_parts
        )
    return ToolMessage(
        tool_call_id=chunk.tool_call_id, tool_name=chunk.tool_name, content=chunk.error, error=True, code=chunk.code
    )


def _parsed(text: str) -> JSON:
    """Arguments as an object, or as the original text."""
    try:
        value = decode_json(text)
    except SessionCorruptError:
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text
