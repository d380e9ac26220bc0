# ruff: noqa: PIE790
"""Agents for the command line's tests: one that needs people, one that takes its time, one that fails once."""

import asyncio

from pydantic import BaseModel

from helix_agents import Agent, AgentRegistry, ScriptedModel, ToolContext, ask_human, client_tool, tool
from helix_agents.testing import call, finish, reply


class Notes(BaseModel):
    sent: list[str] = []


class Summary(BaseModel):
    words: int


@tool(require_approval=True)
def send(ctx: ToolContext[Notes], to: str) -> str:
    """Send a letter."""
    ctx.state.sent.append(to)
    return f"sent to {to}"


@client_tool
def count_pages() -> int:
    """Count the pages at the client's."""
    ...


@tool
async def linger(ctx: ToolContext) -> str:
    """Take a minute, unless it is stopped."""
    for _ in range(6_000):
        if ctx.cancelled:
            break
        await asyncio.sleep(0.01)
    return "done"


@tool
def fragile() -> str:
    """Fail until somebody has repaired it."""
    print("a tool may print")
    return "whole"


clerk = Agent(
    name="clerk",
    model=ScriptedModel(
        [
            reply("May I? ", calls=[call("send", {"to": "Ann"})]),
            "It is done.",
            reply(calls=[call("ask_human", {"question": "Which?", "options": ["red", "blue"]}), call("count_pages")]),
            "Thank you.",
            *["And more."] * 20,
        ]
    ),
    tools=[send, ask_human(), count_pages],
    state=Notes,
)
slow = Agent(
    name="slow",
    model=ScriptedModel([reply("Wait. ", calls=[call("linger")]), *["There."] * 5]),
    tools=[linger],
)
counter = Agent(name="counter", model=ScriptedModel([finish({"words": 3})]), output=Summary)
short_lived = Agent(
    name="short_lived",
    model=ScriptedModel([reply("Once.", calls=[call("fragile")]), "Twice."]),
    tools=[fragile],
    max_steps=1,
)
foreign = Agent(name="foreign", model="teapot:brew")

several = [clerk, slow, short_lived]
registry = AgentRegistry([counter])
not_an_agent = 5
