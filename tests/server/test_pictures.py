"""Results and outputs with images over every protocol: each carries them legally, and no client is stopped by them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import GetTaskRequest, Message, Part, SendMessageRequest
from openai import OpenAI

from helix_agents import (
    Agent,
    AgentServer,
    Executor,
    File,
    HttpRemoteAgentTransport,
    Image,
    ScriptedModel,
    Text,
    client_tool,
    remote_agent_tool,
    tool,
)
from helix_agents.domain.chunks import ToolEnd
from helix_agents.domain.messages import ToolMessage
from helix_agents.server.agui.events import AGUIStream
from helix_agents.server.auth import bearer_tokens
from helix_agents.testing import call
from tests.server.agents import order_of
from tests.server.live import ANN, PATIENCE, TOKENS, LiveServer, bearer
from tests.server.mcp_clients import BOTH, opened
from tests.server.page import Page, events

MOON = Image.of(b"\x89PNG moon", "image/png", "moon.png")
PAPERS = File.of(b"%PDF-1.7", "application/pdf", "papers.pdf")
SOUND = File.of(b"sea", "audio/wav")
FAR = File(url="https://example.com/sun.pdf", media_type="application/pdf", filename="sun.pdf")
ALL = (Text(text="The moon:"), MOON, PAPERS, SOUND, FAR)
IN_JSON = [
    {"type": "text", "text": "The moon:"},
    {"type": "image", "url": MOON.url, "media_type": "image/png", "filename": "moon.png"},
    {"type": "file", "url": PAPERS.url, "media_type": "application/pdf", "filename": "papers.pdf"},
    {"type": "file", "url": SOUND.url, "media_type": "audio/wav"},
    {"type": "file", "url": FAR.url, "media_type": "application/pdf", "filename": "sun.pdf"},
]


@tool
async def look() -> list[Text | Image | File]:
    """Look at the sky."""
    return list(ALL)


@tool(finish_with=True)
async def draw() -> list[Text | Image | File]:
    """Draw the sky."""
    return list(ALL)


@client_tool
def capture() -> Image:
    """Take a picture of the page."""
    raise NotImplementedError


def _see(request: Any) -> Any:
    """A model that says how many images and files it was shown, or calls the tool it is told to."""
    match request.messages[-1]:
        case ToolMessage(parts=parts):
            return f"I see {sum(not isinstance(part, Text) for part in parts)}."
        case _:
            return call(order_of(request))


def _pictures() -> AgentServer:
    eye = Agent(name="eye", description="Looks.", model=ScriptedModel(_see), tools=[look, capture])
    painter = Agent(
        name="painter",
        description="Draws.",
        model=ScriptedModel(lambda request: call("draw")),
        tools=[draw],
        output=list[Text | Image | File],
    )
    executor = Executor.open("memory://", agents=[eye, painter])
    return AgentServer(executor, authenticate=bearer_tokens(TOKENS))


@pytest.fixture(scope="module")
def pictures() -> Iterator[LiveServer]:
    with LiveServer(_pictures()) as live:
        yield live


@pytest.fixture
def viewer(pictures: LiveServer) -> Iterator[httpx2.Client]:
    with pictures.client() as client:
        yield client


def asked(viewer: httpx2.Client, session_id: str, order: str) -> Page:
    page = Page(viewer, session_id)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": order}]})
    return page.post(agent="eye")


def test_a_chat_page_is_given_a_result_as_a_list_of_parts(viewer: httpx2.Client, session_id: str) -> None:
    page = asked(viewer, session_id, "look")
    assert page.tool("look")["output"] == IN_JSON
    assert page.text == "I see 4."
    # The same message sent again is answered from what is stored.
    assert asked(viewer, session_id, "look").tool("look")["output"] == IN_JSON


def test_a_chat_page_answers_with_an_image(viewer: httpx2.Client, session_id: str) -> None:
    page = asked(viewer, session_id, "capture")
    part = page.tool("capture")
    part |= {"state": "output-available", "output": {"type": "image", "url": MOON.url}}
    page.post(agent="eye")
    assert page.text == "I see 1."


def test_ag_ui_carries_a_result_as_text_live_and_stored(viewer: httpx2.Client, session_id: str) -> None:
    about: dict[str, Any] = {"session_id": "s", "run_id": "r", "agent_type": "eye"}
    end = ToolEnd(**about, tool_call_id="call_1", tool_name="look", result=IN_JSON, in_parts=True)
    [live] = AGUIStream().feed(end)
    assert (live["type"], json.loads(live["content"])) == ("TOOL_CALL_RESULT", IN_JSON)
    message = {"id": "m-1", "role": "user", "content": "look"}
    body = {"threadId": session_id, "runId": "r", "messages": [message], "tools": [], "context": []}
    for _ in range(2):
        with viewer.stream("POST", "/agui/eye", json=body) as answer:
            told = [event["data"] for event in events(answer.iter_lines())]
        assert (told[0]["type"], told[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
    [stored] = [event for event in told if event["type"] == "MESSAGES_SNAPSHOT"]
    [result] = [each for each in stored["messages"] if each["role"] == "tool"]
    assert json.loads(result["content"]) == IN_JSON


def test_openai_clients_read_a_result_as_text_and_answer_with_images(pictures: LiveServer) -> None:
    client = OpenAI(base_url=f"{pictures.url}/v1", api_key=ANN, max_retries=0)
    seen = client.responses.create(model="eye", input="look")
    [made] = [item for item in seen.output if item.type == "mcp_call"]
    assert json.loads(made.output or "") == IN_JSON
    assert seen.output_text == "I see 4."
    asked = client.responses.create(model="eye", input="capture")
    [wanted] = [item for item in asked.output if item.type == "function_call"]
    output: Any = [{"type": "input_image", "image_url": MOON.url, "detail": "auto"}]
    answer: Any = {"type": "function_call_output", "call_id": wanted.call_id, "output": output}
    told = client.responses.create(model="eye", input=[answer], previous_response_id=asked.id)
    assert told.output_text == "I see 1."


async def test_an_a2a_artifact_has_the_parts_of_an_output(pictures: LiveServer) -> None:
    async with httpx.AsyncClient(headers=bearer(ANN), timeout=PATIENCE) as http:
        card = await A2ACardResolver(http, f"{pictures.url}/a2a/painter").get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        said = Message(message_id="m-1", role="ROLE_USER", parts=[Part(text="Draw")])
        [done] = [event async for event in client.send_message(SendMessageRequest(message=said))]
        task = await client.get_task(GetTaskRequest(id=done.task.id))
        [artifact] = [each for each in task.artifacts if each.name == "output"]
        kinds = [(part.WhichOneof("content"), part.media_type, part.filename) for part in artifact.parts]
        assert kinds == [
            ("text", "", ""),
            ("raw", "image/png", "moon.png"),
            ("raw", "application/pdf", "papers.pdf"),
            ("raw", "audio/wav", ""),
            ("url", "application/pdf", "sun.pdf"),
        ]
        assert artifact.parts[1].raw == b"\x89PNG moon"


@pytest.mark.parametrize("mode", BOTH)
async def test_an_mcp_client_is_given_the_images_of_an_output(pictures: LiveServer, mode: str) -> None:
    async with opened(pictures.url, mode) as client:
        result = await client.call_tool("painter", {"message": "Draw"})
    assert not result.is_error
    blocks: list[Any] = list(result.content)
    text, image, papers, sound, far, _ = blocks
    assert (text.type, text.text) == ("text", "The moon:")
    assert (image.type, image.mime_type) == ("image", "image/png")
    assert image.data == MOON.url.partition(",")[2]
    assert (papers.type, papers.resource.mime_type) == ("resource", "application/pdf")
    assert papers.resource.blob == PAPERS.url.partition(",")[2]
    assert (sound.type, sound.mime_type) == ("audio", "audio/wav")
    assert (far.type, far.uri, far.name) == ("resource_link", FAR.url, "sun.pdf")
    assert result.structured_content["output"] == IN_JSON


async def test_a_remote_agents_results_are_read_here_as_parts_if_they_are(pictures: LiveServer) -> None:
    transport = HttpRemoteAgentTransport(pictures.url, headers=bearer(ANN))
    far = remote_agent_tool(transport, "eye", description="Looks.")
    script = [call("subagent__eye", {"message": "look"}), "Done."]
    agent = Agent(name="here", model=ScriptedModel(script), tools=[far])
    async with Executor.open("memory://", agents=[agent]) as helix:
        run = await helix.execute(agent, "Look", session_id="s")
        ends = [chunk async for chunk in run.stream() if isinstance(chunk, ToolEnd)]
        assert await run.output() == "Done."
    [looked] = [end for end in ends if end.tool_name == "look"]
    assert looked.in_parts
    assert looked.result == IN_JSON
