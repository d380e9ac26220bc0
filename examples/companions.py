"""Companions: named agents that keep their conversation across turns, and that you can ask again by name."""

import asyncio

from helix_agents import (
    Agent,
    AssistantMessage,
    Executor,
    PersistentAgent,
    RoutingScriptedModel,
    SessionFilter,
    UserMessage,
)
from helix_agents.testing import ModelRequest, call


def remember(request: ModelRequest) -> str:
    """The companion answers with everything it has been told so far: it has its own conversation."""
    told = [str(message.content) for message in request.messages if isinstance(message, UserMessage)]
    return f"I was told: {'; '.join(told)}"


model = RoutingScriptedModel(
    {
        "boss": [
            call("companion__spawnAgent", {"agent": "scribe", "name": "eve", "initialMessage": "the budget is 100"}),
            "Eve has noted it.",
            call("companion__sendMessage", {"name": "eve", "message": "the budget is 120"}),
            "Eve has both.",
        ],
        "scribe": remember,
    }
)
scribe = Agent(name="scribe", description="Remembers things.", model=model)
boss = Agent(name="boss", model=model, persistent_agents=[PersistentAgent(scribe)])


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[boss]) as helix:
        first = await helix.execute(boss, "Note the budget: 100")
        print(await first.output())
    async with Executor.open("sqlite:///helix.db", agents=[boss]) as helix:  # another process, another day
        print(await (await helix.execute(boss, "It is 120 now", first.session_id)).output())
        [eve] = await helix.sessions.list(SessionFilter(parent_session_id=first.session_id))
        said = (await helix.sessions.messages(eve.session_id)).items[0]
        assert isinstance(said.message, AssistantMessage)
        print("eve:", said.message.text)


if __name__ == "__main__":
    asyncio.run(main())
