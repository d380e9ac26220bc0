"""The scripted agent of the step benchmark in other frameworks: a step is one model call and one tool call."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol

TEXT = "I will look that up."
QUERY = {"query": "the tides of the northern sea"}
ARGUMENTS = '{"query":"the tides of the northern sea"}'
PAGE = "A page about tides. " * 7
DONE = "That is all there is to know."
MOST_STREAMED = 100

_sessions = count(1)


class Peer(Protocol):
    """One framework, set up once."""

    async def run(self, steps: int) -> float:
        """Seconds that a fresh session takes with this many model calls, all but the last followed by a tool call."""
        ...


class LangGraph:
    """LangGraph's own agent with its SQLite saver, in its default durability: the next step starts before the last one
    is stored. It is deprecated in favour of LangChain's agent, but years of its guides start with it.

    The reply is streamed, except in the longest session: over a thousand steps, streaming alone takes minutes.
    """

    def __init__(self, saver: Any) -> None:
        from langchain_core.language_models.chat_models import BaseChatModel
        from langchain_core.messages import AIMessage, AIMessageChunk
        from langchain_core.messages.tool import tool_call_chunk
        from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

        self._left = left = [0]

        class Scripted(BaseChatModel):
            @property
            def _llm_type(self) -> str:
                return "scripted"

            def bind_tools(self, tools: Any, **_: Any) -> Any:
                return self

            def _generate(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

            async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
                left[0] -= 1
                calls = [{"name": "search", "args": QUERY, "id": f"call_{left[0]}"}] if left[0] else []
                message = AIMessage(content=TEXT if calls else DONE, tool_calls=calls)
                return ChatResult(generations=[ChatGeneration(message=message)])

            async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
                left[0] -= 1
                for piece in pieces(TEXT if left[0] else DONE):
                    yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
                for place, piece in enumerate(pieces(ARGUMENTS) if left[0] else ()):
                    first = {} if place else {"name": "search", "id": f"call_{left[0]}"}
                    chunk = tool_call_chunk(args=piece, index=0, **first)
                    yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))

        self._graph = self._agent(Scripted(), saver)

    def _agent(self, model: Any, saver: Any) -> Any:
        from langgraph.prebuilt import create_react_agent

        return create_react_agent(model, [search], checkpointer=saver)

    async def run(self, steps: int) -> float:
        self._left[0] = steps
        config: Any = {"configurable": {"thread_id": str(next(_sessions))}, "recursion_limit": 2 * steps + 10}
        start: Any = {"messages": [("user", "go")]}
        begin = time.perf_counter()
        if steps > MOST_STREAMED:
            await self._graph.ainvoke(start, {**config, "tags": ["nostream"]})
        else:
            async for _ in self._graph.astream(start, config, stream_mode="messages"):
                pass
        took = time.perf_counter() - begin
        assert self._left[0] == 0
        return took


class LangChain(LangGraph):
    """LangChain's agent, which runs on LangGraph and which LangGraph recommends today; same saver and settings."""

    def _agent(self, model: Any, saver: Any) -> Any:
        from langchain.agents import create_agent

        return create_agent(model, [search], checkpointer=saver)


class PydanticAI:
    """Pydantic AI's agent, which stores nothing; the reply is streamed."""

    def __init__(self) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.models.function import DeltaToolCall, FunctionModel

        self._left = 0

        async def script(messages: Any, info: Any) -> AsyncIterator[Any]:
            self._left -= 1
            for piece in pieces(TEXT if self._left else DONE):
                yield piece
            for place, piece in enumerate(pieces(ARGUMENTS) if self._left else ()):
                first = {} if place else {"name": "search", "tool_call_id": f"call_{self._left}"}
                yield {1: DeltaToolCall(json_args=piece, **first)}

        self._agent = Agent(FunctionModel(stream_function=script), tools=[search])

    async def run(self, steps: int) -> float:
        from pydantic_ai.usage import UsageLimits

        self._left = steps
        begin = time.perf_counter()
        await self._agent.run("go", usage_limits=UsageLimits(request_limit=None), event_stream_handler=_read)
        took = time.perf_counter() - begin
        assert self._left == 0
        return took


class OpenAIAgents:
    """OpenAI's agents with their SQLite session; the reply comes in one piece."""

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
                            arguments=ARGUMENTS,
                        )
                    )
                return ModelResponse(output=output, usage=agents.Usage(), response_id=None)

            def stream_response(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        self._agent = agents.Agent(name="peer", model=Scripted(), tools=[agents.function_tool(search)])

    async def run(self, steps: int) -> float:
        self._left[0] = steps
        session = self._agents.SQLiteSession(str(next(_sessions)), self._folder / "openai-agents.db")
        begin = time.perf_counter()
        await self._agents.Runner.run(self._agent, "go", session=session, max_turns=steps + 5)
        return time.perf_counter() - begin


async def search(query: str) -> str:
    """Look something up."""
    return PAGE


def peer_rounds(steps: int, rounds: int) -> int:
    """How often a session of this many steps is measured: short ones more often, the longest once."""
    return 1 if steps >= 1_000 else 4 * rounds if steps <= 10 else rounds


def pieces(text: str) -> list[str]:
    """A text as our scripted model streams it."""
    return [text[start : start + 8] for start in range(0, len(text), 8)]


async def _read(_: object, events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


@asynccontextmanager
async def opened_peers(folder: Path) -> AsyncIterator[dict[str, Peer]]:
    """The peers that are installed, by name."""
    os.environ["LANGSMITH_TRACING"] = "false"
    peers: dict[str, Peer] = {}
    with suppress(ImportError):
        peers["pydantic_ai"] = PydanticAI()
    with suppress(ImportError):
        peers["openai_agents"] = OpenAIAgents(folder)
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ImportError:
        yield peers
        return
    async with (
        AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver,
        AsyncSqliteSaver.from_conn_string(str(folder / "langchain.db")) as second,
    ):
        peers["langgraph"] = LangGraph(saver)
        with suppress(ImportError):
            peers["langchain"] = LangChain(second)
        yield peers
