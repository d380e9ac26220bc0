"""The scripted agent of the step benchmark in other frameworks: a step is one model call and one tool call."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

TEXT = "I will look that up."
QUERY = {"query": "the tides of the northern sea"}
PAGE = "A page about tides. " * 7
DONE = "That is all there is to know."

_sessions = count(1)


class Peer(Protocol):
    """One framework, set up once."""

    async def run(self, steps: int) -> float:
        """Seconds that a fresh session of so many model calls takes, all but the last followed by a tool call."""
        ...


class LangGraph:
    """LangGraph's agent with its SQLite saver, in its default durability."""

    def __init__(self, saver: Any) -> None:
        from langchain_core.language_models.chat_models import BaseChatModel
        from langchain_core.messages import AIMessage
        from langchain_core.outputs import ChatGeneration, ChatResult
        from langgraph.prebuilt import create_react_agent

        self._left = left = [0]

        class Scripted(BaseChatModel):
            @property
            def _llm_type(self) -> str:
                return "scripted"

            def bind_tools(self, tools: Any, **_: Any) -> Any:
                return self

            def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
                left[0] -= 1
                calls = [{"name": "search", "args": QUERY, "id": f"call_{left[0]}"}] if left[0] else []
                message = AIMessage(content=TEXT if calls else DONE, tool_calls=calls)
                return ChatResult(generations=[ChatGeneration(message=message)])

            async def _agenerate(self, *args: Any, **named: Any) -> ChatResult:
                return self._generate(*args, **named)

        self._graph = create_react_agent(Scripted(), [_search], checkpointer=saver)

    async def run(self, steps: int) -> float:
        self._left[0] = steps
        config = {"configurable": {"thread_id": str(next(_sessions))}, "recursion_limit": 2 * steps + 10}
        begin = time.perf_counter()
        await self._graph.ainvoke({"messages": [{"role": "user", "content": "go"}]}, config)
        took = time.perf_counter() - begin
        assert self._left[0] == 0
        return took


class PydanticAI:
    """Pydantic AI's agent, which keeps nothing."""

    def __init__(self) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel

        self._left = 0

        def script(messages: Any, info: Any) -> ModelResponse:
            self._left -= 1
            if not self._left:
                return ModelResponse(parts=[TextPart(DONE)])
            return ModelResponse(parts=[TextPart(TEXT), ToolCallPart("search", QUERY, tool_call_id=f"c{self._left}")])

        self._agent = Agent(FunctionModel(script), tools=[_search_plain])

    async def run(self, steps: int) -> float:
        from pydantic_ai.usage import UsageLimits

        self._left = steps
        begin = time.perf_counter()
        await self._agent.run("go", usage_limits=UsageLimits(request_limit=None))
        return time.perf_counter() - begin


class OpenAIAgents:
    """OpenAI's agents with their SQLite session."""

    def __init__(self, folder: Path) -> None:
        import agents
        from agents.items import ModelResponse
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        agents.set_tracing_disabled(True)
        self._agents = agents
        self._folder = folder
        self._left = left = [0]

        class Scripted(agents.Model):
            async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
                left[0] -= 1
                said = ResponseOutputText(type="output_text", annotations=[], text=TEXT if left[0] else DONE)
                output: list[Any] = [
                    ResponseOutputMessage(
                        id=f"m{left[0]}", type="message", role="assistant", status="completed", content=[said]
                    )
                ]
                if left[0]:
                    output.append(
                        ResponseFunctionToolCall(
                            type="function_call",
                            name="search",
                            call_id=f"c{left[0]}",
                            arguments='{"query":"the tides of the northern sea"}',
                        )
                    )
                return ModelResponse(output=output, usage=agents.Usage(), response_id=None)

            def stream_response(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        self._agent = agents.Agent(name="peer", model=Scripted(), tools=[agents.function_tool(_search)])

    async def run(self, steps: int) -> float:
        self._left[0] = steps
        session = self._agents.SQLiteSession(str(next(_sessions)), self._folder / "openai-agents.db")
        begin = time.perf_counter()
        await self._agents.Runner.run(self._agent, "go", session=session, max_turns=steps + 5)
        return time.perf_counter() - begin


async def _search(query: str) -> str:
    """Look something up."""
    return PAGE


async def _search_plain(query: str) -> str:
    """Look something up."""
    return PAGE


_search.__name__ = _search_plain.__name__ = "search"


@asynccontextmanager
async def opened_peers(folder: Path) -> AsyncIterator[dict[str, Peer]]:
    """The peers that are installed, by name."""
    os.environ["LANGSMITH_TRACING"] = "false"
    peers: dict[str, Peer] = {}
    try:
        peers["pydantic_ai"] = PydanticAI()
    except ImportError:
        pass
    try:
        peers["openai_agents"] = OpenAIAgents(folder)
    except ImportError:
        pass
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ImportError:
        yield peers
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        peers["langgraph"] = LangGraph(saver)
        yield peers
