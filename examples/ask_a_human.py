"""A run that needs people: an approval, a question and a client tool. Nothing waits in memory for any of them."""

import asyncio

from helix_agents import (
    Agent,
    ApprovalAnswer,
    Completed,
    Executor,
    PendingCall,
    RunResult,
    ScriptedModel,
    Suspended,
    ToolAnswer,
    ask_human,
    client_tool,
    tool,
)
from helix_agents.testing import call, reply

STORE, SESSION = "sqlite:///helix.db", "trip-1"


@client_tool(deadline=3600)
def where_are_you() -> str:
    """Ask the app where the traveller is; the app runs this, not the server."""
    raise NotImplementedError


@tool(require_approval=lambda given, ctx: given["price"] > 100)
def book(train: str, price: float) -> str:
    """Book a train; expensive ones need approval."""
    return f"booked {train}"


script = ScriptedModel(
    [
        reply("Two things first.", calls=[call("where_are_you"), call("ask_human", {"question": "Window or aisle?"})]),
        reply("I found one.", calls=[call("book", {"train": "night train", "price": 120})]),
        "Your seat is booked.",
    ]
    * 100  # so that `helix chat examples/ask_a_human.py` can continue for a while
)
agent = Agent(
    name="travel", model=script, instructions="Book trips.", tools=[where_are_you, ask_human(), book], max_steps=10
)


def answer_to(waiting: PendingCall) -> ApprovalAnswer | ToolAnswer:
    """What a person or an app answers; each answer may come from another process, days later."""
    match waiting.kind:
        case "approval":
            return ApprovalAnswer(approved=True, reason="it is a long way")
        case "question":
            return ToolAnswer(result="window")
        case "client_tool":
            return ToolAnswer(result="Lisbon")


async def main() -> None:
    result: RunResult[str] | None = None
    while result is None or isinstance(result, Suspended):
        async with Executor.open(STORE, agents=[agent]) as helix:  # a new one each time: only the store is shared
            if result is None:
                run = await helix.execute(agent, "To Vienna, please", SESSION)
            else:
                for waiting in result.pending:
                    print(f"{waiting.kind}: {waiting.tool_name} {waiting.input or ''}")
                    await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
                run = await helix.resume(agent, SESSION)
            result = await run.result()
    print(result.output if isinstance(result, Completed) else result)


if __name__ == "__main__":
    asyncio.run(main())
