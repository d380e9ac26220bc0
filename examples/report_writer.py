"""A writer with tools, state, an approval and a structured result that is checked, in one file.

It runs without a key, on a model that follows a script. Set HELIX_MODEL, for example to "anthropic:claude-sonnet-4-5",
to use a real one.
"""

import asyncio
import os

from pydantic import BaseModel

from helix_agents import (
    Agent,
    Completed,
    Executor,
    Failed,
    Interrupted,
    RetryOutput,
    RunContext,
    ScriptedModel,
    Suspended,
    ToolContext,
    tool,
)
from helix_agents.testing import call, finish, reply


class Notes(BaseModel):
    queries: list[str] = []


class Report(BaseModel):
    title: str
    body: str


@tool
async def search(ctx: ToolContext[Notes], query: str) -> list[str]:
    """Search the archive."""
    ctx.state.queries.append(query)  # recorded as an append, so it merges with parallel tools
    return [f"a page about {query}"]


@tool(require_approval=True)
async def publish(report_id: str) -> str:
    """Publish a finished report."""
    return f"published {report_id}"


async def researched(ctx: RunContext[Notes], report: Report) -> None:
    """Accepts no report on what was never looked up."""
    if not ctx.state.queries:
        raise RetryOutput("Search the archive before you write.")


SCRIPT = ScriptedModel(
    [
        finish({"title": "Tides", "body": "The sea is wet."}),  # sent back
        reply(
            text="Let me look that up. ", calls=[call("search", {"query": "tides"}), call("search", {"query": "moon"})]
        ),
        finish({"title": "Tides", "body": "The sea breathes twice a day."}),
    ]
)

writer = Agent(
    name="writer",
    model=os.environ.get("HELIX_MODEL") or SCRIPT,
    instructions="Write short reports.",
    tools=[search, publish],
    state=Notes,
    output=Report,
    output_checks=[researched],
)


async def main(url: str | None = None) -> None:
    """Run the writer on a store: by default, a SQLite file in the current directory."""
    async with Executor.open(url, agents=[writer]) as helix:  # or postgresql://…, redis://…, memory://
        run = await helix.execute(writer, "Write about tides")
        async for text in run.text():
            print(text, end="", flush=True)
        match await run.result():
            case Completed(output=report):
                print(report.title)  # your editor knows that this is a Report
            case Suspended(pending=calls):
                print([waiting.tool_name for waiting in calls])
            case Interrupted() | Failed() as other:
                print(other)


if __name__ == "__main__":
    asyncio.run(main())
