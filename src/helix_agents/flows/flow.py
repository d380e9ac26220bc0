"""The `flow` decorator: an agent whose steps a Python function decides."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints, overload

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.calling import takes
from helix_agents.agent.docstrings import read_docstring
from helix_agents.agent.durations import Deadline, Duration
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.output import OutputType
from helix_agents.agent.schemas import REFUSALS, SCHEMA_PROBLEMS, adapter_for, refusal, unfit
from helix_agents.agent.signatures import NOTHING
from helix_agents.agent.state_type import NoState
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import Tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import (
    DefinitionError,
    FlowChangedError,
    FlowFailedError,
    FlowInputError,
    FlowStuckError,
    ToolOutputError,
)
from helix_agents.domain.messages import AssistantMessage, Text, ToolCall, UserMessage
from helix_agents.domain.usage import TokenCount
from helix_agents.engine.log import log_exception
from helix_agents.flows.flow_run import FlowRun
from helix_agents.flows.kept import KeptFunctions
from helix_agents.flows.replay import Calls, Replay, Returned, described, replies_in, turn_in
from helix_agents.ports.llm import FINISH_TOOL, LLMAdapter, ModelEvent, ModelRequest, ReplyDone

R = TypeVar("R")
FlowFunction = Callable[[FlowRun], Coroutine[Any, Any, R]] | Callable[[FlowRun, Any], Coroutine[Any, Any, R]]

MOST_STEPS = 10_000
_NO_LIMIT = 1_000_000


@overload
def flow(function: FlowFunction[R], /) -> Agent[NoState, R, Any]: ...
@overload
def flow(
    *,
    name: str | None = None,
    description: str | None = None,
    version: int = 1,
    tools: Sequence[Tool[..., Any]] = (),
    agents: Sequence[AnyAgent] = (),
    max_steps: int = MOST_STEPS,
    budget: Budget | None = None,
    hooks: Hooks[NoState, Any] | Sequence[Hooks[NoState, Any]] | None = None,
    session_ttl: Duration | None = None,
    pending_deadline: Deadline = "inherit",
) -> Callable[[FlowFunction[R]], Agent[NoState, R, Any]]: ...
def flow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    version: int = 1,
    tools: Sequence[Tool[..., Any]] = (),
    agents: Sequence[AnyAgent] = (),
    max_steps: int = MOST_STEPS,
    budget: Budget | None = None,
    hooks: Hooks[NoState, Any] | Sequence[Hooks[NoState, Any]] | None = None,
    session_ttl: Duration | None = None,
    pending_deadline: Deadline = "inherit",
) -> Any:
    """Make an async function an agent that does what the function says: `@flow(tools=[…], agents=[…])`.

    The function takes a `FlowRun`, and the message of the turn if it wants it: as `str`, as `UserMessage`, or as any
    other type, which is then read from JSON. What it returns is the output of the turn.

    A flow is an agent like any other: it can be executed, resumed, served, and given to other agents as a tool. Its
    calls are the calls of a run, each stored with its result, so another process continues it where it was.

    Args:
        name: How sessions refer to the flow. Defaults to the function's name. Never change it while sessions are alive.
        description: What the flow does, for agents that delegate to it. Defaults to the docstring.
        version: See `Agent`.
        tools: The tools that the function calls.
        agents: The agents that the function asks.
        max_steps: The maximum number of steps in one turn. Calls that are made at once are one step.
        budget: What the agents of one turn may use; see `Budget`.
        hooks: Your code, called at fixed points of a run.
        session_ttl: How long a session lives after its last entry or answer.
        pending_deadline: How long a call may wait for an answer, unless its tool says otherwise. None means forever.

    Raises:
        DefinitionError: the function cannot be a flow; the message says why.
    """

    def define(function: Callable[..., Any]) -> Agent[NoState, Any, Any]:
        called = name or getattr(function, "__name__", "")
        subject = f"Flow {called!r}"
        if not inspect.iscoroutinefunction(function):
            raise DefinitionError(subject, "a flow is made from an async function.")
        hints = _hints(function, subject)
        if "return" not in hints:
            raise DefinitionError(subject, "its function does not say what it returns; write -> str, or another type.")
        output = None if hints["return"] is str else hints["return"]
        documented = read_docstring(inspect.getdoc(function)).description
        asked = [sub_agent_tool(each, description=each.description or f"Asks {each.name}.") for each in agents]
        every = (*tools, *asked)
        _check_tools(every, subject)
        model = _FlowModel(
            called,
            function,
            {each.name: each for each in every},
            reads=_reader(function, hints, subject),
            output=None if output is None else OutputType(output, subject),
        )
        return Agent(
            name=called,
            description=description or documented or f"Does {called}.",
            version=version,
            model=model,
            tools=every,
            output=output,
            max_steps=max_steps,
            # The function decides how often it tries.
            retries=_NO_LIMIT,
            budget=budget,
            prices=model.price,
            hooks=hooks,
            session_ttl=session_ttl,
            pending_deadline=pending_deadline,
        )

    return define if function is None else define(function)


class _FlowModel(LLMAdapter):
    """Answers with the next calls of a function, or with what it returned.

    Between the steps of a run the function is kept waiting, so a step costs the same however many came before. It is
    replayed from the beginning where that is not possible: in another process, or after many other sessions.
    """

    replays_turns = True

    def __init__(
        self,
        flow: str,
        function: Callable[..., Coroutine[Any, Any, Any]],
        tools: Mapping[str, Tool[..., Any]],
        *,
        reads: Callable[[UserMessage], Any] | None,
        output: OutputType[Any] | None,
    ) -> None:
        self._flow = flow
        self._function = function
        self._tools = tools
        self._reads = reads
        self._output = output
        self._kept = KeptFunctions()

    @property
    def name(self) -> str:
        return f"flow:{self._flow}"

    def price(self, model: str, _: TokenCount) -> float | None:
        """A function costs nothing; whom it asks has prices of their own."""
        return 0.0 if model == self.name else None

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        # A thread has no event loop yet, and code of users may take its time there. A run that is stopped does not wait
        # for it, and adds to the same messages.
        yield ReplyDone(reply=await asyncio.to_thread(self._answer, request, len(request.messages)))

    def _answer(self, request: ModelRequest, count: int) -> AssistantMessage:
        try:
            return self._reply(request, count)
        except (FlowChangedError, FlowInputError, FlowStuckError, FailRun):
            raise
        except BaseException as problem:
            log_exception("flow.failed", problem, flow=self._flow, session_id=request.session_id)
            raise FlowFailedError(self._flow, described(problem)) from problem

    def _reply(self, request: ModelRequest, count: int) -> AssistantMessage:
        match self._next(request, count):
            case Calls(calls=calls):
                made = tuple(
                    ToolCall(id=f"call_{request.step}_{place}", name=call.tool.name, arguments=call.arguments)
                    for place, call in enumerate(calls, start=1)
                )
            case Returned(value=value):
                if self._output is None:
                    if not isinstance(value, str):
                        raise TypeError(f"it returned {value!r:.80}, but promises a str")
                    return AssistantMessage(text=str(value), stop_reason="stop")
                try:
                    arguments = self._output.arguments(value)
                except ToolOutputError as problem:
                    told = f"it returned {value!r:.80}, which is not what it promises: {problem.problem}"
                    raise TypeError(told) from problem
                made = (ToolCall(id=f"call_{request.step}_1", name=FINISH_TOOL, arguments=arguments),)
        return AssistantMessage(tool_calls=made, stop_reason="tool_calls")

    def _next(self, request: ModelRequest, count: int) -> Returned | Calls:
        replay = self._brought_up(request, count)
        try:
            # Where a run begins, calls that were made before belong to a run that ended.
            following = replay.next(retried=request.step == 1)
        except BaseException:
            replay.let_go()
            raise
        if isinstance(following, Returned):
            replay.let_go()
            return following
        self._kept.put(request, count, replay)
        return following

    def _brought_up(self, request: ModelRequest, count: int) -> Replay:
        """The function, told the first messages of the request, so many: the one that waits, or a new one."""
        kept = self._kept.take(request.session_id)
        if kept is not None and kept.fits(request, count):
            replay, replies = kept.replay, list(replies_in(request.messages[kept.told : count]))
        else:
            if kept is not None:
                kept.replay.let_go()
            turn = turn_in(request.messages[:count])
            given = () if self._reads is None else (self._given(self._reads, turn.message),)
            replay = Replay(self._flow, self._tools, request.session_id, turn, lambda run: self._function(run, *given))
            replies = turn.replies
        try:
            replay.give(replies)
        except BaseException:
            replay.let_go()
            raise
        return replay

    def _given(self, reads: Callable[[UserMessage], Any], message: UserMessage) -> Any:
        try:
            return reads(message)
        except REFUSALS as problem:
            raise FlowInputError(self._flow, refusal(problem)) from problem


def _hints(function: Callable[..., Any], subject: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as problem:
        told = f"its annotations cannot be read: {problem}. Types in its signature are needed at run time: define them "
        raise DefinitionError(
            subject, f"{told}at module level and import them outside `if TYPE_CHECKING`."
        ) from problem


def _check_tools(tools: Sequence[Tool[..., Any]], subject: str) -> None:
    """Refuse tools that need what a flow has not, or that would end it."""
    for each in tools:
        if each.finish_with:
            told = f"tool {each.name!r} has finish_with=True and would end the turn before the function has returned"
            raise DefinitionError(subject, f"{told}; return its result from the function.")
        if each.signature is not None and each.signature.wanted_state not in (NOTHING, Any, NoState):
            told = f"tool {each.name!r} works on a state, which a flow has not; a flow keeps what it needs in variables"
            raise DefinitionError(subject, f"{told} of its function, and passes it to its tools.")


def _reader(function: Callable[..., Any], hints: dict[str, Any], subject: str) -> Callable[[UserMessage], Any] | None:
    """How the function wants the message of the turn; None if it does not take it."""
    names = list(inspect.signature(function).parameters)
    if len(names) not in (1, 2) or not takes(function, len(names)):
        raise DefinitionError(subject, "its function takes the run and, if it wants it, the message: (run, message).")
    if hints.get(names[0], FlowRun) is not FlowRun:
        told = f"its function takes the run first, and {names[0]!r} is something else; write (run: FlowRun, message)."
        raise DefinitionError(subject, told)
    if len(names) == 1:
        return None
    wanted = hints.get(names[1], str)
    if wanted is UserMessage:
        return _as_it_is
    if wanted is str:
        return _text_of
    try:
        adapter = adapter_for(wanted)
    except SCHEMA_PROBLEMS as problem:
        told = f"its message cannot be read as {names[1]}: {unfit(problem)}"
        raise DefinitionError(subject, told) from problem
    return lambda message: adapter.validate_json(_text_of(message))


def _as_it_is(message: UserMessage) -> UserMessage:
    return message


def _text_of(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if isinstance(part, Text))
