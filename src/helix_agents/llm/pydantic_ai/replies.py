"""A provider's streamed reply as our events."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from pydantic_ai.messages import (
    FinishReason,
    ModelResponse,
    ModelResponseStreamEvent,
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

from helix_agents.domain.errors import ModelUnavailableError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import encode
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.pydantic_ai.provenance import TextJoints, read_arguments, read_reply
from helix_agents.llm.pydantic_ai.wording import Pieces, mended, mended_arguments
from helix_agents.ports.llm import (
    ModelEvent,
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


class ReplyReader:
    """Reads one streamed reply."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._joints = TextJoints()
        self._calls: dict[int, ToolCallId] = {}
        self._open: dict[int, None] = {}
        self._pieces: defaultdict[int, Pieces] = defaultdict(Pieces)

    def read(self, event: ModelResponseStreamEvent) -> Iterator[ModelEvent]:
        """The pieces in one event of the provider: none, one or two."""
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
        ended = "finish_reason" in said or "refusal" in said
        if not ended or response.state == "incomplete":
            raise ModelUnavailableError(self._name, "the stream ended before the reply was complete")
        if response.finish_reason == "error":
            raise ModelUnavailableError(self._name, f"the provider gave up on the reply: {said.get('finish_reason')}")
        return _STOP_REASONS.get(response.finish_reason or "stop", "stop")


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
