"""The executor's operations over real HTTP."""

from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.server.agents import gate
from tests.server.live import wait_until
from tests.server.page import events


def start(client: httpx2.Client, session_id: str, order: str, **more: Any) -> httpx2.Response:
    return client.post("/start", json={"agentType": "director", "sessionId": session_id, "message": order, **more})


def status(client: httpx2.Client, session_id: str) -> dict[str, Any]:
    return client.get("/status", params={"sessionId": session_id}).json()


def settled(client: httpx2.Client, session_id: str) -> dict[str, Any]:
    """The status once no run is going."""
    return wait_until(lambda: s if (s := status(client, session_id))["runStatus"] != "running" else None)


def approval_of(call: dict[str, Any], session_id: str) -> dict[str, Any]:
    """The body that approves a call."""
    named = {"toolCallId": call["toolCallId"], "approvalId": call["approvalId"]}
    return {"kind": "approval-response", "sessionId": session_id, **named, "approved": True}


def chunks(client: httpx2.Client, session_id: str, after: int = 0) -> list[dict[str, Any]]:
    response = client.get("/sse", params={"sessionId": session_id, "fromSequence": after})
    assert response.status_code == 200, response.text
    return list(events(response.iter_lines()))


def test_a_session_is_started_followed_and_looked_at(ann: httpx2.Client, session_id: str) -> None:
    begun = start(ann, session_id, "hello", state={"published": ["r-0"]}, metadata={"from": "test"}, tags=["t"])
    assert begun.status_code == 200
    assert begun.json()["sessionId"] == begun.json()["streamId"] == session_id
    seen = chunks(ann, session_id)
    assert [int(event["id"]) for event in seen[:-1]] == list(range(1, len(seen)))
    text = "".join(e["data"]["delta"] for e in seen if e["data"].get("type") == "text_delta")
    assert text == "You said: hello. And so on. "
    end = seen[-1]
    assert end["event"] == "end"
    assert (end["data"]["status"], end["data"]["output"]) == ("completed", text)
    now = status(ann, session_id)
    assert (now["status"], now["turn"], now["awaitingClientTool"], now["pending"]) == ("completed", 1, False, [])
    assert now["runId"] == begun.json()["runId"]
    detail = ann.get(f"/sessions/{session_id}").json()
    assert detail["state"] == {"published": ["r-0"]}
    assert (detail["metadata"], detail["tags"], detail["userId"]) == ({"from": "test"}, ["t"], "ann")


def test_a_session_without_an_id_gets_one(ann: httpx2.Client) -> None:
    begun = ann.post("/start", json={"agentType": "director", "message": [{"content": "hello"}]}).json()
    assert settled(ann, begun["sessionId"])["status"] == "completed"


def test_the_same_start_again_gives_the_running_session_and_a_settled_one_is_refused(
    ann: httpx2.Client, session_id: str
) -> None:
    gate.shut(after=1)
    first = start(ann, session_id, "hello").json()
    assert start(ann, session_id, "hello").json() == first
    gate.open()
    settled(ann, session_id)
    refused = start(ann, session_id, "hello")
    assert (refused.status_code, refused.json()["code"]) == (409, "already_completed")


def test_a_start_answers_with_a_session_that_waits(ann: httpx2.Client, session_id: str) -> None:
    first = start(ann, session_id, "publish").json()
    assert settled(ann, session_id)["runStatus"] == "suspended_client_tool"
    assert start(ann, session_id, "publish").json() == first


def test_an_agent_nobody_knows_or_that_others_delegate_to_is_not_found(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "delegate")
    settled(ann, session_id)
    for name in ("nobody", "helper"):
        refused = ann.post("/start", json={"agentType": name, "message": "hello"})
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_agent")
        assert "director" in refused.json()["detail"].partition("; there are: ")[2]
        assert "helper" not in refused.json()["detail"].partition("; there are: ")[2]


def test_an_approval_is_submitted_and_the_session_resumed(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "publish")
    waiting = settled(ann, session_id)
    assert waiting["awaitingClientTool"] is True
    (call,) = waiting["pending"]
    assert call["input"] == {"report_id": "r-1"}
    assert chunks(ann, session_id)[-1]["data"]["status"] == "suspended_client_tool"
    still = ann.post("/resume", json={"sessionId": session_id})
    assert (still.status_code, still.json()["code"]) == (409, "still_waiting")

    answer = approval_of(call, session_id)
    told = ann.post("/submit-tool-result", json=answer).json()
    assert told == {"outcome": "accepted", "continuation": "resume", "stillWaiting": 0}
    # The response may have been lost, so whoever asks again is told what is needed now.
    assert ann.post("/submit-tool-result", json=answer).json() == {**told, "outcome": "already_completed"}
    resumed = ann.post("/resume", json={"sessionId": session_id})
    assert resumed.status_code == 200
    now = settled(ann, session_id)
    assert (now["status"], now["turn"]) == ("completed", 2)
    again = ann.post("/resume", json={"sessionId": session_id})
    assert (again.status_code, again.json()["code"]) == (409, "already_completed")
    told = ann.post("/submit-tool-result", json=answer).json()
    assert (told["outcome"], told["continuation"]) == ("already_completed", "nothing")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"approvalId": "another"}, (400, "validation_error")),
        ({"toolCallId": "nothing_like_it"}, (404, "not_found")),
        ({"approved": "yes"}, (400, "validation_error")),
        ({"approvalId": None}, (400, "validation_error")),
        ({"kind": "client-tool-result", "approvalId": ..., "approved": ..., "result": 1}, (400, "validation_error")),
        ({"editedInput": {"report_id": 5}}, (400, "validation_error")),
        ({"approved": False, "editedInput": {"report_id": "r-2"}}, (400, "validation_error")),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_nothing_is_stored(
    ann: httpx2.Client, session_id: str, change: dict[str, Any], code: tuple[int, str]
) -> None:
    start(ann, session_id, "publish")
    (call,) = settled(ann, session_id)["pending"]
    answer = approval_of(call, session_id)
    changed = {name: value for name, value in {**answer, **change}.items() if value is not ...}
    refused = ann.post("/submit-tool-result", json=changed)
    assert (refused.status_code, refused.json()["code"]) == code, refused.text
    assert settled(ann, session_id)["pending"][0]["state"] == "waiting"


def test_a_run_is_interrupted_and_resumed_with_a_message(ann: httpx2.Client, session_id: str) -> None:
    gate.shut(after=3)
    start(ann, session_id, "long story")
    told = ann.post("/interrupt", json={"sessionId": session_id, "reason": "enough"}).json()
    assert told["outcome"] == "interrupt_set"
    now = settled(ann, session_id)
    assert (now["status"], now["interruptReason"]) == ("interrupted", "enough")
    gate.open()
    assert ann.post("/resume", json={"sessionId": session_id, "message": "hello"}).status_code == 200
    assert settled(ann, session_id)["output"].startswith("You said: hello.")
    assert ann.post("/interrupt", json={"sessionId": session_id}).json() == {"outcome": "nothing_running"}


def test_an_aborted_run_has_failed_for_good(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "publish")
    settled(ann, session_id)
    assert ann.post("/abort", json={"sessionId": session_id}).json()["outcome"] == "interrupt_set"
    assert settled(ann, session_id)["status"] == "failed"
    assert chunks(ann, session_id)[-1]["data"]["status"] == "failed"
    assert ann.post("/resume", json={"sessionId": session_id}).json()["code"] == "nothing_to_resume"


def test_a_session_goes_back_to_a_checkpoint(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "search")
    settled(ann, session_id)
    first = next(e["data"]["checkpointId"] for e in chunks(ann, session_id) if e["data"].get("checkpointId"))
    body = {"sessionId": session_id, "mode": "from_checkpoint", "checkpointId": first, "message": "hello"}
    assert ann.post("/resume", json=body).status_code == 200
    assert settled(ann, session_id)["output"].startswith("You said: hello.")
    body["checkpointId"] = "no-such"
    assert ann.post("/resume", json=body).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "with_message"},
        {"mode": "from_checkpoint"},
        {"checkpointId": "c"},
        {"mode": "sideways"},
        {"message": []},
    ],
)
def test_a_resume_that_contradicts_itself_is_refused(ann: httpx2.Client, session_id: str, body: dict[str, Any]) -> None:
    start(ann, session_id, "publish")
    settled(ann, session_id)
    refused = ann.post("/resume", json={"sessionId": session_id, **body})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")


@pytest.mark.parametrize(
    "nothing", ["", " \n", [{"content": ""}], [{"content": []}], [{"content": [{"type": "text", "text": ""}]}]]
)
def test_a_message_that_says_nothing_begins_no_turn(ann: httpx2.Client, session_id: str, nothing: Any) -> None:
    refused = ann.post("/start", json={"agentType": "director", "sessionId": session_id, "message": nothing})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
    assert "is empty" in refused.json()["detail"]
    start(ann, session_id, "hello")
    settled(ann, session_id)
    refused = ann.post("/resume", json={"sessionId": session_id, "message": nothing})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")


@pytest.mark.parametrize(
    ("path", "body", "there_are"),
    [
        ("/start", {"agent": "director", "message": "hello"}, "agentType, message, sessionId, state, metadata, tags"),
        (
            "/submit-tool-result",
            {"kind": "client-tool-result", "toolCallId": "call_1", "answer": 1},
            "toolCallId, sessionId, result, error, approvalId, approved, reason, editedInput",
        ),
    ],
)
def test_who_misspells_a_field_is_told_those_that_there_are(
    ann: httpx2.Client, path: str, body: dict[str, Any], there_are: str
) -> None:
    refused = ann.post(path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
    assert refused.json()["detail"].endswith(f"; valid fields: {there_are}")


@pytest.mark.parametrize(
    ("path", "body", "there_are"),
    [
        ("/execute", {"message": "hello", "ifRunning": "wait"}, "'enqueue', 'interrupt', 'reject', 'steer'"),
        ("/submit-tool-result", {"kind": "answer"}, "'approval-response', 'client-tool-result'"),
    ],
)
def test_who_gets_a_word_wrong_is_told_those_that_there_are(
    ann: httpx2.Client, path: str, body: dict[str, Any], there_are: str
) -> None:
    refused = ann.post(path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
    assert refused.json()["detail"].endswith(f"; valid values: {there_are}")


def test_there_is_no_workspace(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "hello")
    refused = ann.get("/workspace", params={"sessionId": session_id})
    assert (refused.status_code, refused.json()["code"]) == (404, "workspace_not_configured")


@pytest.mark.parametrize("path", ["/status", "/sse", "/workspace"])
def test_a_session_that_is_not_there_is_not_found(ann: httpx2.Client, path: str) -> None:
    refused = ann.get(path, params={"sessionId": "nowhere"})
    assert (refused.status_code, refused.json()["code"]) == (404, "session_not_found")
    assert ann.get(path).status_code == 400


def test_ids_with_a_slash_work_everywhere(ann: httpx2.Client) -> None:
    session_id = "folder/α one/100%/../x"
    start(ann, session_id, "hello")
    settled(ann, session_id)
    quoted = httpx2.QueryParams({"x": session_id})
    path = str(quoted).removeprefix("x=").replace("+", "%20")
    assert ann.get(f"/sessions/{path}").json()["sessionId"] == session_id
    assert ann.get(f"/sessions/{path}/messages").json()["total"] == 2
    assert ann.get(f"/chat/{path}/stream").status_code == 204
    assert ann.get(f"/sessions/{path.replace('%2F', '%00')}").status_code == 400


@pytest.mark.parametrize("session_id", ["plain", "folder/one", "ends/", "100%25", "who?", "a#b"])
def test_a_slash_at_the_end_leads_to_the_same_place(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "hello")
    settled(ann, session_id)
    path = quote(session_id, safe="")
    assert ann.get("/status/", params={"sessionId": session_id}).json()["sessionId"] == session_id
    assert ann.get(f"/sessions/{path}/").json()["sessionId"] == session_id
    assert ann.get(f"/sessions/{path}/messages/").json()["total"] == 2
    assert ann.get(f"/sessions/{path}//").json()["code"] == "not_found"
    assert ann.delete(f"/sessions/{path}/").status_code == 204
    assert ann.get("/").json()["code"] == "not_found"
