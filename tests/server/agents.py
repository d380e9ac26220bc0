"""Agents whose model does what the user says, so that a test over HTTP can ask for any turn of events."""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from helix_agents import Agent, ScriptedModel, ToolContext, client_tool, tool
from helix_agents.domain.errors import ModelRefusedError
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.llm.scripted import Step, call, reply
from helix_agents.ports.llm import ModelEvent, ModelRequest


class Gate:
    """Holds every model of this module while it is shut: by a flag in this process, or by a file in another."""

    def __init__(self) -> None:
        self.shut_after: int | None = None
        self.seen = 0
        self.only = ""

    def shut(self, after: int = 0, *, only: str = "") -> None:
        """Let that many more pieces through, then hold; where several models talk, `only` pieces with this text."""
        self.seen, self.shut_after, self.only = 0, after, only

    def open(self) -> None:
        self.shut_after = None

    async def pass_(self, event: ModelEvent) -> None:
        file = os.environ.get("HELIX_TEST_GATE")
        if self.only not in getattr(event, "delta", ""):
            return
        self.seen += 1
        while (self.shut_after is not None and self.seen > self.shut_after) or (file and await _exists(file)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def _exists(file: str) -> bool:
    return await asyncio.to_thread(Path(file).exists)


gate = Gate()

# Why a model breaks off after its tools have answered; each reason does so once.
mishaps: list[str] = []


class Notes(BaseModel):
    published: list[str] = []


@tool
async def search(ctx: ToolContext[Notes], query: str, pages: int = 2) -> list[str]:
    """Search the archive."""
    ctx.emit("searching", {"query": query})
    return [f"page {number} about {query}" for number in range(1, pages + 1)]


@tool(require_approval=True)
async def publish(ctx: ToolContext[Notes], report_id: str) -> str:
    """Publish a finished report."""
    ctx.state.published.append(report_id)
    journal = os.environ.get("HELIX_TEST_JOURNAL")
    if journal:
        await asyncio.to_thread(_note, journal, report_id)
    return f"published {report_id}"


def _note(journal: str, line: str) -> None:
    with open(journal, "a", encoding="utf-8") as file:
        file.write(line + "\n")


@client_tool
def locate(accuracy: int = 3) -> str:
    """Where the user is."""
    raise NotImplementedError


@client_tool(deadline=0.05)
def glance(accuracy: int = 3) -> str:
    """A question that times out almost at once."""
    raise NotImplementedError


def results_since_the_user(request: ModelRequest) -> list[ToolMessage]:
    results: list[ToolMessage] = []
    for message in reversed(request.messages):
        if isinstance(message, UserMessage) and not message.hidden:
            break
        if isinstance(message, ToolMessage):
            results.append(message)
    return results[::-1]


def order_of(request: ModelRequest) -> str:
    said = (m for m in reversed(request.messages) if isinstance(m, UserMessage) and not m.hidden)
    message = next(said)
    return (
        message.content
        if isinstance(message.content, str)
        else " ".join(getattr(part, "text", "a file") for part in message.content)
    )


CALLS = {
    "search": [call("search", {"query": "tides"})],
    "publish": [call("publish", {"report_id": "r-1"})],
    "locate": [call("locate", {})],
    "glance": [call("glance", {})],
    "both": [call("publish", {"report_id": "r-1"}), call("locate", {"accuracy": 1}), call("search", {"query": "ebb"})],
    "delegate": [call("subagent__helper", {"message": "publish"})],
    "delegate far": [call("subagent__deputy", {"message": "delegate"})],
    "ask below": [call("subagent__helper", {"message": "locate"})],
    "broken": [call("search", '{"query": ')],
    "unknown": [call("no_such_tool", {})],
}


def follow_orders(request: ModelRequest) -> Step:
    """One step of a turn: what the user ordered first, then a sentence about the results."""
    order = order_of(request)
    results = results_since_the_user(request)
    if results and mishaps:
        return ModelRefusedError("scripted", mishaps.pop())
    if order == "delegate twice" and len(results) < 2:
        return reply("Let me see. ", calls=CALLS["delegate"])
    if results:
        return f"I was told: {'; '.join(str(each.content) for each in results)}."
    if order == "fail":
        return ModelRefusedError("scripted", "the secret reason inside")
    if order in CALLS:
        return reply("Let me see. ", thinking="What is wanted?", calls=CALLS[order])
    return f"You said: {order}. " + "And so on. " * (20 if order.startswith("long") else 1)


def _model() -> ScriptedModel:
    return ScriptedModel(follow_orders, pace=gate.pass_)


helper = Agent(name="helper", description="Helps.", model=_model(), tools=[publish, locate, search], state=Notes)
deputy = Agent(name="deputy", description="Lets others help.", model=_model(), tools=[helper.as_tool()])
director = Agent(
    name="director",
    model=_model(),
    tools=[search, publish, locate, glance, helper.as_tool(), deputy.as_tool()],
    state=Notes,
)
agents = [director]
