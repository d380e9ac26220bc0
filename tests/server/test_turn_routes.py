"""Conversations over plain HTTP: `/execute`, `/result`, and the stream of one run."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from helix_agents import Agent, AgentServer, Executor, ScriptedModel
from tests.server.agents import gate
from tests.server.live import PATIENCE, LiveServer, agent_server, wait_until
from tests.server.page import events


def execute(client: httpx2.Client, session_id: str | None, order: Any, **more: Any) -> httpx2.Response:
    return client.post("/execute", json={"agentType": "director", "sessionId": session_id, "message": order, **more})


def result(client: httpx2.Client, session_id: str, **query: Any) -> dict[str, Any]:
    return client.get("/result", params={"sessionId": session_id, **query}).json()


def test_a_conversation_goes_on_turn_by_turn(ann: httpx2.Client, session_id: str) -> None:
    first = execute(ann, session_id, "hello", state={"published": ["r-0"]}, tags=["t"]).json()
    assert result(ann, session_id, runId=first["runId"], wait=20)["output"] == "You said: hello. And so on. "
    second = ann.post("/execute", json={"sessionId": session_id, "message": "search"}).json()
    told = result(ann, session_id, wait=20)
    assert (told["runId"], told["status"], told["reason"]) == (second["runId"], "completed", "finished")
    assert told["output"].startswith("I was told: ")
    assert ann.get(f"/sessions/{session_id}").json()["state"] == {"published": ["r-0"]}
    assert ann.get(f"/sessions/{session_id}/runs").json()["total"] == 2


def test_the_same_key_again_is_the_same_run(ann: httpx2.Client, session_id: str) -> None:
    first, again = (execute(ann, session_id, "hello", idempotencyKey="k-1").json() for _ in range(2))
    assert again == first
    minted, once_more = (execute(ann, None, "hello", idempotencyKey=session_id).json() for _ in range(2))
    assert minted == once_more
    assert minted["sessionId"] != session_id
    assert execute(ann, None, "hello").json()["sessionId"] != minted["sessionId"]


def test_a_message_to_a_session_at_work_is_refused_queued_or_answered_instead(
    ann: httpx2.Client, session_id: str
) -> None:
    gate.shut(2)
    first = execute(ann, session_id, "long tale").json()
    assert result(ann, session_id)["status"] == "running"
    refused = execute(ann, session_id, "hello")
    assert (refused.status_code, refused.json()["code"]) == (409, "agent_already_running")
    queued = execute(ann, session_id, "hello", ifRunning="enqueue").json()
    assert result(ann, session_id, runId=queued["runId"])["status"] == "queued"
    assert result(ann, session_id, runId=queued["runId"], wait=1)["status"] == "queued"
    stopped = ann.post("/interrupt", json={"sessionId": session_id, "runId": queued["runId"]}).json()
    assert stopped["outcome"] == "interrupt_set"
    assert result(ann, session_id, runId=first["runId"])["status"] == "running"
    instead = execute(ann, session_id, "hello", ifRunning="interrupt").json()
    assert result(ann, session_id, runId=first["runId"], wait=20)["status"] == "interrupted"
    gate.open()
    assert result(ann, session_id, runId=instead["runId"], wait=20)["output"] == "You said: hello. And so on. "


def test_a_message_to_a_session_at_work_is_taken_in_as_it_was_changed(ann: httpx2.Client, session_id: str) -> None:
    gate.shut(2)
    first = execute(ann, session_id, "search").json()
    sent = execute(ann, session_id, "helo", ifRunning="steer").json()
    told = {"runId": sent["runId"], "wait": 1}
    assert result(ann, session_id, **told)["status"] == "queued"
    place = f"/sessions/{session_id}/queue/{sent['runId']}"
    changed = ann.post(place, json={"message": "hello"}).json()
    assert (changed["messages"][0]["content"], changed["steers"], changed["revision"]) == ("hello", True, 1)
    later = execute(ann, session_id, "bye", ifRunning="enqueue").json()
    assert ann.post(f"/sessions/{session_id}/queue/{later['runId']}", json={"steers": True, "first": True}).json()[
        "steers"
    ]
    assert ann.post(f"/sessions/{session_id}/queue/{later['runId']}", json={"steers": False}).json()["steers"] is False
    assert ann.post(place, json={}).json() == changed
    for body in ({"message": " "}, {"steers": "yes"}):
        assert ann.post(place, json=body).json()["code"] == "validation_error"
    gate.open()
    outcome = result(ann, session_id, runId=sent["runId"], wait=20)
    assert (outcome["runId"], outcome["output"]) == (first["runId"], "You said: hello. And so on. ")
    too_late = ann.post(place, json={"steers": False})
    assert (too_late.status_code, too_late.json()["code"]) == (404, "run_not_found")
    assert first["runId"] in too_late.json()["detail"]
    assert ann.delete(place).status_code == 404
    with ann.stream("GET", "/sse", params={"sessionId": session_id, "runId": sent["runId"]}) as response:
        seen = list(events(response.iter_lines()))
    assert {event["data"]["runId"] for event in seen} == {first["runId"]}
    assert result(ann, session_id, runId=later["runId"], wait=20)["output"] == "You said: bye. And so on. "
    refused = execute(ann, session_id, "hello", ifRunning="steer", state={"published": []})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")


def test_who_waits_for_a_message_that_is_taken_back_is_told_so(
    server: LiveServer, ann: httpx2.Client, session_id: str
) -> None:
    gate.shut(2)
    execute(ann, session_id, "long tale")
    later = execute(ann, session_id, "hello", ifRunning="enqueue").json()["runId"]
    query = {"sessionId": session_id, "runId": later, "wait": 20}
    with ThreadPoolExecutor(1) as threads, server.client() as other:
        streams = server.app.open_streams
        waiting = threads.submit(lambda: other.get("/result", params=query))
        wait_until(lambda: server.app.open_streams > streams)
        assert ann.delete(f"/sessions/{session_id}/queue/{later}").status_code == 204
        told = waiting.result(PATIENCE)
    assert (told.status_code, told.json()["code"]) == (409, "queued_turn_dropped")
    gate.open()


def test_a_name_with_a_slash_is_a_name_that_no_run_has(ann: httpx2.Client, session_id: str) -> None:
    execute(ann, session_id, "hello")
    for answer in (
        ann.delete(f"/sessions/{session_id}/queue/a%2Fb"),
        ann.post(f"/sessions/{session_id}/queue/a%2Fb", json={}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")


def test_what_a_run_came_to_is_told_however_it_ended(ann: httpx2.Client, session_id: str) -> None:
    waits = execute(ann, session_id, "publish").json()
    told = result(ann, session_id, wait=20)
    assert told["status"] == "suspended_client_tool"
    [call] = told["pending"]
    assert (call["toolName"], call["input"]) == ("publish", {"report_id": "r-1"})
    execute(ann, session_id, "fail")
    failed = result(ann, session_id, wait=20)
    assert (failed["status"], failed["code"], failed["retryable"]) == ("failed", "provider_refused", False)
    before = result(ann, session_id, runId=waits["runId"])
    assert (before["status"], before["pending"]) == ("suspended_client_tool", [])


def test_only_the_run_that_is_meant_is_stopped(ann: httpx2.Client, session_id: str) -> None:
    first = execute(ann, session_id, "hello").json()
    result(ann, session_id, wait=20)
    gate.shut(2)
    second = execute(ann, session_id, "long tale").json()
    for path in ("/interrupt", "/abort"):
        told = ann.post(path, json={"sessionId": session_id, "runId": first["runId"]}).json()
        assert told == {"outcome": "nothing_running"}
        missing = ann.post(path, json={"sessionId": session_id, "runId": "no-run"})
        assert (missing.status_code, missing.json()["code"]) == (404, "run_not_found")
    told = ann.post("/abort", json={"sessionId": session_id, "runId": second["runId"]}).json()
    assert told == {"outcome": "interrupt_set", "runId": second["runId"]}
    assert result(ann, session_id, wait=20)["status"] == "failed"
    gate.open()


def test_the_stream_of_one_run_begins_and_ends_with_it(ann: httpx2.Client, session_id: str) -> None:
    first = execute(ann, session_id, "hello").json()
    result(ann, session_id, wait=20)
    gate.shut(2)
    execute(ann, session_id, "long tale")
    third = execute(ann, session_id, "search", ifRunning="enqueue").json()
    with ann.stream("GET", "/sse", params={"sessionId": session_id, "runId": third["runId"]}) as response:
        gate.open()
        seen = list(events(response.iter_lines()))
    assert {event["data"]["runId"] for event in seen} == {third["runId"]}
    assert (seen[0]["data"]["type"], seen[-1]["event"], seen[-1]["data"]["status"]) == (
        "run_started",
        "end",
        "completed",
    )
    numbers = [int(event["id"]) for event in seen[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    response = ann.get("/sse", params={"sessionId": session_id, "runId": first["runId"]})
    again = list(events(response.iter_lines()))
    assert {event["data"]["runId"] for event in again} == {first["runId"]}
    rest = ann.get(
        "/sse",
        params={"sessionId": session_id, "runId": third["runId"]},
        headers={"last-event-id": seen[3]["id"]},
    )
    assert list(events(rest.iter_lines())) == seen[4:]


def test_who_reads_a_message_before_it_is_taken_in_reads_the_run_that_took_it_to_its_end(
    ann: httpx2.Client, session_id: str
) -> None:
    gate.shut(2)
    first = execute(ann, session_id, "search").json()
    sent = execute(ann, session_id, "hello", ifRunning="steer").json()
    with ann.stream("GET", "/sse", params={"sessionId": session_id, "runId": sent["runId"]}) as response:
        gate.open()
        *_, last = events(response.iter_lines())
    assert (last["event"], last["data"]["runId"], last["data"]["status"]) == ("end", first["runId"], "completed")


@pytest.mark.parametrize(
    ("method", "path", "more", "told"),
    [
        ("POST", "/execute", {"message": "hello", "agentType": "nobody"}, (404, "unknown_agent")),
        ("POST", "/execute", {"message": " "}, (400, "validation_error")),
        ("POST", "/execute", {"message": "hello", "ifRunning": "wait"}, (400, "validation_error")),
        ("POST", "/execute", {"message": "hello", "metadata": {"helix.x": "1"}}, (400, "validation_error")),
        ("GET", "/result", {"wait": 61}, (400, "validation_error")),
        ("GET", "/result", {"runId": "no-run"}, (404, "run_not_found")),
        ("GET", "/sse", {"runId": "no-run"}, (404, "run_not_found")),
        ("POST", "/resume", {"agentType": "helper"}, (409, "agent_mismatch")),
        ("POST", "/retry", {"agentType": "helper"}, (409, "agent_mismatch")),
    ],
)
def test_what_makes_no_sense_is_refused(
    ann: httpx2.Client, session_id: str, method: str, path: str, more: dict[str, Any], told: tuple[int, str]
) -> None:
    execute(ann, session_id, "hello")
    result(ann, session_id, wait=20)
    given: dict[str, Any] = {"json" if method == "POST" else "params": {"sessionId": session_id, **more}}
    refused = ann.request(method, path, **given)
    assert (refused.status_code, refused.json()["code"]) == told


def test_nobody_speaks_in_the_session_of_another_or_hears_of_it(
    ann: httpx2.Client, ben: httpx2.Client, session_id: str
) -> None:
    execute(ann, session_id, "hello")
    assert execute(ben, session_id, "hello").status_code == 403
    assert ben.get("/result", params={"sessionId": session_id}).status_code == 404


def test_a_server_with_several_agents_wants_to_know_which() -> None:
    pair = [Agent(name=name, model=ScriptedModel(["Yes."])) for name in ("one", "two")]
    executor = Executor.open("memory://", agents=pair)
    with LiveServer(AgentServer(executor, allow_unauthenticated=True)) as server, server.client(None) as client:
        refused = client.post("/execute", json={"message": "hello"})
        assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
        begun = client.post("/execute", json={"message": "hello", "agentType": "two"}).json()
        assert result(client, begun["sessionId"], wait=20)["agentType"] == "two"


def test_who_waits_for_a_result_does_not_hold_up_a_server_that_leaves() -> None:
    app = agent_server()
    with LiveServer(app) as server, server.client() as client, ThreadPoolExecutor(1) as threads:
        gate.shut(2)
        execute(client, "s", "long tale")
        waiting = threads.submit(lambda: result(client, "s", wait=60))
        wait_until(lambda: app.open_streams)
        app.drain()
        assert waiting.result(PATIENCE)["status"] == "running"
        gate.open()
