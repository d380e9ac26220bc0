"""Runs the function of a flow against the transcript of its turn, to find out what it does next."""

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from helix_agents.agent.registry import may_act_once
from helix_agents.agent.sub_agents import DelegationTool, SubAgentTool
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import FlowChangedError, FlowStuckError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import TOOLS_BEGUN, AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.texts import said_by
from helix_agents.domain.transcript import OUTCOME_UNKNOWN, RUN_STOPPED, was_cut_short, was_never_begun
from helix_agents.engine.log import log_exception
from helix_agents.engine.steps.corrections import CONTINUE, begins_turn
from helix_agents.flows.flow_run import CallKey, FlowRun, WaitingCall, call_key
from helix_agents.flows.still_loop import StillLoop
from helix_agents.ports.llm import FINISH_TOOL

MOST_AT_ONCE = 64
"""How many calls one step makes at most; further ones wait for the next step. So many children may a step have."""

_MOST_SHOWN = 8
"""How many calls an error names."""

_PERHAPS_DONE = (OUTCOME_UNKNOWN, RUN_STOPPED)

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
    """The last turn of a transcript. Of several messages without a reply between them, the last visible one counts:
    a run may have ended before it answered the others. A turn that began without any has an empty one."""
    end = next((at for at in range(len(messages), 0, -1) if begins(messages[at - 1])), 0)
    start = end
    while start > 0 and begins(messages[start - 1]):
        start -= 1
    if end == 0:
        return Turn(UserMessage(content=""), (), list(replies_in(messages)))
    said = {at: each for at in range(start, end) if isinstance(each := messages[at], UserMessage)}
    place = next((at for at in reversed(said) if not said[at].hidden), end - 1)
    history = (*messages[:place], *messages[place + 1 : end])
    return Turn(said[place], history, list(replies_in(messages[end:])))


def begins(message: Message) -> bool:
    """Whether the function starts anew with this message; one that only continues what was stopped starts nothing."""
    return begins_turn(message) and cast("UserMessage", message).metadata.get("helix") != CONTINUE


class Replay:
    """The function of one turn, as far as it has come: it is given what its calls came to, and asked what follows.

    A failed call whose error the function let through ended the function. If there is more to tell it nevertheless, the
    run was retried, and the call was made again: its first result no longer counts.

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
        self._tools = tools
        self._session_id = session_id
        self._message, self._history = turn.message, turn.history
        self._begin = begin
        self._told: list[list[Made]] = []
        self._start()

    def _start(self) -> None:
        self._loop = StillLoop(self._lost)
        self._run = FlowRun(
            f"Flow {self._flow!r}",
            self._tools,
            loop=self._loop,
            session_id=self._session_id,
            message=self._message,
            history=self._history,
        )
        self._failed: list[tuple[BaseException | None, int]] = []
        self._task = self._loop.create_task(self._begin(self._run))

    def give(self, replies: Iterable[Sequence[Made]]) -> None:
        """Give the function the results of these replies, one reply after the other, as it got them the first time.

        Raises:
            FlowChangedError: it does not make the calls that it made before.
            FlowStuckError: it waits for something else than its calls.
        """
        for made in replies:
            self._run_until_still()
            while self._forgives():
                self._run_until_still()
            self._told.append(list(made))
            self._settle(made)

    def next(self, *, retried: bool) -> Returned | Calls:
        """What the function does next. If the run was `retried`, it makes the calls again that ended it.

        Raises:
            FlowStuckError: it waits for something else than its calls.
            BaseException: whatever the function raised.
        """
        self._run_until_still()
        while retried and self._forgives():
            self._run_until_still()
        if self._task.done():
            return Returned(self._task.result())
        waiting = self._run.waiting
        if not waiting:
            told = f"it waits{self._where()} for something that is not a call of its own"
            raise FlowStuckError(self._flow, f"{told}; do that in a tool, and call the tool")
        return Calls(waiting[:MOST_AT_ONCE])

    def let_go(self) -> None:
        """End a function that waits, and what it left running: it starts again from the beginning if there is more to
        tell it."""
        self._loop.end()

    def _run_until_still(self) -> None:
        self._loop.run_until_still()
        if self._loop.refused is not None:
            raise FlowStuckError(self._flow, str(self._loop.refused)) from self._loop.refused

    def _settle(self, made: Sequence[Made]) -> None:
        """Give the function the results of one reply."""
        self._failed.clear()
        waiting: defaultdict[CallKey, deque[WaitingCall]] = defaultdict(deque)
        for each in self._run.waiting:
            waiting[each.key].append(each)
        for place, (call, result) in enumerate(made):
            meant = self._meant(call, waiting)
            if result is None or _is_made_again(meant.tool, result):
                continue
            meant.settle(result)
            if result.error and result.code not in _PERHAPS_DONE and not meant.answer.cancelled():
                self._failed.append((meant.answer.exception(), place))

    def _meant(self, call: ToolCall, waiting: Mapping[CallKey, deque[WaitingCall]]) -> WaitingCall:
        """Take the function's call that a call of the transcript is out of those that wait."""
        same = waiting[call_key(call.name, call.arguments)]
        if same:
            return same.popleft()
        for others in waiting.values():
            if others and others[0].means_the_same(call.name, call.arguments):
                return others.popleft()
        raise FlowChangedError(self._flow, f"it had called {_shown(call.name, call.arguments)}, and now {self._does()}")

    def _does(self) -> str:
        """What the function does in place of a call that it made before."""
        if not self._task.done():
            waiting = [_shown(each.tool.name, each.arguments) for each in self._run.waiting[:_MOST_SHOWN]]
            return f"calls {', '.join(waiting)}" if waiting else "makes no call"
        problem = None if self._task.cancelled() else self._task.exception()
        return "returns" if problem is None else f"raises {described(problem)}"

    def _forgives(self) -> bool:
        """Start anew without the results of the calls whose failure ended the function, if the last reply has any."""
        if not self._failed or not self._task.done() or self._task.cancelled():
            return False
        problem = self._task.exception()
        causes = [] if problem is None else list(_causes(problem))
        places = [place for failure, place in self._failed if any(each is failure for each in causes)]
        if not places:
            return False
        self.let_go()
        told, self._told = self._told, []
        for place in places:
            told[-1][place] = (told[-1][place][0], None)
        self._start()
        self.give(told)
        return True

    def _where(self) -> str:
        """The line at which the function waits, as far as it is known."""
        frames = self._task.get_stack(limit=1)
        return f" in line {frames[0].f_lineno} of {Path(frames[0].f_code.co_filename).name}" if frames else ""

    def _lost(self, problem: BaseException) -> None:
        log_exception("flow.task_failed", problem, flow=self._flow, session_id=self._session_id)


def replies_in(messages: Sequence[Message]) -> Iterator[list[Made]]:
    """The calls of each reply that made any, with their results as far as there are some."""
    results = {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}
    for message in messages:
        if isinstance(message, AssistantMessage):
            made = [(call, results.get(call.id)) for call in message.tool_calls if call.name != FINISH_TOOL]
            if made:
                yield made


def _is_made_again(tool: Tool[..., Any], result: ToolMessage) -> bool:
    """Whether a stop kept a call from running, or cut short what may be repeated. A `once` tool has an unknown outcome
    then; an agent may have called one."""
    if not was_cut_short(result):
        return was_never_begun(result)
    if not isinstance(tool, DelegationTool):
        return True
    return isinstance(tool, SubAgentTool) and not may_act_once(tool.agent, result.metadata.get(TOOLS_BEGUN))


def described(problem: BaseException) -> str:
    """An exception in one line; of a group, those that are in it."""
    if isinstance(problem, BaseExceptionGroup):
        inside = cast("BaseExceptionGroup[BaseException]", problem).exceptions
        return "; ".join(map(described, inside))
    return f"{type(problem).__name__}: {said_by(problem)}"


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """An exception, those in its group, and those because of which it was raised."""
    left, seen = [problem], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            left.extend(cast("BaseExceptionGroup[BaseException]", each).exceptions)
        left.extend(above for above in (each.__cause__, each.__context__) if above is not None)


def _shown(name: str, arguments: object) -> str:
    text = encode(arguments).decode()
    return f"{name}({text if len(text) <= 200 else text[:200] + '…'})"
