"""A page of a session in which very many calls were answered shows all of them as they are."""

from helix_agents import Agent, Executor, ScriptedModel, client_tool, tool
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import ToolAnswer
from helix_agents.llm.scripted import call, reply
from helix_agents.server.chat.turns import read_conversation

MANY = 205


@tool(require_approval=True)
async def publish(number: int) -> str:
    """Publish."""
    return f"published {number}"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


async def test_every_call_that_was_asked_about_is_known_to_the_page() -> None:
    asking = reply(calls=[call("publish", {"number": number}, id=f"call_{number}") for number in range(MANY)])
    agent = Agent(name="desk", model=ScriptedModel([asking, "Done."]), tools=[publish])
    async with Executor.open("memory://long-conversation", agents=[agent]) as helix:
        await (await helix.execute(agent, "Go", "s-1")).result()
        conversation = await read_conversation(helix, "s-1")
        assert conversation.rows.keys() == {f"call_{number}" for number in range(MANY)}


async def test_every_call_of_a_sub_agent_is_shown_with_its_result() -> None:
    asking = reply(calls=[call("locate", {"city": str(number)}, id=f"call_{number}") for number in range(MANY)])
    child = Agent(name="child", description="Asks.", model=ScriptedModel([asking, "Asked."]), tools=[locate])
    agent = Agent(
        name="desk",
        model=ScriptedModel([call("subagent__child", {"message": "Ask"}), "Done."]),
        tools=[child.as_tool()],
    )
    async with Executor.open("memory://long-sub-conversation", agents=[agent]) as helix:
        await (await helix.execute(agent, "Go", "s-1")).result()
        for waiting in await whole_list(lambda offset: helix.list_pending(offset=offset, limit=MAX_LIMIT)):
            await helix.submit_tool_result("s-1", waiting.tool_call_id, ToolAnswer(result="here"))
        await (await helix.resume(agent, "s-1")).result()
        conversation = await read_conversation(helix, "s-1")
        assert len(conversation.children) == MANY
        assert all(child.result is not None for child in conversation.children)
