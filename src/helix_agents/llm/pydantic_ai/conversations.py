"""Remembers what was converted for each session, so that a step converts only what is new."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import AssistantMessage, Message
from helix_agents.llm.pydantic_ai.messages import MessageConverter
from helix_agents.ports.llm import CacheTtl
from helix_agents.ports.llm import ModelRequest as Request

MESSAGES_KEPT = 50_000


class Conversations:
    """The sessions asked about last, up to a total number of messages; an older one is converted again."""

    def __init__(self, converter: MessageConverter, *, messages_kept: int = MESSAGES_KEPT) -> None:
        self._converter = converter
        self._messages_kept = messages_kept
        self._kept: OrderedDict[SessionId, _Conversation] = OrderedDict()
        self._size = 0

    def history(self, request: Request, cache: CacheTtl | None) -> list[ModelMessage]:
        """The whole history in Pydantic AI's format; with `cache`, marked after the latest batch of tool results."""
        conversation = self._kept.pop(request.session_id, None) or _Conversation(request.run_id)
        self._size -= len(conversation.sources)
        conversation.follow(request, self._converter)
        self._kept[request.session_id] = conversation
        self._size += len(conversation.sources)
        while self._size > self._messages_kept and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.sources)
        return conversation.history(cache)


@dataclass
class _Conversation:
    """One session: our messages, and the turns made from them. Turn k holds the messages up to `ends[k]`."""

    run_id: RunId
    sources: list[Message] = field(default_factory=list[Message])
    turns: list[ModelMessage] = field(default_factory=list[ModelMessage])
    ends: list[int] = field(default_factory=list[int])
    latest_results: int | None = None
    is_chosen: bool = False

    def follow(self, request: Request, converter: MessageConverter) -> None:
        """Bring the turns up to date with a request's messages."""
        # Within one run a history only grows, unless it is chosen anew; another run may have rewound or edited it. The
        # agent that chose it may have handed the conversation over to one that does not.
        is_chosen = request.chosen_from is not None
        may_differ = request.run_id != self.run_id or is_chosen or self.is_chosen
        if may_differ or not self._ends_like(request.messages):
            self._keep(_common_prefix(self.sources, request.messages))
            self.run_id, self.is_chosen = request.run_id, is_chosen
        for at in range(len(self.sources), len(request.messages)):
            self._add(request.messages[at], converter)

    def history(self, cache: CacheTtl | None) -> list[ModelMessage]:
        turns = list(self.turns)
        if cache is not None and self.latest_results is not None:
            turns[self.latest_results] = _cached(turns[self.latest_results], cache)
        return turns

    def _ends_like(self, messages: Sequence[Message]) -> bool:
        """Whether our first and last message are at the same positions there: both are compared, so that a mistake is
        never silent, and a summary at the beginning is noticed."""
        known = len(self.sources)
        if not known:
            return True
        ends_alike = known <= len(messages) and _same(self.sources[-1], messages[known - 1])
        return ends_alike and _same(self.sources[0], messages[0])

    def _add(self, message: Message, converter: MessageConverter) -> None:
        self.sources.append(message)
        if isinstance(message, AssistantMessage):
            response = _without_loose_end(self._paired(converter.response(message)))
            if response.parts:
                self._add_turn(response)
            return
        part = converter.request_part(message)
        last = self.turns[-1] if self.turns else None
        if isinstance(last, ModelRequest):
            # Results and what was said after them are one turn: providers want all results right after their calls.
            # A request in flight may still hold the old turn, so it is replaced and not changed.
            self.turns[-1] = ModelRequest(parts=[*last.parts, part])
            self.ends[-1] = len(self.sources)
        else:
            self._add_turn(ModelRequest(parts=[part]))
        if isinstance(part, ToolReturnPart):
            self.latest_results = len(self.turns) - 1

    def _paired(self, response: ModelResponse) -> ModelResponse:
        """The reply without results of a provider's calls that nothing shows: the reply that made such a call may have
        been summarised, or left out by a history processor."""
        returned = {part.tool_call_id for part in response.parts if isinstance(part, NativeToolReturnPart)}
        lost = returned - _made_in(response) if returned else returned
        for turn in reversed(self.turns) if lost else ():
            lost -= _made_in(turn)
        if lost:
            kept = (part for part in response.parts if getattr(part, "tool_call_id", None) not in lost)
            response.parts = list(kept)
        return response

    def _add_turn(self, turn: ModelMessage) -> None:
        self.turns.append(turn)
        self.ends.append(len(self.sources))

    def _keep(self, count: int) -> None:
        """Forget everything after the first `count` messages, and the turn they end in if they cut it."""
        while self.ends and self.ends[-1] > count:
            self.ends.pop()
            self.turns.pop()
        del self.sources[self.ends[-1] if self.ends else 0 :]
        self.latest_results = next(
            (at for at in range(len(self.turns) - 1, -1, -1) if _holds_results(self.turns[at])), None
        )


def _common_prefix(ours: Sequence[Message], theirs: Sequence[Message]) -> int:
    count = 0
    for mine, other in zip(ours, theirs, strict=False):
        if not _same(mine, other):
            break
        count += 1
    return count


def _same(mine: Message, other: Message) -> bool:
    return mine is other or mine == other


def _without_loose_end(response: ModelResponse) -> ModelResponse:
    """The reply without reasoning that led to nothing, as in one that reached its token limit while it was thinking.
    Anthropic and OpenAI refuse every history with such a reply."""
    while response.parts and isinstance(response.parts[-1], ThinkingPart):
        response.parts = response.parts[:-1]
    return response


def _holds_results(turn: ModelMessage) -> bool:
    return isinstance(turn, ModelRequest) and any(isinstance(part, ToolReturnPart) for part in turn.parts)


def _made_in(turn: ModelMessage) -> set[str]:
    """The calls that a provider made itself in a turn."""
    return {part.tool_call_id for part in turn.parts if isinstance(part, NativeToolCallPart)}


def _cached(turn: ModelMessage, ttl: CacheTtl) -> ModelMessage:
    """The turn with a mark after its last result; what a person said after the results stays behind the mark."""
    assert isinstance(turn, ModelRequest)
    after = 1 + max(at for at, part in enumerate(turn.parts) if isinstance(part, ToolReturnPart))
    mark = UserPromptPart(content=[CachePoint(ttl=ttl)])
    return replace(turn, parts=[*turn.parts[:after], mark, *turn.parts[after:]])
