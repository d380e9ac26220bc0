"""Tools that share a typed state: the calls of one step run in parallel, and no change is lost."""

import asyncio
from typing import Annotated

from pydantic import BaseModel

from helix_agents import Agent, Executor, Merge, RetryTool, ScriptedModel, ToolContext, tool
from helix_agents.testing import call, reply


class Basket(BaseModel):
    items: list[str] = []
    spent: Annotated[float, Merge.SUM] = 0.0  # parallel calls add up; without Merge, the last one would win
    budget: float = 20.0


PRICES = {"tea": 4.0, "bread": 3.5, "cheese": 9.0}


@tool
async def add(ctx: ToolContext[Basket], item: str) -> str:
    """Put an item into the basket.

    Args:
        item: What to buy.
    """
    if item not in PRICES:
        raise RetryTool(
            f"unknown item {item!r}; choose from {', '.join(PRICES)}"
        )  # the model reads this and tries again
    ctx.state.items.append(item)  # recorded as an append, so no parallel call is lost
    ctx.state.spent += PRICES[item]
    return f"{item} costs {PRICES[item]}"


@tool
async def total(ctx: ToolContext[Basket]) -> str:
    """Add up the basket."""
    return f"{ctx.state.spent} of {ctx.state.budget}"


script = ScriptedModel(
    [
        reply(calls=[call("add", {"item": "tea"}), call("add", {"item": "beer"}), call("add", {"item": "bread"})]),
        reply(calls=[call("add", {"item": "cheese"})]),
        call("total"),
        "Tea, bread and cheese: 16.5 of 20.",
    ]
)
shopper = Agent(name="shopper", model=script, instructions="Shop for the user.", tools=[add, total], state=Basket)


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[shopper]) as helix:
        run = await helix.execute(shopper, "Breakfast, please", state=Basket(budget=20))
        print(await run.output())
        session = await helix.sessions.get(run.session_id)
        print(session.custom_state["items"], session.custom_state["spent"])


if __name__ == "__main__":
    asyncio.run(main())
