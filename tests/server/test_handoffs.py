"""A conversation that was handed over, as clients of a server meet it: under the agent that it began with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from helix_agents import (
    Agent,
    AgentClient,
    AgentServer,
    Completed,
    Executor,
    Handoff,
    ScriptedModel,
    ServedAgent,
    Suspended,
    ToolAnswer,
    client_tool,
)
from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import AgentMismatchError, RemoteRefusedError
from helix_agents.testing import call
from tests.server.live import LiveServer
from tests.server.page import Page


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def two(*script: Any) -> tuple[AnyAgent, AnyAgent]:
    model = ScriptedModel(list(script))
    back = Handoff("desk", description="All else.")
    billing: AnyAgent = Agent(name="billing", description="Money.", model=model, tools=[locate], handoffs=[back])
    return Agent(name="desk", model=model, handoffs=[billing]), billing


def serving(*agents: AnyAgent) -> LiveServer:
    return LiveServer(AgentServer(Executor.open("memory://", agents=agents), allow_unauthenticated=True))


@asynccontextmanager
async def served(*agents: AnyAgent) -> AsyncIterator[str]:
    live = await asyncio.to_thread(serving(*agents).__enter__)
    try:
        yield live.url
    finally:
        await asyncio.to_thread(live.__exit__)


HAND = call("handoff__billing", {"reason": "money"})


async def test_programs_go_on_with_the_agent_they_began_with_or_the_one_that_has_the_conversation() -> None:
    desk, billing = two(HAND, call("locate", {"city": "Rome"}, id="where"), "There.", "Again.", "And again.")
    other = Agent(name="other", model=ScriptedModel(["No."]))
    async with served(desk, billing, other) as url:
        async with AgentClient(url) as helix:
            at_desk, at_billing, at_other = (ServedAgent(name) for name in ("desk", "billing", "other"))
            run = await helix.execute(at_desk, "My invoice!", "s-1")
            assert isinstance(await run.result(), Suspended)
            await helix.submit_tool_result("s-1", "where", ToolAnswer(result="41.9 N"))
            assert isinstance(await (await helix.resume(at_billing, "s-1")).result(), Completed)
            assert await (await helix.execute(at_billing, "And?", "s-1")).output() == "Again."
            assert await (await helix.execute(at_desk, "And?", "s-1")).output() == "And again."
            for agent in (at_desk, at_billing):
                handle = await helix.get_handle(agent, "s-1")
                assert handle is not None
                assert await handle.output() == "And again."
            with pytest.raises(AgentMismatchError):
                await helix.get_handle(at_other, "s-1")
            with pytest.raises(RemoteRefusedError, match="agent_mismatch"):
                await helix.execute(at_other, "And you?", "s-1")
            [found] = (await helix.sessions.list()).items
            assert (found.agent_type, found.held_by, found.worked_by) == ("desk", "billing", "billing")
        async with httpx2.AsyncClient(base_url=url) as client:
            for path in ("/sessions/s-1", "/status?sessionId=s-1", "/result?sessionId=s-1"):
                told = (await client.get(path)).json()
                assert (told["agentType"], told["heldBy"]) == ("desk", "billing"), path
            for name, holders in (("desk", ["billing"]), ("billing", [])):
                listed = (await client.get("/sessions", params={"agentType": name})).json()["items"]
                assert [each["heldBy"] for each in listed] == holders
            used = (await client.get("/usage")).json()
            assert {each["agentType"] for each in used["items"]} == {"desk", "billing"}


def test_an_agent_that_is_only_handed_over_to_is_no_way_in() -> None:
    desk, _ = two(HAND, "Hello.")
    with serving(desk) as live, httpx2.Client(base_url=live.url) as client:
        said = {"agentType": "billing", "message": "Hello", "sessionId": "s-1"}
        assert client.post("/execute", json=said).status_code == 404
        begun = client.post("/execute", json={**said, "agentType": "desk"})
        assert begun.status_code == 200
        assert client.get("/result", params={"sessionId": "s-1", "wait": 20}).json()["output"] == "Hello."


def test_a_page_runs_the_client_tools_of_whoever_has_the_conversation() -> None:
    desk, _ = two(HAND, call("locate", {"city": "Rome"}, id="where"), "There.")
    with serving(desk) as live, httpx2.Client(base_url=live.url, timeout=30) as client:
        page = Page(client, "c-1").say("My invoice!")
        assert page.tool("handoff__billing")["state"] == "output-available"
        waiting = page.tool("locate")
        assert waiting["state"] == "input-available"
        again = client.get("/sessions/c-1/ui-messages").json()["items"]
        assert [part["state"] for part in again[-1]["parts"] if part["type"] == "tool-locate"] == ["input-available"]
        waiting.update(state="output-available", output="41.9 N")
        assert page.post().text == "There."


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, said: client.post(
            "/agui/desk",
            json={
                "threadId": "s-1",
                "runId": "x",
                "messages": [{"id": said, "role": "user", "content": said}],
                "tools": [],
                "context": [],
                "state": {},
                "forwardedProps": {},
            },
        ),
        lambda client, said: client.post("/v1/responses", json={"model": "desk", "input": said, "conversation": "s-1"}),
    ],
    ids=["AG-UI", "OpenAI"],
)
def test_other_wires_go_on_under_the_agent_that_it_began_with(
    ask: Callable[[httpx2.Client, str], httpx2.Response],
) -> None:
    desk, _ = two(HAND, "Hello.", "Hello again.")
    with serving(desk) as live, httpx2.Client(base_url=live.url, timeout=30) as client:
        client.post("/execute", json={"agentType": "desk", "message": "Hello", "sessionId": "s-1"})
        assert client.get("/result", params={"sessionId": "s-1", "wait": 20}).json()["output"] == "Hello."
        answer = ask(client, "And again?")
        assert answer.status_code == 200
        assert client.get("/sessions/s-1").json()["messageCount"] == 6
