"""A server with agents and the chat page, run as a process: `python -m tests.frontend.site PORT STORE GATE PAGE`.

The model stops at every "(pause)" it is about to say until the gate file exists, so that a test can come in between.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from helix_agents import (
    Agent,
    AgentServer,
    Executor,
    PersistentAgent,
    ScriptedModel,
    ToolContext,
    ToolMessage,
    UserMessage,
    WebSearch,
    client_tool,
    tool,
)
from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import CompletedStep
from helix_agents.domain.messages import Source
from helix_agents.ports.llm import ModelEvent, ModelRequest, TextPiece
from helix_agents.testing import call, provider_call, reply

LINE = "The tide comes in twice a day. (pause) It leaves again as often, and takes its time about it."

SEA = "https://sea.example/tides"


@tool
async def tides(place: str) -> dict[str, int]:
    """Hours of the tides."""
    return {"high": 6, "low": 12}


@tool(require_approval=True)
async def book(boat: str) -> str:
    """Book a boat."""
    return f"booked {boat}"


@tool(require_approval=True, deadline=0.05, on_deadline="deny")
async def hurry(boat: str) -> str:
    """Book a boat that is gone in a moment."""
    return f"booked {boat}"


@tool(require_approval=True, deadline=0.05)
async def wait(boat: str) -> str:
    """Book a boat that may come back."""
    return f"booked {boat}"


@client_tool
def where() -> str:
    """Where the user is."""
    raise NotImplementedError


class Log(BaseModel):
    """What the guide keeps."""

    notes: list[str] = []


@tool
async def note(ctx: ToolContext[Log], text: str) -> str:
    """Write something down."""
    ctx.state.notes.append(text)
    return "noted"


def said_last(request: ModelRequest) -> str:
    return next(str(each.content) for each in reversed(request.messages) if isinstance(each, UserMessage))


def answer(request: ModelRequest):
    """What the model says next, by what it was asked and what it did since."""
    asked = said_last(request)
    worked = isinstance(request.messages[-1], ToolMessage)
    match asked, worked:
        case "line", _:
            return LINE
        case "tides" | "tides then line", False:
            return reply("Let me look. ", calls=[call("tides", {"place": "cove"})])
        case "search", False:
            found = provider_call("web_search", {"query": "tides"}, result=[{"url": SEA}])
            missed = provider_call("web_search", {"query": "tide"}, result="too often", error=True)
            sources = [Source(url=SEA, title="Tides", start=0, end=4), Source(url=SEA, title="Tides", start=5, end=9)]
            return reply("Twice a day.", thinking="Look it up.", provider_calls=[found, missed], sources=sources)
        case "enough", False:
            return call("tides", {"place": "nowhere"})
        case "length" | "content_filter", False:
            return reply("And then", stop_reason=asked)
        case "book", False:
            return reply("I will book. ", calls=[call("book", {"boat": "Petrel"})])
        case "fleet", False:
            return reply(LINE, calls=[call("book", {"boat": "Petrel"}), call("book", {"boat": "Skua"})])
        case "long look", False:
            return reply(LINE, calls=[call("tides", {"place": "cove"})])
        case "hurry" | "wait", False:
            return call(asked, {"boat": "Petrel"})
        case "book" | "tides then line", True:
            return LINE
        case "where", False:
            return call("where")
        case "note", False:
            return reply(thinking="It may be of use.", calls=[call("note", {"text": "fog"})])
        case "crew", False:
            return call("subagent__mate", {"message": "book"})
        case "background", False:
            return call("companion__spawnAgent", {"agent": "hand", "name": "hand", "initialMessage": "book"})
        case "everything", False:
            return reply(
                "All of it. ", calls=[call("tides", {"place": "cove"}), call("book", {"boat": "Petrel"}), call("where")]
            )
        case _:
            return f"Done with {asked}."


def is_enough(step: CompletedStep[Any]) -> bool:
    return any(each.arguments == {"place": "nowhere"} for each in step.reply.tool_calls)


def agents(gate: Path) -> list[AnyAgent]:
    async def pace(event: ModelEvent) -> None:
        if isinstance(event, TextPiece) and "pause" in event.delta:
            while not gate.exists():  # noqa: ASYNC110 - it is another process that opens it
                await asyncio.sleep(0.01)

    model = ScriptedModel(answer, chunk=8, pace=pace)
    mate = Agent(name="mate", description="Books boats.", model=model, tools=[book])
    hand = Agent(name="hand", description="Books boats while others talk.", model=model, tools=[book])
    tools = [tides, book, hurry, wait, where, note, mate.as_tool()]
    companions = [PersistentAgent(hand, mode="non_blocking")]
    return [
        Agent(
            name="guide",
            model=model,
            tools=tools,
            provider_tools=[WebSearch()],
            state=Log,
            stop_when=is_enough,
            persistent_agents=companions,
        )
    ]


def app(store: str, gate: Path, page: Path) -> Starlette:
    server = AgentServer(
        Executor.open(store, agents=agents(gate), lease_ms=1_000, janitor_seconds=0.2), allow_unauthenticated=True
    )

    async def script(_: Request) -> Response:
        return Response(await asyncio.to_thread(page.read_text), media_type="text/javascript")

    async def html(_: Request) -> Response:
        return HTMLResponse('<!doctype html><body><script type="module" src="/page.js"></script></body>')

    routes = [Route("/", html), Route("/page.js", script), Mount("/", server)]
    return Starlette(routes=routes, lifespan=server.lifespan)


def main() -> None:
    port, store, gate, page = sys.argv[1:]
    uvicorn.run(app(store, Path(gate), Path(page)), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
