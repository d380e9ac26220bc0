"""Who may do what with whose conversations: a rule for every route, and no route without one."""

import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias

import httpx2
import pytest

from helix_agents.server.a2a.tasks import task_id
from helix_agents.server.mcp.names import Asked, Place, write_asked, write_place
from helix_agents.server.openai.stored import response_id
from helix_agents.server.operations import OPERATIONS
from tests.server.agents import gate
from tests.server.live import BEN, OPS, LiveServer, agent_server
from tests.server.mcp_clients import Raw
from tests.server.test_executor_routes import settled, start

SECRET = "my secret"


@dataclass(frozen=True, kw_only=True)
class Names:
    """Everything of a user that a route can be asked about: a conversation that waits for an answer, one in progress
    with a message in its queue, and a schedule."""

    waiting: str
    waiting_run: str
    call: str
    approval: str
    running: str
    queued: str
    message: str
    checkpoint: str
    schedule: str


MISSING = Names(
    waiting="no-such-waiting",
    waiting_run="run_no_such_waiting",
    call="no-such-call",
    approval="no-such-approval",
    running="no-such-running",
    queued="run_no_such_queued",
    message="no-such-message",
    checkpoint="no-such-checkpoint",
    schedule="no-such-schedule",
)

Ask: TypeAlias = Callable[[httpx2.Client, Names], httpx2.Response]
Look: TypeAlias = Callable[[httpx2.Response], bool]


@dataclass(frozen=True)
class Rule:
    """What others get: with `absent`, the answer to a question about something that does not exist."""

    ask: Ask
    told: Look
    absent: bool = True


def is_code(status: int, code: str) -> Look:
    return lambda answer: (answer.status_code, answer.json().get("code")) == (status, code)


def is_text(status: int, text: str) -> Look:
    return lambda answer: answer.status_code == status and text in answer.text


NO_SESSION = is_code(404, "session_not_found")
NO_SCHEDULE = is_code(404, "schedule_not_found")
NO_RESPONSE = is_text(404, "There is no response")
FORBIDDEN = is_code(403, "forbidden")
TAKEN_RESPONSE = is_text(403, "belongs to another user")


def there_or_not(answer: httpx2.Response) -> bool:
    return answer.status_code in (200, 404)


def is_read(answer: httpx2.Response) -> bool:
    return answer.status_code == 200


def get(path: str) -> Ask:
    return lambda client, names: client.get(path.format(**vars(names)))


def delete(path: str) -> Ask:
    return lambda client, names: client.delete(path.format(**vars(names)))


def post(path: str, body: Callable[[Names], dict[str, Any]] = lambda _: {}) -> Ask:
    return lambda client, names: client.post(path.format(**vars(names)), json=body(names))


def absent(ask: Ask, told: Look = NO_SESSION) -> list[Rule]:
    return [Rule(ask, told)]


def listed(path: str) -> list[Rule]:
    """A listing, in which operators find everything."""
    return [Rule(get(f"{path}?limit=200"), is_read, absent=False)]


def of_nobody(path: str) -> list[Rule]:
    """A route that tells nothing of any user."""
    return [Rule(get(path), there_or_not, absent=False)]


def taken(ask: Ask, told: Look = FORBIDDEN) -> list[Rule]:
    """A route on which a caller chooses an id, and learns that it is taken."""
    return [Rule(ask, told, absent=False)]


def result_for(names: Names) -> dict[str, Any]:
    return {"kind": "client-tool-result", "toolCallId": names.call, "result": 1}


def approval_for(names: Names) -> dict[str, Any]:
    return {"kind": "approval-response", "toolCallId": names.call, "approvalId": names.approval, "approved": True}


def said(text: str, message_id: str = "m-2") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def agui(names: Names, session_id: str, **more: Any) -> dict[str, Any]:
    messages = [{"id": "m-2", "role": "user", "content": "hello"}]
    return {"threadId": session_id, "runId": "x", "messages": messages, "forwardedProps": {}, **more}


def responses_of(names: Names) -> str:
    return f"/v1/responses/{response_id(names.waiting, names.waiting_run)}"


def responses(method: str, rest: str = "") -> Ask:
    return lambda client, names: client.request(method, responses_of(names) + rest)


def respond(**more: Callable[[Names], Any]) -> Ask:
    def ask(client: httpx2.Client, names: Names) -> httpx2.Response:
        body = {"model": "director", "input": "hello", **{name: value(names) for name, value in more.items()}}
        return client.post("/v1/responses", json=body)

    return ask


def a2a(method: str, params: Callable[[Names], dict[str, Any]]) -> Ask:
    def ask(client: httpx2.Client, names: Names) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params(names)}
        return client.post("/a2a/director", json=message)

    return ask


def a2a_message(**more: str) -> dict[str, Any]:
    return {"message": {"messageId": "m-2", "role": "ROLE_USER", "parts": [{"data": {"approved": True}}], **more}}


def task_of(names: Names) -> str:
    return task_id(names.waiting, names.message)


NO_TASK = is_text(200, "There is no task")
A2A = [
    *(Rule(a2a(method, lambda n: {"id": task_of(n)}), NO_TASK) for method in ("GetTask", "CancelTask")),
    Rule(a2a("SubscribeToTask", lambda n: {"id": task_of(n)}), NO_TASK),
    Rule(a2a("SendMessage", lambda n: a2a_message(taskId=task_of(n))), NO_TASK),
    Rule(a2a("SendStreamingMessage", lambda n: a2a_message(taskId=task_of(n))), NO_TASK),
    Rule(a2a("ListTasks", lambda n: {"contextId": n.waiting}), is_text(200, '"tasks":[]')),
    Rule(a2a("ListTasks", lambda _: {}), is_read, absent=False),
    Rule(a2a("SendMessage", lambda n: a2a_message(contextId=n.waiting)), is_text(403, "another user"), absent=False),
]  # fmt: skip


def tool(path: str, name: str, arguments: Callable[[Names], dict[str, Any]], **params: Callable[[Names], Any]) -> Ask:
    def ask(client: httpx2.Client, names: Names) -> httpx2.Response:
        raw = Raw(client, path=path)
        message = raw.call(name, arguments(names))
        message["params"] |= {key: value(names) for key, value in params.items()}
        return raw.post(message, accept="application/json")

    return ask


def mcp_answer(path: str) -> Ask:
    def ask(client: httpx2.Client, names: Names) -> httpx2.Response:
        question = write_asked(Asked(session_id=names.waiting, tool_call_id=names.call, follower="f"))
        answer = {"action": "accept", "content": {"approved": True}}
        return Raw(client, path=path).post({"jsonrpc": "2.0", "id": question, "result": answer})

    return ask


def place(names: Names) -> str:
    return write_place(Place(session_id=names.waiting, asked_id=names.message, rpc_id=1))


def mcp(path: str) -> list[Rule]:
    told = is_text(200, "There is no session")
    about = (
        tool(path, "director", lambda n: {"message": "hello", "session_id": n.waiting}),
        tool(path, "director", lambda n: {"message": "x"}, requestState=place),
        tool(path, "session__answer", lambda n: {"session_id": n.waiting, "approved": True}),
        tool(path, "session__continue", lambda n: {"session_id": n.waiting}),
        tool(path, "session__stop", lambda n: {"session_id": n.running}),
        tool(path, "session__pending", lambda n: {"session_id": n.waiting}),
    )
    everything = tool(path, "session__pending", lambda _: {})
    return [
        *(Rule(ask, told) for ask in about),
        Rule(mcp_answer(path), is_text(202, "")),
        Rule(everything, is_text(200, "items"), absent=False),
    ]


def come_back(path: str) -> list[Rule]:
    def ask(client: httpx2.Client, names: Names) -> httpx2.Response:
        return Raw(client, path=path).come_back(place(names))

    return [Rule(ask, is_text(404, "There is no session"))]


def stop(names: Names) -> dict[str, Any]:
    return {"sessionId": names.running}


RULES: dict[tuple[str, str], list[Rule]] = {
    ("POST", "/start"): taken(
        post("/start", lambda n: {"agentType": "director", "sessionId": n.waiting, "message": "hello"})
    ),
    ("POST", "/execute"): [
        *taken(post("/execute", lambda n: {"sessionId": n.waiting, "message": "hello", "agentType": "director"})),
        *taken(post("/execute", lambda n: {"sessionId": n.running, "message": "hello", "ifRunning": "steer"})),
        *taken(post("/execute", lambda n: {"sessionId": n.running, "message": "hello", "ifRunning": "interrupt"})),
    ],
    ("POST", "/resume"): absent(post("/resume", lambda n: {"sessionId": n.waiting, "runId": n.waiting_run})),
    ("POST", "/retry"): absent(post("/retry", lambda n: {"sessionId": n.waiting})),
    ("POST", "/rewind"): absent(post("/rewind", lambda n: {"sessionId": n.waiting, "checkpointId": "beginning"})),
    ("POST", "/branch"): [
        *absent(post("/branch", lambda n: {"sessionId": n.waiting, "newSessionId": "mine now"})),
    ],
    ("GET", "/sse"): [
        *absent(get("/sse?sessionId={running}")),
        *absent(get("/sse?sessionId={running}&runId={queued}")),
    ],
    ("GET", "/result"): [
        *absent(get("/result?sessionId={waiting}")),
        *absent(get("/result?sessionId={running}&runId={queued}&wait=1")),
    ],
    ("GET", "/status"): absent(get("/status?sessionId={waiting}")),
    ("POST", "/interrupt"): [
        *absent(post("/interrupt", stop)),
        *absent(post("/interrupt", lambda n: {**stop(n), "runId": n.queued})),
    ],
    ("POST", "/abort"): absent(post("/abort", stop)),
    ("POST", "/submit-tool-result"): [
        *absent(post("/submit-tool-result", lambda n: {"sessionId": n.waiting, **result_for(n)})),
        *absent(post("/submit-tool-result", lambda n: {"sessionId": n.waiting, **approval_for(n)})),
    ],
    ("GET", "/workspace"): absent(get("/workspace?sessionId={waiting}")),
    ("POST", "/chat"): [
        *taken(post("/chat", lambda n: {"id": n.waiting, "message": said("hello")})),
        *taken(post("/chat", lambda n: {"id": n.running, "message": said("hello"), "ifRunning": "steer"})),
        *taken(post("/chat", lambda n: {"id": n.waiting, "message": said("publish"), "trigger": "regenerate-message"})),
    ],
    ("GET", "/chat/{session_id}/stream"): absent(get("/chat/{running}/stream?after=1"), is_text(204, "")),
    ("POST", "/chat/{session_id}/submit-tool-result"): absent(
        post("/chat/{waiting}/submit-tool-result", approval_for)
    ),
    ("POST", "/chat/{session_id}/interrupt"): absent(post("/chat/{running}/interrupt")),
    ("POST", "/chat/{session_id}/abort"): absent(post("/chat/{running}/abort")),
    ("POST", "/agui/{agent}"): [
        *taken(post("/agui/director", lambda n: agui(n, n.waiting))),
        *taken(post("/agui/director", lambda n: agui(n, n.running, messages=[]))),
    ],
    ("POST", "/a2a/{agent}"): A2A,
    ("GET", "/a2a/{agent}/.well-known/agent-card.json"): of_nobody("/a2a/director/.well-known/agent-card.json"),
    ("GET", "/.well-known/agent-card.json"): of_nobody("/.well-known/agent-card.json"),
    ("POST", "/mcp"): mcp("/mcp"),
    ("POST", "/mcp/{agent}"): mcp("/mcp/director"),
    ("GET", "/mcp"): come_back("/mcp"),
    ("GET", "/mcp/{agent}"): come_back("/mcp/director"),
    ("POST", "/v1/responses"): [
        *taken(respond(conversation=lambda n: n.waiting), TAKEN_RESPONSE),
        Rule(
            respond(previous_response_id=lambda n: response_id(n.waiting, n.waiting_run)),
            is_text(400, "There is no response"),
        ),
    ],
    ("GET", "/v1/responses/{response_id}"): [
        *absent(responses("GET"), NO_RESPONSE),
        *absent(responses("GET", "?stream=true"), NO_RESPONSE),
    ],
    ("POST", "/v1/responses/{response_id}/cancel"): absent(responses("POST", "/cancel"), NO_RESPONSE),
    ("DELETE", "/v1/responses/{response_id}"): absent(responses("DELETE"), NO_RESPONSE),
    ("GET", "/v1/responses/{response_id}/input_items"): absent(responses("GET", "/input_items"), NO_RESPONSE),
    ("GET", "/v1/models"): of_nobody("/v1/models"),
    ("GET", "/v1/models/{model}"): of_nobody("/v1/models/director"),
    ("GET", "/sessions"): listed("/sessions"),
    ("GET", "/pending"): listed("/pending"),
    ("GET", "/usage"): [
        Rule(get("/usage"), is_read, absent=False),
        *absent(get("/usage?sessionId={waiting}&runId={waiting_run}")),
    ],
    ("GET", "/caller"): of_nobody("/caller"),
    ("GET", "/sessions/{session_id}"): absent(get("/sessions/{waiting}")),
    ("DELETE", "/sessions/{session_id}"): absent(delete("/sessions/{waiting}")),
    **{
        ("GET", f"/sessions/{{session_id}}/{what}"): absent(get(f"/sessions/{{running}}/{what}"))
        for what in (
            "snapshot", "messages", "ui-messages", "runs", "queue", "tail", "checkpoints", "children", "usage",
        )
    },
    ("POST", "/sessions/{session_id}/queue/{run_id}"): [
        *absent(post("/sessions/{running}/queue/{queued}")),
        *absent(post("/sessions/{running}/queue/{queued}", lambda _: {"message": "mine", "steers": True})),
    ],
    ("DELETE", "/sessions/{session_id}/queue/{run_id}"): absent(delete("/sessions/{running}/queue/{queued}")),
    ("GET", "/schedules"): listed("/schedules"),
    ("GET", "/schedules/{schedule_id}"): absent(get("/schedules/{schedule}"), NO_SCHEDULE),
    ("PUT", "/schedules/{schedule_id}"): [
        *taken(
            lambda client, names: client.put(
                f"/schedules/{names.schedule}", json={"agentType": "director", "message": "mine", "everyMs": 60_000}
            ),
            is_code(403, "not_the_owner"),
        ),
        *taken(
            lambda client, names: client.put(
                "/schedules/my-own",
                json={
                    "agentType": "director", "message": "mine", "everyMs": 60_000, "sessionId": names.waiting,
                },
            )
        ),
    ],
    ("POST", "/schedules/{schedule_id}/pause"): absent(post("/schedules/{schedule}/pause"), NO_SCHEDULE),
    ("POST", "/schedules/{schedule_id}/resume"): absent(post("/schedules/{schedule}/resume"), NO_SCHEDULE),
    ("DELETE", "/schedules/{schedule_id}"): absent(delete("/schedules/{schedule}"), NO_SCHEDULE),
}  # fmt: skip


@pytest.fixture(autouse=True)
def an_open_gate() -> None:
    """It stays shut between the tests, so that the conversation in progress stays so."""


@pytest.fixture(scope="module")
def owned() -> Iterator[tuple[LiveServer, Names]]:
    """A server with conversations and a schedule of Ann's, and nothing of anybody else's."""
    with LiveServer(agent_server(executor={"janitor_seconds": None})) as live, live.client() as ann:
        gate.shut(2, only="And")
        order = [{"content": "publish", "id": "anns-message"}]
        ann.post("/start", json={"agentType": "director", "sessionId": "anns-waiting", "message": order})
        status = settled(ann, "anns-waiting")
        [row] = status["pending"]
        start(ann, "anns-running", f"long {SECRET}")
        later = {"sessionId": "anns-running", "message": SECRET, "ifRunning": "enqueue"}
        queued = ann.post("/execute", json=later).json()["runId"]
        every_day = {"agentType": "director", "message": SECRET, "everyMs": 86_400_000, "at": 4_000_000_000_000}
        assert ann.put("/schedules/anns-schedule", json=every_day).status_code == 200
        names = Names(
            waiting="anns-waiting",
            waiting_run=status["runId"],
            call=row["toolCallId"],
            approval=row["approvalId"],
            running="anns-running",
            queued=queued,
            message="anns-message",
            checkpoint=ann.get("/sessions/anns-waiting/checkpoints").json()["items"][0]["checkpointId"],
            schedule="anns-schedule",
        )
        yield live, names
        gate.open()


def of_ann(client: httpx2.Client, names: Names) -> list[Any]:
    paths = (
        "/status?sessionId={waiting}", "/status?sessionId={running}", "/sessions/{waiting}/messages",
        "/sessions/{running}/queue", "/schedules/{schedule}", "/sessions", "/pending", "/schedules",
    )  # fmt: skip
    return [client.get(path.format(**vars(names))).json() for path in paths]


def with_names_of(names: Names, other: Names, text: str) -> str:
    for given, instead in sorted(zip(astuple(names), astuple(other), strict=True), key=lambda pair: -len(pair[0])):
        text = text.replace(given, instead)
    return text


@pytest.mark.parametrize("token", [BEN, OPS], ids=["another user", "an operator"])
def test_nobody_else_reads_answers_or_stops_a_session(owned: tuple[LiveServer, Names], token: str) -> None:
    """Not even that it exists is told: the answer is that about something that is not there."""
    live, names = owned
    with live.client() as ann, live.client(token) as other:
        before = of_ann(ann, names)
        assert before[1]["runStatus"] == "running"
        for route, rules in RULES.items():
            for place, rule in enumerate(rules):
                answer = rule.ask(other, names)
                assert rule.told(answer), (route, place, answer.status_code, answer.text)
                if rule.absent:
                    missing = rule.ask(other, MISSING)
                    shown = with_names_of(names, MISSING, answer.text)
                    assert (answer.status_code, shown) == (missing.status_code, missing.text), (route, place)
                elif token == BEN:
                    assert SECRET not in answer.text, route
                    assert '"anns-' not in answer.text, route
        assert of_ann(ann, names) == before


def crossed_task(names: Names) -> dict[str, Any]:
    return {"id": task_id(names.running, names.message)}


def crossed_response(method: str, rest: str = "") -> Ask:
    return lambda client, names: client.request(
        method, f"/v1/responses/{response_id(names.running, names.waiting_run)}{rest}"
    )


def crossed_place(client: httpx2.Client, names: Names) -> httpx2.Response:
    return Raw(client).come_back(write_place(Place(session_id=names.running, asked_id=names.message, rpc_id=1)))


RUNS = ("waiting_run", "queued")
CROSSED: list[Ask] = [
    *(get(f"/sse?sessionId={{running}}&runId={{{run}}}") for run in RUNS),
    *(get(f"/result?sessionId={{running}}&runId={{{run}}}") for run in RUNS),
    get("/usage?sessionId={running}&runId={waiting_run}"),
    *(post(path, lambda n, run=run: {**stop(n), "runId": getattr(n, run)})
      for path in ("/interrupt", "/abort") for run in RUNS),
    post("/resume", lambda n: {**stop(n), "runId": n.waiting_run}),
    post("/retry", lambda n: {**stop(n), "runId": n.waiting_run}),
    post("/resume", lambda n: {**stop(n), "mode": "from_checkpoint", "checkpointId": n.checkpoint}),
    post("/rewind", lambda n: {**stop(n), "checkpointId": n.checkpoint}),
    post("/branch", lambda n: {**stop(n), "newSessionId": "mine now", "checkpointId": n.checkpoint}),
    post("/sessions/{running}/queue/{queued}", lambda _: {"message": "mine", "steers": True}),
    delete("/sessions/{running}/queue/{queued}"),
    post("/submit-tool-result", lambda n: {**stop(n), **approval_for(n)}),
    post("/chat/{running}/submit-tool-result", approval_for),
    *(a2a(method, crossed_task) for method in ("GetTask", "CancelTask", "SubscribeToTask")),
    crossed_response("GET"),
    crossed_response("POST", "/cancel"),
    crossed_response("DELETE"),
    crossed_place,
    tool("/mcp", "session__answer", lambda n: {"session_id": n.running, "tool_call_id": n.call, "approved": True}),
]  # fmt: skip


def test_nothing_of_another_is_reached_from_a_session_of_ones_own(owned: tuple[LiveServer, Names]) -> None:
    live, names = owned
    with live.client() as ann, live.client(BEN) as ben:
        start(ben, "bens-own", "search")
        settled(ben, "bens-own")
        before, mine = of_ann(ann, names), ben.get("/sessions/bens-own/runs").json()
        crossed, missing = (replace(each, running="bens-own", waiting="bens-own") for each in (names, MISSING))
        for place, ask in enumerate(CROSSED):
            answer, absent_one = ask(ben, crossed), ask(ben, missing)
            shown = with_names_of(crossed, missing, answer.text)
            # The time, and the name of a place, in which the caller finds again what it asked for.
            shown, expected = (re.sub(r'"timestamp":\d+|^id: \S+', "", text) for text in (shown, absent_one.text))
            assert (answer.status_code, shown) == (absent_one.status_code, expected), place
            assert answer.status_code < 500, place
            assert SECRET not in answer.text, place
        assert of_ann(ann, names) == before
        assert ben.get("/sessions/bens-own/runs").json() == mine


def test_every_route_has_a_rule_of_whose_it_is() -> None:
    assert set(RULES) == {(each.method, each.path) for each in OPERATIONS}
