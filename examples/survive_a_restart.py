"""A process gets kill -9 in the middle of a step, and another one continues the same run: no letter is sent twice."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.testing import call, reply

STORE, SESSION, LETTERS = "sqlite:///helix.db", "order-1", Path("letters.txt")


@tool(effect="once")  # announced before it runs and recorded after: it never silently runs twice
def send_letter(to: str) -> str:
    """Send a letter; a second one would be embarrassing."""
    with LETTERS.open("a") as letters:
        letters.write(f"{to}\n")
    return f"sent to {to}"


@tool
def look_up(order: str) -> str:
    """Look up an order in a slow archive."""
    if "--dies" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # no warning, no clean-up
    return f"{order} is on its way"


def letters_sent() -> list[str]:
    return LETTERS.read_text().split()


script = ScriptedModel(
    [
        reply("I will write to Ann first.", calls=[call("send_letter", {"to": "Ann"})]),
        reply("Now the order.", calls=[call("look_up", {"order": "order-1"})]),
        "Ann has her letter, and the order is on its way.",
    ]
)
clerk = Agent(name="clerk", model=script, tools=[send_letter, look_up])


async def work() -> None:
    """What a worker does: start the conversation, or continue what a dead worker left.

    A dead process counts as alive until its lease expires; then the janitor of any other process continues its runs.
    Lease and janitor interval are short here, so that you do not have to wait.
    """
    async with Executor.open(STORE, agents=[clerk], lease_ms=1_000, janitor_seconds=0.2) as helix:
        run = await helix.get_handle(clerk, SESSION)
        if run is None:
            run = await helix.execute(clerk, "Where is order-1?", SESSION)
        print(await run.output())
        [record] = (await helix.sessions.runs(SESSION)).items
        print(f"one run, attempt {record.attempt}")


async def forget() -> None:
    """Start over, so that you can run this again in the same folder."""
    async with Executor.open(STORE) as helix:
        await helix.sessions.delete(SESSION)


async def main() -> None:
    await forget()
    worker = await asyncio.create_subprocess_exec(sys.executable, __file__, "--dies")
    print("the first process ended with", signal.Signals(-await worker.wait()).name)
    await work()
    print("letters sent to", *letters_sent())


if __name__ == "__main__":
    if "--dies" in sys.argv:
        asyncio.run(work())
    else:
        LETTERS.unlink(missing_ok=True)
        asyncio.run(main())
