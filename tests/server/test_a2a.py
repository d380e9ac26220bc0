"""A2A's own client, unmodified, against a live server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from helix_agents import Agent, AgentServer, Executor, RetryOutput, RunContext, ScriptedModel, ask_human
from helix_agents.domain.queued import run_id_for
from helix_agents.server.a2a import tasks
from helix_agents.server.calls import Call
from helix_agents.testing import call
from tests.server.agents import gate
from tests.server.held import HeldStore, held_server
from tests.server.live import ANN, BEN, PATIENCE, Instance, LiveServer, agent_server, bearer

DIRECTOR = "/a2a/director"


@asynccontextmanager
async def opened(url: str, token: str = ANN, *, streaming: bool = True) -> AsyncIterator[Client]:
    """A client that found the agent by its card."""
    async with httpx.AsyncClient(headers=bearer(token), timeout=PATIENCE) as http:
        card = await A2ACardResolver(http, f"{url}{DIRECTOR}").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[Client]:
    async with opened(server.url) as client:
        yield client


@pytest.fixture
async def patient(server: LiveServer) -> AsyncIterator[Client]:
    """A client that wants one answer instead of a stream."""
    async with opened(server.url, streaming=False) as client:
        yield client


def says(text: str, message_id: str, context: str = "", task: str = "", data: Any = None) -> SendMessageRequest:
    parts = [Part(text=text)] if text else []
    request = SendMessageRequest(
        message=Message(message_id=message_id, role="ROLE_USER", parts=parts, context_id=context, task_id=task)
    )
    if data is not None:
        part = request.message.parts.add()
        part.data.struct_value.update(data)
    return request


async def events(stream: Any) -> list[dict[str, Any]]:
    found: list[StreamResponse] = [event async for event in stream]
    return [MessageToDict(event) for event in found]


def state(event: dict[str, Any]) -> str:
    told = event.get("statusUpdate") or event["task"]
    return told["status"]["state"].removeprefix("TASK_STATE_").lower()


def put_together(seen: list[dict[str, Any]]) -> dict[str, str]:
    """The texts as a client has them who follows the updates."""
    texts: dict[str, str] = {}
    for event in seen:
        if "task" in event:
            made = event["task"].get("artifacts", [])
            texts = {each["artifactId"]: each["parts"][0].get("text", "") for each in made}
        elif "artifactUpdate" in event:
            update = event["artifactUpdate"]
            name, text = update["artifact"]["artifactId"], update["artifact"]["parts"][0].get("text", "")
            texts[name] = texts.get(name, "") + text if update.get("append") else text
    return texts


def texts_of(task: Task) -> dict[str, str]:
    return {artifact.artifact_id: artifact.parts[0].text for artifact in task.artifacts}


async def listed(client: Client, context: str, until: Callable[[list[Task]], bool]) -> list[Task]:
    """The tasks of a context, as soon as they are as they should be."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await client.list_tasks(ListTasksRequest(context_id=context, include_artifacts=True))
            if until([*found.tasks]):
                return [*found.tasks]
            # A server in this process may answer without ever letting the others run.
            await asyncio.sleep(0)


async def test_the_card_says_where_the_agent_is_talked_to(server: LiveServer) -> None:
    async with httpx.AsyncClient(headers=bearer(ANN)) as http:
        card = await A2ACardResolver(http, server.url).get_agent_card()
        assert card == await A2ACardResolver(http, f"{server.url}{DIRECTOR}").get_agent_card()
        unknown = await http.get(f"{server.url}/.well-known/agent-card.json", headers={"authorization": "Bearer x"})
        assert unknown.status_code == 401
        assert (await http.get(f"{server.url}/a2a/helper/.well-known/agent-card.json")).status_code == 404
    assert card.supported_interfaces[0].url == f"{server.url}{DIRECTOR}"
    assert (card.name, card.capabilities.streaming) == ("director", True)


async def test_an_answer_is_streamed_and_the_task_read_later_is_the_same(client: Client, session_id: str) -> None:
    seen = await events(client.send_message(says("search", "m-1", session_id)))
    assert (state(seen[0]), state(seen[-1])) == ("working", "completed")
    task = await client.get_task(GetTaskRequest(id=seen[0]["task"]["id"]))
    assert put_together(seen) == texts_of(task)
    assert next(iter(texts_of(task).values())) == "Let me see. "
    assert "page 1 about tides" in [*texts_of(task).values()][-1]
    assert task.history[0].parts[0].text == "search"
    assert task.context_id == session_id


async def test_a_context_is_made_where_none_is_named_and_goes_on_with_the_next_message(patient: Client) -> None:
    [first] = [event async for event in patient.send_message(says("hello", "m-1"))]
    [second] = [event async for event in patient.send_message(says("again", "m-2", first.task.context_id))]
    assert first.task.context_id == second.task.context_id
    assert first.task.id != second.task.id
    listed = await patient.list_tasks(ListTasksRequest(context_id=first.task.context_id, page_size=1))
    assert (listed.total_size, [task.id for task in listed.tasks]) == (2, [second.task.id])
    rest = await patient.list_tasks(
        ListTasksRequest(context_id=first.task.context_id, page_size=1, page_token=listed.next_page_token)
    )
    assert ([task.id for task in rest.tasks], rest.next_page_token) == ([first.task.id], "")


async def test_the_same_message_again_is_the_same_task(patient: Client, session_id: str) -> None:
    [first] = [event async for event in patient.send_message(says("hello", "m-1", session_id))]
    [again] = [event async for event in patient.send_message(says("hello", "m-1", session_id))]
    assert first == again
    assert (await patient.list_tasks(ListTasksRequest(context_id=session_id))).total_size == 1


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"approved": True}, "published r-1"),
        ({"approved": True, "editedInput": {"report_id": "r-9"}}, "published r-9"),
        ({"approved": False, "reason": "not today"}, "not today"),
    ],
    ids=["approved", "edited", "denied"],
)
@pytest.mark.parametrize("order", ["publish", "delegate"])
async def test_an_approval_is_input_that_a_task_requires_at_any_depth(
    client: Client, session_id: str, order: str, data: dict[str, Any], told: str
) -> None:
    seen = await events(client.send_message(says(order, "m-1", session_id)))
    assert state(seen[-1]) == "input_required"
    sentence, question = seen[-1]["statusUpdate"]["status"]["message"]["parts"]
    assert sentence["text"].startswith("May publish run?")
    assert (question["data"]["toolName"], question["data"]["input"]) == ("publish", {"report_id": "r-1"})
    name = seen[0]["task"]["id"]
    with pytest.raises(InvalidParamsError, match="approved"):
        await events(client.send_message(says("yes, please", "m-2", session_id, name)))
    goes_on = await events(client.send_message(says("", "m-3", session_id, name, data)))
    assert (goes_on[0]["task"]["id"], state(goes_on[-1])) == (name, "completed")
    assert told in [*put_together(goes_on).values()][-1]
    with pytest.raises(UnsupportedOperationError, match="over"):
        await events(client.send_message(says("", "m-4", session_id, name, data)))


async def test_text_answers_a_question_and_several_are_told_apart_by_their_calls(
    patient: Client, session_id: str
) -> None:
    [asked] = [event async for event in patient.send_message(says("locate", "m-1", session_id))]
    assert asked.task.status.message.parts[0].text.startswith("locate needs an answer. Answer with text, or data: {")
    [done] = [event async for event in patient.send_message(says("the harbour", "m-2", "", asked.task.id))]
    assert "the harbour" in [*texts_of(done.task).values()][-1]
    [both] = [event async for event in patient.send_message(says("both", "m-3", session_id))]
    with pytest.raises(InvalidParamsError, match="Several calls wait"):
        _ = [event async for event in patient.send_message(says("the harbour", "m-4", "", both.task.id))]
    asked_for = [MessageToDict(part.data) for part in both.task.status.message.parts if part.HasField("data")]
    by_tool = {each["toolName"]: each["toolCallId"] for each in asked_for}
    answers = says("", "m-5", "", both.task.id, {"toolCallId": by_tool["publish"], "approved": True})
    answers.message.parts.add().data.struct_value.update({"toolCallId": by_tool["locate"], "result": "the mole"})
    [ended] = [event async for event in patient.send_message(answers)]
    assert "published r-1; the mole" in [*texts_of(ended.task).values()][-1]


async def test_whoever_comes_in_the_middle_has_the_same_in_the_end(client: Client, session_id: str) -> None:
    gate.shut(4)
    first = asyncio.create_task(events(client.send_message(says("long tale", "m-1", session_id))))
    [task] = await listed(client, session_id, lambda tasks: any(texts_of(task) for task in tasks))
    name = task.id
    subscribed = aiter(client.subscribe(SubscribeToTaskRequest(id=name)))
    later = [MessageToDict(await anext(subscribed))]
    with pytest.raises(UnsupportedOperationError, match="in progress"):
        await events(client.send_message(says("faster", "m-2", session_id, name)))
    gate.open()
    seen, later = await first, [*later, *await events(subscribed)]
    assert later[0]["task"]["artifacts"]
    whole = texts_of(await client.get_task(GetTaskRequest(id=name)))
    assert put_together(seen) == put_together(later) == whole
    with pytest.raises(UnsupportedOperationError, match="over"):
        await events(client.subscribe(SubscribeToTaskRequest(id=name)))


async def test_a_second_task_waits_for_its_turn_and_either_can_be_cancelled(client: Client, session_id: str) -> None:
    gate.shut(2)
    first = asyncio.create_task(events(client.send_message(says("long tale", "m-1", session_id))))
    await listed(client, session_id, lambda tasks: len(tasks) == 1)
    second = asyncio.create_task(events(client.send_message(says("hello", "m-2", session_id))))
    third = asyncio.create_task(events(client.send_message(says("no", "m-3", session_id))))
    waiting = await listed(client, session_id, lambda tasks: len(tasks) == 3)
    by_message = {task.history[0].message_id: task.id for task in waiting}
    taken_back = await client.cancel_task(CancelTaskRequest(id=by_message["m-3"]))
    assert taken_back.status.state == 5
    assert state((await third)[-1]) == "canceled"
    stopped = await client.cancel_task(CancelTaskRequest(id=by_message["m-1"]))
    assert stopped.status.state == 5
    gate.open()
    assert state((await first)[-1]) == "canceled"
    told = [state(each) for each in await second if "artifactUpdate" not in each]
    assert (told[0], told[-1]) == ("submitted", "completed")


async def test_a_message_that_is_taken_back_before_it_is_looked_at_is_a_task_that_was_canceled(
    client: Client, patient: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.shut(2)
    first = asyncio.create_task(events(client.send_message(says("long tale", "m-1", session_id))))
    await listed(client, session_id, lambda tasks: len(tasks) == 1)
    read = tasks.read_task

    async def late(call: Call, given: str) -> Any:
        _, asked_id = tasks.names_in(given)
        await call.executor.sessions.drop_queued(session_id, run_id_for(session_id, asked_id))
        return await read(call, given)

    monkeypatch.setattr(tasks, "read_task", late)
    for number, sender in enumerate((client, patient), start=2):
        told = await events(sender.send_message(says("no", f"m-{number}", session_id)))
        assert {state(each) for each in told} == {"canceled"}
    monkeypatch.undo()
    gate.open()
    assert state((await first)[-1]) == "completed"


async def test_a_task_behind_one_that_needs_somebody_is_not_waited_for(patient: Client, session_id: str) -> None:
    [asks] = [event async for event in patient.send_message(says("publish", "m-1", session_id))]
    [held] = [event async for event in patient.send_message(says("hello", "m-2", session_id))]
    assert held.task.status.state == 1
    assert "needs input" in held.task.status.message.parts[0].text
    cancelled = await patient.cancel_task(CancelTaskRequest(id=asks.task.id))
    assert cancelled.status.state == 5


async def test_nobody_reaches_the_tasks_of_others(server: LiveServer, client: Client, session_id: str) -> None:
    seen = await events(client.send_message(says("publish", "m-1", session_id)))
    name = seen[0]["task"]["id"]
    async with opened(server.url, BEN) as ben:
        for attempt in (
            ben.get_task(GetTaskRequest(id=name)),
            ben.cancel_task(CancelTaskRequest(id=name)),
            events(ben.subscribe(SubscribeToTaskRequest(id=name))),
            events(ben.send_message(says("", "m-2", "", name, {"approved": True}))),
        ):
            with pytest.raises(TaskNotFoundError):
                await attempt
        assert not (await ben.list_tasks(ListTasksRequest(context_id=session_id))).tasks
        assert name not in [task.id for task in (await ben.list_tasks(ListTasksRequest())).tasks]
        with pytest.raises(Exception, match="403"):
            await events(ben.send_message(says("hello", "m-3", session_id)))
    assert (await client.get_task(GetTaskRequest(id=name))).status.state == 6


async def test_a_failed_run_is_a_failed_task_that_says_nothing_of_the_inside(client: Client, session_id: str) -> None:
    seen = await events(client.send_message(says("fail", "m-1", session_id)))
    assert state(seen[-1]) == "failed"
    assert "secret" not in str(seen)
    assert seen[-1]["statusUpdate"]["status"]["message"]["parts"][0]["text"]
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=seen[0]["task"]["id"]))


def test_a_task_goes_on_in_another_process_after_kill_9(tmp_path: Path, session_id: str) -> None:
    store, journal = f"sqlite:///{tmp_path}/a2a.db", tmp_path / "journal"
    environment = {"HELIX_TEST_JOURNAL": str(journal)}

    async def ask(url: str) -> str:
        async with opened(url, streaming=False) as client:
            [asked] = [event async for event in client.send_message(says("publish", "m-1", session_id))]
            return asked.task.id

    async def go_on(url: str, name: str) -> Task:
        async with opened(url) as client:
            seen = await events(client.send_message(says("", "m-2", "", name, {"approved": True})))
            assert state(seen[-1]) == "completed"
            return await client.get_task(GetTaskRequest(id=name))

    with Instance(store, environment=environment) as first:
        name = asyncio.run(ask(first.url))
        first.kill()
    with Instance(store, environment=environment) as second:
        assert len(asyncio.run(go_on(second.url, name)).artifacts) == 2
    assert journal.read_text(encoding="utf-8") == "r-1\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", -32700),
        ([], -32600),
        ({"jsonrpc": "1.0", "method": "GetTask", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "method": "message/send", "id": 1}, -32601),
        ({"jsonrpc": "2.0", "method": "GetTask", "id": 1}, -32602),
        ({"jsonrpc": "2.0", "method": "GetTask", "id": 1, "params": {"id": "nothing"}}, -32001),
        ({"jsonrpc": "2.0", "method": "GetTask", "id": 1, "params": {"id": "a:b"}}, -32001),
        ({"jsonrpc": "2.0", "method": "ListTasks", "id": 1, "params": {"pageToken": "x"}}, -32602),
        ({"jsonrpc": "2.0", "method": "ListTasks", "id": 1, "params": {"pageSize": 0}}, -32602),
        ({"jsonrpc": "2.0", "method": "CreateTaskPushNotificationConfig", "id": 1}, -32003),
        ({"jsonrpc": "2.0", "method": "SendMessage", "id": 1, "params": {"message": {}}}, -32602),
    ],
)
def test_what_is_no_request_is_told_in_the_protocols_own_words(ann: httpx2.Client, body: Any, code: int) -> None:
    given = (
        {"content": body, "headers": {"content-type": "application/json"}} if isinstance(body, str) else {"json": body}
    )
    answer = ann.post(DIRECTOR, **given)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "parts",
    [[], [{}], [{"text": " "}], [{"url": "file:///etc/passwd"}], [{"text": "x"}] * 300],
    ids=["none", "empty", "blank", "a file of the machine", "too many"],
)
def test_a_message_that_says_nothing_begins_nothing(
    ann: httpx2.Client, session_id: str, parts: list[dict[str, str]]
) -> None:
    message = {"messageId": "m-1", "role": "ROLE_USER", "contextId": session_id, "parts": parts}
    request = {"jsonrpc": "2.0", "method": "SendMessage", "id": 1, "params": {"message": message}}
    assert ann.post(DIRECTOR, json=request).json()["error"]["code"] == -32602
    assert ann.get("/status", params={"sessionId": session_id}).status_code == 404


def test_an_older_client_is_told_which_version_is_spoken(ann: httpx2.Client) -> None:
    body = {"jsonrpc": "2.0", "method": "message/send", "id": 1, "params": {}}
    told = ann.post(DIRECTOR, json=body, headers={"a2a-version": "0.3"}).json()["error"]
    assert (told["code"], told["data"][0]["reason"]) == (-32009, "VERSION_NOT_SUPPORTED")


async def test_a_question_is_told_in_its_own_words() -> None:
    model = ScriptedModel([call("ask_human", {"question": "Window or aisle?"}), "Booked."])
    clerk = Agent(name="director", model=model, tools=[ask_human()])
    server = AgentServer(Executor.open("memory://", agents=[clerk]), allow_unauthenticated=True)
    async with server.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(server)) as http:
        card = await A2ACardResolver(http, f"http://here{DIRECTOR}").get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        [asked] = [event async for event in client.send_message(says("book", "m-1"))]
        assert asked.task.status.message.parts[0].text.startswith("Window or aisle? Answer with text")
        [done] = [event async for event in client.send_message(says("aisle", "m-2", "", asked.task.id))]
    assert [*texts_of(done.task).values()] == ["Booked."]


async def test_a_text_that_a_check_of_the_agent_refused_is_nothing_that_the_task_made() -> None:
    def polite(ctx: RunContext, output: str) -> None:
        if "please" not in output:
            raise RetryOutput("say please")

    model = ScriptedModel(["Go away.", "Go away, please."] * 2)
    server = AgentServer(
        Executor.open("memory://", agents=[Agent(name="director", model=model, output_checks=[polite])]),
        allow_unauthenticated=True,
    )
    async with server.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(server)) as http:
        card = await A2ACardResolver(http, f"http://here{DIRECTOR}").get_agent_card()
        for streaming in (True, False):
            client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
            seen = await events(client.send_message(says("hello", f"m-{streaming}")))
            assert [text for text in put_together(seen).values() if text] == ["Go away, please."]
            last = await client.list_tasks(ListTasksRequest(page_size=1, include_artifacts=True))
            assert [*texts_of(last.tasks[0]).values()] == ["Go away, please."]


async def all_pages(client: Client, **wanted: Any) -> list[Task]:
    """What a client finds who reads page after page, two tasks at a time."""
    found: list[Task] = []
    token = ""
    while True:
        page = await client.list_tasks(ListTasksRequest(page_size=2, page_token=token, **wanted))
        found += page.tasks
        token = page.next_page_token
        if not token:
            assert page.total_size == len(found)
            return found


@pytest.fixture
def empty() -> Iterator[LiveServer]:
    """A server that nobody has talked to."""
    with LiveServer(agent_server()) as live:
        yield live


async def test_every_task_of_the_caller_is_listed_page_by_page_and_what_changed_last_comes_first(
    empty: LiveServer,
) -> None:
    async with opened(empty.url, streaming=False) as client, opened(empty.url, BEN, streaming=False) as ben:
        for context, order in (("a", "hello"), ("b", "publish"), ("a", "search"), ("c", "fail"), ("a", "again")):
            await sent(client, says(order, f"m-{order}", context))
        await sent(ben, says("hello", "m-1", "d"))
        found = await all_pages(client)
        assert [task.id for task in found] == ["a:m-again", "c:m-fail", "a:m-search", "b:m-publish", "a:m-hello"]
        assert [task.id for task in await all_pages(ben)] == ["d:m-1"]
        # Answered, the task of the other context has changed last.
        await sent(client, says("", "m-2", "b", "b:m-publish", {"approved": True}))
        assert (await all_pages(client))[0].id == "b:m-publish"
        done = await all_pages(client, status="TASK_STATE_COMPLETED")
        assert [task.id for task in done] == ["b:m-publish", "a:m-again", "a:m-search", "a:m-hello"]
        since = found[1].status.timestamp
        later = await all_pages(client, status_timestamp_after=since)
        assert [task.id for task in later] == ["b:m-publish", "a:m-again", "c:m-fail"]
        assert [task.id for task in await all_pages(client, context_id="c")] == ["c:m-fail"]


async def test_a_page_goes_on_where_the_last_one_ended_though_others_came_meanwhile(
    server: LiveServer, session_id: str
) -> None:
    async with opened(server.url, streaming=False) as client:
        for number in range(3):
            await sent(client, says("hello", f"m-{number}", session_id))
        first = await client.list_tasks(ListTasksRequest(context_id=session_id, page_size=2))
        await sent(client, says("hello", "m-3", session_id))
        rest = await client.list_tasks(
            ListTasksRequest(context_id=session_id, page_size=2, page_token=first.next_page_token)
        )
        told = [task.history[0].message_id for task in (*first.tasks, *rest.tasks)]
        assert told == ["m-2", "m-1", "m-0"]


async def test_a_task_that_nobody_answered_is_cancelled_once_another_turn_follows(
    server: LiveServer, patient: Client, session_id: str
) -> None:
    asked = await sent(patient, says("publish", "m-1", session_id))
    assert asked.status.state == 6
    message = {"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    async with httpx.AsyncClient(headers=bearer(ANN)) as http:
        (await http.post(f"{server.url}/chat", json={"id": session_id, "message": message})).raise_for_status()
    told = await listed(patient, session_id, lambda tasks: tasks[0].status.state == 3)
    assert [(task.history[0].message_id, task.status.state) for task in told] == [("u-1", 3), ("m-1", 5)]
    assert (await patient.get_task(GetTaskRequest(id=asked.id))).status.state == 5
    with pytest.raises(UnsupportedOperationError, match="over"):
        await sent(patient, says("", "m-2", "", asked.id, {"approved": True}))


@pytest.mark.parametrize("order", ["long tale", "fail"])
async def test_a_task_that_ended_before_it_said_anything_stays_as_it_ended(
    patient: Client, session_id: str, order: str
) -> None:
    gate.shut(0)
    first = await sent(patient, at_once(order, "m-1", session_id))
    if order != "fail":
        await patient.cancel_task(CancelTaskRequest(id=first.id))
    gate.open()
    [ended] = await listed(patient, session_id, lambda tasks: tasks[0].status.state not in (1, 2))
    await sent(patient, says("hello", "m-2", session_id))
    later = await patient.get_task(GetTaskRequest(id=first.id))
    assert (later.status.state, later.status.timestamp) == (ended.status.state, ended.status.timestamp)
    assert later.status.state == (4 if order == "fail" else 5)


@asynccontextmanager
async def on_a_held_store() -> AsyncIterator[tuple[HeldStore, Client]]:
    store, executor, server = held_server()
    async with (
        asyncio.timeout(PATIENCE),
        executor,
        server.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(server), timeout=PATIENCE) as http,
    ):
        card = await A2ACardResolver(http, f"http://here{DIRECTOR}").get_agent_card()
        yield store, ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)


async def sent(client: Client, request: SendMessageRequest) -> Task:
    [event] = [event async for event in client.send_message(request)]
    return event.task


def at_once(text: str, message_id: str, context: str) -> SendMessageRequest:
    """A message whose sender does not wait for the answer."""
    request = says(text, message_id, context)
    request.configuration.return_immediately = True
    return request


async def test_to_cancel_a_task_never_stops_the_one_after_it() -> None:
    async with on_a_held_store() as (store, client):
        gate.shut(2)
        first = await sent(client, at_once("long tale", "m-1", "c"))
        second = await sent(client, at_once("long story", "m-2", "c"))
        cancelling = store.hold("set_interrupt_flag", client.cancel_task(CancelTaskRequest(id=first.id)))
        await store.is_held.wait()
        gate.shut(2, only="story")
        # The first task ends by itself, and the second is at work when the stop of the first gets there.
        await listed(client, "c", lambda tasks: any(task.id == second.id and task.status.state == 2 for task in tasks))
        store.released.set()
        with pytest.raises(TaskNotCancelableError):
            await cancelling
        gate.open()
        ended = await listed(client, "c", lambda tasks: all(task.status.state not in (1, 2) for task in tasks))
        assert {task.id: task.status.state for task in ended} == {first.id: 3, second.id: 3}


async def test_a_first_message_that_is_sent_twice_at_once_is_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, told = Call.begin, list[Task]()

    async def overtaken(call: Call, starting: Any, **about: Any) -> Any:
        monkeypatch.setattr(Call, "begin", begin)
        told.append(await sent(client, says("hello", "m-1", "c")))
        return await begin(call, starting, **about)

    async with on_a_held_store() as (_, client):
        monkeypatch.setattr(Call, "begin", overtaken)
        told.append(await sent(client, says("hello", "m-1", "c")))
        assert {task.id for task in told} == {task.id for task in await listed(client, "c", bool)}
        assert len(told) == 2


async def test_a_task_is_never_lost_between_the_queue_and_the_conversation() -> None:
    async with on_a_held_store() as (store, client):
        gate.shut(2)
        await sent(client, at_once("long tale", "m-1", "c"))
        second = await sent(client, at_once("hello", "m-2", "c"))
        looking = store.hold("list_queued", client.get_task(GetTaskRequest(id=second.id)))
        await store.is_held.wait()
        gate.open()
        await listed(client, "c", lambda tasks: all(task.status.state == 3 for task in tasks))
        store.released.set()
        assert (await looking).status.state == 3
