"""Each wire over executors on DBOS and Temporal: a turn begins, waits for a person, is answered, and goes on."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from a2a.types import CancelTaskRequest
from openai import OpenAI

from helix_agents import AgentServer, DBOSAgentExecutor, TemporalAgentExecutor
from helix_agents.server.auth import bearer_tokens
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.server import test_a2a as a2a
from tests.server import test_agui as agui
from tests.server.agents import agents, gate
from tests.server.live import ANN, TOKENS, LiveServer, wait_until
from tests.server.mcp_clients import NEWER, OLDER, Raw, accept, events, opened

PUBLISHED = "I was told: published r-1."


@pytest.fixture(scope="module", params=["dbos", "temporal"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of each durable runtime."""
    url = f"sqlite:///{tmp_path_factory.mktemp('wires')}/helix.db"
    name = f"wires-{os.getpid()}"
    if request.param == "dbos":
        executor: Any = DBOSAgentExecutor.open(url, agents=agents, prefix=name)
    else:
        address = request.getfixturevalue("temporal_address")
        executor = TemporalAgentExecutor.open(url, agents=agents, address=address, task_queue=name, prefix=name)
    with LiveServer(AgentServer(executor, authenticate=bearer_tokens(TOKENS))) as live:
        yield live


@pytest.mark.parametrize("order", ["publish", "delegate"])
@pytest.mark.parametrize("mode", [OLDER, NEWER])
async def test_an_mcp_client_is_asked_during_its_call_and_gets_the_result(
    server: LiveServer, mode: str, order: str
) -> None:
    async with opened(server.url, mode, fill=lambda _: accept(approved=True)) as client:
        done = (await client.call_tool("director", {"message": order})).structured_content
    assert done["status"] == "completed"
    assert "published r-1" in done["text"]


async def test_an_mcp_client_that_asks_nobody_answers_later(server: LiveServer) -> None:
    async with opened(server.url) as client:
        asked = (await client.call_tool("director", {"message": "publish"})).structured_content
        assert asked["status"] == "waiting"
        answer = {"session_id": asked["session_id"], "approved": True}
        assert (await client.call_tool("session__answer", answer)).structured_content["text"] == PUBLISHED
        said = {"session_id": asked["session_id"], "message": "hello"}
        assert "You said: hello" in (await client.call_tool("director", said)).structured_content["text"]


def test_an_mcp_call_is_cancelled_and_continued(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    gate.shut(after=1)
    with raw.stream(raw.call("director", {"message": "search"})) as response:
        found = events(response.iter_lines())
        next(found)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert raw.post(cancelled).status_code == 202
        *_, (_, last) = found
    gate.open()
    stopped = last["result"]["structuredContent"]
    assert stopped["status"] == "stopped"
    more = raw.post(raw.call("session__continue", {"session_id": stopped["session_id"]}, 2))
    assert "page 1 about tides" in [*events(more.text.splitlines())][-1][1]["result"]["structuredContent"]["text"]


@pytest.mark.parametrize("background", [False, True])
def test_a_response_asks_for_an_approval_and_the_next_goes_on(server: LiveServer, background: bool) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key=ANN, max_retries=0) as client:

        def say(said: Any, **more: Any) -> Any:
            response = client.responses.create(model="director", input=said, background=background, **more)
            if background:
                wait_until(lambda: client.responses.retrieve(response.id).status != "in_progress")
            return client.responses.retrieve(response.id)

        asked = say("publish")
        [request] = [item for item in asked.output if item.type == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = say([answer], previous_response_id=asked.id)
        assert (done.status, done.output_text) == ("completed", PUBLISHED)
        stream = client.responses.create(model="director", input="hello", previous_response_id=done.id, stream=True)
        *_, last = stream
        assert last.type == "response.completed"
        assert "You said: hello" in last.response.output_text
        gate.shut(after=1)
        begun = client.responses.create(model="director", input="long story", background=True)
        assert client.responses.cancel(begun.id).status == "cancelled"


async def test_a_task_requires_input_and_goes_on(server: LiveServer, session_id: str) -> None:
    async with a2a.opened(server.url) as client:
        asked = await a2a.events(client.send_message(a2a.says("publish", "m-1", session_id)))
        assert a2a.state(asked[-1]) == "input_required"
        name = asked[0]["task"]["id"]
        answer = a2a.says("", "m-2", session_id, name, {"approved": True})
        done = await a2a.events(client.send_message(answer))
        assert (done[0]["task"]["id"], a2a.state(done[-1])) == (name, "completed")
        assert [*a2a.put_together(done).values()][-1] == PUBLISHED
        gate.shut(after=1)
        running = asyncio.create_task(a2a.events(client.send_message(a2a.says("long story", "m-3", session_id))))
        [task, _] = await a2a.listed(client, session_id, lambda tasks: len(tasks) == 2)
        assert (await client.cancel_task(CancelTaskRequest(id=task.id))).status.state == 5
        assert a2a.state((await running)[-1]) == "canceled"


def test_a_run_of_ag_ui_is_interrupted_and_goes_on(ann: httpx2.Client, session_id: str) -> None:
    order = {**agui.HELLO, "content": "publish"}
    _, asked = agui.run(ann, agui.asked(session_id, messages=[order]))
    [interrupt] = asked[-1]["outcome"]["interrupts"]
    answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    _, done = agui.run(ann, agui.asked(session_id, messages=[order], resume=answered))
    assert done[-1]["outcome"] == {"type": "success"}
    assert PUBLISHED in "".join(event["delta"] for event in done if event["type"] == "TEXT_MESSAGE_CONTENT")
