"""Memory across conversations: saved by the model or learned from a turn, and recalled for the same user only."""

import asyncio

from helix_agents import (
    Agent,
    Executor,
    HashingEmbedder,
    Memory,
    MemoryGeneration,
    MemoryManager,
    ScriptedModel,
    UserMessage,
)
from helix_agents.domain.recollections import is_recollection
from helix_agents.testing import ModelRequest, Step, call


def answer(request: ModelRequest) -> Step:
    """Saves what it should remember, or repeats what it was told about earlier conversations, without the dates."""
    if "Remember" in str(request.messages[-1]):
        return call("save_memory", {"text": "Has a nut allergy."})
    for message in request.messages:
        if isinstance(message, UserMessage) and is_recollection(message):
            return " ".join(line.partition(") ")[2] for line in str(message.content).splitlines() if line[:1] == "-")
    return "I know nothing about you."


def learn(request: ModelRequest) -> Step:
    """Finds in a conversation what is worth remembering."""
    return call("remember", {"save": ["Is called Ann."]}) if "I am Ann" in str(request.messages) else "Nothing new."


waiter = Agent(
    name="waiter",
    model=ScriptedModel(answer),
    memory=Memory(
        embedder=HashingEmbedder(),  # "openai:text-embedding-3-small" also knows what words mean
        generation=MemoryGeneration(model=ScriptedModel(learn, name="learner")),
    ),
)


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[waiter]) as helix:
        await (await helix.execute(waiter, "I am Ann. Remember that nuts are not for me!", user_id="ann")).output()
    async with Executor.open("sqlite:///helix.db", agents=[waiter]) as helix:  # another process, another day
        print("ann:", await (await helix.execute(waiter, "Is there a nut in the cake?", user_id="ann")).output())
        print("bob:", await (await helix.execute(waiter, "Is there a nut in the cake?", user_id="bob")).output())
    async with MemoryManager.open("sqlite:///helix.db") as memories:  # any program
        for each in await memories.list_memories("ann"):
            print(f"{each.source}: {each.text}")
        print("forgotten:", await memories.delete_all("ann"))


if __name__ == "__main__":
    asyncio.run(main())
