"""Stored sessions over HTTP: pages that do not overlap, and deletion."""

import httpx2
import pytest

from tests.server.agents import gate
from tests.server.live import wait_until
from tests.server.page import Page
from tests.server.test_executor_routes import chunks, settled, start


def test_pages_of_history_join_without_gaps(page: Page) -> None:
    for order in ("one", "search", "three"):
        page.say(order)
    whole = page.snapshot()["messages"]
    assert page.messages == whole
    pages: list[list[dict]] = []
    offset = 0
    while True:
        got = page.client.get(f"/sessions/{page.chat_id}/ui-messages", params={"offset": offset, "limit": 4}).json()
        pages.insert(0, got["items"])
        offset += len(got["items"])
        if not got["hasMore"]:
            break
    assert [message for each in pages for message in each] == whole
    assert page.client.get(f"/sessions/{page.chat_id}/snapshot", params={"limit": 2}).json()["messages"] == whole[-2:]
    raw = page.client.get(f"/sessions/{page.chat_id}/messages", params={"limit": 3}).json()
    assert [item["sequence"] for item in raw["items"]] == [raw["total"], raw["total"] - 1, raw["total"] - 2]
    assert [run["turn"] for run in page.client.get(f"/sessions/{page.chat_id}/runs").json()["items"]] == [3, 2, 1]


def test_sessions_are_listed_newest_first_and_filtered(ben: httpx2.Client, session_id: str) -> None:
    for number in range(3):
        start(ben, f"{session_id} {number}", "hello" if number else "publish")
        settled(ben, f"{session_id} {number}")
    listed = ben.get("/sessions", params={"limit": 2, "agentType": "director"}).json()
    assert [item["sessionId"] for item in listed["items"]] == [f"{session_id} 2", f"{session_id} 1"]
    assert listed["hasMore"] is True
    active = ben.get("/sessions", params={"status": "active", "limit": 200}).json()["items"]
    assert f"{session_id} 0" in {item["sessionId"] for item in active}
    waiting = ben.get("/pending", params={"toolName": "publish", "limit": 200}).json()["items"]
    assert f"{session_id} 0" in {item["sessionId"] for item in waiting}


def test_what_waits_is_read_oldest_first_in_pages_that_join(ben: httpx2.Client, session_id: str) -> None:
    for number in range(3):
        start(ben, f"{session_id} {number}", "publish", tags=[f"tag {number % 2}"])
        settled(ben, f"{session_id} {number}")
    newest = ben.get("/pending", params={"limit": 200}).json()
    oldest: list[dict] = []
    while len(oldest) < newest["total"]:
        asked = {"order": "oldest", "kind": "approval", "offset": len(oldest), "limit": 2}
        oldest += ben.get("/pending", params=asked).json()["items"]
    assert oldest == newest["items"][::-1]
    past = ben.get("/pending", params={"order": "oldest", "offset": newest["total"] + 5}).json()
    assert (past["items"], past["total"], past["hasMore"]) == ([], newest["total"], False)
    assert ben.get("/pending", params={"kind": "question"}).json()["items"] == []
    for wrong in ({"order": "biggest"}, {"kind": "errand"}):
        assert ben.get("/pending", params=wrong).json()["code"] == "validation_error"
    tagged = ben.get("/sessions", params={"tag": "tag 1"}).json()["items"]
    assert [item["sessionId"] for item in tagged] == [f"{session_id} 1"]


def test_a_session_is_looked_into_rewound_branched_and_retried(ben: httpx2.Client, session_id: str) -> None:
    start(ben, session_id, "delegate")
    waiting = settled(ben, session_id)["pending"][0]
    [child] = ben.get(f"/sessions/{session_id}/children").json()["items"]
    assert (child["agentType"], child["toolCallId"], child["location"]) == ("helper", "call_1_1", "local")
    assert waiting["sessionId"] == child["sessionId"]
    assert ben.get(f"/sessions/{child['sessionId']}/children").json() == {"items": []}

    [first] = ben.get(f"/sessions/{session_id}/checkpoints").json()["items"]
    assert (first["stepCount"], first["messageCount"]) == (1, 2)
    branch = {"sessionId": session_id, "newSessionId": f"{session_id} b", "checkpointId": first["checkpointId"]}
    made = ben.post("/branch", json=branch)
    assert (made.status_code, made.json()["userId"]) == (200, "ben")
    assert ben.post("/branch", json=branch).json()["code"] == "session_already_exists"
    refused = ben.post("/branch", json={**branch, "newSessionId": "n", "checkpointId": "cp-none"})
    assert (refused.status_code, refused.json()["code"]) == (404, "checkpoint_not_found")

    back = ben.post("/rewind", json={"sessionId": session_id, "checkpointId": "beginning"})
    assert (back.status_code, back.json()["status"], back.json()["messageCount"]) == (200, "interrupted", 0)
    assert ben.get(f"/sessions/{session_id} b").json()["messageCount"] > 0
    refused = ben.post("/rewind", json={"sessionId": child["sessionId"], "checkpointId": "beginning"})
    assert refused.status_code in (404, 409)

    failed = f"{session_id} f"
    start(ben, failed, "fail")
    assert settled(ben, failed)["status"] == "failed"
    again = ben.post("/retry", json={"sessionId": failed})
    assert again.status_code == 200
    assert settled(ben, failed)["turn"] == 2
    assert ben.post("/retry", json={"sessionId": f"{session_id} b"}).status_code == 409


def test_the_tail_goes_on_where_the_messages_end(ann: httpx2.Client, session_id: str) -> None:
    gate.shut(6)
    start(ann, session_id, "long tale")
    wait_until(lambda: ann.get(f"/sessions/{session_id}/tail").json()["chunks"])
    tail = ann.get(f"/sessions/{session_id}/tail").json()
    stored = ann.get(f"/sessions/{session_id}/messages").json()["items"]
    assert (tail["run"]["status"], tail["messageCount"], len(stored)) == ("running", 1, 1)
    gate.open()
    settled(ann, session_id)
    later = [event["data"] for event in chunks(ann, session_id, tail["sequence"]) if "event" not in event]
    said = [chunk for chunk in (*tail["chunks"], *later) if chunk["type"] == "text_delta"]
    [reply] = [each["message"] for each in ann.get(f"/sessions/{session_id}/messages").json()["items"][:1]]
    assert "".join(chunk["delta"] for chunk in said) == reply["text"]
    assert {f"{chunk['runId']}.{chunk['step']}" for chunk in said} == {reply["id"]}


def test_usage_is_told_per_day_and_of_one_run(ben: httpx2.Client, session_id: str) -> None:
    run_id = start(ben, session_id, "search").json()["runId"]
    settled(ben, session_id)
    asked = {"sessionId": session_id, "runId": run_id}
    told = ben.get("/usage", params={**asked, "days": 2}).json()
    used = {(each["sourceType"], each["sourceName"]): each for each in told["items"]}
    assert used["tool", "search"]["calls"] == 1
    assert used["tokens", "scripted"]["tokens"]["total"] > 0
    assert {each["day"] for each in told["items"]} <= {told["since"], told["since"] + 86_400_000}
    assert ben.get("/usage", params={**asked, "runId": "run-none"}).json()["items"] == []
    for wrong in ({"days": 0}, {"days": 400}, {"runId": run_id}):
        assert ben.get("/usage", params=wrong).json()["code"] == "validation_error"
    told = ben.get("/caller").json()
    assert (told["userId"], told["operator"], told["openToAll"], told["agents"]) == ("ben", False, False, ["director"])


def test_usage_is_rolled_up(page: Page) -> None:
    page.say("delegate").decide("publish", True).post()
    usage = page.client.get(f"/sessions/{page.chat_id}/usage").json()
    assert usage["sessions"] == 2
    assert usage["tokens"]["total"] > 0


def test_a_session_is_deleted_with_its_stream(page: Page) -> None:
    page.say("hello")
    path = f"/sessions/{page.chat_id}"
    assert page.client.delete(path).status_code == 204
    assert page.client.get(path).status_code == 404
    assert page.client.get("/sse", params={"sessionId": page.chat_id}).status_code == 404
    page.messages.clear()
    page.say("anew")
    assert page.text.startswith("You said: anew")


@pytest.mark.parametrize("dots", [".", ".."])
def test_a_session_that_no_path_would_lead_to_is_not_begun(ann: httpx2.Client, dots: str) -> None:
    said = {"id": dots, "message": {"role": "user", "parts": [{"type": "text", "text": "hello"}]}}
    begun = {"agentType": "director", "sessionId": dots, "message": "hello"}
    for refused in (ann.post("/start", json=begun), ann.post("/chat", json=said)):
        assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
        assert "choose any other id" in refused.json()["detail"]


def test_a_session_is_not_deleted_under_its_run(ann: httpx2.Client, session_id: str) -> None:
    gate.shut(after=1)
    start(ann, session_id, "hello")
    refused = ann.delete(f"/sessions/{session_id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "agent_already_running")
    gate.open()
    settled(ann, session_id)
    assert ann.delete(f"/sessions/{session_id}").status_code == 204


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "offset=-1", "offset=x", "status=odd", "limit=" + "9" * 40])
def test_a_page_that_no_listing_has_is_refused(ann: httpx2.Client, query: str) -> None:
    assert ann.get(f"/sessions?{query}").status_code == 400
