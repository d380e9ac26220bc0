"""What the function of a flow is given: the means to make calls, and what is known of the conversation."""

import asyncio
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from pydantic import TypeAdapter

from helix_agents.agent.agent import Agent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.names import SUBAGENT
from helix_agents.agent.schemas import REFUSALS, SCHEMA_PROBLEMS, adapter_for, jsonable, refusal
from helix_agents.agent.signatures import NOTHING
from helix_agents.agent.sub_agents import SubAgentTool
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import CallFailedError, DefinitionError, ToolOutputError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, ToolMessage, UserMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.flows.still_loop import StillLoop

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class WaitingCall:
    """A call that the function has made and that has no result yet."""

    tool: Tool[..., Any]
    arguments: dict[str, JSON]
    answer: asyncio.Future[Any]

    def is_meant_by(self, name: str, arguments: Mapping[str, JSON] | str) -> bool:
        """Whether a call of the transcript is this one."""
        return name == self.tool.name and encode(arguments) == encode(self.arguments)

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
            self.answer.set_result(_read(self.tool, result))
        except (*REFUSALS, ToolOutputError) as problem:
            why = f"its result is not what the tool returns: {refusal(problem)}"
            self.answer.set_exception(CallFailedError(self.tool.name, "result_unreadable", why))


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
        call = WaitingCall(tool, arguments, self._loop.create_future())
        self._waiting.append(call)
        return await call.answer


def _arguments(tool: Tool[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, JSON]:
    """What a model would have written to make this call."""
    signature = tool.signature
    if signature is None:
        if args:
            raise TypeError(f"{tool.subject} takes its arguments by name")
        given = kwargs
    else:
        found = inspect.signature(tool.function)
        taken = [each for name, each in found.parameters.items() if name != signature.context]
        given = found.replace(parameters=taken).bind(*args, **kwargs).arguments
    return {name: jsonable(value) for name, value in given.items()}


def _read(tool: Tool[..., Any], result: ToolMessage) -> Any:
    """A result as the object that the tool returned."""
    if result.in_parts:
        return result.parts[0] if len(result.parts) == 1 else list(result.parts)
    if isinstance(tool, SubAgentTool):
        output = tool.agent.output_type
        return result.content if output is None else output.load(result.content)
    adapter = tool.output or _returned_by(tool)
    return result.content if adapter is None else adapter.validate_json(encode(result.content))


def _returned_by(tool: Tool[..., Any]) -> TypeAdapter[Any] | None:
    """How a result is read that the function's annotation describes; None if it describes nothing that can be read."""
    returns = NOTHING if tool.signature is None else tool.signature.returns
    if returns in (NOTHING, Any, object):
        return None
    try:
        return adapter_for(returns)
    except SCHEMA_PROBLEMS:
        return None
