"""Tools of an MCP server, read from the catalogue beside this file; `helix tools sync` fetches it from the server."""

import asyncio
import sys
from pathlib import Path

from helix_agents import Agent, ApprovalAnswer, Executor, MCPToolServer, ScriptedModel, Suspended
from helix_agents.testing import call

STORE, SESSION = "sqlite:///helix.db", "library-1"

# Or url="https://library.example/mcp", with headers=… for its token. Nothing is started before a tool is called.
library = MCPToolServer("library", command=[sys.executable, str(Path(__file__).with_name("library.py"))])

script = ScriptedModel(
    [call("library__search", {"topic": "tides"}), call("library__borrow", {"title": "The Moon"}), "Enjoy the book."]
    * 100  # so that `helix chat examples/mcp_tools/app.py` can continue for a while
)
reader = Agent(
    name="reader",
    model=script,
    instructions="Find books, and borrow them.",
    tools=[*library.tools("search"), *library.tools("borrow", require_approval=True)],
)


async def main() -> None:
    async with Executor.open(STORE, agents=[reader]) as helix:
        result = await (await helix.execute(reader, "Something about tides, please", SESSION)).result()
    if not isinstance(result, Suspended):
        raise SystemExit(f"no approval was requested: {result}")
    [waiting] = result.pending
    print(f"may I {waiting.tool_name} {waiting.input}?")
    async with Executor.open(STORE, agents=[reader]) as helix:  # another process, days later
        await helix.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
        print(await (await helix.resume(reader, SESSION)).output())


if __name__ == "__main__":
    asyncio.run(main())
