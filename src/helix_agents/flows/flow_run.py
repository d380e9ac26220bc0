"""What the function of a flow is given: the means to make calls, and what is known of the conversation."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast, overload

import msgspec

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.context import ToolContext
from helix_agents.agent.names import SUBAGENT
from helix_agents.agent.schemas import REFUSALS, arguments_json, jsonable, refusal
from helix_agents.agent.sub_agents import SubAgentTool
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import CallFailedError, DefinitionError, ToolOutputError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, Text, ToolMessage, UserMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.flows.still_loop import StillLoop

P = ParamSpec("P")
R = TypeVar("R")


CallKey: TypeAlias = tuple[str, bytes]
"""A call as it is found again in a transcript. Some stores return the keys of an object in another order."""

_IN_ORDER = msgspec.json.Encoder(order="sorted")


def call_key(name: str, arguments: Mapping[str, JSON] | str) -> CallKey:
    """What a call has in common with its repetitions: its tool and its arguments."""
    return name, _IN_ORDER.encode(arguments)


@dataclass(eq=False)
class WaitingCall:
    """A call that the function has made and that has no result yet."""

    tool: Tool[..., Any]
    arguments: dict[str, JSON]
    answer: asyncio.Future[Any]

    @cached_property
    def key(self) -> CallKey:
        return call_key(self.tool.name, self.arguments)

    def means_the_same(self, name: str, arguments: dict[str, JSON] | str) -> bool:
        """Whether the tool gets the same values from these arguments, which are written differently: a set has no
        order, and a field that was added since has its default."""
        if name != self.tool.name:
            return False
        given = self.tool.input
        # As JSON, two equal sets may differ.
        read = given.read if isinstance(given, InputType) else given.parse
        try:
            return bool(read(arguments_json(arguments)) == read(arguments_json(self.arguments)))
        except REFUSALS:
            return False

    def settle(self, result: ToolMessage) -> None:
        """Give the function the result, or the error, that its call has in the transcript."""
        if self.answer.done():
            return
        if result.error:
            self.answer.set_exception(
                CallFailedError(self.tool.name, result.code or "tool_failed", str(result.content))
            )
            return
        try:
            value = _read(self.tool, result)
        except (*REFUSALS, ToolOutputError) as problem:
            why = f"its result is not what the tool returns: {refusal(problem)}"
            self.answer.set_exception(CallFailedError(self.tool.name, "result_unreadable", why))
        else:
            self.answer.set_result(value)


class FlowRun:
    """One turn of a flow: its function makes calls through this, and nothing it does otherwise is stored.

    Whenever the turn continues, the function starts again from its first line and gets the results that its calls have
    by then, in the same order. So it must do the same with the same results: whatever differs from time to time, or
    reaches out of the function, belongs in a tool.
    """

    def __init__(
        self,
        subject: str,
        tools: Mapping[str, Tool[..., Any]],
        *,
        loop: StillLoop,
        session_id: SessionId,
        message: UserMessage,
        history: Sequence[Message],
    ) -> None:
        self._subject = subject
        self._tools = tools
        self._loop = loop
        self._waiting: list[WaitingCall] = []
        self.session_id = session_id
        self.message = message
        self.history = history

    @overload
    async def call(
        self,
        tool: Tool[Concatenate[ToolContext[Any, Any], P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    async def call(self, tool: Tool[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def call(
        self, tool: Tool[Concatenate[ToolContext[Any, Any], P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool of the flow and return its result, also if another process has made the call by then.

        Calls that are made at once, with `asyncio.gather` for example, run in parallel. A tool that needs an approval
        or an answer suspends the run until there is one.

        Raises:
            CallFailedError: the call has no result; says why.
            DefinitionError: the tool is not one of the flow's `tools`.
        """
        given: object = tool
        if not isinstance(given, Tool):
            what = getattr(tool, "__name__", repr(tool))
            told = f"it calls {what}, which is not a tool; decorate it with @tool, and add it to tools=[…]."
            raise DefinitionError(self._subject, told)
        if self._tools.get(tool.name) is not tool:
            told = f"it calls {tool.name!r}, which is not among its tools; add it to tools=[…]."
            raise DefinitionError(self._subject, told)
        return await self._made(tool, _arguments(tool, args, kwargs))

    async def ask(self, agent: Agent[Any, R, Any], message: str, /) -> R:
        """Let an agent do a task, in a conversation of its own, and return its output.

        Raises:
            CallFailedError: the agent has no output; says why.
            DefinitionError: the agent is not one of the flow's `agents`.
        """
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"it asks {agent!r}, which is not an Agent; give the agent itself, and add it to agents=[…]."
            raise DefinitionError(self._subject, told)
        tool = self._tools.get(f"{SUBAGENT}{agent.name}"[:64])
        if not isinstance(tool, SubAgentTool) or tool.agent is not agent:
            told = f"it asks {agent.name!r}, which is not among its agents; add it to agents=[…]."
            raise DefinitionError(self._subject, told)
        return cast("R", await self._made(tool, {"message": message}))

    @property
    def waiting(self) -> list[WaitingCall]:
        """The calls without a result, in the order in which they were made."""
        self._waiting = [call for call in self._waiting if not call.answer.done()]
        return list(self._waiting)

    async def _made(self, tool: Tool[..., Any], arguments: dict[str, JSON]) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise DefinitionError(self._subject, f"{tool.name!r} is called from outside its function, as from a tool.")
        call = WaitingCall(tool, arguments, self._loop.create_future())
        self._waiting.append(call)
        return await call.answer


def _arguments(tool: Tool[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, JSON]:
    """What a model would have written to make this call."""
    signature = tool.signature
    if signature is None:
        if args:
            raise TypeError(f"{tool.subject} takes its arguments by name")
        return {name: jsonable(value) for name, value in kwargs.items()}
    try:
        given = tool.without_context.bind(*args, **kwargs).arguments
    except TypeError as problem:
        raise TypeError(f"{tool.subject} cannot be called like this: {problem}") from problem
    try:
        return signature.dump_given(given)
    except REFUSALS as problem:
        raise TypeError(f"{tool.subject} cannot be given these arguments: {refusal(problem)}") from problem


def _read(tool: Tool[..., Any], result: ToolMessage) -> Any:
    """A result as the object that the tool returned."""
    if isinstance(tool, SubAgentTool):
        output = tool.agent.output_type
        if result.in_parts:
            return _parts_of(result, None if output is None else output.accept)
        return result.content if output is None else output.load(result.content)
    adapter = tool.result_adapter
    if result.in_parts:
        return _parts_of(result, None if adapter is None else adapter.validate_python)
    return result.content if adapter is None else adapter.validate_json(encode(result.content))


def _parts_of(result: ToolMessage, accept: Callable[[Any], Any] | None) -> Any:
    """The texts, images and files of a result: a single one by itself, unless the tool returns a list."""
    parts = result.parts
    forms: list[Any] = [list(parts), [part.text if isinstance(part, Text) else part for part in parts]]
    if len(parts) == 1:
        forms.insert(0, parts[0])
    for form in forms:
        if accept is not None:
            with suppress(*REFUSALS):
                return accept(form)
    return forms[0]
