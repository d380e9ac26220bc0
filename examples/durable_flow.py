"""A function decides the steps: its process gets kill -9 in the middle, and another one goes on after the last call."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from helix_agents import Agent, Executor, FlowRun, ScriptedModel, flow, tool

STORE, SESSION, LEDGER = "sqlite:///helix.db", "order-7", Path("ledger.txt")


@tool
async def in_stock(item: str) -> int:
    """Count what is there."""
    return {"tea": 3, "milk": 9}.get(item, 0)


@tool(effect="once")  # announced before it runs and recorded after: it never silently runs twice
def charge(customer: str, cents: int) -> str:
    """Take the money."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{customer} {cents}\n")
    return f"{customer} paid {cents}"


@tool
def pack(item: str) -> str:
    """Pack an item, in a process that may die of it."""
    if "--dies" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # no warning, no clean-up
    return f"{item} is packed"


poet = Agent(name="poet", model=ScriptedModel(["Tea in, worries out."]), instructions="One line for the parcel.")


@flow(tools=[in_stock, charge, pack], agents=[poet])
async def order(run: FlowRun, customer: str) -> str:
    """Fulfil an order of tea and milk."""
    tea, milk = await asyncio.gather(run.call(in_stock, "tea"), run.call(in_stock, "milk"))
    if min(tea, milk) == 0:
        return "sold out"
    paid = await run.call(charge, customer, cents=450)
    packed = [await run.call(pack, item) for item in ("tea", "milk")]
    return f"{paid}; {', '.join(packed)}; {await run.ask(poet, 'Something about tea')}"


async def work() -> None:
    """What a worker does: start the order, or continue what a dead worker left.

    A dead process counts as alive until its lease expires; lease and janitor interval are short here, so that you do
    not have to wait.
    """
    async with Executor.open(STORE, agents=[order], lease_ms=1_000, janitor_seconds=0.2) as helix:
        run = await helix.get_handle(order, SESSION) or await helix.execute(order, "Ann", SESSION)
        print(await run.output())


async def main() -> None:
    async with Executor.open(STORE) as helix:
        await helix.sessions.delete(SESSION)  # so that you can run this again in the same folder
    worker = await asyncio.create_subprocess_exec(sys.executable, __file__, "--dies")
    print("the first process ended with", signal.Signals(-await worker.wait()).name)
    await work()


if __name__ == "__main__":
    if "--dies" in sys.argv:
        asyncio.run(work())
    else:
        LEDGER.unlink(missing_ok=True)
        asyncio.run(main())
        print("in the ledger:", LEDGER.read_text().strip())
