"""Runs the function of a flow against the transcript of its turn, to find out what it does next."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import FlowChangedError, FlowStuckError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.transcript import NOT_EXECUTED, RUN_STOPPED
from helix_agents.engine.steps.corrections import begins_turn
from helix_agents.flows.flow_run import FlowRun, WaitingCall
from helix_agents.flows.still_loop import NotInAFlowError, StillLoop
from helix_agents.ports.llm import FINISH_TOOL

MOST_AT_ONCE = 64
"""How many calls one step makes at most; further ones wait for the next step. So many children may a step have."""

_CANCELLED_AT_MOST = 10
"""A function may wait again while it cleans up; after so many times it is left to the garbage collector."""

_NEVER_RAN = (NOT_EXECUTED, RUN_STOPPED)

Made: TypeAlias = tuple[ToolCall, ToolMessage | None]


@dataclass(frozen=True)
class Returned:
    """The function has returned this."""

    value: Any


@dataclass(frozen=True)
class Calls:
    """The function waits for the results of these calls."""

    calls: Sequence[WaitingCall]


@dataclass(frozen=True)
class Turn:
    """One turn in a transcript: the message that began it, what came before, and the calls of each reply since."""

    message: UserMessage
    history: Sequence[Message]
    replies: Sequence[Sequence[Made]]


def turn_in(messages: Sequence[Message]) -> Turn:
    """The last turn of a transcript. If several messages began it, their texts and parts are one message."""
    end = next((at for at in range(len(messages), 0, -1) if begins_turn(messages[at - 1])), 0)
    start = end
    while start > 0 and begins_turn(messages[start - 1]):
        start -= 1
    said = [each for each in messages[start:end] if isinstance(each, UserMessage)]
    return Turn(_one(said), messages[:start], list(replies_in(messages[end:])))


class Replay:
    """The function of one turn, as far as it has come: it is given what its calls came to, and asked what follows.

    Every method has to be called in a thread in which no event loop runs.
    """

    def __init__(
        self,
        flow: str,
        tools: Mapping[str, Tool[..., Any]],
        session_id: SessionId,
        turn: Turn,
        begin: Callable[[FlowRun], Coroutine[Any, Any, Any]],
    ) -> None:
        self._flow = flow
        self._loop = StillLoop()
        self._run = FlowRun(
            f"Flow {flow!r}",
            tools,
            loop=self._loop,
            session_id=session_id,
            message=turn.message,
            history=turn.history,
        )
        self._task = self._loop.create_task(begin(self._run))
        self.give(turn.replies)

    def give(self, replies: Iterable[Sequence[Made]]) -> None:
        """Give the function the results of these replies, one reply after the other, as it got them the first time.

        Raises:
            FlowChangedError: it does not make the calls that it made before.
        """
        for made in replies:
            self._loop.run_until_still()
            waiting = self._run.waiting
            for call, result in made:
                meant = next((each for each in waiting if each.is_meant_by(call.name, call.arguments)), None)
                if meant is None:
                    now = ", ".join(_shown(each.tool.name, each.arguments) for each in waiting) or "nothing"
                    told = f"it had called {_shown(call.name, call.arguments)}, and now calls {now}"
                    raise FlowChangedError(self._flow, told)
                waiting.remove(meant)
                if result is not None and result.code not in _NEVER_RAN:
                    meant.settle(result)

    def next(self) -> Returned | Calls:
        """What the function does next.

        Raises:
            FlowStuckError: it waits for something else than its calls.
            BaseException: whatever the function raised.
        """
        self._loop.run_until_still()
        if self._task.done():
            try:
                return Returned(self._task.result())
            except NotInAFlowError as problem:
                raise FlowStuckError(self._flow, str(problem)) from problem
        waiting = self._run.waiting
        if not waiting:
            told = "it waits for something that is not a call of its own; do that in a tool, and call the tool"
            raise FlowStuckError(self._flow, told)
        return Calls(waiting[:MOST_AT_ONCE])

    def let_go(self) -> None:
        """End a function that waits: it starts again from the beginning if there is more to tell it."""
        for _ in range(_CANCELLED_AT_MOST):
            if self._task.done():
                return
            self._task.cancel()
            self._loop.run_until_still()


def replies_in(messages: Sequence[Message]) -> Iterator[list[Made]]:
    """The calls of each reply that made any, with their results as far as there are some."""
    results = {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}
    for message in messages:
        if isinstance(message, AssistantMessage):
            made = [(call, results.get(call.id)) for call in message.tool_calls if call.name != FINISH_TOOL]
            if made:
                yield made


def _one(said: Sequence[UserMessage]) -> UserMessage:
    if len(said) == 1:
        return said[0]
    texts = [each.content for each in said]
    whole = "\n\n".join(each for each in texts if isinstance(each, str))
    parts = tuple(part for each in texts if not isinstance(each, str) for part in each)
    return UserMessage(content=parts if parts and not whole else whole)


def _shown(name: str, arguments: object) -> str:
    text = encode(arguments).decode()
    return f"{name}({text if len(text) <= 200 else text[:200] + '…'})"
