"""MCP's own client, unmodified, against a live server."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import BaseModel, Field, RootModel

from helix_agents import Agent, AgentServer, Executor, ScriptedModel, ask_human
from helix_agents.domain.chunks import (
    ProviderToolEnd,
    ProviderToolStart,
    StepCommitted,
    StepDiscarded,
    TextDelta,
    ToolStart,
)
from helix_agents.llm.scripted import reply
from helix_agents.mcp_tools.tools import IDEMPOTENCY_KEY as OURS_SENDS
from helix_agents.server.mcp.progress import Progress
from helix_agents.server.mcp.requests import IDEMPOTENCY_KEY
from helix_agents.server.mcp.serving import followed_here
from helix_agents.testing import call
from tests.server.agents import gate
from tests.server.live import ANN, BEN, PATIENCE, Address, Instance, LiveServer, agent_server, bearer, wait_until
from tests.server.mcp_clients import BOTH, NEWER, OLDER, Raw, accept, events, last_message, opened, result_of, texts

COMPANIONS = ["session__pending", "session__answer", "session__continue", "session__stop"]


class Age(RootModel[int]):
    root: int = Field(ge=0)


class Line(BaseModel):
    wording: str = Field(alias="text")


class Poem(BaseModel):
    title: str
    lines: list[Line]


def asks_and_writes() -> AgentServer:
    """Agents that ask a person, and one that produces more than text."""
    kind = ask_human(question="Which metre?", options=["iamb", "trochee"], name="which")
    age = ask_human(question="How old?", answer=Age, name="age")

    class Place(BaseModel):
        city: str
        floor: int

    where = ask_human(question="Where?", answer=Place, name="where")
    whole = ask_human(question="Which numbers?", answer=list[int], name="numbers")
    written = {"title": "Tides", "lines": [{"text": "In and out."}]}
    asked = [call(name, {}) for name in ("which", "age", "where", "numbers")]
    return AgentServer(
        Executor.open(
            "memory://",
            agents=[
                Agent(name="poet", description="Writes poems.", model=ScriptedModel([call("__finish__", written)]),
                      output=Poem),
                Agent(name="curious", model=ScriptedModel([reply(calls=asked), "Thanks."]),
                      tools=[kind, age, where, whole]),
            ],
        ),
        allow_unauthenticated=True,
    )  # fmt: skip


@pytest.fixture
def asking() -> Iterator[LiveServer]:
    with LiveServer(asks_and_writes()) as live:
        yield live


@pytest.fixture
def alone() -> Iterator[LiveServer]:
    """A server to which nobody else said anything."""
    with LiveServer(agent_server()) as live:
        yield live


async def read(server: LiveServer, path: str, token: str | None = ANN) -> Any:
    async with httpx2.AsyncClient(base_url=server.url, headers={} if token is None else bearer(token)) as client:
        return (await client.get(path)).json()


async def until(server: LiveServer, path: str, holds: Callable[[Any], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await read(server, path)
            if holds(found):
                return found
            await asyncio.sleep(0)


async def test_each_agent_is_a_tool_and_has_an_address_of_its_own(server: LiveServer, asking: LiveServer) -> None:
    for mode in BOTH:
        async with opened(server.url, mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*tools] == ["director", *COMPANIONS]
        assert tools["director"].input_schema["required"] == ["message"]
        assert "session_id" in tools["director"].input_schema["properties"]
    # A client that finds out by itself which version is spoken.
    async with opened(asking.url, "auto", path="/mcp/poet") as client:
        assert client.protocol_version == NEWER
        assert client.server_info is not None
        assert client.server_info.name == "helix-agents"
        poet, *others = (await client.list_tools()).tools
        assert (poet.name, poet.description) == ("poet", "Writes poems.")
        assert [tool.name for tool in others] == COMPANIONS
        with pytest.raises(MCPError, match="Unknown tool 'curious'"):
            await client.call_tool("curious", {"message": "hello"})


def test_progress_is_told_in_pieces_that_can_be_read() -> None:
    head: dict[str, Any] = {"session_id": "s", "run_id": "r", "agent_type": "a"}
    progress = Progress()

    def told(*chunks: Any) -> list[str]:
        return [message for chunk in chunks if (message := progress.feed(chunk)) is not None]

    words = [TextDelta(delta=delta, **head) for delta in ("One ", "two.", "\n", "x" * 40, "y" * 40, "rest")]
    assert told(*words) == ["One two.", "x" * 40 + "y" * 40]
    assert told(ToolStart(tool_call_id="c", tool_name="search", **head)) == ["rest\nRunning search."]
    discarded = StepDiscarded(from_sequence=1, to_sequence=2, **head)
    assert told(TextDelta(delta="no", **head), discarded) == ["Starting the last step over."]
    committed = StepCommitted(step_id="s", checkpoint_id="c", message_count=2, **head)
    assert told(TextDelta(delta="yes", **head), committed) == ["yes"]
    about = {"tool_call_id": "ws", "tool_name": "web_search", **head}
    assert told(ProviderToolStart(**about), ProviderToolEnd(**about), ProviderToolEnd(**about, error=True)) == [
        "Running web_search.",
        "web_search has ended.",
        "web_search has failed.",
    ]
    assert told(TextDelta(delta="below\n", parent_tool_call_id="c", **head)) == []


@pytest.mark.parametrize("mode", BOTH)
async def test_a_call_is_a_turn_that_the_next_call_continues(server: LiveServer, mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with opened(server.url, mode) as client:
        first = await client.call_tool("director", {"message": "search"}, progress_callback=hear)
        data = first.structured_content
        assert (data["status"], data["agent"]) == ("completed", "director")
        assert "page 1 about tides" in data["text"]
        assert data["text"] in texts(first)
        assert data["session_id"] in texts(first)
        again = await client.call_tool("director", {"message": "hello", "session_id": data["session_id"]})
    assert again.structured_content["session_id"] == data["session_id"]
    assert "You said: hello" in again.structured_content["text"]
    assert "Let me see.\nRunning search." in [message for _, message in told]
    counted = [progress for progress, _ in told]
    assert counted == sorted(set(counted))
    assert (await read(server, f"/sessions/{data['session_id']}"))["messageCount"] == 6


async def test_typed_output_is_data_that_the_client_checks(asking: LiveServer) -> None:
    async with opened(asking.url) as client:
        result = await client.call_tool("poet", {"message": "Write."})
    assert result.structured_content["output"] == {"title": "Tides", "lines": [{"wording": "In and out."}]}
    assert "In and out." in texts(result)


@pytest.mark.parametrize("mode", BOTH)
async def test_a_client_that_asks_nobody_is_told_what_waits_and_answers_later(server: LiveServer, mode: str) -> None:
    async with opened(server.url, mode) as client:
        asked = await client.call_tool("director", {"message": "both"})
        data = asked.structured_content
        assert (data["status"], asked.is_error) == ("waiting", False)
        approval, where = data["pending"]
        assert (approval["kind"], approval["tool_name"], approval["input"]) == (
            "approval", "publish", {"report_id": "r-1"},
        )  # fmt: skip
        assert where["kind"] == "client_tool"
        assert approval["tool_call_id"] in texts(asked)
        assert "session__answer" in texts(asked)
    session = {"session_id": data["session_id"]}
    async with opened(server.url, mode) as other:
        listed = await other.call_tool("session__pending", session)
        assert [item["tool_call_id"] for item in reversed(listed.structured_content["items"])] == [
            approval["tool_call_id"], where["tool_call_id"],
        ]  # fmt: skip
        everywhere = await other.call_tool("session__pending", {})
        assert {item["tool_name"] for item in listed.structured_content["items"]} <= {
            item["tool_name"] for item in everywhere.structured_content["items"]
        }
        for wrong, why in (
            ({"approved": True}, "Several calls wait"),
            ({"tool_call_id": approval["tool_call_id"], "result": "yes"}, "approved: true or false"),
            ({"tool_call_id": where["tool_call_id"], "approved": True}, "a result or an error"),
            ({"tool_call_id": "call_x", "result": "yes"}, "No call 'call_x' waits"),
            ({"tool_call_id": where["tool_call_id"], "result": 3}, "valid string"),
            ({"verdict": True}, "unknown field"),
        ):
            refused = await other.call_tool("session__answer", {**session, **wrong})
            assert refused.is_error
            assert why in texts(refused)
        busy = await other.call_tool("director", {"message": "hello", **session})
        assert busy.is_error
        assert "waits for an answer to publish, locate" in texts(busy)
        yes = {**session, "tool_call_id": approval["tool_call_id"], "approved": True, "reason": "fine"}
        once = await other.call_tool("session__answer", yes)
        assert [each["tool_name"] for each in once.structured_content["pending"]] == ["locate"]
        done = await other.call_tool("session__answer", {**session, "result": "at home"})
        assert "published r-1; at home" in done.structured_content["text"]
        again = await other.call_tool("session__answer", yes)
        assert again.structured_content == done.structured_content
        nothing = await other.call_tool("session__answer", {**session, "result": "at home"})
        assert nothing.is_error
        assert "Nothing waits" in texts(nothing)


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (accept(approved=True), "published r-1"),
        (accept(approved=True, edited_input='{"report_id": "r-2"}'), "published r-2"),
        (accept(approved=False, reason="not today"), "not today"),
        (types.ElicitResult(action="decline"), "was not approved"),
    ],
)
async def test_a_person_at_the_client_decides_and_the_call_goes_on(
    server: LiveServer, mode: str, given: types.ElicitResult, text: str
) -> None:
    asked: list[str] = []

    def fill(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(params.message)
        return given

    async with opened(server.url, mode, fill=fill) as client:
        result = await client.call_tool("director", {"message": "delegate"})
    assert asked == ['May publish run with {"report_id":"r-1"}?']
    assert result.structured_content["status"] == "completed"
    assert text in result.structured_content["text"]


@pytest.mark.parametrize("mode", BOTH)
async def test_a_question_is_a_form_with_the_fields_of_its_answer(asking: LiveServer, mode: str) -> None:
    forms: dict[str, Any] = {}

    def fill(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        forms[params.message] = params.requested_schema["properties"]
        answers: dict[str, Any] = {
            "Which metre?": {"answer": "trochee"},
            "How old?": {"answer": 7},
            "Where?": {"city": "Rome", "floor": 2},
            "Which numbers?": {"answer": "[1, 2]"},
        }
        return accept(**answers[params.message])

    async with opened(asking.url, mode, fill=fill) as client:
        result = await client.call_tool("curious", {"message": "Hello."})
    assert result.structured_content["text"] == "Thanks."
    said = (await read(asking, f"/sessions/{result.structured_content['session_id']}/messages", None))["items"]
    assert forms["Which metre?"]["answer"]["enum"] == ["iamb", "trochee"]
    assert forms["How old?"]["answer"] == {"type": "integer", "minimum": 0}
    assert [*forms["Where?"]] == ["city", "floor"]
    results = [each["message"]["content"] for each in said if each["message"]["role"] == "tool"]
    assert results[::-1] == ["trochee", 7, {"city": "Rome", "floor": 2}, [1, 2]]


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    ("given", "note"),
    [
        (types.ElicitResult(action="cancel"), "May publish run"),
        (accept(approved=True, edited_input="nothing"), "The answer was not accepted: The other input"),
    ],
)
async def test_a_form_that_gives_no_answer_leaves_the_call_waiting(
    server: LiveServer, mode: str, given: types.ElicitResult, note: str
) -> None:
    async with opened(server.url, mode, fill=lambda _: given) as client:
        result = await client.call_tool("director", {"message": "publish"})
        assert result.structured_content["status"] == "waiting"
        assert note in texts(result)
        session = {"session_id": result.structured_content["session_id"]}
        by_model = await client.call_tool("session__answer", {**session, "approved": True})
        assert by_model.is_error
        assert "decided by a person" in texts(by_model)
    async with opened(server.url, mode, fill=lambda _: accept(approved=True)) as client:
        done = await client.call_tool("session__continue", session)
    assert "published r-1" in done.structured_content["text"]


@pytest.mark.parametrize("mode", BOTH)
async def test_a_deadline_holds_while_somebody_is_asked(server: LiveServer, mode: str) -> None:
    async def never(_params: Any) -> types.ElicitResult:
        # The newer client comes back with the answer; by then it is too late.
        if mode == OLDER:
            await asyncio.Event().wait()
        return accept(answer="late")

    async with opened(server.url, mode, fill=never) as client:
        result = await client.call_tool("director", {"message": "glance"})
    assert result.structured_content["status"] == "completed"
    assert "I was told" in result.structured_content["text"]


@pytest.mark.parametrize("mode", BOTH)
async def test_a_call_with_the_same_key_is_the_same_turn(server: LiveServer, mode: str, session_id: str) -> None:
    named = {"message": "hello", "idempotency_key": session_id}
    async with opened(server.url, mode) as client:
        first, second = await asyncio.gather(client.call_tool("director", named), client.call_tool("director", named))
        third = await client.call_tool("director", {**named, "message": "something else"})
        assert first.structured_content == second.structured_content == third.structured_content
        session = {"session_id": first.structured_content["session_id"]}
        more = {**session, "message": "more", "idempotency_key": "k-2"}
        again = [await client.call_tool("director", more) for _ in range(2)]
        assert again[0].structured_content == again[1].structured_content
        # As agents of this library do that use the server's agents as tools.
        assert OURS_SENDS == IDEMPOTENCY_KEY
        meta: Any = {OURS_SENDS: f"m {session_id}"}
        ours = [await client.call_tool("director", {"message": "hello"}, meta=meta) for _ in range(2)]
        assert ours[0].structured_content == ours[1].structured_content
    assert (await read(server, f"/sessions/{session['session_id']}"))["messageCount"] == 4


def test_a_request_that_is_sent_again_starts_no_second_turn(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    message = raw.call("director", {"message": "hello"}, rpc_id=7)
    first, second = result_of(raw.post(message)), result_of(raw.post(message))
    assert first == second
    assert result_of(raw.post({**message, "id": 8}))["structuredContent"] != first["structuredContent"]
    session_id = first["structuredContent"]["session_id"]
    assert ann.get(f"/sessions/{session_id}").json()["messageCount"] == 2


def test_a_client_that_left_finds_everything_when_it_comes_back(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    gate.shut(only="I was")
    with raw.stream(raw.call("director", {"message": "search"}, progressToken="p")) as response:
        last, primed = next(events(response.iter_lines()))
        assert primed is None
    with ann.stream("GET", raw.path, headers={**raw.headers, "last-event-id": last}) as response:
        found = events(response.iter_lines())
        first = next(found)
        gate.open()
        followed = [first, *found]
    back = [message for _, message in followed]
    assert back[-1]["id"] == 1
    assert "page 1 about tides" in back[-1]["result"]["structuredContent"]["text"]
    assert {message["params"]["progressToken"] for message in back[:-1]} == {"p"}
    [(_, only)] = events(raw.come_back(followed[-2][0]).text.splitlines())
    assert only == back[-1]


def test_a_cancelled_call_interrupts_its_turn_and_can_be_continued(server: LiveServer, ann: httpx2.Client) -> None:
    raw = Raw(ann)
    gate.shut(after=1)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    with raw.stream(raw.call("director", {"message": "search"})) as response:
        found = events(response.iter_lines())
        next(found)
        with server.client(BEN) as ben:
            assert Raw(ben).post(cancelled).status_code == 202
            stolen = {**raw.headers}
            assert ben.post("/mcp", json=cancelled, headers=stolen).status_code == 202
        with server.client() as other:
            assert other.post("/mcp", json=cancelled, headers=raw.headers).status_code == 202
        *_, (_, last) = found
    gate.open()
    data = last["result"]["structuredContent"]
    assert data["status"] == "stopped"
    done = result_of(raw.post(raw.call("session__continue", {"session_id": data["session_id"]}, 2)))
    assert "page 1 about tides" in done["structuredContent"]["text"]


async def test_a_lost_connection_stops_nothing(alone: LiveServer) -> None:
    gate.shut(after=1)
    said = {"message": "search", "idempotency_key": "a lost connection"}
    async with opened(alone.url, NEWER) as client:
        calling = asyncio.create_task(client.call_tool("director", said))
        await until(alone, "/sessions?status=active", lambda found: found["items"])
        # To the server, a client of this version that gives up looks like one whose connection broke.
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        gate.open()
        done = await client.call_tool("director", said)
    assert "page 1" in done.structured_content["text"]


async def test_whoever_no_longer_waits_for_a_call_stops_it(alone: LiveServer) -> None:
    gate.shut(after=1)
    async with opened(alone.url, OLDER) as client:
        calling = asyncio.create_task(client.call_tool("director", {"message": "long story", "idempotency_key": "w"}))
        page = await until(alone, "/sessions?status=active", lambda found: found["items"])
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        path = f"/sessions/{page['items'][0]['sessionId']}"
        await until(alone, path, lambda found: found["run"]["status"] == "interrupted")


def test_a_turn_is_stopped_by_a_tool_and_what_waits_is_given_up(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    asked = result_of(raw.post(raw.call("director", {"message": "publish"})))["structuredContent"]
    session = {"session_id": asked["session_id"]}
    stopped = result_of(raw.post(raw.call("session__stop", session, 2)))["structuredContent"]
    assert stopped["status"] == "stopped"
    assert result_of(raw.post(raw.call("session__pending", session, 3)))["structuredContent"]["items"] == []
    said = result_of(raw.post(raw.call("director", {"message": "hello", **session}, 4)))["structuredContent"]
    assert "You said: hello" in said["text"]


@pytest.mark.parametrize("action", ["accept", "cancel"])
def test_a_form_that_is_closed_after_a_stop_continues_nothing(ann: httpx2.Client, action: str) -> None:
    raw, other = Raw(ann, forms=True), Raw(ann)
    with raw.stream(raw.call("director", {"message": "publish"})) as response:
        found = events(response.iter_lines())
        _, (_, question) = next(found), next(found)
        [waiting] = result_of(other.post(other.call("session__pending", {})))["structuredContent"]["items"][:1]
        session = {"session_id": waiting["session_id"]}
        result_of(other.post(other.call("session__stop", session, 2)))
        content = {"approved": True}
        late = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": action, "content": content}}
        assert raw.post(late).status_code == 202
        assert [*found][-1][1]["result"]["structuredContent"]["status"] == "stopped"
    answered = {**session, "tool_call_id": waiting["tool_call_id"], "approved": True}
    again = result_of(other.post(other.call("session__answer", answered, 3)))
    assert again["structuredContent"]["status"] == "stopped"
    runs = ann.get(f"/sessions/{session['session_id']}/runs").json()["items"]
    assert [run["status"] for run in runs] == ["interrupted"]
    going_on = result_of(other.post(other.call("session__continue", session, 4)))
    assert going_on["structuredContent"]["status"] == "completed"


def test_while_an_agent_works_others_are_told_so(server: LiveServer, ann: httpx2.Client) -> None:
    raw = Raw(ann)
    session_id = result_of(raw.post(raw.call("director", {"message": "hello"})))["structuredContent"]["session_id"]
    gate.shut(after=1)
    with raw.stream(raw.call("director", {"message": "search", "session_id": session_id}, 2)) as response:
        found = events(response.iter_lines())
        next(found)
        with server.client() as other:
            busy = result_of(Raw(other).post(raw.call("director", {"message": "more", "session_id": session_id})))
        assert busy["isError"]
        assert "session__continue waits for it" in busy["content"][0]["text"]
        gate.open()
        assert "page 1" in [*found][-1][1]["result"]["structuredContent"]["text"]


def test_nobody_reaches_the_sessions_of_others(server: LiveServer, ann: httpx2.Client, ben: httpx2.Client) -> None:
    raw, other = Raw(ann, forms=True), Raw(ben, forms=True)
    with raw.stream(raw.call("director", {"message": "publish"})) as response:
        found = events(response.iter_lines())
        _, (last, question) = next(found), next(found)
        assert question["method"] == "elicitation/create"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"approved": True}}}
        denied = {**answer, "result": {"action": "decline"}}
        assert other.post(denied).status_code == 202
        assert other.come_back(last).status_code == 404
        # The same answer of the person who was asked counts.
        with server.client() as at_another:
            assert at_another.post("/mcp", json=answer, headers=raw.headers).status_code == 202
        *_, (_, result) = found
    data = result["result"]["structuredContent"]
    assert "published r-1" in data["text"]
    session = {"session_id": data["session_id"]}
    for name, arguments in (
        ("director", {"message": "hello", **session}),
        ("session__continue", session),
        ("session__stop", session),
        ("session__pending", session),
        ("session__answer", {**session, "result": "x"}),
    ):
        refused = result_of(other.post(raw.call(name, arguments)))
        assert refused["isError"]
        assert "There is no session" in refused["content"][0]["text"]
    waiting = result_of(raw.post(raw.call("director", {"message": "locate"}, 5), accept="application/json"))
    mine = waiting["structuredContent"]["session_id"]
    listed = result_of(other.post(raw.call("session__pending", {}, 6)))["structuredContent"]["items"]
    assert mine not in {item["session_id"] for item in listed}


async def test_the_state_of_a_call_is_of_no_use_to_others(server: LiveServer) -> None:
    async with opened(server.url, NEWER, fill=lambda _: accept(approved=True)) as client:
        first = await client.session.call_tool("director", {"message": "publish"}, allow_input_required=True)
        assert isinstance(first, types.InputRequiredResult)
        given: Any = {key: accept(approved=True) for key in first.input_requests or {}}
        async with opened(server.url, NEWER, token=BEN, fill=lambda _: accept()) as ben:
            stolen = await ben.session.call_tool(
                "director", {"message": "publish"}, input_responses=given, request_state=first.request_state
            )
            assert stolen.is_error
            assert "There is no session" in texts(stolen)
        for _ in range(2):
            done = await client.session.call_tool(
                "director", {"message": "publish"}, input_responses=given, request_state=first.request_state
            )
            assert "published r-1" in done.structured_content["text"]
        with pytest.raises(MCPError, match="requestState is not from this server"):
            await client.session.call_tool("director", {"message": "publish"}, request_state="x")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "message"),
        ({"message": " "}, "empty"),
        ({"message": 3}, "message"),
        ({"message": "hello", "mesage": "x"}, "valid fields: message, session_id, idempotency_key"),
        ({"message": "hello", "session_id": "no such"}, "no session 'no such'"),
        ({"message": "hello", "session_id": "x" * 300}, "length"),
        ({"message": "hello", "idempotency_key": "\n"}, "idempotency key"),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(server: LiveServer, arguments: dict[str, Any], why: str) -> None:
    async with opened(server.url) as client:
        result = await client.call_tool("director", arguments)
    assert result.is_error
    assert why in texts(result)


async def test_a_failed_turn_is_an_error_that_says_nothing_of_the_inside(server: LiveServer) -> None:
    async with opened(server.url) as client:
        result = await client.call_tool("director", {"message": "fail"})
    assert result.is_error
    assert result.structured_content["status"] == "failed"
    assert "secret reason" not in texts(result)


def tool_call(**params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "tools/call", "id": 1, "params": params}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 400, -32700),
        ([], 400, -32600),
        ({"jsonrpc": "1.0", "method": "ping", "id": 1}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600),
        ({"jsonrpc": "2.0", "method": "prompts/list", "id": 1}, 200, -32601),
        (tool_call(), 200, -32602),
        (tool_call(name="nobody"), 200, -32602),
        (tool_call(name="director", arguments=[]), 200, -32602),
        (tool_call(name="director", arguments={"message": "hello"}, _meta={"progressToken": []}), 200, -32602),
    ],
)
def test_what_is_no_request_is_told_in_the_protocols_own_words(
    ann: httpx2.Client, body: Any, status: int, code: int
) -> None:
    raw = Raw(ann)
    content = body if isinstance(body, str) else json.dumps(body)
    answer = ann.post("/mcp", headers={**raw.headers, "content-type": "application/json"}, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_messages_that_need_no_answer_are_accepted(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "id": "unheard of", "result": {}},
        {"jsonrpc": "2.0", "id": "helix.x", "result": {}},
    ):
        answer = raw.post(message)
        assert (answer.status_code, answer.content) == (202, b"")
    assert raw.post({"jsonrpc": "2.0", "method": "ping", "id": 1}).json()["result"] == {}


def test_a_client_is_told_which_versions_are_spoken(ann: httpx2.Client) -> None:
    raw = Raw(ann)
    ping = {"jsonrpc": "2.0", "method": "ping", "id": 1}
    for version in ("2025-06-18", "2025-11-25"):
        assert raw.post(ping, **{"mcp-protocol-version": version}).status_code == 200
    unknown = raw.post(ping, **{"mcp-protocol-version": "2031-01-01"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, -32022)
    assert "2026-07-28" in unknown.json()["error"]["data"]["supported"]
    asked = {"protocolVersion": "2031-01-01", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
    offered = raw.post({"jsonrpc": "2.0", "method": "initialize", "id": 1, "params": asked})
    assert offered.json()["result"]["protocolVersion"] == "2025-11-25"
    forgotten = raw.post(ping, **{"mcp-session-id": "of another server"})
    assert (forgotten.status_code, forgotten.json()["error"]["data"]["code"]) == (404, "unknown_connection")


def test_a_request_that_stands_alone_has_to_agree_with_its_headers(ann: httpx2.Client) -> None:
    said = {
        "io.modelcontextprotocol/protocolVersion": NEWER,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": said}}
    headers = {"mcp-protocol-version": NEWER, "mcp-method": "tools/list"}

    def code_of(body: Any, **other: str) -> tuple[int, int | None]:
        answer = ann.post("/mcp", json=body, headers={**headers, **other})
        return answer.status_code, answer.json().get("error", {}).get("code")

    assert code_of(message) == (200, None)
    assert code_of(message, **{"mcp-method": "ping"}) == (400, -32020)
    assert code_of({**message, "params": {}}) == (400, -32602)
    assert code_of({**message, "method": "prompts/list"}, **{"mcp-method": "prompts/list"}) == (404, -32601)
    later = {**said, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}
    assert code_of({**message, "params": {"_meta": later}}, **{"mcp-protocol-version": "2031-01-01"}) == (400, -32022)
    named = {**message, "method": "tools/call", "params": {"_meta": said, "name": "nobody", "arguments": {}}}
    assert code_of(named, **{"mcp-method": "tools/call", "mcp-name": "somebody"}) == (400, -32020)
    assert code_of(named, **{"mcp-method": "tools/call", "mcp-name": "=?base64?bm9ib2R5?="}) == (400, -32602)


def test_only_whoever_is_let_in_talks(server: LiveServer, ann: httpx2.Client) -> None:
    ping = {"jsonrpc": "2.0", "method": "ping", "id": 1}
    with server.client(None) as nobody:
        refused = nobody.post("/mcp", json=ping)
        assert (refused.status_code, refused.json()["error"]["data"]["code"]) == (401, "unauthenticated")
        assert nobody.get("/mcp").status_code == 401
    assert ann.post("/mcp/helper", json=ping).status_code == 404
    assert ann.get("/mcp").status_code == 405
    assert ann.delete("/mcp").status_code == 405
    assert ann.get("/mcp", headers={"last-event-id": "x"}).status_code == 400


def test_pages_of_other_sites_may_not_call() -> None:
    ping = {"jsonrpc": "2.0", "method": "ping", "id": 1}

    def status(live: LiveServer, token: str | None, **headers: str) -> int:
        with live.client(token) as client:
            return client.post("/mcp", json=ping, headers=headers).status_code

    with LiveServer(agent_server(authenticate=None, allow_unauthenticated=True)) as live:
        # A site that gave its own name the address of this machine.
        assert status(live, None, origin="http://evil.example", host="evil.example") == 403
        for odd in ("null", "http://[", "http://[::1", "x"):
            assert status(live, None, origin=odd) == 403
        assert status(live, None, origin="http://localhost:3000") == 200
        assert status(live, None) == 200
    with LiveServer(agent_server(cors_origins=["https://page.example"])) as live:
        assert status(live, ANN, origin="https://page.example") == 200
        assert status(live, ANN, origin="https://evil.example") == 403
        assert status(live, ANN, origin="https://own.example", host="own.example") == 200


def modern_call(http: httpx2.Client, state: str | None = None) -> Any:
    """A call of a newer client, and the headers that go with it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": NEWER,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params: dict[str, Any] = {"name": "director", "arguments": {"message": "search"}, "_meta": meta}
    if state is not None:
        params["requestState"] = state
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": NEWER,
        "mcp-method": "tools/call",
        "mcp-name": "director",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return http.stream("POST", "/mcp", json=body, headers=headers)


def test_an_instance_that_leaves_sends_its_clients_to_another(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/mcp.db"
    app = agent_server(store)
    gate.shut(after=1)
    with (
        LiveServer(app) as first,
        LiveServer(agent_server(store)) as second,
        first.client() as one,
        second.client() as two,
    ):
        raw = Raw(one)
        with raw.stream(raw.call("director", {"message": "search"})) as of_older, modern_call(one) as of_newer:
            said = events(of_older.iter_lines())
            last, _ = next(said)
            wait_until(lambda: app.open_streams == 2)
            app.drain()
            [(last, farewell)] = said
            assert farewell is None
            [(_, told)] = events(of_newer.iter_lines())
        state = told["result"].pop("requestState")
        assert told["result"]["resultType"] == "input_required"
        assert told["result"].keys() == {"resultType", "_meta"}
        gate.open()
        # The instance that leaves still drives its runs; only readers are sent away.
        back = two.get("/mcp", headers={**raw.headers, "last-event-id": last})
        assert "page 1" in last_message(back)["result"]["structuredContent"]["text"]
        with modern_call(two, state) as again:
            assert "page 1" in [*events(again.iter_lines())][-1][1]["result"]["structuredContent"]["text"]


def test_a_form_is_answered_and_a_call_cancelled_on_another_instance(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/mcp.db"
    with (
        LiveServer(agent_server(store)) as first,
        LiveServer(agent_server(store)) as second,
        first.client() as one,
        second.client() as two,
    ):
        raw = Raw(one, forms=True)
        with raw.stream(raw.call("director", {"message": "publish"})) as response:
            found = events(response.iter_lines())
            next(found)
            _, question = next(found)
            content = {"action": "accept", "content": {"approved": True}}
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": content}
            assert two.post("/mcp", json=answer, headers=raw.headers).status_code == 202
            data = [*found][-1][1]["result"]["structuredContent"]
        assert "published r-1" in data["text"]
        gate.shut(after=1)
        more = {"message": "search", "session_id": data["session_id"], "idempotency_key": "k"}
        with raw.stream(raw.call("director", more, 2)) as response:
            found = events(response.iter_lines())
            next(found)
            for _ in range(2):
                # As from a process that knows nothing of the call.
                followed_here.clear()
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
                assert two.post("/mcp", json=cancelled, headers=raw.headers).status_code == 202
            assert [*found][-1][1]["result"]["structuredContent"]["status"] == "stopped"


@pytest.mark.may_block("the client is in a thread of the test, and shares its locks with what the test itself asks")
def test_a_client_does_not_notice_that_its_server_was_killed(tmp_path: Path) -> None:
    store, journal, held = f"sqlite:///{tmp_path}/mcp.db", tmp_path / "journal", tmp_path / "gate"
    settings: dict[str, Any] = {
        "environment": {"HELIX_TEST_JOURNAL": str(journal), "HELIX_TEST_GATE": str(held)},
        "arguments": ("--lease", "1", "--janitor", "0.2"),
    }

    def published(client: httpx2.Client, session: dict[str, Any]) -> list[str]:
        return client.get(f"/sessions/{session['sessionId']}").json()["state"]["published"]

    def fill(_params: Any) -> types.ElicitResult:
        # The model is held when it hears what became of the call.
        held.touch()
        return accept(approved=True)

    async def talk(url: str) -> types.CallToolResult:
        async with opened(url, OLDER, fill=fill) as client:
            return await client.call_tool("director", {"message": "publish"})

    with Address() as address, ThreadPoolExecutor() as threads:
        with Instance(store, **settings) as first:
            address.leads_to(first.url)
            talking = threads.submit(asyncio.run, talk(address.url))
            with first.client() as client:
                # That it is published is stored; of a process that dies earlier, nobody knows whether it did so.
                wait_until(lambda: any(published(client, each) for each in client.get("/sessions").json()["items"]))
            address.leads_nowhere()
            first.kill()
        held.unlink()
        with Instance(store, **settings) as second:
            # A client looks only twice for a server that is gone; how fast one starts is not what is tested here.
            address.leads_to(second.url)
            result = talking.result(PATIENCE)
    assert "published r-1" in result.structured_content["text"]
    assert journal.read_text(encoding="utf-8") == "r-1\n"


def test_what_waits_is_answered_in_another_process_after_kill_9(tmp_path: Path) -> None:
    store, journal = f"sqlite:///{tmp_path}/mcp.db", tmp_path / "journal"
    environment = {"HELIX_TEST_JOURNAL": str(journal)}

    async def call_tool(url: str, name: str, arguments: dict[str, Any]) -> Any:
        async with opened(url, NEWER) as client:
            return (await client.call_tool(name, arguments)).structured_content

    said = {"message": "publish", "idempotency_key": "order 7"}
    with Instance(store, environment=environment) as first:
        asked = asyncio.run(call_tool(first.url, "director", said))
        first.kill()
    with Instance(store, environment=environment) as second:
        again = asyncio.run(call_tool(second.url, "director", said))
        assert again == asked
        assert again["status"] == "waiting"
        decided = {"session_id": asked["session_id"], "approved": True}
        done = asyncio.run(call_tool(second.url, "session__answer", decided))
        assert "published r-1" in done["text"]
        assert asyncio.run(call_tool(second.url, "director", said))["text"] == done["text"]
    assert journal.read_text(encoding="utf-8") == "r-1\n"
