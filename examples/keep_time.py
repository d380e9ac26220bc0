"""A schedule in the store: two executors follow it, and each of its times starts one turn."""

import asyncio
from datetime import UTC, datetime, timedelta

from helix_agents import Agent, AssistantMessage, Executor, ScriptedModel

STORE = "sqlite:///helix.db"
watchman = Agent(
    name="watchman", model=ScriptedModel(lambda request: f"All quiet, round {len(request.messages) // 2 + 1}.")
)


async def main() -> None:
    session = f"rounds-{datetime.now(UTC):%H%M%S%f}"
    async with (
        Executor.open(STORE, agents=[watchman]) as one,
        Executor.open(STORE, agents=[watchman]),  # as a second process would: it looks at the same schedule
    ):
        # Safe in every process and after every deploy: setting the same schedule again changes nothing.
        await one.schedules.set("rounds", watchman, "Do your round", every=timedelta(seconds=1), session_id=session)
        rounds = 0
        while rounds < 3:
            await asyncio.sleep(0.1)
            schedule = await one.schedules.find("rounds")
            rounds = schedule.times if schedule else 0
        await one.schedules.delete("rounds")
        await one.idle()
        for stored in reversed((await one.sessions.messages(session)).items):
            if isinstance(stored.message, AssistantMessage):
                print(stored.message.text)


if __name__ == "__main__":
    asyncio.run(main())
