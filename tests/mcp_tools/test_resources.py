"""Resources and prompts of real MCP servers, over either transport."""

import re
from collections.abc import Iterator

import pytest

from helix_agents import Executor, MCPToolServer, UserMessage
from helix_agents.domain.errors import MCPRefusedError
from helix_agents.domain.messages import File, Image
from helix_agents.llm.scripted import Call
from helix_agents.testing import call, reply
from tests.mcp_tools.shelves import Shelf, agent_with, results
from tests.server.live import LiveServer, agent_server

LIST = call("shelf__list_resources")


def read(uri: str) -> Call:
    return call("shelf__read_resource", {"uri": uri})


async def test_a_model_lists_and_reads_resources(shelf: Shelf) -> None:
    addresses = ["book://tides", "book://pages/7", "book://cover", "book://lost"]
    script = [LIST, reply("All.", calls=[read(each) for each in addresses]), "Done."]
    agent = agent_with(shelf.server().resource_tools(), script)
    async with Executor.open("memory://", agents=[agent]) as helix:
        listed, tides, page, cover, lost = await results(helix, agent)
    assert {each["uri"] for each in listed.content["resources"]} == {"book://tides", "book://cover"}
    [about] = [each for each in listed.content["resources"] if each["uri"] == "book://tides"]
    assert about == {
        "uri": "book://tides",
        "name": "tides",
        "description": "About the sea.",
        "type": "text/plain",
    }
    assert [each["uri"] for each in listed.content["templates"]] == ["book://pages/{number}"]
    assert (tides.content, page.content) == ("The sea breathes.", "page 7")
    assert cover.parts == (Image(url="data:image/png;base64,iVBORw==", media_type="image/png", filename="cover"),)
    assert (lost.code, "refused the call" in lost.content) == ("tool_failed", True)


def test_the_tools_for_resources_need_no_catalogue_and_have_no_words_of_the_server(program: Shelf) -> None:
    listing, reading = program.server(catalogue="nowhere.json").resource_tools(require_approval=True)
    assert (listing.name, reading.name) == ("shelf__list_resources", "shelf__read_resource")
    assert (listing.effect, reading.effect) == ("repeatable", "repeatable")
    assert "sea" not in listing.description


async def test_resources_are_read_as_the_user_of_the_run(service: Shelf) -> None:
    server = service.server(run_headers=lambda ctx: {"authorization": f"Bearer token-{ctx.user_id}"})
    agent = agent_with(server.resource_tools(), [read("book://tides"), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        await results(helix, agent, user_id="ann")
    assert {*service.told("tokens")} == {"Bearer token-ann"}


async def test_a_prompt_is_what_a_turn_begins_with(shelf: Shelf) -> None:
    server = shelf.server()
    said = await server.prompt("review", {"title": "Tides"})
    assert said == (UserMessage(content="Review Tides."), UserMessage(content="Be brief."))
    agent = agent_with([], ["It is short."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        assert await (await helix.execute(agent, said)).output() == "It is short."
    with pytest.raises(MCPRefusedError, match="refused the request"):
        await server.prompt("nothing")
    with pytest.raises(MCPRefusedError, match=re.escape("words of the model")):
        await server.prompt("talk")
    await server.close()


async def test_what_a_prompt_shows_comes_with_it(service: Shelf) -> None:
    server = service.server()
    picture, paper, chapter = await server.prompt("show", {"what": "Tides"})
    assert picture.content == (Image(url="data:image/png;base64,iVBORw==", media_type="image/png"),)
    assert paper.content == (
        File(url="data:application/pdf;base64,JVBERg==", media_type="application/pdf", filename="paper"),
    )
    assert chapter.content == "The sea breathes."
    await server.close()


@pytest.fixture
def agents() -> Iterator[LiveServer]:
    """A server that has tools alone: the agents of this library."""
    with LiveServer(agent_server(authenticate=None, allow_unauthenticated=True)) as live:
        yield live


async def test_a_server_without_resources_says_so_to_the_model(agents: LiveServer) -> None:
    server = MCPToolServer("agents", url=f"{agents.url}/mcp")
    agent = agent_with(server.resource_tools(), [call("agents__list_resources"), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert result.code == "tool_failed"
    assert "MCP server 'agents' refused the call: Unknown method 'resources/list'" in result.content
