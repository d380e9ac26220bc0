"""A provider's streamed reply as our events."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from pydantic_ai.messages import (
    FinishReason,
    ModelResponse,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.usage import RequestUsage

from helix_agents.domain.errors import ModelRefusedError, ModelUnavailableError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import encode
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.pydantic_ai.provenance import TextJoints, read_reply
from helix_agents.llm.pydantic_ai.provider_tools import failed, shown
from helix_agents.llm.pydantic_ai.wording import Pieces, mended, mended_arguments, read_arguments
from helix_agents.ports.llm import (
    ModelEvent,
    ProviderCallEnded,
    ProviderCallInput,
    ProviderCallStarted,
    ReplyDone,
    StopReason,
    TextPiece,
    ThinkingPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)

_STOP_REASONS: dict[FinishReason, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "content_filter",
}


# Anthropic's tools may take so long that it asks for the reply so far to go on with it.
_PAUSED = "pause_turn"
MOST_PAUSES = 20


class ReplyReader:
    """Reads one streamed reply."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._joints = TextJoints()
        self._calls: dict[int, ToolCallId] = {}
        self._open: dict[int, None] = {}
        self._pieces: defaultdict[int, Pieces] = defaultdict(Pieces)
        self._provided: dict[int, _ProviderCall] = {}
        self._before = 0
        self._pauses = 0

    def goes_on(self, so_far: ModelResponse) -> bool:
        """Whether the provider has paused the reply, and goes on with it when it gets back what it has said so far.

        Raises:
            ModelRefusedError: it has paused too often; another try would only repeat that.
        """
        if (so_far.provider_details or {}).get("finish_reason") != _PAUSED:
            return False
        self._pauses += 1
        if self._pauses > MOST_PAUSES:
            raise ModelRefusedError(self._name, f"the provider paused the reply {self._pauses} times")
        self._before = len(so_far.parts)
        return True

    def read(self, event: ModelResponseStreamEvent) -> Iterator[ModelEvent]:
        """The pieces in one event of the provider: none, one or two."""
        if isinstance(event, PartStartEvent | PartDeltaEvent | PartEndEvent) and self._before:
            event = replace(event, index=event.index + self._before)
        match event:
            case PartStartEvent(index=index, part=TextPart(content=text)):
                yield from self._text(index, text)
            case PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=text)):
                yield from self._text(index, text)
            case PartEndEvent(index=index, part=TextPart()):
                yield from self._text(index, None)
            case (
                PartStartEvent(index=index, part=ThinkingPart(content=text))
                | PartDeltaEvent(index=index, delta=ThinkingPartDelta(content_delta=text))
            ):
                if delta := self._next(index, text or ""):
                    yield ThinkingPiece(delta=delta)
            case PartEndEvent(index=index, part=ThinkingPart(signature=signature)):
                yield ThinkingPiece(delta=self._next(index, None), done=True, signature=signature)
            case PartStartEvent(index=index, part=ToolCallPart(tool_call_id=call_id, tool_name=tool, args=args)):
                self._calls[index] = call_id
                self._open[index] = None
                yield ToolCallStarted(id=call_id, name=mended(tool))
                yield from self._arguments(index, args or "")
            case PartStartEvent(index=index, part=NativeToolCallPart(tool_call_id=call_id, tool_name=tool, args=args)):
                self._provided[index] = _ProviderCall(call_id)
                yield ProviderCallStarted(id=call_id, name=mended(tool))
                yield from self._provided[index].told(args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)) if index in self._provided:
                yield from self._provided[index].told(args)
            case PartEndEvent(index=index, part=NativeToolCallPart(args=args)) if index in self._provided:
                yield from self._provided[index].told(args, ended=True)
            case PartStartEvent(part=NativeToolReturnPart() as part):
                yield from self._provider_result(part)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)):
                yield from self._arguments(index, args or "")
            case PartEndEvent(index=index, part=ToolCallPart(args=args)):
                # All that is certain is that another part has started; some providers then continue with this one.
                if _is_whole(args):
                    yield from self._end_call(index)
            case _:
                return

    def rest(self) -> Iterator[ModelEvent]:
        """What is left to say when the stream has ended."""
        for index in tuple(self._open):
            yield from self._end_call(index)

    def done(self, response: ModelResponse) -> ReplyDone:
        """The whole reply.

        Raises:
            ModelUnavailableError: the stream ended, but the reply did not.
        """
        reply = read_reply(response, self._name, self._stop_reason(response))
        return ReplyDone(reply=reply, usage=_usage(response.usage))

    def _provider_result(self, part: NativeToolReturnPart) -> Iterator[ModelEvent]:
        # A result without its call in this reply is told with the whole reply.
        if any(call.id == part.tool_call_id for call in self._provided.values()):
            yield ProviderCallEnded(id=part.tool_call_id, result=shown(part.content), error=failed(part))

    def _next(self, index: int, piece: str | None) -> str:
        """The text of the next piece of a part; None marks its end."""
        pieces = self._pieces[index]
        return pieces.rest() if piece is None else pieces.next(piece)

    def _text(self, index: int, text: str | None) -> Iterator[TextPiece]:
        if delta := self._next(index, text):
            yield TextPiece(delta=self._joints.before(index) + delta)

    def _arguments(self, index: int, args: str | Mapping[str, Any] | None) -> Iterator[ToolArgumentsPiece]:
        if isinstance(args, Mapping):
            args = encode(mended_arguments(args)).decode() if args else ""
        if delta := self._next(index, args):
            yield ToolArgumentsPiece(id=self._calls[index], delta=delta)

    def _end_call(self, index: int) -> Iterator[ModelEvent]:
        del self._open[index]
        yield from self._arguments(index, None)
        yield ToolCallEnded(id=self._calls[index])

    def _stop_reason(self, response: ModelResponse) -> StopReason:
        said = response.provider_details or {}
        # A prompt that Google blocks gets no candidate, and so no reason to finish.
        ended = not said.keys().isdisjoint(("finish_reason", "refusal", "block_reason"))
        if not ended or response.state == "incomplete":
            raise ModelUnavailableError(self._name, "the stream ended before the reply was complete")
        if response.finish_reason == "error":
            raise ModelUnavailableError(self._name, f"the provider gave up on the reply: {said.get('finish_reason')}")
        return _STOP_REASONS.get(response.finish_reason or "stop", "stop")


def joined(so_far: ModelResponse, more: ModelResponse) -> ModelResponse:
    """A reply that was paused, with what came after the pause."""
    details = {**(so_far.provider_details or {}), **(more.provider_details or {})}
    if "finish_reason" not in (more.provider_details or {}):
        # The stream broke off: the reason of the first one was the pause.
        details.pop("finish_reason", None)
    return replace(
        more,
        parts=[*so_far.parts, *more.parts],
        usage=so_far.usage + more.usage,
        provider_details=details,
    )


class _ProviderCall:
    """What the provider has said so far of a call of its own."""

    def __init__(self, call_id: ToolCallId) -> None:
        self.id = call_id
        self._written = ""
        self._is_told = False

    def told(self, args: str | Mapping[str, Any] | None, *, ended: bool = False) -> Iterator[ModelEvent]:
        """The input, once, when it is known: another piece of it has arrived, or all of it has `ended`."""
        if self._is_told or not args:
            return
        if isinstance(args, str):
            self._written = args if ended else self._written + args
            # The text of an object is whole only with its last brace, so others need not be read.
            if not self._written.endswith("}") or not _is_whole(self._written):
                return
            args = self._written
        self._is_told = True
        yield ProviderCallInput(id=self.id, arguments=read_arguments(args))


def _is_whole(args: str | Mapping[str, Any] | None) -> bool:
    """Whether arguments need no further piece. If there are none yet, they may still come."""
    return bool(args) and not isinstance(read_arguments(args), str)


def _usage(usage: RequestUsage) -> TokenCount:
    prompt, completion = _count(usage.input_tokens), _count(usage.output_tokens)
    return TokenCount(
        prompt=prompt,
        completion=completion,
        reasoning=_count(usage.output_reasoning_tokens or usage.details.get("reasoning_tokens")),
        cached=_count(usage.cache_read_tokens),
        total=prompt + completion,
    )


def _count(said: object) -> int:
    """A number of tokens; servers that imitate another's format may write it differently, or not at all."""
    return int(said) if isinstance(said, int | float) and isfinite(said) else 0
