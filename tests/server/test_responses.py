"""OpenAI's own client, unmodified, against a live server: its responses are runs, its conversations sessions."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import httpx2
import msgspec
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from helix_agents import Agent, Executor, RetryOutput, RunContext, ScriptedModel, ask_human
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore
from helix_agents.backends.in_memory.memory import Memory
from helix_agents.domain.chunks import StepCommitted, StepDiscarded, StreamChunk, TextDelta
from helix_agents.domain.messages import StoredMessage, ToolMessage
from helix_agents.domain.paging import Page
from helix_agents.domain.runs import RunRecord
from helix_agents.llm.scripted import call, reply
from helix_agents.ports.llm import FINISH_TOOL, ModelRequest
from helix_agents.ports.streams import StreamLimits
from helix_agents.server.app import AgentServer
from helix_agents.server.auth import bearer_tokens
from helix_agents.server.limits import ServerLimits
from helix_agents.server.openai.answers import ResponseObject
from helix_agents.server.openai.events import ResponseStream
from helix_agents.server.openai.stored import response_id
from tests.server.agents import director, gate, order_of
from tests.server.held import held_server
from tests.server.live import ANN, BEN, PATIENCE, TOKENS, LiveServer, wait_until

AGENT = "director"
FILE = {"type": "input_file", "file_id": "file-1"}


class Report(BaseModel):
    title: str
    pages: int


def speak(request: ModelRequest) -> Any:
    """A model that asks a person, or breaks off, as it is told."""
    if isinstance(request.messages[-1], ToolMessage):
        return f"The answer is {request.messages[-1].content!r}."
    match order_of(request):
        case "ask":
            return call("ask_human", {"question": "Which boat?"})
        case "length" | "content_filter" as reason:
            return reply("And then", stop_reason=reason)
        case _:
            return call(FINISH_TOOL, {"title": "Tides", "pages": 2})


asker = Agent(name="asker", model=ScriptedModel(speak), tools=[ask_human()])
reporter = Agent(name="reporter", model=ScriptedModel(speak), output=Report)


def openai_server(url: str = "memory://", **settings: Any) -> AgentServer:
    opening = Executor.open(url, agents=[director, asker, reporter])
    return AgentServer(opening, authenticate=bearer_tokens(TOKENS), **settings)


def sdk(live: LiveServer, token: str = ANN) -> OpenAI:
    return OpenAI(base_url=f"{live.url}/v1", api_key=token, max_retries=0)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with LiveServer(openai_server()) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[OpenAI]:
    with sdk(live) as client:
        yield client


@pytest.fixture
def raw(live: LiveServer) -> Iterator[httpx2.Client]:
    with live.client() as raw:
        yield raw


def say(client: OpenAI, said: Any, **more: Any) -> Response:
    return client.responses.create(**{"model": AGENT, "input": said, **more})


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


def the(response: Response, kind: str) -> Any:
    (item,) = [item for item in response.output if item.type == kind]
    return item


def session_of(response: Response) -> str:
    assert response.conversation is not None
    return response.conversation.id


def transcript(raw: httpx2.Client, session_id: str) -> list[tuple[str, Any]]:
    """What the session itself has, as the native routes tell it, oldest first."""
    page = raw.get(f"/sessions/{session_id}/messages").raise_for_status().json()
    messages = [each["message"] for each in reversed(page["items"])]
    return [(each["role"], each.get("text", each.get("content"))) for each in messages]


def approve(response: Response, yes: bool = True) -> dict[str, Any]:
    asked = the(response, "mcp_approval_request")
    return {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": yes}


def output(response: Response, value: str) -> dict[str, Any]:
    asked = the(response, "function_call")
    return {"type": "function_call_output", "call_id": asked.call_id, "output": value}


def refused(attempt: Callable[[], Any]) -> dict[str, Any]:
    """What a client is told of a request that is refused, and with which status."""
    with pytest.raises(openai.APIStatusError) as problem:
        attempt()
    body = cast("dict[str, Any]", problem.value.body)
    assert body.keys() == {"message", "type", "param", "code"}
    return {"status": problem.value.status_code, **body}


# -- conversations


def test_a_conversation_goes_on_from_its_latest_response_and_branches_from_an_older_one(
    client: OpenAI, raw: httpx2.Client
) -> None:
    first = say(client, "one", metadata={"who": "ann"})
    assert (first.status, first.output_text, first.metadata) == (
        "completed",
        "You said: one. And so on. ",
        {"who": "ann"},
    )
    second = say(
        client, [{"role": "user", "content": [{"type": "input_text", "text": "two"}]}], previous_response_id=first.id
    )
    assert session_of(second) == session_of(first)
    assert (second.previous_response_id, second.metadata) == (first.id, {})
    third = say(client, "three", previous_response_id=second.id)
    other = say(client, "other", previous_response_id=first.id)
    assert session_of(other) != session_of(first)
    assert other.previous_response_id == first.id
    more = say(client, "more", previous_response_id=other.id)
    assert session_of(more) == session_of(other)

    def said(*texts: str) -> list[tuple[str, str]]:
        return [pair for text in texts for pair in (("user", text), ("assistant", f"You said: {text}. And so on. "))]

    assert transcript(raw, session_of(first)) == said("one", "two", "three")
    assert transcript(raw, session_of(other)) == said("one", "other", "more")
    for each in (first, second, third, other, more):
        assert client.responses.retrieve(each.id) == each
        (item,) = client.responses.input_items.list(each.id).data
        assert item.type == "message"
    # The session is the same one on every wire.
    named = say(client, "four", conversation=session_of(first))
    assert session_of(named) == session_of(first)
    assert named.previous_response_id == third.id


def test_a_conversation_may_be_named_before_it_begins(client: OpenAI, raw: httpx2.Client) -> None:
    begun = say(client, "one", conversation={"id": "of ann/1"})
    assert session_of(begun) == "of ann/1"
    assert client.responses.retrieve(begun.id) == begun
    assert len(client.responses.input_items.list(begun.id, order="asc", limit=1).data) == 1
    assert raw.get("/status", params={"sessionId": "of ann/1"}).json()["status"] == "completed"


def test_a_response_is_what_the_document_says(raw: httpx2.Client) -> None:
    told = raw.post("/v1/responses", json={"model": AGENT, "input": "search"}).json()
    described = msgspec.convert(told, ResponseObject, strict=True)
    assert told.keys() == set(ResponseObject.__struct_fields__)
    assert described.usage is not None
    assert described.usage.total_tokens == described.usage.input_tokens + described.usage.output_tokens > 0


@pytest.mark.parametrize("note", ["x", {"metadata": "x"}, {"metadata": {"a": 1}}, {"previous_response_id": 5}])
def test_a_message_of_another_route_makes_no_response_that_is_none(raw: httpx2.Client, note: Any) -> None:
    message = [{"content": "hello", "metadata": {"response": note}}]
    begun = raw.post("/execute", json={"agentType": AGENT, "message": message}).json()
    raw.get("/result", params={"sessionId": begun["sessionId"], "wait": 20})
    told = raw.get(f"/v1/responses/{response_id(begun['sessionId'], begun['runId'])}").json()
    described = msgspec.convert(told, ResponseObject, strict=True)
    assert (described.metadata, described.previous_response_id) == ({}, None)


def test_files_and_several_messages_reach_the_agent(client: OpenAI, raw: httpx2.Client) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    file = {"type": "input_file", "file_data": "JVBERi0=", "filename": "tides.pdf"}
    response = say(
        client,
        [
            {"role": "user", "content": "first"},
            {"role": "user", "content": [{"type": "input_text", "text": "see"}, image, file]},
        ],
    )
    (_, first), (_, second), (_, answer) = transcript(raw, session_of(response))
    assert first == "first"
    assert second[1]["url"] == "data:image/png;base64,AAAA"
    assert (second[2]["url"], second[2]["mediaType"]) == ("data:application/pdf;base64,JVBERi0=", "application/pdf")
    assert answer.startswith("You said: see")
    items = client.responses.input_items.list(response.id, order="asc").data
    assert [part.type for part in cast("Any", items[1]).content] == ["input_text", "input_image", "input_file"]


# -- streams


def events_of(stream: Any) -> list[ResponseStreamEvent]:
    return list(stream)


@pytest.mark.parametrize("order", ["hello", "search", "both", "delegate", "ask below", "broken", "fail"])
def test_a_stream_and_what_is_stored_are_the_same_and_any_reader_goes_on_exactly_where_it_was_cut(
    client: OpenAI, order: str
) -> None:
    told = events_of(client.responses.create(model=AGENT, input=order, stream=True))
    last = cast("Any", told[-1])
    response: Response = last.response
    followed = [told]
    answers = [
        approve(response) if item.type == "mcp_approval_request" else output(response, "here")
        for item in response.output
        if item.type in ("mcp_approval_request", "function_call")
    ]
    if answers:
        going_on = {"model": AGENT, "previous_response_id": response.id, "input": answers, "stream": True}
        followed.append(events_of(cast("Any", client.responses.create)(**going_on)))
    for events in followed:
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        end: Any = events[-1]
        assert end.type == ("response.failed" if order == "fail" else "response.completed")
        done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
        assert [done[index] for index in sorted(done)] == end.response.output
        assert client.responses.retrieve(end.response.id) == end.response
        for place, number in list(enumerate(numbers))[::3]:
            rest = client.responses.retrieve(end.response.id, stream=True, starting_after=number)
            assert list(rest) == events[place + 1 :]
    if answers:
        # The client's own accumulation takes the same log without complaint.
        with client.responses.stream(response_id=response.id) as stream:
            assert kinds(cast("Response", stream.get_final_response())) == kinds(response)


def test_a_reader_who_is_cut_off_reads_on_while_it_is_written(client: OpenAI) -> None:
    gate.shut(after=1)
    stream = cast("Any", client.responses.create(model=AGENT, input="search", stream=True))
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if event.type == "response.reasoning_summary_text.delta":
            break
    stream.close()
    response_id = seen[0].response.id
    assert client.responses.retrieve(response_id).status == "in_progress"
    rest = client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    gate.open()
    assert [*seen, *rest] == list(client.responses.retrieve(response_id, stream=True))


def test_a_step_that_is_done_again_takes_nothing_from_anybody() -> None:
    """One reader was there when it was said the first time, the other comes when that is gone from the log."""
    head: dict[str, Any] = {"session_id": "s", "run_id": "r", "agent_type": "a", "step": 1}
    begun = [TextDelta(**head, sequence=2, delta="He"), TextDelta(**head, sequence=3, delta="ll")]
    after: list[StreamChunk] = [
        StepDiscarded(**head, sequence=4, from_sequence=2, to_sequence=3),
        TextDelta(**head, sequence=5, delta="Hello"),
        StepCommitted(**head, sequence=6, step_id="r.1", checkpoint_id="c", message_count=2),
    ]
    there, later = ResponseStream("a", start=0), ResponseStream("a", start=0)
    saw = [event for chunk in (*begun, *after) for event in there.feed(chunk)]
    read = [event for chunk in after for event in later.feed(chunk)]
    assert [event for event in saw if event["sequence_number"] >= 5000] == read
    numbers = [event["sequence_number"] for event in saw]
    assert numbers == sorted(set(numbers))
    void = next(event["item"] for event in saw if event["type"] == "response.output_item.done")
    assert (void["status"], void["content"][0]["text"]) == ("incomplete", "Hell")
    again = next(event["item"] for event in read if event["type"] == "response.output_item.done")
    assert again["id"] != void["id"]
    assert read[0]["output_index"] > saw[0]["output_index"]


# -- what waits


@pytest.mark.parametrize(("yes", "told"), [(True, "published r-1"), (False, "not approved by the user: too dear")])
def test_an_approval_goes_round_and_the_same_answer_again_gets_the_same_response(
    client: OpenAI, raw: httpx2.Client, yes: bool, told: str
) -> None:
    asked = say(client, "publish")
    assert asked.status == "completed"
    request = the(asked, "mcp_approval_request")
    assert (request.name, json.loads(request.arguments)) == ("publish", {"report_id": "r-1"})
    assert refused(lambda: say(client, "hm", previous_response_id=asked.id))["message"].startswith(
        "No approval response"
    )
    answer = [{**approve(asked, yes), "reason": "too dear"}]
    done = say(client, answer, previous_response_id=asked.id)
    assert told in done.output_text
    call_ = the(done, "mcp_call")
    assert (call_.approval_request_id, call_.status) == (request.id, "completed" if yes else "failed")
    (given,) = client.responses.input_items.list(done.id).data
    assert cast("Any", given).approve == yes
    assert say(client, answer, previous_response_id=asked.id) == done
    other = refused(lambda: say(client, [approve(asked, not yes)], previous_response_id=asked.id))
    assert (other["status"], other["code"]) == (409, "already_completed")
    assert [role for role, _ in transcript(raw, session_of(done))] == ["user", "assistant", "tool", "assistant"]
    assert say(client, "thanks", previous_response_id=done.id).output_text.startswith("You said: thanks")


def test_a_tool_of_the_client_goes_round(client: OpenAI, raw: httpx2.Client) -> None:
    tools = [{"type": "function", "name": "locate", "parameters": {}, "strict": False}]
    asked = say(client, "both", tools=tools)
    assert kinds(asked) == ["reasoning", "message", "mcp_call", "mcp_approval_request", "function_call"]
    half = refused(lambda: say(client, [output(asked, "here")], previous_response_id=asked.id))
    assert (half["status"], half["param"]) == (400, "input")
    unknown = [{"type": "function_call_output", "call_id": "call_9", "output": "x"}]
    nothing = refused(lambda: say(client, unknown, previous_response_id=asked.id))
    assert (nothing["param"], "call_9" in nothing["message"]) == ("input[0]", True)
    wrong = [output(asked, '{"not": "a place"}'), approve(asked)]
    # The tool gives a text, so what looks like JSON is meant as one.
    done = say(client, [*wrong, {"role": "user", "content": "and hello"}], previous_response_id=asked.id)
    assert done.output_text == "You said: and hello. And so on. "
    roles = [role for role, _ in transcript(raw, session_of(done))]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "user", "assistant"]
    items = client.responses.input_items.list(done.id, order="asc").data
    assert [item.type for item in items] == ["mcp_approval_response", "function_call_output", "message"]


def test_a_question_is_a_call_of_a_function(client: OpenAI) -> None:
    asked = say(client, "ask", model="asker")
    question = the(asked, "function_call")
    assert (question.name, json.loads(question.arguments)["question"]) == ("ask_human", "Which boat?")
    done = say(client, [output(asked, "7")], model="asker", previous_response_id=asked.id)
    assert done.output_text == "The answer is '7'."


def test_what_was_answered_elsewhere_is_not_answered_again(client: OpenAI, raw: httpx2.Client) -> None:
    asked = say(client, "publish")
    pending = raw.get("/status", params={"sessionId": session_of(asked)}).json()["pending"][0]
    decided = {"kind": "approval-response", "toolCallId": pending["toolCallId"], "approvalId": pending["approvalId"]}
    raw.post(f"/chat/{session_of(asked)}/submit-tool-result", json={**decided, "approved": False}).raise_for_status()
    late = refused(lambda: say(client, [approve(asked)], previous_response_id=asked.id))
    assert late["status"] == 409


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store that outlives its process."""
    match request.param:
        case "postgres":
            return request.getfixturevalue("postgres_url")
        case "redis":
            return request.getfixturevalue("redis_service").new_url()
        case _:
            return f"sqlite:///{tmp_path / 'helix.db'}"


def test_every_store_knows_what_went_into_a_response_what_came_out_and_what_it_took(stored: str) -> None:
    with LiveServer(openai_server(stored)) as live, sdk(live) as client, live.client() as raw:
        first = say(client, "hello", metadata={"n": "1"})
        asked = say(client, "delegate", metadata={"n": "2"}, previous_response_id=first.id)
        both = say(client, "both", previous_response_id=say(client, [approve(asked)], previous_response_id=asked.id).id)
        done = say(client, [approve(both), output(both, "here")], previous_response_id=both.id)
        session_id = session_of(done)
        runs = [run["runId"] for run in reversed(raw.get(f"/sessions/{session_id}/runs").json()["items"])]
        responses = [client.responses.retrieve(f"resp_{run_id}.{session_id}") for run_id in runs]
        assert [kinds(each) for each in responses] == [
            ["message"],
            ["reasoning", "message", "mcp_call", "mcp_approval_request"],
            ["mcp_call", "message"],
            ["reasoning", "message", "mcp_call", "mcp_approval_request", "function_call"],
            ["mcp_call", "message"],
        ]
        given = [[item.type for item in client.responses.input_items.list(each.id)] for each in responses]
        answers = ["function_call_output", "mcp_approval_response"]
        assert given == [["message"], ["message"], answers[1:], ["message"], answers]
        # A response that only answers is noted as its turn is.
        assert [each.metadata for each in responses] == [{"n": "1"}, {"n": "2"}, {"n": "2"}, {}, {}]
        used = [each.usage.total_tokens for each in responses if each.usage is not None]
        assert len(used) == 5
        assert sum(used) == raw.get(f"/sessions/{session_id}/usage").json()["tokens"]["total"]


def test_an_older_response_that_was_taken_back_is_not_there_any_more(client: OpenAI, raw: httpx2.Client) -> None:
    first = say(client, "one")
    second = say(client, "two", previous_response_id=first.id)
    points = raw.get(f"/sessions/{session_of(first)}/checkpoints").json()["items"]
    back = {"sessionId": session_of(first), "checkpointId": points[-1]["checkpointId"]}
    raw.post("/rewind", json=back).raise_for_status()
    assert client.responses.retrieve(first.id) == first
    assert refused(lambda: client.responses.retrieve(second.id))["status"] == 404
    assert say(client, "three", previous_response_id=first.id).status == "completed"


def test_what_the_log_does_not_have_any_more_is_told_whole() -> None:
    memory = Memory()
    streams = InMemoryStreamManager(memory, limits=StreamLimits(max_chunks=3))
    parts: dict[str, Any] = {"state": InMemoryStateStore(memory), "usage": InMemoryUsageStore(memory)}

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Executor]:
        async with Executor(agents=[director], streams=streams, **parts) as executor:
            yield executor

    server = AgentServer(opening(), authenticate=bearer_tokens(TOKENS))
    with LiveServer(server) as live, sdk(live) as client:
        response = say(client, "search")
        told = list(cast("Any", client.responses.retrieve(response.id, stream=True)))
        done = [event.item for event in told if event.type == "response.output_item.done"]
        assert (done, told[-1].response) == (response.output, response)
        (rest,) = cast("Any", client.responses.retrieve(response.id, stream=True, starting_after=2_000))
        assert (rest.type, rest.response, rest.sequence_number) == ("response.completed", response, 2_001)


# -- background, queue, cancel, delete


def test_in_the_background_it_is_polled_and_what_comes_meanwhile_waits(client: OpenAI) -> None:
    gate.shut()
    first = say(client, "one", background=True)
    assert (first.status, first.output, first.usage) == ("in_progress", [], None)
    busy = refused(lambda: say(client, "two", previous_response_id=first.id))
    assert (busy["status"], busy["code"]) == (409, "agent_already_running")
    locked = refused(lambda: say(client, "two", conversation=session_of(first)))
    assert (locked["status"], locked["code"]) == (409, "agent_already_running")
    second = say(client, "two", conversation=session_of(first), background=True, metadata={"n": "2"})
    third = say(client, "three", conversation=session_of(first), background=True)
    assert [client.responses.retrieve(each.id).status for each in (first, second)] == ["in_progress", "queued"]
    assert client.responses.retrieve(second.id).metadata == {"n": "2"}
    assert client.responses.cancel(third.id).status == "cancelled"
    assert refused(lambda: client.responses.retrieve(third.id))["status"] == 404
    reading = cast("Any", client.responses.retrieve(second.id, stream=True))
    begun = [next(reading), next(reading)]
    assert [event.type for event in begun] == ["response.created", "response.queued"]
    gate.open()
    told = [*begun, *reading]
    assert told[2].type == "response.in_progress"
    assert told[-1].response.output_text == "You said: two. And so on. "
    assert client.responses.retrieve(second.id) == told[-1].response
    assert client.responses.retrieve(first.id).status == "completed"
    assert say(client, "four", previous_response_id=second.id).previous_response_id == second.id


def test_a_response_whose_message_is_given_to_the_run_in_progress_is_that_runs(
    client: OpenAI, raw: httpx2.Client
) -> None:
    first = say(client, "hello")
    about = {"model": AGENT, "conversation": session_of(first), "background": True}
    gate.shut(after=2)
    running = client.responses.create(**about, input="search")
    waiting = client.responses.create(**about, input="and the moon?")
    read = cast("Any", client.responses.create)(**about, input="and the sun?", stream=True)
    assert [next(read).type, next(read).type] == ["response.created", "response.queued"]
    queue = f"/sessions/{session_of(first)}/queue"
    for each in raw.get(queue).json()["items"]:
        assert raw.post(f"{queue}/{each['runId']}", json={"steers": True}).status_code == 200
    gate.open()
    *_, last = read
    assert (last.type, last.response.id) == ("response.completed", running.id)
    answered = client.responses.retrieve(waiting.id)
    assert (answered.id, answered.status) == (running.id, "completed")
    assert answered.output_text.endswith("You said: and the sun?. And so on. ")


def test_what_is_cancelled_keeps_what_was_said_and_the_conversation_goes_on(client: OpenAI, raw: httpx2.Client) -> None:
    before = say(client, "one")
    gate.shut(after=1)
    stream = cast(
        "Any", client.responses.create(model=AGENT, input="search", previous_response_id=before.id, stream=True)
    )
    seen = [next(stream) for _ in range(3)]
    gone = client.responses.cancel(seen[0].response.id)
    assert gone.status == "cancelled"
    end = list(stream)[-1]
    assert (end.type, end.response.status) == ("response.incomplete", "cancelled")
    gate.open()
    assert client.responses.cancel(gone.id) == client.responses.retrieve(gone.id)
    assert client.responses.cancel(before.id) == before
    again = say(client, "two", previous_response_id=gone.id)
    assert session_of(again) == session_of(before)
    users = [text for role, text in transcript(raw, session_of(before)) if role == "user"]
    assert users == ["one", "search", "two"]


class CountingStore(InMemoryStateStore):
    """A store that counts the rows of conversations it gives out."""

    rows = 0

    async def get_messages(self, *given: Any, **more: Any) -> Page[StoredMessage]:
        return self._counted(await super().get_messages(*given, **more))

    async def list_runs(self, *given: Any, **more: Any) -> Page[RunRecord]:
        return self._counted(await super().list_runs(*given, **more))

    async def load_transcript(self, *given: Any, **more: Any) -> tuple[StoredMessage, ...]:
        found = await super().load_transcript(*given, **more)
        self.rows += len(found)
        return found

    def count(self, act: Callable[[], Any]) -> int:
        """How many rows it gives out for something."""
        self.rows = 0
        act()
        return self.rows

    def _counted(self, page: Page[Any]) -> Page[Any]:
        self.rows += len(page.items)
        return page


def leave_unanswered(client: OpenAI, asked: Response) -> None:
    """Say something else: it is refused before the engine hears of it, which reads what its model is to be shown."""
    with pytest.raises(openai.BadRequestError, match="No approval response found"):
        say(client, "never mind", previous_response_id=asked.id)


def test_what_is_read_for_a_response_does_not_grow_with_its_conversation() -> None:
    memory = Memory()
    store = CountingStore(memory)
    parts: dict[str, Any] = {"streams": InMemoryStreamManager(memory), "usage": InMemoryUsageStore(memory)}

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Executor]:
        async with Executor(agents=[director], state=store, janitor_seconds=None, **parts) as executor:
            yield executor

    costs: list[list[int]] = []
    server = AgentServer(opening(), authenticate=bearer_tokens(TOKENS))
    with LiveServer(server) as live, sdk(live) as client:
        last = say(client, "search")
        for _ in range(4):
            for _ in range(9):
                last = say(client, "search", previous_response_id=last.id)
            asked = say(client, "publish", previous_response_id=last.id)
            cost = [
                store.count(lambda asked=asked: client.responses.retrieve(asked.id)),
                store.count(lambda asked=asked: leave_unanswered(client, asked)),
            ]
            request = the(asked, "mcp_approval_request").id
            answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request, "approve": True}]
            last = say(client, answer, previous_response_id=asked.id)
            assert the(last, "mcp_call").output == "published r-1"
            cost.append(store.count(lambda last=last: client.responses.retrieve(last.id)))
            cost.append(store.count(lambda last=last: list(client.responses.retrieve(last.id, stream=True))))
            cost.append(store.count(lambda last=last: client.responses.input_items.list(last.id)))
            costs.append(cost)
    assert costs[1] == costs[2] == costs[3], costs


async def test_to_cancel_a_response_never_stops_the_one_after_it() -> None:
    store, executor, server = held_server()
    async with (
        asyncio.timeout(PATIENCE),
        executor,
        server.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://here/v1") as http,
    ):

        async def begun(said: str) -> str:
            body = {"model": AGENT, "input": said, "conversation": "c", "background": True}
            return (await http.post("/responses", json=body)).raise_for_status().json()["id"]

        async def status(response: str) -> str:
            await asyncio.sleep(0)
            return (await http.get(f"/responses/{response}")).json()["status"]

        gate.shut(2)
        first, second = await begun("long tale"), await begun("long story")
        cancelling = store.hold("set_interrupt_flag", http.post(f"/responses/{first}/cancel", json={}))
        await store.is_held.wait()
        gate.shut(2, only="story")
        while await status(second) != "in_progress":
            pass
        store.released.set()
        assert (await cancelling).json()["status"] == "completed"
        gate.open()
        while (stands := await status(second)) == "in_progress":
            pass
        assert stands == "completed"


def test_only_a_response_that_nothing_goes_on_from_is_deleted(client: OpenAI) -> None:
    first = say(client, "one")
    second = say(client, "two", previous_response_id=first.id)
    assert [refused(lambda e=e: client.responses.delete(e.id))["status"] for e in (first, second)] == [409, 409]
    alone = say(client, "one")
    client.responses.delete(alone.id)
    assert refused(lambda: client.responses.retrieve(alone.id))["code"] == "not_found"
    assert refused(lambda: say(client, "x", previous_response_id=alone.id))["code"] == "previous_response_not_found"


# -- how it ends


@pytest.mark.parametrize(("order", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_breaks_off_is_incomplete(client: OpenAI, order: str, reason: str) -> None:
    response = say(client, order, model="asker")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert (response.incomplete_details.reason, response.output_text) == (reason, "And then")


def test_a_failure_is_typed_and_says_nothing_of_what_lies_inside(client: OpenAI) -> None:
    response = say(client, "fail")
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"
    assert response.error.message.endswith("(provider_refused)")
    assert "secret" not in response.to_json()
    # The conversation goes on from it.
    assert say(client, "hello", previous_response_id=response.id).status == "completed"


def test_an_output_that_has_a_type_is_the_text_of_a_message(client: OpenAI) -> None:
    events = events_of(client.responses.create(model="reporter", input="report", stream=True))
    response: Response = cast("Any", events[-1]).response
    assert Report.model_validate_json(response.output_text) == Report(title="Tides", pages=2)
    assert kinds(response) == ["message"]
    assert [event.item for event in events if event.type == "response.output_item.done"] == response.output


def test_a_text_that_a_check_of_the_agent_refused_is_not_part_of_the_answer() -> None:
    def polite(ctx: RunContext, output: str) -> None:
        if "please" not in output:
            raise RetryOutput("say please")

    agent = Agent(name=AGENT, model=ScriptedModel(["Go away.", "Go away, please."] * 2), output_checks=[polite])
    server = AgentServer(Executor.open("memory://", agents=[agent]), authenticate=bearer_tokens(TOKENS))
    with LiveServer(server) as live, sdk(live) as client:
        first = say(client, "hello")
        assert first.output_text == "Go away, please."
        assert client.responses.retrieve(first.id) == first
        with client.responses.stream(model=AGENT, input="hello", previous_response_id=first.id) as stream:
            assert cast("Response", stream.get_final_response()).output_text == "Go away, please."


# -- who may, how often, how much


def test_the_same_request_again_gets_what_it_began(client: OpenAI, raw: httpx2.Client) -> None:
    def keyed(key: str, text: str, **more: Any) -> Response:
        return say(client, text, extra_headers={"Idempotency-Key": key}, **more)

    first = keyed("k-1", "one")
    assert keyed("k-1", "one") == first
    second = keyed("k-2", "two", previous_response_id=first.id)
    assert keyed("k-2", "two", previous_response_id=first.id) == second
    third = keyed("k-3", "three", previous_response_id=second.id)
    assert keyed("k-2", "two", previous_response_id=first.id) == second
    branch = keyed("k-4", "four", previous_response_id=first.id)
    assert keyed("k-4", "four", previous_response_id=first.id) == branch
    assert [text for role, text in transcript(raw, session_of(third)) if role == "user"] == ["one", "two", "three"]
    assert [text for role, text in transcript(raw, session_of(branch)) if role == "user"] == ["one", "four"]


def test_nobody_sees_or_touches_what_is_somebody_elses(live: LiveServer, client: OpenAI) -> None:
    mine = say(client, "publish")
    with sdk(live, BEN) as ben, sdk(live, "nobody") as nobody:
        tried: list[Callable[[], Any]] = [
            lambda: ben.responses.retrieve(mine.id),
            lambda: ben.responses.cancel(mine.id),
            lambda: ben.responses.delete(mine.id),
            lambda: list(ben.responses.input_items.list(mine.id)),
            lambda: list(cast("Any", ben.responses.retrieve(mine.id, stream=True))),
        ]
        assert [refused(attempt)["status"] for attempt in tried] == [404] * 5
        assert refused(lambda: say(ben, [approve(mine)], previous_response_id=mine.id))["status"] == 400
        taken = refused(lambda: say(ben, "x", conversation=session_of(mine)))
        assert (taken["status"], taken["type"]) == (403, "permission_error")
        for attempt in (lambda: nobody.models.list(), lambda: say(nobody, "x")):
            told = refused(attempt)
            assert (told["status"], told["type"], told["code"]) == (401, "authentication_error", "unauthenticated")


@pytest.mark.parametrize(
    ("sent", "param", "code"),
    [
        ({"model": "nobody"}, "model", "model_not_found"),
        ({"instructions": "Be brief."}, "instructions", "unsupported_parameter"),
        ({"temperature": 0.2}, "temperature", "unsupported_parameter"),
        ({"store": False}, "store", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"tools": [{"type": "function", "name": "mine"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "text", "unsupported_parameter"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"previous_response_id": "resp_1", "conversation": "c"}, "previous_response_id", "unsupported_parameter"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"input": [{"role": "system", "content": "Be brief."}]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "assistant", "content": "I said so."}]}, "input[0]", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "user", "content": [FILE]}]}, "input[0].content[0].file_id", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": "  "}, None, "validation_error"),
        ({"input": 7}, None, "validation_error"),
    ],
)  # fmt: skip
def test_what_an_agent_decides_itself_is_refused_by_name(
    raw: httpx2.Client, sent: dict[str, Any], param: str | None, code: str
) -> None:
    answer = raw.post("/v1/responses", json={"model": AGENT, "input": "hello", **sent})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (
        404 if code == "model_not_found" else 400,
        param,
        code,
    )
    assert error["type"] == "invalid_request_error"


def test_what_is_a_note_to_a_provider_changes_nothing(client: OpenAI) -> None:
    notes: dict[str, Any] = {
        "user": "u", "service_tier": "auto", "truncation": "auto", "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": False, "prompt_cache_key": "k", "safety_identifier": "s", "store": True,
        "tool_choice": "auto", "text": {"format": {"type": "text"}}, "temperature": None, "tools": [],
    }  # fmt: skip
    assert say(client, "hello", **notes).status == "completed"


def test_agents_are_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["asker", "director", "reporter"]
    assert client.models.retrieve("asker").id == "asker"
    assert refused(lambda: client.models.retrieve("helper"))["code"] == "model_not_found"


def test_an_instance_that_leaves_says_how_the_response_stands_and_begins_no_other() -> None:
    server = openai_server(limits=ServerLimits(body_bytes=4_096))
    with LiveServer(server) as live, sdk(live) as client:
        large = refused(lambda: say(client, "x" * 5_000))
        assert (large["status"], large["code"]) == (413, "payload_too_large")
        gate.shut()
        stream = cast("Any", client.responses.create(model=AGENT, input="one", stream=True))
        begun = [next(stream), next(stream)]
        with ThreadPoolExecutor() as others:
            waiting = others.submit(say, client, "two")
            wait_until(lambda: server.open_streams == 2)
            server.drain()
            assert waiting.result().status == "in_progress"
        lost = list(stream)[-1]
        assert (lost.type, lost.code) == ("error", "stream_lost")
        assert lost.sequence_number == begun[-1].sequence_number
        leaving = refused(lambda: say(client, "three"))
        assert (leaving["status"], leaving["type"], leaving["code"]) == (503, "server_error", "server_draining")
        gate.open()
