"""A chat with approvals: FastAPI in front, a React page on an unmodified useChat, and an agent that books boats.

    npm install && npm run build                 # in this folder, once
    uv run uvicorn examples.chat.app:app         # then open http://127.0.0.1:8000/?session=any-id

Ask it to "book". Reload the page in the middle of an answer, stop the server with kill -9 and start it again: the
conversation continues. It runs without a key; set HELIX_MODEL to use a real model.
"""

import os
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse

from helix_agents import Agent, AgentServer, Executor, ScriptedModel, ToolMessage, UserMessage, tool
from helix_agents.testing import ModelRequest, Step, call, reply

HERE = Path(__file__).parent


@tool
async def tides(place: str) -> dict[str, int]:
    """The hours of high and low tide at a place."""
    return {"high": 6, "low": 12}


@tool(require_approval=True)
async def book(boat: str) -> str:
    """Book a boat."""
    return f"booked {boat}"


def play(request: ModelRequest) -> Step:
    """What the model says without a key: it books when asked to, and looks up tides otherwise."""
    if isinstance(request.messages[-1], ToolMessage):
        return "Done. Anything else?"
    asked = next(str(each.content) for each in reversed(request.messages) if isinstance(each, UserMessage))
    if "book" in asked.lower():
        return reply("I found one. ", calls=[call("book", {"boat": "Petrel"})])
    return reply("Let me look. ", calls=[call("tides", {"place": "the cove"})])


harbour = Agent(
    name="harbour",
    model=os.environ.get("HELIX_MODEL") or ScriptedModel(play),
    instructions="You help people at a small harbour.",
    tools=[tides, book],
)

# This is an example: anyone who reaches this server may do everything. In production, pass `authenticate=`.
server = AgentServer(Executor.open(os.environ.get("HELIX_STORE"), agents=[harbour]), allow_unauthenticated=True)
app = FastAPI(lifespan=server.lifespan)


@app.get("/")
async def index() -> FileResponse:
    return FileResponse(HERE / "index.html")


@app.get("/page.js")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.js")


app.mount("/", server)
