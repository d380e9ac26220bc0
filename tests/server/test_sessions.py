"""Stored sessions over HTTP: pages that do not overlap, and deletion."""

import httpx2
import pytest

from tests.server.agents import gate
from tests.server.page import Page
from tests.server.test_executor_routes import settled, start


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
