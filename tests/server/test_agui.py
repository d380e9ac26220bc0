"""AG-UI over plain HTTP: whoever speaks it gets no more, and breaks no more, than who does not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx2
import pytest

from tests.server.agents import gate
from tests.server.live import LiveServer
from tests.server.page import events

HELLO = {"id": "m-1", "role": "user", "content": "hello"}
ODD: tuple[Any, ...] = (None, True, -1, 1e308, "", "x" * 300, "\x00", [], {}, [[]], [None], {"type": "text"})


def asked(session_id: str, **fields: Any) -> dict[str, Any]:
    return {"threadId": session_id, "runId": "r", "messages": [HELLO], "tools": [], "context": [], **fields}


def run(client: httpx2.Client, body: Any, agent: str = "director") -> tuple[int, Any]:
    """The status, and the events or the refusal."""
    with client.stream("POST", f"/agui/{agent}", json=body) as answer:
        if answer.status_code != 200:
            answer.read()
            return answer.status_code, answer.json()
        return 200, [event["data"] for event in events(answer.iter_lines())]


def odd_bodies(session_id: str) -> Iterator[Any]:
    """Requests in which one thing is not what it should be."""
    for name, odd in product(("threadId", "runId", "messages", "state", "resume", "forwardedProps"), ODD):
        yield asked(session_id, **{name: odd})
    for name, odd in product(("id", "role", "content"), ODD):
        yield asked(session_id, messages=[{**HELLO, name: odd}])
    for odd in ODD:
        yield asked(session_id, messages=[{**HELLO, "content": [odd]}])
        yield asked(session_id, messages=[{**HELLO, "content": [{"type": "image", "source": odd}]}])
        yield asked(session_id, resume=[odd])
        yield asked(session_id, resume=[{"interruptId": odd, "status": "resolved"}])


def test_whatever_is_sent_is_answered_with_events_or_refused_with_a_reason(ann: httpx2.Client, session_id: str) -> None:
    for number, body in enumerate(odd_bodies(session_id)):
        if body["threadId"] == session_id:
            body["threadId"] = f"{session_id} {number}"
        status, answer = run(ann, body)
        if status == 200:
            assert (answer[0]["type"], answer[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED"), body
        else:
            assert (status, answer["code"]) in ((400, "validation_error"), (400, "invalid_id")), (body, answer)
    many = [{"type": "text", "text": "x"}] * 257
    assert run(ann, asked(session_id, messages=[{**HELLO, "content": many}]))[0] == 400
    assert run(ann, asked(session_id, state={"x": "y" * (1 << 20)}))[0] == 413
    chat = {"id": session_id, "message": {"id": "m", "role": "user", "parts": many}}
    assert ann.post("/chat", json=chat).json()["code"] == "validation_error"


@pytest.mark.parametrize(
    "text", ["41.9", "true", "null", "[1]", '{"a": 1', "9" * 30, "[" * 70 + "]" * 70, "[" * 100_000 + "]" * 100_000]
)
def test_a_tool_that_returns_text_may_return_any(ann: httpx2.Client, session_id: str, text: str) -> None:
    session_id = f"{session_id[:60]} {text[:20]} {len(text)}"
    order = {**HELLO, "content": "locate"}
    run(ann, {**asked(session_id, messages=[order]), "threadId": session_id})
    [waiting] = ann.get("/status", params={"sessionId": session_id}).json()["pending"]
    result = {"id": "r", "role": "tool", "toolCallId": waiting["toolCallId"], "content": text}
    body = asked(session_id, messages=[order, {"id": "a", "role": "assistant"}, result])
    status, answer = run(ann, {**body, "threadId": session_id})
    assert (status, answer[-1]["outcome"]) == (200, {"type": "success"}), answer
    assert f"I was told: {text}." in str(answer)


def test_a_conversation_of_somebody_else_is_neither_read_nor_answered(
    server: LiveServer, ann: httpx2.Client, ben: httpx2.Client, session_id: str
) -> None:
    order = {**HELLO, "content": "publish"}
    status, answer = run(ann, asked(session_id, messages=[order]))
    [interrupt] = answer[-1]["outcome"]["interrupts"]
    answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    for body in (asked(session_id), asked(session_id, messages=[]), asked(session_id, messages=[], resume=answered)):
        assert run(ben, body)[0] == 403
        with server.client(None) as stranger:
            assert run(stranger, body)[0] == 401
    status, answer = run(ann, asked(session_id, messages=[order], resume=answered))
    assert (status, answer[-1]["outcome"]) == (200, {"type": "success"})


def test_of_tabs_that_send_the_first_message_at_once_all_read_the_one_answer(
    server: LiveServer, ann: httpx2.Client, session_id: str
) -> None:
    def send(_: int) -> tuple[int, Any]:
        with server.client() as client:
            return run(client, asked(session_id))

    with ThreadPoolExecutor(4) as tabs:
        answers = list(tabs.map(send, range(4)))
    assert [status for status, _ in answers] == [200] * 4
    assert ann.get(f"/sessions/{session_id}/runs").json()["total"] == 1


@pytest.mark.parametrize("version", [None, "1.0"])
def test_an_older_client_is_told_nothing_that_it_would_refuse(
    ann: httpx2.Client, session_id: str, version: str | None
) -> None:
    order = {**HELLO, "content": "locate"}
    _, answer = run(ann, asked(session_id, messages=[order], protocolVersion=version))
    outcome = answer[-1]["outcome"]
    assert (outcome["type"], "pendingToolCallIds" in outcome) == ("success", version is not None)


def test_whoever_reads_sees_a_message_where_the_run_took_it_in(
    server: LiveServer, ann: httpx2.Client, session_id: str
) -> None:
    gate.shut(2)
    body = asked(session_id, messages=[{**HELLO, "content": "search"}])
    with ann.stream("POST", "/agui/director", json=body) as answer, server.client() as other:
        following = events(answer.iter_lines())
        seen = [next(following)["data"], next(following)["data"]]
        later = {"sessionId": session_id, "message": "hello", "ifRunning": "steer", "idempotencyKey": "m-2"}
        assert other.post("/execute", json=later).status_code == 200
        gate.open()
        seen += [event["data"] for event in following]
    shown = [each["messages"] for each in seen if each["type"] == "MESSAGES_SNAPSHOT"]
    said = [[message.get("content") for message in each if message["role"] == "user"] for each in shown]
    assert said == [["search"], ["search", "hello"]]
    begun = [each["messageId"] for each in seen if each["type"] == "TEXT_MESSAGE_START"]
    _, again = run(ann, asked(session_id, messages=[]))
    whole = [each["messages"] for each in again if each["type"] == "MESSAGES_SNAPSHOT"][-1]
    assert [each["id"] for each in whole] == [*dict.fromkeys([*(each["id"] for each in shown[-1]), *begun])]
