"""A page is closed mid-answer and opened again: a snapshot shows where it was, and the stream continues from there."""

import asyncio

from helix_agents import Agent, AssistantMessage, Executor, ScriptedModel, StreamChunk
from helix_agents.domain.chunks import TextDelta

STORY = "The sea breathes twice a day, and the moon is the one who asks it to."

may_go_on = asyncio.Event()
may_go_on.set()


pieces: list[object] = []


async def pace(event: object) -> None:
    """Every piece of the answer after the first can be held here, so that the page closes in the middle of it."""
    pieces.append(event)
    if len(pieces) > 1:
        await may_go_on.wait()


poet = Agent(name="poet", model=ScriptedModel([STORY], pace=pace))


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[poet]) as helix:
        may_go_on.clear()
        run = await helix.execute(poet, "A line about tides")
        async for chunk in run.stream():
            if isinstance(chunk, TextDelta):
                print(f"the page shows {chunk.delta!r} and is closed")
                break

        # The page is opened again, in any process. Its snapshot has what is committed, what is on its way, and the
        # sequence number to read on from.
        page = await helix.sessions.snapshot(run.session_id)
        again = await helix.get_handle(poet, run.session_id)
        assert again is not None
        may_go_on.set()
        later: list[StreamChunk] = [chunk async for chunk in again.stream(from_sequence=page.sequence)]

        shown = page.render(later)[-1]
        assert isinstance(shown, AssistantMessage)
        print(shown.text)
        numbers = [chunk.sequence for chunk in (*page.chunks, *later)]
        print("every number once:", numbers == sorted(set(numbers)))


if __name__ == "__main__":
    asyncio.run(main())
