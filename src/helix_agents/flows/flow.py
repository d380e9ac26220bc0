"""The `flow` decorator: an agent whose steps a Python function decides."""

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints, overload

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.docstrings import read_docstring
from helix_agents.agent.durations import Deadline, Duration
from helix_agents.agent.failures import ControlFlow
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.output import OutputType
from helix_agents.agent.schemas import REFUSALS, SCHEMA_PROBLEMS, adapter_for, refusal, unfit
from helix_agents.agent.state_type import NoState
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import Tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import DefinitionError, FlowFailedError, FlowInputError, ModelError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import AssistantMessage, Message, Text, ToolCall, UserMessage
from helix_agents.domain.texts import said_by
from helix_agents.domain.usage import TokenCount
from helix_agents.engine.log import log_exception
from helix_agents.engine.steps.corrections import begins_turn
from helix_agents.flows.flow_run import FlowRun
from helix_agents.flows.replay import Calls, Replay, Returned, replies_in, turn_in
from helix_agents.ports.llm import FINISH_TOOL, LLMAdapter, ModelEvent, ModelRequest, ReplyDone

R = TypeVar("R")
FlowFunction = Callable[[FlowRun], Coroutine[Any, Any, R]] | Callable[[FlowRun, Any], Coroutine[Any, Any, R]]

MOST_STEPS = 10_000
MOST_KEPT = 100
"""How many functions of one flow wait in memory for their next step."""
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
        output = None if hints["return"] in (str, Any) else hints["return"]
        documented = read_docstring(inspect.getdoc(function)).description
        asked = [sub_agent_tool(each, description=each.description or f"Asks {each.name}.") for each in agents]
        every = (*tools, *asked)
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


class _Going(NamedTuple):
    """A function that waits, and what it has been told: a run's messages up to the last of them."""

    run_id: RunId
    replay: Replay
    told: int
    last: Message

    def fits(self, request: ModelRequest) -> bool:
        """Whether the request goes on from there. Another attempt has other objects, and may have other messages."""
        messages = request.messages
        return (
            request.run_id == self.run_id
            and len(messages) >= self.told
            and messages[self.told - 1] is self.last
            and not any(map(begins_turn, messages[self.told :]))
        )


class _FlowModel(LLMAdapter):
    """Answers with the next calls of a function, or with what it returned.

    Between the steps of a run the function is kept waiting, so a step costs the same however many came before. It is
    replayed from the beginning where that is not possible: in another process, or after many other sessions.
    """

    replays_turns = True
    """A turn has to be its own from the beginning, so no other agent hands over to it."""

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
        self._going: OrderedDict[SessionId, _Going] = OrderedDict()

    @property
    def name(self) -> str:
        return f"flow:{self._flow}"

    def price(self, model: str, _: TokenCount) -> float | None:
        """A function costs nothing; whom it asks has prices of their own."""
        return 0.0 if model == self.name else None

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        # A thread has no event loop yet, and code of users may take its time there.
        yield ReplyDone(reply=await asyncio.to_thread(self._answer, request))

    def _answer(self, request: ModelRequest) -> AssistantMessage:
        try:
            return self._reply(request)
        except (ModelError, ControlFlow):
            raise
        except BaseException as problem:
            log_exception("flow.failed", problem, flow=self._flow, session_id=request.session_id)
            raise FlowFailedError(self._flow, f"{type(problem).__name__}: {said_by(problem)}") from problem

    def _reply(self, request: ModelRequest) -> AssistantMessage:
        match self._next(request):
            case Calls(calls=calls):
                made = tuple(
                    ToolCall(id=f"call_{request.step}_{place}", name=call.tool.name, arguments=call.arguments)
                    for place, call in enumerate(calls, start=1)
                )
            case Returned(value=value):
                if self._output is None:
                    return AssistantMessage(text=str(value), stop_reason="stop")
                arguments = self._output.arguments(value)
                made = (ToolCall(id=f"call_{request.step}_1", name=FINISH_TOOL, arguments=arguments),)
        return AssistantMessage(tool_calls=made, stop_reason="tool_calls")

    def _next(self, request: ModelRequest) -> Returned | Calls:
        replay = self._brought_up(request)
        try:
            following = replay.next()
        except BaseException:
            replay.let_go()
            raise
        if isinstance(following, Calls):
            told = len(request.messages)
            self._going[request.session_id] = _Going(request.run_id, replay, told, request.messages[told - 1])
            if len(self._going) > MOST_KEPT:
                self._going.popitem(last=False)[1].replay.let_go()
        return following

    def _brought_up(self, request: ModelRequest) -> Replay:
        """The function, with everything told that the transcript has: the one that waits, or a new one."""
        going = self._going.pop(request.session_id, None)
        if going is not None and going.fits(request):
            going.replay.give(replies_in(request.messages[going.told :]))
            return going.replay
        if going is not None:
            going.replay.let_go()
        turn = turn_in(request.messages)
        given = () if self._reads is None else (self._given(self._reads, turn.message),)
        return Replay(self._flow, self._tools, request.session_id, turn, lambda run: self._function(run, *given))

    def _given(self, reads: Callable[[UserMessage], Any], message: UserMessage) -> Any:
        try:
            return reads(message)
        except REFUSALS as problem:
            raise FlowInputError(self._flow, refusal(problem)) from problem


def _hints(function: Callable[..., Any], subject: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as problem:
        raise DefinitionError(subject, f"its annotations cannot be read: {problem}") from problem


def _reader(function: Callable[..., Any], hints: dict[str, Any], subject: str) -> Callable[[UserMessage], Any] | None:
    """How the function wants the message of the turn; None if it does not take it."""
    names = list(inspect.signature(function).parameters)
    if len(names) not in (1, 2):
        raise DefinitionError(subject, "its function takes the run and, if it wants it, the message: (run, message).")
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
