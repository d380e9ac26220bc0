"""One process of a conversation that uses the shelf: `python reading_room.py STORE FOLDER TOOL PHASE`."""

import asyncio
import sys
from pathlib import Path

from helix_agents import Agent, ApprovalAnswer, EngineOptions, Executor, MCPToolServer, ScriptedModel, ToolAnswer
from helix_agents.testing import call

STORE, FOLDER, TOOL, PHASE = sys.argv[1:]
shelf = MCPToolServer(
    "shelf",
    command=[sys.executable, str(Path(__file__).with_name("shelf.py")), FOLDER],
    catalogue=Path(FOLDER) / "shelf.mcp.json",
)
CALLS = {
    "burn": call("shelf__burn", {"title": "Tides"}),
    "order": call("shelf__order", {"title": "Tides"}),
    "lend": call("shelf__lend", {"name": "Tides"}),
}
tools = (*shelf.tools(exclude=["order"]), *shelf.tools("order", require_approval=True))
reader = Agent(name="reader", model=ScriptedModel([CALLS[TOOL], "Done."]), tools=tools)


async def main() -> None:
    quick = {"lease_ms": 500, "options": EngineOptions(effect_lease_ms=500), "janitor_seconds": None}
    async with Executor.open(STORE, agents=[reader], **quick) as helix:
        if PHASE == "begin":
            result = await (await helix.execute(reader, "Go on", "s-1")).result()
        else:
            if PHASE == "recover":
                while not (await helix.recover()).run_ids:  # noqa: ASYNC110  # the lease of the dead has to run out
                    await asyncio.sleep(0.05)
                await helix.idle()
            [waiting] = (await helix.list_pending()).items
            print(waiting.reason or waiting.kind, waiting.tool_name, waiting.input)
            answer = ApprovalAnswer(approved=True) if PHASE == "answer" else ToolAnswer(result="it is lent")
            await helix.submit_tool_result("s-1", waiting.tool_call_id, answer)
            result = await (await helix.resume(reader, "s-1")).result()
        print(result.status)


asyncio.run(main())
