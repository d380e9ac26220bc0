"""A model's reply while it streams: every event becomes a chunk at once, and what was said so far is never lost."""

from contextlib import aclosing
from typing import Any

import msgspec

from helix_agents.agent.hook_events import TextDeltaEvent, ThinkingEvent
from helix_agents.domain.chunks import (
    Delta,
    DeltaT,
    TextDelta,
    ThinkingChunk,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
    ToolArgStreamStart,
    split_delta,
)
from helix_agents.domain.errors import HelixError, ModelError, ModelUnavailableError, UnstorableValueError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import (
    AssistantMessage,
    ProviderCall,
    Thinking,
    ToolCall,
    in_spoken_order,
    says_nothing,
)
from helix_agents.domain.records import check_record, decode, encode
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.provider_calls import ProviderCalls, tell_again, tell_sources
from helix_agents.engine.user_code import fire, run_info
from helix_agents.ports.llm import (
    ModelRequest,
    ProviderCallEnded,
    ProviderCallInput,
    ProviderCallStarted,
    ReplyDone,
    TextPiece,
    ThinkingPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)


class ReplyStream:
    """One call of the model, as far as it has come."""

    def __init__(self, scope: RunScope, step: int) -> None:
        self._scope = scope
        self._step = step
        self.reset()

    def reset(self) -> None:
        """Forget what was said: the model is asked again."""
        self._growing: Delta | None = None
        self._text: list[str] = []
        self._thought: list[str] = []
        self._thinking: list[Thinking] = []
        self._calls: list[_StreamedCall] = []
        self._by_provider_id: dict[str, list[_StreamedCall]] = {}
        self._provider_calls: ProviderCalls | None = None

    async def run(self, request: ModelRequest) -> ReplyDone:
        """Ask and stream; the returned reply carries our call ids and the name of the model that gave it.

        Raises:
            ModelError: the model gave no whole answer.
        """
        async with aclosing(self._scope.model.ask(request)) as events:
            async for event in events:
                match event:
                    case TextPiece(delta=delta):
                        await self._say(delta)
                    case ToolArgumentsPiece():
                        await self._extend_call(event)
                    case ThinkingPiece():
                        await self._think(event)
                    case ToolCallStarted():
                        await self._begin_call(event)
                    case ToolCallEnded(id=call_id):
                        await self._end_call(call_id)
                    case ProviderCallStarted() | ProviderCallInput() | ProviderCallEnded():
                        await self._provider_does(event)
                    case ReplyDone(reply=reply):
                        self._check(event)
                        if reply.text and not self._text:
                            # An adapter need not stream; readers then get the whole text at once.
                            await self._say(reply.text)
                        by = event.answered_by or self._scope.model.name
                        own = self._own(reply, by)
                        if own.provider_calls or own.sources:
                            own = await self._of_provider().whole(own)
                        return ReplyDone(reply=own, usage=event.usage, answered_by=by)
        raise ModelUnavailableError(self._scope.model.name, "the stream ended without a whole reply")

    def _check(self, done: ReplyDone) -> None:
        # Anyone may write an adapter, and a stored reply that cannot be read back would make the session unusable.
        try:
            check_record(done)
        except UnstorableValueError as problem:
            reason = f"its adapter gave a reply that cannot be stored: {problem.reason}"
            raise ModelError(self._scope.model.name, reason) from problem

    async def partial(self) -> AssistantMessage | None:
        """What readers have seen so far, as a message; None if nothing was said."""
        calls = tuple(call.whole() for call in self._calls if call.ended)
        text = "".join(self._text)
        provided = () if self._provider_calls is None else await self._provider_calls.cut()
        if not text and not calls and not provided:
            return None
        return AssistantMessage(
            id=self._scope.step_id(self._step),
            text=text,
            # A provider that signs its reasoning may require it back together with the calls it led to.
            thinking=tuple(self._thinking),
            tool_calls=calls,
            model=self._scope.model.name,
            interrupted="interrupt",
            provider_calls=provided,
        )

    async def _say(self, delta: str) -> None:
        self._text.append(delta)
        last = self._growing
        # Pieces that arrive faster than they are stored are stored as one.
        if not isinstance(last, TextDelta) or not self._scope.writer.extend(last, delta):
            self._growing = await _write_delta(self._scope, self._scope.chunk(TextDelta, self._step, delta=delta))
        if self._scope.hooks.wants("on_text_delta"):
            await fire(self._scope, run_info(self._scope, self._step), TextDeltaEvent(delta=delta))

    async def _think(self, piece: ThinkingPiece) -> None:
        last, ends = self._growing, piece.done or piece.signature is not None
        self._thought.append(piece.delta)
        if piece.done:
            if piece.signature is not None:
                self._thinking.append(Thinking(text="".join(self._thought), signature=piece.signature))
            self._thought.clear()
        if ends or not isinstance(last, ThinkingChunk) or not self._scope.writer.extend(last, piece.delta):
            chunk = self._scope.chunk(
                ThinkingChunk, self._step, content=piece.delta, is_complete=piece.done, signature=piece.signature
            )
            written = await _write_delta(self._scope, chunk)
            self._growing = None if ends else written
        if self._scope.hooks.wants("on_thinking"):
            event = ThinkingEvent(delta=piece.delta, done=piece.done)
            await fire(self._scope, run_info(self._scope, self._step), event)

    async def _provider_does(self, event: ProviderCallStarted | ProviderCallInput | ProviderCallEnded) -> None:
        calls = self._of_provider()
        match event:
            case ProviderCallStarted():
                await calls.begin(event, thoughts=len(self._thinking), text=sum(map(len, self._text)))
            case ProviderCallInput():
                await calls.told_input(event)
            case ProviderCallEnded():
                await calls.end(event)

    def _of_provider(self) -> ProviderCalls:
        if self._provider_calls is None:
            self._provider_calls = ProviderCalls(self._scope, self._step)
        return self._provider_calls

    async def _begin_call(self, started: ToolCallStarted) -> None:
        # The id is rewritten before the first chunk that carries it, so every reader sees the same one.
        call = _StreamedCall(self._scope.call_ids.claim(started.id), started.name)
        self._by_provider_id.setdefault(started.id, []).append(call)
        self._calls.append(call)
        await self._scope.show(
            self._scope.chunk(ToolArgStreamStart, self._step, tool_call_id=call.id, tool_name=call.name)
        )

    async def _extend_call(self, piece: ToolArgumentsPiece) -> None:
        call = self._going_on(piece.id)
        call.pieces.append(piece.delta)
        last = self._growing
        goes_on = isinstance(last, ToolArgStreamDelta) and last.tool_call_id == call.id
        if last is None or not goes_on or not self._scope.writer.extend(last, piece.delta):
            chunk = self._scope.chunk(ToolArgStreamDelta, self._step, tool_call_id=call.id, delta=piece.delta)
            self._growing = await _write_delta(self._scope, chunk)

    async def _end_call(self, provider_id: str) -> None:
        call = self._going_on(provider_id)
        call.ended = True
        await self._scope.writer.write(self._scope.chunk(ToolArgStreamEnd, self._step, tool_call_id=call.id))

    def _going_on(self, provider_id: str) -> "_StreamedCall":
        """The call that an event is about: of several with one provider id, the latest that has not ended."""
        calls = self._by_provider_id.get(provider_id)
        if calls is None:
            reason = f"its adapter went on with call {provider_id!r}, which it had not begun"
            raise ModelError(self._scope.model.name, reason)
        return next((call for call in reversed(calls) if not call.ended), calls[-1])

    def _own(self, reply: AssistantMessage, by: str) -> AssistantMessage:
        """The reply with our call ids.

        A streamed call keeps the id that readers saw, in whatever order the calls were started. If the provider has
        changed a call's id meanwhile, the call takes the next streamed id that is not taken; a call that was never
        streamed gets its id now.
        """
        begun = {provider_id: iter(calls) for provider_id, calls in self._by_provider_id.items()}
        seen = [next(begun.get(call.id, iter(())), None) for call in reply.tool_calls]
        others = (streamed for streamed in self._calls if streamed not in seen)
        own = [streamed or next(others, None) for streamed in seen]
        calls = tuple(
            msgspec.structs.replace(call, id=self._scope.call_ids.claim(call.id) if streamed is None else streamed.id)
            for call, streamed in zip(reply.tool_calls, own, strict=True)
        )
        return msgspec.structs.replace(reply, tool_calls=calls, model=reply.model or by)


async def say_again(scope: RunScope, step: int, reply: AssistantMessage) -> None:
    """Stream a recorded reply again: what readers saw of it was discarded with the attempt that died."""
    for said in in_spoken_order(reply):
        match said:
            case Thinking(text=thought, signature=signature):
                told = {"content": thought, "is_complete": True, "signature": signature}
                await _write_delta(scope, scope.chunk(ThinkingChunk, step, **told))
            case str():
                await _write_delta(scope, scope.chunk(TextDelta, step, delta=said))
            case ProviderCall():
                await tell_again(scope, step, said)
    await tell_sources(scope, step, reply.sources)
    for call in reply.tool_calls:
        arguments = call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()
        about = {"tool_call_id": call.id}
        await scope.show(scope.chunk(ToolArgStreamStart, step, **about, tool_name=call.name))
        await _write_delta(scope, scope.chunk(ToolArgStreamDelta, step, **about, delta=arguments))
        await scope.writer.write(scope.chunk(ToolArgStreamEnd, step, **about))


async def _write_delta(scope: RunScope, chunk: DeltaT) -> DeltaT:
    """Write a piece of text in as many chunks as it takes; returns the last of them."""
    for piece in split_delta(chunk, scope.services.streams.limits.chunk_bytes):
        await scope.writer.write(piece)
        chunk = piece
    return chunk


class _StreamedCall:
    def __init__(self, call_id: ToolCallId, name: str) -> None:
        self.id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.ended = False

    def whole(self) -> ToolCall:
        text = "".join(self.pieces)
        if says_nothing(text):
            return ToolCall(id=self.id, name=self.name)
        try:
            return ToolCall(id=self.id, name=self.name, arguments=decode(text, dict[str, Any]))
        except HelixError:
            return ToolCall(id=self.id, name=self.name, arguments=text)
