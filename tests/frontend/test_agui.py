"""AG-UI's own client, unmodified, against a server process."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest

from tests.frontend.conftest import ChatClient, Library, Site, Tabs
from tests.frontend.site import LINE

OpenClient = Callable[[str], ChatClient]
PAUSE = "twice a day"


@pytest.fixture
def open_client(site: Site, library: Callable[[str], Library]) -> Iterator[OpenClient]:
    """One more tab on a conversation."""
    with closing(Tabs(library("agui"), f"{site.url}/agui/guide")) as tabs:
        yield tabs


def roles(answer: dict[str, Any]) -> list[str]:
    assert answer["error"] is None, answer["error"]
    return [message["role"] for message in answer["messages"]]


def test_an_answer_is_streamed_and_one_who_comes_back_in_the_middle_has_the_same(
    site: Site, open_client: OpenClient, session_id: str
) -> None:
    first, second = open_client(session_id), open_client(session_id)
    seen = first.do("send", text="line", until=PAUSE)
    assert PAUSE in seen["messages"][-1]["content"]
    half = second.do("come_back", until=PAUSE)
    assert roles(half) == ["user", "assistant"]
    site.open_gate()
    while (whole := first.do("look"))["messages"][-1]["content"] != LINE:
        pass
    while (other := second.do("look"))["messages"][-1]["content"] != LINE:
        pass
    assert other["messages"] == whole["messages"]
    again = open_client(session_id).do("come_back")
    assert again["messages"] == whole["messages"]
    assert again["events"][-1]["outcome"] == {"type": "success"}


def test_a_tool_of_the_server_is_a_call_and_its_result(open_client: OpenClient, session_id: str) -> None:
    answer = open_client(session_id).do("send", text="tides")
    assert roles(answer) == ["user", "assistant", "tool", "assistant"]
    _, asked, result, last = answer["messages"]
    assert asked["content"] == "Let me look. "
    assert asked["toolCalls"][0]["function"] == {"name": "tides", "arguments": '{"place":"cove"}'}
    assert (result["toolCallId"], result["content"]) == (asked["toolCalls"][0]["id"], '{"high":6,"low":12}')
    assert last["content"] == "Done with tides."
    assert open_client(session_id).do("come_back")["messages"] == answer["messages"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "booked Petrel"),
        ({"status": "resolved", "payload": {"approved": True, "editedInput": {"boat": "Skua"}}}, "booked Skua"),
        ({"status": "resolved", "payload": False}, "not approved"),
        ({"status": "cancelled"}, "cancelled"),
    ],
    ids=["approved", "edited", "denied", "cancelled"],
)
def test_an_approval_is_an_interrupt_that_any_tab_answers(
    site: Site, open_client: OpenClient, session_id: str, given: dict[str, Any], told: str
) -> None:
    site.open_gate()
    client = open_client(session_id)
    client.do("send", text="book")
    # The client itself refuses to go on as long as nobody answered.
    other = open_client(session_id)
    asked = other.do("come_back")
    (interrupt,) = asked["interrupts"]
    assert (interrupt["reason"], interrupt["metadata"]["input"]) == ("approval", {"boat": "Petrel"})
    assert interrupt["responseSchema"]["required"] == ["approved"]
    answer = other.do("resume", resume=[{"interruptId": interrupt["id"], **given}])
    assert answer["interrupts"] == []
    assert roles(answer) == ["user", "assistant", "tool", "assistant"]
    assert told in answer["messages"][2]["content"]
    # Whoever comes too late is told so, and reads what was decided: a client that is refused could never go on.
    late = client.do("resume", resume=[{"interruptId": interrupt["id"], **given}])
    assert [event["value"] for event in late["events"] if event["type"] == "CUSTOM"] == [
        {"interruptId": interrupt["id"]}
    ]
    assert late["interrupts"] == []
    assert [each["content"] for each in late["messages"]] == [each["content"] for each in answer["messages"]]


def test_a_message_that_comes_along_with_an_answer_is_said_after_it(open_client: OpenClient, session_id: str) -> None:
    client = open_client(session_id)
    (interrupt,) = client.do("send", text="book")["interrupts"]
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    answer = client.do("send", text="tides", parameters={"resume": resume})
    assert [message.get("content") for message in answer["messages"]] == [
        "book",
        "I will book. ",
        "booked Petrel",
        "tides",
        "Let me look. ",
        '{"high":6,"low":12}',
        "Done with tides.",
    ]


def test_a_tool_of_the_client_is_answered_with_a_message(open_client: OpenClient, session_id: str) -> None:
    client = open_client(session_id)
    asked = client.do("send", text="where")
    (waiting,) = asked["events"][-1]["outcome"]["pendingToolCallIds"]
    answer = client.do("result", toolCallId=waiting, content='"the cove"')
    assert roles(answer) == ["user", "assistant", "tool", "assistant"]
    assert answer["messages"][-1]["content"] == "Done with where."


def test_reasoning_and_state_reach_the_client(open_client: OpenClient, session_id: str) -> None:
    client = open_client(session_id)
    answer = client.do("send", text="note")
    assert roles(answer) == ["user", "reasoning", "assistant", "tool", "assistant"]
    assert answer["messages"][1]["content"] == "It may be of use."
    assert answer["state"] == {"notes": ["fog"]}
    again = open_client(session_id).do("come_back")
    assert (again["messages"], again["state"]) == (answer["messages"], answer["state"])
    assert client.do("send", text="note")["state"] == {"notes": ["fog", "fog"]}


def test_what_a_sub_agent_waits_for_is_answered_where_the_user_is(
    site: Site, open_client: OpenClient, session_id: str
) -> None:
    site.open_gate()
    client = open_client(session_id)
    asked = client.do("send", text="crew")
    (interrupt,) = asked["interrupts"]
    begun, ended = [event for event in asked["events"] if event["type"].startswith("SUBAGENT")]
    assert (begun["name"], ended["outcome"]) == ("mate", {"type": "suspended", "interruptIds": [interrupt["id"]]})
    answer = client.do("resume", resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": True}])
    assert roles(answer) == ["user", "assistant", "tool", "assistant"]
    assert answer["messages"][2]["content"] == LINE
    assert [event["type"] for event in answer["events"] if event["type"].startswith("SUBAGENT")] == [
        "SUBAGENT_STARTED",
        "SUBAGENT_FINISHED",
    ]


def test_a_run_whose_server_is_killed_goes_on_for_a_client_that_comes_back(
    site: Site, open_client: OpenClient, session_id: str
) -> None:
    client = open_client(session_id)
    client.do("send", text="line", until=PAUSE)
    site.kill()
    site.start()
    other = open_client(session_id)
    other.do("come_back", until="tide")
    site.open_gate()
    while (answer := other.do("come_back"))["events"][-1]["type"] != "RUN_FINISHED":
        pass
    assert roles(answer) == ["user", "assistant"]
    assert answer["messages"][-1]["content"] == LINE


def test_a_message_may_wait_for_its_turn(site: Site, open_client: OpenClient, session_id: str) -> None:
    first, second = open_client(session_id), open_client(session_id)
    first.do("send", text="line", until=PAUSE)
    second.do("send", text="tides", parameters={"forwardedProps": {"ifRunning": "enqueue"}}, until="RUN_STARTED")
    site.open_gate()
    while second.do("look")["messages"][-1].get("content") != "Done with tides.":
        pass
    assert roles(open_client(session_id).do("come_back")) == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_a_refreshed_page_is_told_which_message_waits_and_has_it_answered_once(
    site: Site, open_client: OpenClient, session_id: str
) -> None:
    first, second, page = open_client(session_id), open_client(session_id), open_client(session_id)
    first.do("send", text="line", until=PAUSE)
    enqueue = {"forwardedProps": {"ifRunning": "enqueue"}}
    second.do("send", text="tides", id="u-2", parameters=enqueue, until="RUN_STARTED")
    # The request has arrived; a moment later its message is stored.
    while not (queue := site.get(f"/sessions/{session_id}/queue")["items"]):
        pass
    half = page.do("come_back", until=PAUSE)
    # What is being written stays the last message of the page.
    assert roles(half) == ["user", "assistant"]
    (told,) = (event["value"] for event in half["events"] if event.get("name") == "helix.queued")
    said = {"id": "u-2", "role": "user", "content": "tides"}
    assert told == [{"runId": queue[0]["runId"], "queuedAt": queue[0]["queuedAt"], "message": said}]
    site.open_gate()
    while page.do("look")["messages"][-1]["content"] != LINE or site.get(f"/sessions/{session_id}/queue")["items"]:
        pass
    answer = page.do("send", text="tides", id="u-2", parameters=enqueue)
    assert roles(answer) == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert not [event for event in answer["events"] if event.get("name") == "helix.queued"]


def test_a_message_may_be_taken_in_by_the_run(site: Site, open_client: OpenClient, session_id: str) -> None:
    first, second = open_client(session_id), open_client(session_id)
    first.do("send", text="long look", until=PAUSE)
    second.do("send", text="length", parameters={"forwardedProps": {"ifRunning": "steer"}}, until="RUN_STARTED")
    site.open_gate()
    for each in (first, second):
        while each.do("look")["messages"][-1].get("content") != "And then":
            pass
    assert roles(first.do("look")) == ["user", "assistant", "tool", "user", "assistant"]
    assert roles(open_client(session_id).do("come_back")) == ["user", "assistant", "tool", "user", "assistant"]
    assert len(site.get(f"/sessions/{session_id}/runs")["items"]) == 1


def test_what_is_refused_is_told(site: Site, open_client: OpenClient, session_id: str) -> None:
    def post(agent: str = "guide", **fields: Any) -> tuple[int, str]:
        body = {"threadId": session_id, "runId": "r", "messages": [], "tools": [], "context": [], **fields}
        answer = httpx2.post(f"{site.url}/agui/{agent}", json=body, timeout=10)
        return answer.status_code, answer.json()["code"]

    hello = {"id": "m-1", "role": "user", "content": "line"}
    assert post("nobody", messages=[hello]) == (404, "unknown_agent")
    assert post() == (400, "validation_error")
    assert post(messages=[{"role": "user", "content": "line"}]) == (400, "validation_error")
    picture = {"type": "image", "source": {"type": "file", "value": "f"}}
    assert post(messages=[{**hello, "content": [picture]}]) == (400, "validation_error")
    assert post(messages=[hello], forwardedProps={"ifRunning": "later"}) == (400, "validation_error")
    open_client(session_id).do("send", text="line", id="m-1", until=PAUSE)
    assert post(messages=[{**hello, "id": "m-2"}]) == (409, "agent_already_running")
    site.open_gate()
