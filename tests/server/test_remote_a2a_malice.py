"""What an agent of other people that talks nonsense can do to whoever delegates to it: fail its own call."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from helix_agents import Completed, Executor, Interrupted, ToolAnswer
from helix_agents.agent.remote_agents import RemoteLimits
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import ToolMessage
from helix_agents.engine.remote.stops import OPEN, REMOTE
from helix_agents.engine.services import EngineOptions
from helix_agents.server.remote_a2a import transport as transports
from helix_agents.server.remote_a2a.cards import read_card
from helix_agents.server.remote_a2a.transport import A2ARemoteAgentTransport
from tests.server.chain import a2a_boss
from tests.server.delegating import child_of, delegated, finish, only
from tests.server.live import LiveServer

Reply = Callable[[dict[str, Any]], Any]


def task(state: str = "COMPLETED", text: str = "done", **more: Any) -> dict[str, Any]:
    about = {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}
    return {**about, "artifacts": [{"artifactId": "a", "parts": [{"text": text}]}], **more}


def asking(*parts: Any) -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [*parts]}
    return task(status={"state": "TASK_STATE_INPUT_REQUIRED", "message": message})


class Nonsense:
    """An ASGI application that says what a test wants it to say."""

    def __init__(self) -> None:
        self.tell()

    def tell(self) -> None:
        """Begin anew: an agent whose task is done at once."""
        self.card: Any = {"supportedInterfaces": [{"url": "", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]}
        self.streaming = False
        self.card_status = 200
        self.statuses: list[int] = []
        self.said: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: dict[str, Any] = {
            "SendMessage": {"task": task("WORKING")},
            "GetTask": task(),
            "CancelTask": task("CANCELED"),
        }
        self.events: list[Any] = []
        self.endless: dict[str, Any] | None = None

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [each["params"] for each in self.said if each["method"] == method]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if scope["method"] == "GET":
            await self._send(send, self.card_status, self._card(scope))
        else:
            await self._talk(send, msgspec.json.decode(body))

    def _card(self, scope: Any) -> Any:
        if not isinstance(self.card, dict):
            return self.card
        card = {"capabilities": {"streaming": self.streaming}, **self.card}
        host, port = scope["server"]
        match card.get("supportedInterfaces"):
            case [{"url": ""} as interface]:
                return {**card, "supportedInterfaces": [{**interface, "url": f"http://{host}:{port}/rpc"}]}
            case _:
                return card

    async def _talk(self, send: Any, said: dict[str, Any]) -> None:
        self.said.append(said)
        method = said["method"]
        if method == "SubscribeToTask" and self.streaming:
            await self._stream(send)
            return
        status = self.statuses.pop(0) if self.statuses and method == "SendMessage" else 200
        found = self.replies.get(method, {"error": {"code": -32601, "message": "unknown method"}})
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, dict) and "error" not in found:
            found = {"jsonrpc": "2.0", "id": 1, "result": found}
        await self._send(send, status, found)

    async def _send(self, send: Any, status: int, content: Any) -> None:
        raw = content if isinstance(content, bytes) else msgspec.json.encode(content)
        headers = [(b"content-type", b"application/json")]
        if status == 302:
            headers.append((b"location", b"http://127.0.0.1:9/elsewhere"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": raw})

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        events = [*self.events, *[self.endless] * 3_000] if self.endless else self.events
        for event in events:
            raw = event if isinstance(event, bytes) else msgspec.json.encode({"jsonrpc": "2.0", "result": event})
            await send({"type": "http.response.body", "body": b"data: " + raw + b"\r\n\r\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


nonsense = Nonsense()


@pytest.fixture(scope="module")
def lying() -> Iterator[LiveServer]:
    with LiveServer(nonsense) as live:
        yield live


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    nonsense.tell()
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


async def result_of(helix: Executor, url: Any, **settings: Any) -> ToolMessage:
    agent = a2a_boss(url, **{"lost_after": 0.2, **settings})
    assert isinstance(await finish(helix, agent, "remote x"), Completed)
    return await delegated(helix)


INTERFACE = {"url": "", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}


@pytest.mark.parametrize(
    ("card", "status", "why"),
    [
        pytest.param(b"", 404, "404", id="missing"),
        pytest.param(b"", 302, "302", id="elsewhere"),
        pytest.param(b"<html>", 200, "not JSON", id="a page"),
        pytest.param([1], 200, "not an object", id="no object"),
        pytest.param({}, 200, "not the card", id="empty"),
        pytest.param({"supportedInterfaces": "none"}, 200, "not the card", id="no interfaces"),
        pytest.param({"supportedInterfaces": []}, 200, "speaks no protocol", id="none"),
        pytest.param(
            {"supportedInterfaces": [{**INTERFACE, "protocolVersion": "0.3"}]},
            200,
            "speaks JSONRPC 0.3",
            id="an old one",
        ),
        pytest.param(
            {"supportedInterfaces": [{**INTERFACE, "protocolBinding": "GRPC"}]},
            200,
            "speaks GRPC 1.0",
            id="another one",
        ),
        pytest.param(
            {"supportedInterfaces": [INTERFACE], "capabilities": {"extensions": [{"uri": "x:y", "required": True}]}},
            200,
            "requires the extension 'x:y'",
            id="more than the protocol",
        ),
        pytest.param(
            {"supportedInterfaces": [{**INTERFACE, "url": "http://169.254.169.254/latest"}]},
            200,
            "origins=",
            id="another server",
        ),
        pytest.param(
            {"supportedInterfaces": [{**INTERFACE, "url": "file:///etc/passwd"}]}, 200, "origins=", id="a file"
        ),
        pytest.param({"supportedInterfaces": [{**INTERFACE, "url": "http://[::1"}]}, 200, "origins=", id="no address"),
    ],
)
async def test_a_card_that_cannot_be_used_starts_nothing(
    lying: LiveServer, helix: Executor, card: Any, status: int, why: str
) -> None:
    nonsense.card, nonsense.card_status = card, status
    message = await result_of(helix, lying.url)
    assert message.code == "sub_agent_dispatch_failed"
    assert why in str(message.content)
    assert nonsense.said == []


@pytest.fixture
def elsewhere() -> Iterator[LiveServer]:
    with LiveServer(Nonsense()) as live:
        yield live


@pytest.mark.parametrize("is_there", [True, False], ids=["failing", "gone"])
async def test_a_server_that_cannot_be_reached_is_given_up(lying: LiveServer, helix: Executor, is_there: bool) -> None:
    nonsense.card_status = 500
    message = await result_of(helix, lying.url if is_there else "http://127.0.0.1:9")
    assert (message.code, "status_unreachable" in str(message.content)) == ("framework_subagent_lost", True)


async def test_credentials_go_to_no_server_that_a_card_names(
    lying: LiveServer, elsewhere: LiveServer, helix: Executor
) -> None:
    nonsense.card["supportedInterfaces"] = [{**INTERFACE, "url": f"{elsewhere.url}/rpc"}]
    refused = await result_of(helix, lying.url, token="secret")
    assert refused.code == "sub_agent_dispatch_failed"
    assert "secret" not in str(refused.content)
    assert elsewhere.app.headers == []
    allowed = await result_of(helix, lying.url, token="secret", origins=[elsewhere.url])
    assert (allowed.content, elsewhere.app.headers[0]["authorization"]) == ("done", "Bearer secret")


async def test_a_request_says_what_it_has_to(lying: LiveServer, helix: Executor) -> None:
    nonsense.card["supportedInterfaces"] = [{**INTERFACE, "tenant": "acme"}]
    await result_of(helix, lying.url, headers={"x-key": "k"})
    assert {(each["a2a-version"], each["x-key"]) for each in nonsense.headers} == {("1.0", "k")}
    assert {each["params"]["tenant"] for each in nonsense.said} == {"acme"}


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"nonsense", id="no JSON"),
        pytest.param({}, id="nothing"),
        pytest.param({"task": {"id": "t"}}, id="a task without state"),
        pytest.param({"task": task("DREAMING")}, id="a task of the future"),
        pytest.param({"task": "t"}, id="a text"),
    ],
)
@pytest.mark.parametrize("method", ["SendMessage", "GetTask"])
async def test_an_answer_that_is_none_loses_the_task(
    lying: LiveServer, helix: Executor, method: str, reply: Any
) -> None:
    is_wrapped = method == "GetTask" and isinstance(reply, dict) and "task" in reply
    nonsense.replies[method] = reply["task"] if is_wrapped else reply
    message = await result_of(helix, lying.url)
    assert message.code == "framework_subagent_lost"
    assert "protocol" in str(message.content)


async def test_an_answer_that_is_too_long_or_too_deep_loses_the_task(lying: LiveServer, helix: Executor) -> None:
    short = A2ARemoteAgentTransport(lying.url, answer_bytes=10_000)
    nonsense.replies["GetTask"] = task(text="x" * 20_000)
    assert (await result_of(helix, short)).code == "framework_subagent_lost"
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    nonsense.replies["GetTask"] = task(artifacts=[{"artifactId": "a", "parts": [{"data": deep}]}])
    assert (await result_of(helix, lying.url)).code == "framework_subagent_lost"


async def test_a_server_that_fails_over_the_first_message_is_not_asked_again(
    lying: LiveServer, helix: Executor
) -> None:
    nonsense.replies["SendMessage"] = {"error": {"code": -32603, "message": "oops"}}
    message = await result_of(helix, lying.url, lost_after=60)
    assert (message.code, "oops" in str(message.content)) == ("sub_agent_dispatch_failed", True)
    assert len(nonsense.sent("SendMessage")) == 1


async def test_a_message_that_is_sent_again_has_the_same_id(lying: LiveServer, helix: Executor) -> None:
    nonsense.statuses = [503, 503]
    assert (await result_of(helix, lying.url, lost_after=60)).content == "done"
    sent = nonsense.sent("SendMessage")
    assert len(sent) == 3
    assert len({each["message"]["messageId"] for each in sent}) == 1
    assert len(nonsense.sent("ListTasks")) == 2


async def test_an_agent_that_cannot_be_followed_is_looked_at(lying: LiveServer, helix: Executor) -> None:
    nonsense.card["capabilities"] = {"streaming": True}
    nonsense.replies["GetTask"] = [task("WORKING", "do"), task("WORKING", "do"), task("WORKING", "don"), task()]
    assert (await result_of(helix, lying.url)).content == "done"


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param({"artifactUpdate": {"artifact": 1}}, id="no artifact"),
    ],
)
async def test_events_that_are_none_lose_the_task(lying: LiveServer, helix: Executor, event: Any) -> None:
    nonsense.streaming, nonsense.events = True, [{"task": task("WORKING", "")}, event]
    assert (await result_of(helix, lying.url)).code == "framework_subagent_lost"
    assert nonsense.sent("CancelTask") == [{"id": "t"}]


@pytest.mark.parametrize("limits", [RemoteLimits(chunks=50), RemoteLimits(bytes=20_000)], ids=["chunks", "bytes"])
async def test_a_stream_that_never_ends_is_left_and_the_task_cancelled(
    lying: LiveServer, helix: Executor, limits: RemoteLimits
) -> None:
    piece = {"artifact": {"artifactId": "a", "parts": [{"text": "x" * 200}]}, "append": True}
    nonsense.streaming, nonsense.events = True, [{"task": task("WORKING", "")}]
    nonsense.endless = {"artifactUpdate": piece}
    message = await result_of(helix, lying.url, limits=limits)
    assert message.code == "remote_limit_exceeded"
    assert nonsense.sent("CancelTask") == [{"id": "t"}]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([{"data": {"toolCallId": "a\n", "toolName": "x", "kind": "question"}}], id="an id that is none"),
        pytest.param([{"data": {"toolCallId": "a", "toolName": "x\n", "kind": "approval"}}], id="a name that is none"),
        pytest.param(
            [{"data": {"toolCallId": f"c{n}", "toolName": "x", "kind": "client_tool"}} for n in range(100)], id="many"
        ),
        pytest.param([{"text": "?" * 2_000_000}], id="a long question"),
    ],
)
async def test_questions_that_cannot_be_asked_lose_the_task(
    lying: LiveServer, helix: Executor, parts: list[Any]
) -> None:
    nonsense.replies["GetTask"] = asking(*parts)
    assert (await result_of(helix, lying.url)).code == "framework_subagent_lost"


async def test_a_question_without_words_can_be_answered(lying: LiveServer, helix: Executor) -> None:
    nonsense.replies["GetTask"] = asking({"data": {"form": ["port"]}})
    agent = a2a_boss(lying.url)
    waiting = only(await finish(helix, agent, "remote x"))
    assert waiting.input == {
        "question": "The agent needs more information, and does not say which.",
        "parts": [{"data": {"form": ["port"]}}],
    }
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result={"port": "Brest"}))
    nonsense.replies["SendMessage"] = {"task": task("WORKING")}
    nonsense.replies["GetTask"] = [nonsense.replies["GetTask"], nonsense.replies["GetTask"], task()]
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    answer = nonsense.sent("SendMessage")[-1]["message"]
    assert (answer["taskId"], answer["contextId"]) == ("t", "c")
    assert answer["parts"] == [{"data": {"port": "Brest"}}]


async def test_an_agent_that_does_not_hear_is_asked_for_a_person_again(
    lying: LiveServer, helix: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_HEARD_SECONDS", 0.05)
    nonsense.replies["GetTask"] = asking({"text": "Which port?"})
    agent = a2a_boss(lying.url)
    waiting = only(await finish(helix, agent, "remote x"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    again = only(await (await helix.resume(agent, "s")).result())
    assert again.tool_call_id == waiting.tool_call_id
    assert len(nonsense.sent("SendMessage")) == 2


async def test_an_answer_that_the_task_has_is_not_given_twice(lying: LiveServer, helix: Executor) -> None:
    nonsense.replies["GetTask"] = asking({"text": "Which port?"})
    agent = a2a_boss(lying.url)
    waiting = only(await finish(helix, agent, "remote x"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    question = nonsense.replies["GetTask"]

    def answered() -> dict[str, Any]:
        message = nonsense.sent("SendMessage")[-1]["message"]
        return {**question, "history": [{"messageId": message["messageId"], "role": "ROLE_USER", "parts": []}]}

    nonsense.statuses = [503]
    nonsense.replies["GetTask"] = Later(question, question, answered, answered, task())
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert len(nonsense.sent("SendMessage")) == 2


class Later(list[Any]):
    """Replies, of which some are made when they are asked for."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(replies)

    def pop(self, index: Any = 0) -> Any:
        found = super().pop(index)
        return found() if callable(found) else found


async def test_a_stop_that_is_refused_stays_owed(lying: LiveServer) -> None:
    nonsense.tell()
    nonsense.streaming = False
    nonsense.replies["GetTask"] = task("WORKING", "Wait. ")
    nonsense.replies["CancelTask"] = {"error": {"code": -32002, "message": "I go on."}}
    options = EngineOptions(cancel_grace_seconds=0.1)
    async with Executor.open("memory://", janitor_seconds=None, options=options) as helix:
        run = await helix.execute(a2a_boss(lying.url), "remote x", "s")
        async for chunk in run.stream():
            if isinstance(chunk, TextDelta) and chunk.remote_sequence is not None:
                break
        await helix.interrupt("s", "enough")
        assert isinstance(await run.result(), Interrupted)
        assert (await helix.sessions.get(await child_of(helix))).metadata[REMOTE] == OPEN


def test_a_card_may_say_more_than_is_known() -> None:
    card = {
        "name": "x",
        "supportedInterfaces": [
            {**INTERFACE, "url": "https://a.example/grpc", "protocolBinding": "GRPC"},
            {**INTERFACE, "url": "https://A.example:443/rpc", "new": 1},
        ],
        "capabilities": {"streaming": True, "extensions": [{"uri": "x:y"}], "dreams": True},
        "skills": None,
    }
    assert read_card(card, {"https://a.example:443"}).url == "https://A.example:443/rpc"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x", "https address"),
        ("https://user:pw@x", "the address of x has credentials in it"),
        ("x", "https address"),
    ],
)
def test_an_address_that_cannot_be_talked_to_is_refused_at_once(url: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        a2a_boss(url)
